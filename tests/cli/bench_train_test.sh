#!/bin/bash
# SPDX-License-Identifier: MIT
# bench/train_table.pl: a table of what bench/train.sh measured, with what is missing named, and rows that bars are held against.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
bench=$SHOAL_TEST_SOURCE_DIR/bench
failed=false
complain() {
    echo "$*" >&2
    failed=true
}

# step CASE PROGRAM RANKS MS
step() {
    echo "$1 cores $2 {\"ranks\": $3, \"params\": 1000, \"step_ms_median\": $4, \"compute_ms_median\": 90.0, \"digest\": \"12ab\"}"
}
{
    step 8x1 none 8 100.0
    step 8x1 fsdp 8 104.0
    step 8x1 torch_fsdp 8 416.0
    echo '8x1 cores torch_none {"left_out": "exit status 124"}'
    step alone none 1 50.0
    step alone torch_none 1 40.0
    step 8x1 none 8 100.0
    step 8x1 fsdp 8 104.0
} >"$scratch/rows"
perl "$bench/train_table.pl" --processors 16 "$scratch/rows" "$scratch/json" >"$scratch/out"
grep -qF '| 8x1 | cores | 1000 | 100.0 | 90.0 | 104.0 |  | 1.040 |  | 416.0 | 0.250 |' "$scratch/out" || complain "no row of 8x1"
grep -qF '| alone | - | 1000 | 50.0 | 90.0 |  |  |  | 40.0 |  |  | 1.250 |' "$scratch/out" || complain "no row of alone"
grep -qx 'left out: 8x1 cores torch_none: exit status 124' "$scratch/out" || complain "what is left out is not named"
perl "$bench/compare.pl" "$bench/bars.txt" "$scratch/json" | tr -s ' ' >"$scratch/bars"
for line in 'train_8x1/8:8/ratio 1.040 1.05 ok' 'train_8x1/8:8/torch_ratio 0.250 0.5 ok' 'train_8x2/8:8/ratio - 1.15 absent' \
    'train_alone/1:1/torch_ratio 1.250 1.1 short'; do
    grep -qx "$line" "$scratch/bars" || complain "compare.pl does not say: $line"
done
perl "$bench/train_table.pl" --processors 16 "$scratch/none" "$scratch/json" 2>/dev/null && complain "rows that are not there are read"
"$bench/train.sh" --cases 8y1 2>/dev/null && complain "a case that is none is run"
"$bench/train.sh" --rounds 2>/dev/null && complain "an option without value is taken"

[[ $failed == false ]]
