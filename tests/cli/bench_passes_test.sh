#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal bench passes`: rows, keys, exit status, and what bench/compare.pl makes of them. No times: those are the business of
# `make bench`.
# shellcheck source-path=SCRIPTDIR source=bench_common.sh
. "${BASH_SOURCE[0]%/*}/bench_common.sh"
bench_name=(passes)

passes="parse print lint sort remove_dead fuse_schedule fuse_coalesced bucket_gathers bucket_scatters bucket_reduces simple_overlap"
number='[0-9]*\.[0-9]*'
common='{"bench": "passes", "processors": [0-9]*, "ranks": 1'
row="^$common, \"pass\": \"[a-z_]*\", \"section\": \"[0-9.]*\", \"nodes\": [0-9]*, \"ms\": $number, \"cpu_ms\": $number, \"ns_per_node\": $number\\(, \"ratio\": $number\\)\\{0,1\\}, \"wrong\": 0, \"rounds\": 2}\$"
fused="^$common, \"gradients\": 1024, \"nodes\": 5121, \"fuse_schedule_1024_ms\": $number, \"cpu_ms\": $number, \"wrong\": 0, \"rounds\": 2}\$"
captured="^$common, \"layers\": 12, \"nodes\": [0-9]*, \"capture_12_layers_ms\": $number, \"cpu_ms\": $number, \"wrong\": 0, \"rounds\": 2}\$"

bench --json --nodes 100 --nodes 1000 --rounds 2 || complain "failed"
[[ $(grep -c "$fused" "$scratch/out") -eq 1 ]] || complain "no row about 1024 gradients"
[[ $(grep -c "$captured" "$scratch/out") -eq 1 ]] || complain "no row about 12 layers"
for pass in $passes; do
    [[ $(grep "\"pass\": \"$pass\"" "$scratch/out" | grep -c "$row") -eq 2 ]] || complain "not two rows $pass"
    [[ $(grep "\"pass\": \"$pass\"" "$scratch/out" | grep -c '"ratio"') -eq 1 ]] || complain "$pass: not one ratio"
done
if grep -v "$row" "$scratch/out" | grep -v "$fused" | grep -v "$captured" >/dev/null; then
    complain "a row of another form"
fi
cp "$scratch/out" "$scratch/rows"
"$SHOAL_TEST_SOURCE_DIR/bench/compare.pl" "$SHOAL_TEST_SOURCE_DIR/bench/bars.txt" "$scratch/rows" >"$scratch/out" 2>"$scratch/err" ||
    complain "compare.pl failed"
[[ ! -s $scratch/err ]] || complain "compare.pl warns"
grep -q '^passes/1:1/fuse_schedule_1024_ms .* 2.0 \(ok\|short\)$' "$scratch/out" || complain "no bar"
grep -q '^passes/1:1/capture_12_layers_ms .* 50.* \(ok\|short\)$' "$scratch/out" || complain "no bar of capturing"

bench --pass lint --nodes 100 --rounds 1 || complain "failed"
[[ $(grep -vc '^#' "$scratch/out") -eq 1 ]] || complain "more than the pass that was asked for"
grep -q '^#bench  *section  *nodes  *ms  *cpu_ms  *ns_per_node  *ratio  *wrong  *rounds$' "$scratch/out" || complain "no header"
bench --help || complain "no help"
grep -q 'usage: shoal bench passes' "$scratch/out" || complain "no usage"

for pass in $passes capture; do
    grep -qw "$pass" "$scratch/out" || complain "the help does not tell of $pass"
done
many=$(printf -- '--nodes 20 %.0s' {1..9})
refuses "--pass" "--pass nonsense" "--nodes 3" "--nodes many" "--nodes 10x" "--rounds 0" "--rounds 1001" "--what 1" "$many"

[[ $failed == false ]]
