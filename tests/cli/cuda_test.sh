#!/bin/bash
# SPDX-License-Identifier: MIT
# What `shoal info` says of device `cuda` on machines that have no driver, no GPU or another driver, and that a run goes on
# without them.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=false
unset SHOAL_CUDA SHOAL_CUDA_DEVICE FAKECUDA_DEVICES
export SHOAL_MODULE_PATH=$SHOAL_TEST_BUILD_DIR/lib/shoal
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0

# says WORDS VARIABLE=VALUE...: `shoal info` succeeds, and the lines of the device have the words.
says() {
    local words=$1
    shift
    if ! env "$@" "$SHOAL_TEST_TOOL" info >"$scratch/out" 2>&1; then
        echo "shoal info with $*: failed"
        cat "$scratch/out"
        failed=true
    fi
    grep -E '^device +cuda ' "$scratch/out" >"$scratch/line" || true
    if ! grep -qF -- "$words" "$scratch/line"; then
        echo "shoal info with $* does not say '$words' of the device:"
        grep -A1 '^device' "$scratch/out" || echo "nothing"
        failed=true
    fi
    env "$@" "$SHOAL_TEST_TOOL" info --json >"$scratch/json"
    perl -MJSON::PP -e 'local $/; decode_json(<STDIN>)' <"$scratch/json" || {
        echo "shoal info --json with $*: no JSON"
        failed=true
    }
}

fake=$SHOAL_TEST_FAKE_CUDA
says 'SHOAL_CUDA is off' SHOAL_CUDA=off
says 'no CUDA driver: ' SHOAL_CUDA="$scratch/libcuda.so.1"
echo "no library" >"$scratch/text"
says 'no CUDA driver: ' SHOAL_CUDA="$scratch/text"
says 'is older than version 12.0 of CUDA' SHOAL_CUDA="$SHOAL_MODULE_PATH/libshoal_cuda-1.so"
says 'CUDA_ERROR_NO_DEVICE' SHOAL_CUDA="$fake" FAKECUDA_DEVICES=0
says 'SHOAL_CUDA_DEVICE is 2, but there are 2 GPUs' SHOAL_CUDA="$fake" FAKECUDA_DEVICES=2 SHOAL_CUDA_DEVICE=2
says 'compute capability ' SHOAL_CUDA="$fake"
says 'compute capability ' SHOAL_CUDA="$fake" FAKECUDA_DEVICES=2 SHOAL_CUDA_DEVICE=1

# Without the variable, it is what the machine has.
"$SHOAL_TEST_TOOL" info >"$scratch/out"
grep -qE '^device +cuda +(.+, compute capability [0-9]|cannot be used: )' "$scratch/out" || {
    echo "shoal info says nothing of device cuda:"
    cat "$scratch/out"
    failed=true
}

# A machine without a GPU trains as ever.
SHOAL_CUDA=off "$SHOAL_TEST_TOOL" train --mode none --steps 1 --layers 1 --width 16 --heads 1 --context 16 --data "$0" \
    >"$scratch/out" 2>&1 || {
    echo "shoal train without CUDA failed:"
    cat "$scratch/out"
    failed=true
}
[[ $failed == false ]]
