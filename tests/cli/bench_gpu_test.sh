#!/bin/bash
# SPDX-License-Identifier: MIT
# The benchmarks of GPUs (bench/gpu), as small as can be, on the CUDA driver for tests: results have the bits of the CPU's kernels,
# the table can be made, and a unit whose dtypes are equal calls no kernel.
set -euo pipefail

build=$SHOAL_TEST_BUILD_DIR
gpu=$build/bench/gpu
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export SHOAL_MODULE_PATH=$build/lib/shoal

fake=$build/tests/fakecuda/libcuda.so.1
SHOAL_CUDA=$fake "$gpu/gpu_kernels" --divisor 4096 --samples 1 --json "$scratch/kernels.jsonl" >"$scratch/kernels.txt"
SHOAL_CUDA=$fake "$gpu/gpu_host" --units 2 --steps 1 --json "$scratch/host.jsonl" >"$scratch/host.txt"
export SHOAL_CUDA=$gpu/libgpu_counted.so COUNTED_DRIVER=$fake
"$gpu/gpu_host" --units 4 --steps 2 --json "$scratch/counted.jsonl" >"$scratch/counted.txt"
"$gpu/gpu_host" --load yes --json "$scratch/load.warm-ptx.jsonl" >"$scratch/load.txt"

rows=$(grep -c '"bench": "gpu_kernels"' "$scratch/kernels.jsonl")
right=$(grep -c '"wrong": 0' "$scratch/kernels.jsonl")
if [[ $rows -lt 20 || $rows -ne $right ]]; then
    cat "$scratch/kernels.txt"
    echo "$right of $rows rows are right"
    exit 1
fi
if ! grep '"case": "equal dtypes", "tensors": 12, "gradients": "stored", "zero_grad": "outside"' "$scratch/counted.jsonl" |
    grep '"launches": 0.000' >/dev/null; then
    cat "$scratch/counted.txt"
    echo "a unit whose dtypes are equal has called a kernel"
    exit 1
fi
grep -q '"part": "update", "counted": true' "$scratch/load.warm-ptx.jsonl"

if ! command -v python3 >/dev/null; then
    echo "without the table: there is no python3"
    exit 0
fi
python3 "$SHOAL_TEST_SOURCE_DIR/bench/gpu/table.py" "$scratch" >"$scratch/table.txt"
grep -q '^AdamW GPT-2 124M' "$scratch/table.txt"
grep -q '^equal dtypes, 12 tensors' "$scratch/table.txt"
grep -q '^warm-ptx' "$scratch/table.txt"
