#!/bin/bash
# SPDX-License-Identifier: MIT
# Compiles the kernels of src/cuda/kernels to PTX for GPUs: src/cuda/ptx/<family>.ptx. The results are kept in the tree, so that
# building Shoal takes neither clang nor anything of CUDA.
#
#   scripts/make_ptx.sh              makes them anew
#   scripts/make_ptx.sh --check      whether they are what the sources give, and have no fma and no flushing of subnormals,
#                                    which the CPU's kernels have not
#
# Needs clang 14, whose output does not depend on the machine.
set -euo pipefail
cd "$(dirname "$0")/.."

families=$(sed -nE 's/^CUDA_FAMILY\((\w+)\)$/\1/p' src/cuda/kernels/families.def)
folder=src/cuda/ptx
if [[ ${1:-} == --check ]]; then
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
fi
mkdir -p "$folder"

# compute capability 8.0 and newer: A100, H100, H200, ...
compile() {
    clang-14 -x cuda --cuda-device-only --cuda-gpu-arch=sm_80 -nocudainc -nocudalib --cuda-path=/nonexistent \
        -Wno-unknown-cuda-version -std=c++17 -O3 -ffp-contract=off -Xclang -target-feature -Xclang +ptx74 \
        -Wall -Isrc -Iinclude -S "src/cuda/kernels/$1.cu" -o "$folder/$1.ptx"
}

failed=0
for family in $families; do
    compile "$family"
    if [[ ${1:-} == --check ]] && ! cmp -s "$folder/$family.ptx" "src/cuda/ptx/$family.ptx"; then
        echo "ptx: src/cuda/ptx/$family.ptx is not what $family.cu gives: run scripts/make_ptx.sh" >&2
        failed=1
    fi
    if grep -nE '\bfma\b|\.ftz\b|\.approx\b' "$folder/$family.ptx" >&2; then
        echo "ptx: $family.ptx rounds otherwise than the CPU" >&2
        failed=1
    fi
done
exit $failed
