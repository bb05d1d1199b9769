#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal bench checkpoint`: keys, what the numbers say of each other, that nothing is left behind, and exit status. No times: those
# are the business of a quiet machine.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=false
mkdir "$scratch/files"

# Looking for leaks takes seconds per run on some machines: once, below.
asan_options=${ASAN_OPTIONS:-}
export ASAN_OPTIONS=$asan_options:detect_leaks=0

complain() {
    echo "$1"
    cat "$scratch/out" "$scratch/err"
    failed=true
}

bench() {
    TMPDIR=$scratch/files timeout 120 "$SHOAL_TEST_TOOL" bench checkpoint "$@" >"$scratch/out" 2>"$scratch/err"
}

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

# value COLUMN
value() {
    sed -nE "s/.*\"$1\": (-?[0-9.]+).*/\1/p" "$scratch/out"
}

# holds EXPRESSION: of perl, over the columns.
holds() {
    perl -e "exit !($1)" || complain "not so: $1"
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

# For people: comments, then the columns that docs/performance.md explains. In a directory that the caller names.
mkdir "$scratch/named"
bench --bytes 64K --iterations 2 --directory "$scratch/named" || complain "failed"
[[ -d $scratch/named && -z $(ls -A "$scratch/named") ]] || complain "left $(ls -A "$scratch/named")"
header=$(grep '^#bench ' "$scratch/out") || complain "no header"
bench --bytes 64K --iterations 1 --json || complain "failed"
for column in $header; do
    grep -qF "\`${column#\#}\`" "$SHOAL_TEST_SOURCE_DIR/docs/performance.md" ||
        complain "docs/performance.md does not explain ${column#\#}"
    grep -qE "\"${column#\#}\": " "$scratch/out" || complain "JSON has no ${column#\#}"
done

for arguments in "--ranks" "--ranks 0" "--bytes 15K" "--bytes" "--format what" "--directory" "--iterations 0" "--threads" "what"; do
    status=0
    # shellcheck disable=SC2086 # several words on purpose
    bench $arguments || status=$?
    [[ $status -eq 2 ]] || complain "$arguments: exit status $status, expected 2"
    grep -qF "bad argument: ${arguments%% *}" "$scratch/err" || complain "$arguments: was refused without a word"
done
bench --help || complain "no help"
grep -q -- --directory "$scratch/out" || complain "the help does not tell"
status=0
bench --bytes 16K --directory "$scratch/nowhere" || status=$?
[[ $status -eq 1 ]] || complain "in no directory: exit status $status, expected 1"
grep -q "nowhere" "$scratch/err" || complain "does not say which directory it is"

[[ $failed == false ]]
