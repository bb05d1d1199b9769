#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal bench checkpoint`: keys, what the numbers say of each other, that nothing is left behind, and exit status. No times: those
# are the business of a quiet machine.
# shellcheck source-path=SCRIPTDIR source=bench_common.sh
. "${BASH_SOURCE[0]%/*}/bench_common.sh"
bench_name=(checkpoint)
mkdir "$scratch/files"
export TMPDIR=$scratch/files

number='[0-9.]*'
keys='^{"bench": "checkpoint", "processors": [0-9]*, "ranks": [0-9]*, "bytes": [0-9]*, "format": "[a-z]*", "files": [0-9]*'
for key in save_ms save_ms_plain save_ratio load_ms load_ms_plain load_ratio cached save_mib load_mib memory_mib start_ms step_ms \
    step_ms_saving background_ratio steps_saving; do
    keys+=", \"$key\": $number"
done
keys+=', "wrong": 0, "iterations": [0-9]*}$'

# measures ARGS...: succeeds with one row of these keys and nothing wrong, and removes its files.
measures() {
    bench "$@" --json --iterations 1 || complain "$*: failed"
    grep -q "$keys" "$scratch/out" || complain "$*: other keys"
    [[ $(wc -l <"$scratch/out") -eq 1 ]] || complain "$*: not one row"
    [[ -z $(ls -A "$scratch/files") ]] || complain "$*: left $(ls -A "$scratch/files")"
}

ASAN_OPTIONS=$asan_options measures --bytes 3M
# A file of each rank and the index.
holds "$(value ranks) == 2 && $(value bytes) == 3 << 20 && $(value files) == 3"
# In one round there is nothing to take a median of; what is printed of a time is off by up to 0.05.
holds "abs($(value save_ratio) * $(value save_ms_plain) - $(value save_ms)) <= 0.051 * (1 + $(value save_ratio)) + 0.001 * $(value save_ms)"
holds "$(value memory_mib) >= $(value save_mib) && $(value memory_mib) >= $(value load_mib) && $(value memory_mib) < 64"
# How many steps fit in a save is a matter of time: it may be none.
holds "$(value steps_saving) >= 0 && $(value step_ms) >= 0 && $(value step_ms_saving) >= 0 && $(value cached) <= 1"
# One file and the index; rows in whole, and ranks without any.
measures --ranks 3 --bytes 40000 --format whole
holds "$(value bytes) == 32768 && $(value files) == 2"
measures --ranks 1 --bytes 16K

# For people: comments, then the columns that docs/benchmarks.md explains. In a directory that the caller names.
mkdir "$scratch/named"
explains_columns --bytes 64K --iterations 2 --directory "$scratch/named"
[[ -d $scratch/named && -z $(ls -A "$scratch/named") ]] || complain "left $(ls -A "$scratch/named")"

names_what_it_refuses "--ranks" "--ranks 0" "--bytes 15K" "--bytes" "--format what" "--directory" "--iterations 0" "--threads"
bench --help || complain "no help"
grep -q -- --directory "$scratch/out" || complain "the help does not tell"
status=0
bench --bytes 16K --directory "$scratch/nowhere" || status=$?
[[ $status -eq 1 ]] || complain "in no directory: exit status $status, expected 1"
grep -q "nowhere" "$scratch/err" || complain "does not say which directory it is"

[[ $failed == false ]]
