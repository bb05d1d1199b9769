#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal bench overlap` and `shoal bench functional`: keys, what the numbers say of each other, and exit status; and what
# bench/compare.pl makes of them. No times: those are the business of `make bench`.
# shellcheck source-path=SCRIPTDIR source=bench_common.sh
. "${BASH_SOURCE[0]%/*}/bench_common.sh"

number='-\?[0-9.]*'
common='"processors": [0-9]*, "ranks": [0-9]*, "bytes": [0-9]*, "dtype": "[a-z0-9]*"'
overlap="^{\"bench\": \"overlap\", $common, \"comm_us\": $number, \"compute_us\": $number, \"both_us\": $number, \"hidden\": $number, \"wrong\": 0, \"iterations\": [0-9]*}\$"
functional="^{\"bench\": \"functional\", $common, \"raw_us\": $number, \"functional_us\": $number, \"overhead_us\": $number, \"wrong\": 0, \"iterations\": [0-9]*}\$"

# measures KEYS ARGS...: succeeds with one row of these keys and no wrong element.
measures() {
    local keys=$1
    shift
    bench "$@" --json --iterations 3 || complain "$*: failed"
    grep -q "$keys" "$scratch/out" || complain "$*: other keys"
    [[ $(wc -l <"$scratch/out") -eq 1 ]] || complain "$*: not one row"
}

measures "$overlap" overlap --ranks 2 --bytes 256K
# Of times before they were rounded: each number that is printed is off by up to 0.0005.
exposed="(1 - $(value hidden))"
holds "abs($exposed * $(value comm_us) - ($(value both_us) - $(value compute_us))) <= 0.00051 * (2 + abs$exposed + $(value comm_us))"
measures "$overlap" overlap --ranks 3 --bytes 1000 --dtype bf16
grep -q '"ranks": 3, "bytes": 1000, "dtype": "bf16"' "$scratch/out" || complain "another size"
measures "$overlap" overlap --ranks 1 --bytes 4K
ASAN_OPTIONS=$asan_options measures "$overlap" overlap --bytes 64K --threads
measures "$functional" functional
grep -q '"ranks": 2, "bytes": 1024, "dtype": "f32"' "$scratch/out" || complain "another size"
holds "abs($(value overhead_us) - ($(value functional_us) - $(value raw_us))) < 0.01"
measures "$functional" functional --ranks 3 --bytes 7 --dtype f64
grep -q '"bytes": 8,' "$scratch/out" || complain "not a whole element"
measures "$functional" functional --ranks 1
ASAN_OPTIONS=$asan_options measures "$functional" functional --bytes 100K --threads
# Nothing is hidden then, but everything must be right all the same.
SHOAL_SYNC=1 measures "$overlap" overlap --bytes 64K

# For people: comments, then the columns that docs/benchmarks.md explains.
for name in overlap functional; do
    explains_columns "$name" --bytes 1K --iterations 3
done

for one in overlap functional; do
    bench_name=("$one")
    names_what_it_refuses "--ranks" "--ranks 0" "--bytes" "--bytes 0" "--bytes -1" "--bytes 1Q" "--bytes 2T" "--dtype f31" \
        "--sizes 1K" "--rotate 1M" "--iterations 0" "--symmetric"
done
bench_name=()
bench functional --help || complain "no help"
grep -q -- --bytes "$scratch/out" || complain "the help does not tell"

# Bars: the best round counts, on machines that have the processors.
row() {
    echo "{\"bench\": \"$1\", \"processors\": $2, \"ranks\": 2, \"bytes\": $3, \"$4\": $5, \"wrong\": ${6:-0}}"
}

# judged LINE: is what compare.pl ends with, for the rows in the file.
judged() {
    "$SHOAL_TEST_SOURCE_DIR/bench/compare.pl" "$SHOAL_TEST_SOURCE_DIR/bench/bars.txt" "$scratch/rows" >"$scratch/out" 2>"$scratch/err" ||
        complain "compare.pl failed"
    tr -s ' ' <"$scratch/out" >"$scratch/words"
    grep -qx "$1" "$scratch/words" || complain "compare.pl does not say: $1"
}
: >"$scratch/rows"
judged "functional/1K/overhead_us - 1.0 absent"
judged "overlap/16M/hidden - 0.85 absent"
{
    row functional 2 1024 overhead_us 1.2
    row overlap 2 16777216 hidden 0.9
} >"$scratch/rows"
judged "functional/1K/overhead_us 1.200 1.0 short"
judged "overlap/16M/hidden - 0.85 absent"
{
    row functional 2 1024 overhead_us 0.7
    row functional 2 4096 overhead_us 0.1
    row overlap 16 16777216 hidden 0.9
    row overlap 16 16777216 hidden 0.8
} >>"$scratch/rows"
judged "functional/1K/overhead_us 0.700 1.0 ok"
judged "overlap/16M/hidden 0.900 0.85 ok"
judged "fsdp/1:2/ratio - 1.10 absent"
sharded() {
    echo "{\"bench\": \"fsdp\", \"processors\": 16, \"ranks\": $1, \"ratio\": $2, \"host_us_per_unit\": $3, \"wrong\": 0}"
}
{
    sharded 2 1.2 16.0
    sharded 8 1.1 14.0
} >>"$scratch/rows"
judged "fsdp/1:2/ratio 1.200 1.10 short"
judged "fsdp/1:2/ratio 1.200 1.02 short"
judged "fsdp/3:64/ratio 1.100 1.12 ok"
judged "fsdp/1:64/host_us_per_unit 14.000 15 ok"
row functional 2 1024 overhead_us 0.7 3 >>"$scratch/rows"
"$SHOAL_TEST_SOURCE_DIR/bench/compare.pl" "$SHOAL_TEST_SOURCE_DIR/bench/bars.txt" "$scratch/rows" >"$scratch/out" 2>&1 &&
    complain "compare.pl is content with wrong results"

[[ $failed == false ]]
