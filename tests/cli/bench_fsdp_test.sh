#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal bench fsdp`: keys, what the numbers say of each other, and exit status. No times: those are the business of a
# quiet machine.
# shellcheck source-path=SCRIPTDIR source=bench_common.sh
. "${BASH_SOURCE[0]%/*}/bench_common.sh"
bench_name=(fsdp)

number='-\?[0-9.]*'
keys='^{"bench": "fsdp", "processors": [0-9]*, "ranks": [0-9]*, "params": [0-9]*, "units": [0-9]*, "sharded": "[a-z]*", "tokens": [0-9]*, "blas_threads": [0-9]*, "core": "[^"]*", "gflops": '$number
for key in step_us_fsdp step_us_none ratio exposed_us lanes_us lanes_gbps host_us_per_unit host_us_per_unit_2 host_us_plain; do
    keys+=", \"$key\": $number"
done
keys+=', "unsharded_bytes_host": [0-9]*, "wrong": 0, "iterations": [0-9]*}$'

# measures ARGS...: succeeds with one row of these keys and nothing wrong.
measures() {
    bench "$@" --json --iterations 3 || complain "$*: failed"
    grep -q "$keys" "$scratch/out" || complain "$*: other keys"
    [[ $(wc -l <"$scratch/out") -eq 1 ]] || complain "$*: not one row"
}

tiny=(--units 3 --width 16 --tokens 8)
page=$(getconf PAGESIZE)

measures "${tiny[@]}"
# The ratio is of times before they were rounded. What is printed of a time is off by up to 0.05, of the ratio by 0.00005,
# and the shorter a step is, the more that makes.
holds "abs($(value ratio) * $(value step_us_none) - $(value step_us_fsdp)) <= 0.051 * (1 + $(value ratio)) + 0.000051 * $(value step_us_none)"
holds "abs($(value exposed_us) - ($(value step_us_fsdp) - $(value step_us_none))) < 0.2"
holds "$(value ranks) == 2 && $(value units) == 3 && $(value params) == 3 * 12 * 16 ** 2"
holds "$(value host_us_per_unit) >= 0 && $(value host_us_per_unit_2) >= 0"
# Two of the three units are whole at any time, in windows of whole pages, and a page of flags each.
window=$(((12 * 16 * 16 * 4 + page - 1) / page * page + page))
holds "$(value unsharded_bytes_host) == 2 * $window"
# Shards of unequal size, and ranks with none: 5 rows and 15 among 4.
measures --ranks 4 --units 2 --width 5 --tokens 3 --blas-threads 1
# ZeRO-2 and ZeRO-1: all three units are whole, in windows of their own.
for what in gradients state; do
    measures "${tiny[@]}" --sharded "$what"
    grep -qF "\"sharded\": \"$what\"" "$scratch/out" || complain "--sharded $what: not measured"
    holds "$(value unsharded_bytes_host) == 3 * $window"
done
# Alone, nothing is gathered.
measures --ranks 1 "${tiny[@]}"
holds "$(value unsharded_bytes_host) == 0"
ASAN_OPTIONS=$asan_options measures --threads "${tiny[@]}"
holds "$(value unsharded_bytes_host) == 2 * $window"
SHOAL_NN_BLAS=none measures "${tiny[@]}"
grep -q '"core": "-"' "$scratch/out" || complain "a core without a BLAS"

# For people: comments, then the columns that docs/benchmarks.md explains.
explains_columns "${tiny[@]}" --iterations 3
grep -q '^# blas  *[^ ]*, core ' "$scratch/people" || complain "no BLAS"

names_what_it_refuses "--ranks" "--ranks 0" "--units" "--units 0" "--width -1" "--tokens 1Q" "--blas-threads 0" "--sharded what" "--sharded" \
    "--iterations 0" "--dtype f64" "--bytes 1K"
bench --help || complain "no help"
grep -q -- --tokens "$scratch/out" || complain "the help does not tell"
status=0
SHOAL_NN_BLAS=/nowhere.so bench "${tiny[@]}" --iterations 1 || status=$?
[[ $status -eq 1 ]] || complain "without a BLAS: exit status $status, expected 1"
grep -q SHOAL_NN_BLAS "$scratch/err" || complain "does not say what is wrong with the BLAS"

[[ $failed == false ]]
