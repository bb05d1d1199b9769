#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal bench compiled`: keys, what the numbers say of each other, and exit status. No times: those are the business of a
# quiet machine.
# shellcheck source-path=SCRIPTDIR source=bench_common.sh
. "${BASH_SOURCE[0]%/*}/bench_common.sh"
bench_name=(compiled)

number='-\?[0-9.]*'
keys='^{"bench": "compiled_[a-z]*", "processors": [0-9]*, "ranks": [0-9]*, "params": [0-9]*, "units": [0-9]*, "tokens": [0-9]*, "blas_threads": [0-9]*, "core": "[^"]*"'
for key in step_us_eager step_us_compiled step_us_plain step_us_none ratio exposed_us exposed_us_plain exposed_ratio exposed_ratio_low exposed_ratio_high cpu_us_compiled cpu_us_plain cpu_us_none switches_compiled switches_plain switches_none peak_bytes_eager peak_bytes peak_ratio unsharded_bytes_host_eager unsharded_bytes_host; do
    keys+=", \"$key\": $number"
done
# No allocations, addresses that stay, and the eager step's bits.
keys+=', "allocations": 0.00, "moved": 0, "wrong": 0, "iterations": [0-9]*}$'

# measures N ARGS...: succeeds with N rows of these keys and nothing wrong.
measures() {
    local n_rows=$1
    shift
    bench "$@" --json --iterations 3 || complain "$*: failed"
    [[ $(grep -c "$keys" "$scratch/out") -eq $n_rows ]] || complain "$*: other keys"
    [[ $(wc -l <"$scratch/out") -eq $n_rows ]] || complain "$*: not $n_rows rows"
}

tiny=(--units 3 --width 16 --tokens 8)

measures 2 "${tiny[@]}"
grep -q compiled_fsdp "$scratch/out" || complain "nothing sharded"
grep -q compiled_ddp "$scratch/out" || complain "no replicas"
holds "$(value ranks) == 2 && $(value units) == 3 && $(value params) == 3 * 12 * (16 ** 2 + 16)"
holds "$(value exposed_ratio_low) <= $(value exposed_ratio_high)"
holds "abs($(value peak_ratio) * $(value peak_bytes_eager) - $(value peak_bytes)) <= 0.000051 * $(value peak_bytes_eager)"
# Whole parameters take as much memory as in eager steps, also those of a compiled one.
holds "$(value unsharded_bytes_host) > 0 && $(value unsharded_bytes_host) == $(value unsharded_bytes_host_eager)"
# Shards of unequal size, and ranks with none: 5 rows and 15 among 4.
measures 1 --wrapping fsdp --ranks 4 --units 2 --width 5 --tokens 3 --blas-threads 1
measures 1 --wrapping ddp --ranks 3 --units 2 --width 5 --tokens 3 --blas-threads 1
holds "$(value unsharded_bytes_host) == 0"
# Alone.
measures 2 --ranks 1 "${tiny[@]}"
holds "$(value unsharded_bytes_host) == 0"

# For people: comments, then the columns that docs/benchmarks.md explains.
explains_columns "${tiny[@]}" --wrapping ddp --iterations 3
grep -q '^# blas  *[^ ]*, core ' "$scratch/people" || complain "no BLAS"

names_what_it_refuses "--ranks" "--ranks 0" "--units" "--units 0" "--width -1" "--tokens 1Q" "--blas-threads 0" \
    "--iterations 0" "--wrapping" "--wrapping both" "--dtype f64" "--threads"
bench --help || complain "no help"
grep -q -- --wrapping "$scratch/out" || complain "the help does not tell"
status=0
SHOAL_NN_BLAS=/nowhere.so bench "${tiny[@]}" --iterations 1 || status=$?
[[ $status -eq 1 ]] || complain "without a BLAS: exit status $status, expected 1"
grep -q SHOAL_NN_BLAS "$scratch/err" || complain "does not say what is wrong with the BLAS"

[[ $failed == false ]]
