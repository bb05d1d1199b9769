#!/bin/bash
# SPDX-License-Identifier: MIT
# examples/mlp_fsdp.c is examples/mlp_single.c but for at most 30 lines, and ends with the same bits on any number of
# ranks.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=false
limit_s=$((60 * ${SHOAL_TEST_TIME_SCALE:-1}))
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0

diff "$SHOAL_TEST_SOURCE_DIR/examples/mlp_single.c" "$SHOAL_TEST_SOURCE_DIR/examples/mlp_fsdp.c" >"$scratch/diff" ||
    true
n_lines=$(grep -c '^[<>]' "$scratch/diff")
echo "$n_lines lines differ"
if [[ $n_lines -gt 30 ]]; then
    echo "more than 30"
    failed=true
fi

for n in 1 2 3 4 5; do
    "$SHOAL_TEST_BUILD_DIR/examples/mlp_single" "$n" >"$scratch/single"
    if ! timeout "$limit_s" "$SHOAL_TEST_TOOL" run --no-label -n "$n" "$SHOAL_TEST_BUILD_DIR/examples/mlp_fsdp" \
        >"$scratch/ranks"; then
        echo "mlp_fsdp with $n ranks: failed"
        failed=true
    fi
    # Every rank prints what the single process prints.
    for ((i = 0; i < n; i++)); do
        cat "$scratch/single"
    done | sort >"$scratch/wanted"
    if ! sort "$scratch/ranks" | diff "$scratch/wanted" -; then
        echo "mlp_fsdp with $n ranks: other bits than mlp_single $n"
        failed=true
    fi
    if ! grep 'loss fell' "$scratch/single" >/dev/null; then
        echo "mlp_single $n does not learn"
        failed=true
    fi
done

! $failed
