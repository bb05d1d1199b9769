#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal bench all_reduce` and the like: rows, keys and exit status, with more ranks than one and small sizes.
# shellcheck source-path=SCRIPTDIR source=bench_common.sh
. "${BASH_SOURCE[0]%/*}/bench_common.sh"

# measures N_ROWS ARGS...: succeeds, with that many rows and no wrong element.
measures() {
    local n_rows=$1
    shift
    bench "$@" --json --iterations 3 || complain "$*: failed"
    [[ $(grep -c '"wrong": 0,' "$scratch/out") -eq $n_rows ]] || complain "$*: not $n_rows rows without a wrong element"
    [[ $(wc -l <"$scratch/out") -eq $n_rows ]] || complain "$*: not $n_rows rows"
}

keys='^{"op": "[a-z_]*", "ranks": [0-9]*, "bytes": [0-9]*, "dtype": "[a-z0-9]*", "transport": "[a-z]*", '
keys+='"algorithm": "[a-z_]*", "median_us": [0-9.]*, "p99_us": [0-9.]*, "max_us": [0-9.]*, "wrong": [0-9]*, '

for op in all_reduce all_gather reduce_scatter all_to_all broadcast; do
    for ranks in 2 3; do
        measures 2 "$op" --ranks "$ranks" --sizes 1K:256K:256
        [[ $(grep -c "$keys" "$scratch/out") -eq 2 ]] || complain "$op: other keys"
        grep -q "\"op\": \"$op\", \"ranks\": $ranks, " "$scratch/out" || complain "$op: another op"
    done
done
measures 1 barrier --ranks 3
grep -q '"bytes": 0,' "$scratch/out" || complain "a barrier with bytes"

# Buffers, places and ranks of the other kinds.
measures 2 all_reduce --symmetric --sizes 1K:256K:256
grep -q '"buffers": "symmetric"' "$scratch/out" || complain "not symmetric"
measures 2 all_gather --window --sizes 1K:256K:256
grep -q '"buffers": "window"' "$scratch/out" || complain "no window"
measures 2 all_gather --window --sizes 1K:256K:256 --rotate 2M
measures 1 reduce_scatter --sizes 1K --rotate 1M --symmetric
ASAN_OPTIONS=$asan_options measures 1 all_reduce --sizes 4K --threads --ranks 3
measures 1 all_reduce --sizes 1000 --dtype bf16 --ranks 3
measures 1 all_reduce --sizes 64K --algorithm staged --ranks 2
grep -q '"algorithm": "staged"' "$scratch/out" || complain "--algorithm does not choose"
grep -q measured "$scratch/err" && complain "a complaint about what was asked for"
# What the environment chose is what the row says.
SHOAL_TRANSPORT=socket measures 1 all_reduce --sizes 1K --ranks 2
grep -q '"transport": "socket"' "$scratch/out" || complain "another transport than SHOAL_TRANSPORT"
# What cannot carry the call does not, and the tool says so.
measures 1 all_reduce --sizes 64K --algorithm oneshot --ranks 2
grep -q '"algorithm": "staged"' "$scratch/out" || complain "not staged"
grep -qF "all_reduce of 65536 bytes: measured staged, since oneshot cannot carry it" "$scratch/err" ||
    complain "does not say that oneshot was not taken"
measures 1 all_reduce --sizes 1K --ranks 1
# Ranks that do not meet; a rank that is late; iterations that are slow, all of them and none.
measures 1 all_reduce --sizes 1K --ranks 3 --back-to-back
measures 1 all_reduce --sizes 1K --ranks 2 --late 10000 --slow 10
grep -q '"slow": 1.0000, "cpu_us": [0-9.]*, ' "$scratch/out" || complain "ranks that wait 10 ms are not slow"
measures 1 all_reduce --sizes 1K --ranks 2 --slow 10000000
grep -q '"mean_us": [0-9.]*, "slow": 0.0000, ' "$scratch/out" || complain "a call was slower than ten seconds"

# For people: comments, then the columns that docs/benchmarks.md explains.
explains_columns all_reduce --sizes 1K --iterations 3

bench_name=(all_reduce)
refuses "--ranks" "--ranks 0" "--ranks x" "--sizes 0" "--sizes 4K:1K" "--sizes 1K:4K:1" "--sizes 1:2:3:4" \
    "--sizes 1Q" "--dtype f31" "--transport carrier_pigeon" "--algorithm carrier_pigeon" "--rotate -1" "--iterations 0" "--late x" "--slow 0" "--what" "--window"
bench_name=()
bench all_reduce --algorithm carrier_pigeon || true
grep -q "there are: local oneshot" "$scratch/err" || complain "does not list the algorithms"
bench all_reduce --dtype f31 || true
grep -q "there are: f64 f32" "$scratch/err" || complain "does not list the dtypes"
bench all_reduce --transport carrier_pigeon || true
grep -q "there are: shm fake" "$scratch/err" || complain "does not list the transports"
bench all_gather --help || complain "no help"
grep -q -- --window "$scratch/out" || complain "the help does not tell"

[[ $failed == false ]]
