#!/bin/bash
# SPDX-License-Identifier: MIT
# The drill: everything that ranks can do wrong to each other (tests/fault/drill_test.c), and a rank killed or stopped at
# every fail point of every operation (tests/fault/kill_test.c). Writes docs/drill.md and prints it. SHOAL_DRILL_JOBS: how
# many of the latter run at a time; each has three ranks, and deadlines of 300 ms, so it takes four idle processors.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/progress.sh

cmake --preset dev >/dev/null
cmake --build --preset dev -j "$(nproc)" --target test_fault_drill test_fault_kill >/dev/null

rows=$(mktemp) kills=$(mktemp) log=$(mktemp)
trap 'rm -f "$rows" "$kills" "$log"' EXIT
status=0
begin=$SECONDS
# shellcheck disable=SC2317 # progress_run calls it
# logged COMMAND...: what it prints goes to the log.
logged() { "$@" >>"$log" 2>&1; }
SHOAL_TEST_DRILL=$rows progress_run "drill: mistakes" logged build/dev/tests/fault/drill_test || status=1
# kill_some K: every SHOAL_DRILL_JOBS-th test from the Kth on, each with rows of its own.
# shellcheck disable=SC2317 # progress_run calls it
kill_some() {
    local name some_status=0
    while read -r name; do
        SHOAL_TEST_DRILL=$kills.${name%/*} SHOAL_TEST_KILLS=whole build/dev/tests/fault/kill_test "$name" || some_status=1
    done < <(build/dev/tests/fault/kill_test --list | awk -v k="$1" -v n="$jobs" 'NR % n == k')
    return "$some_status"
}
# shellcheck disable=SC2317 # progress_run calls it
kill_all() {
    local k some=() all_status=0
    if [[ $jobs -eq 1 ]]; then
        SHOAL_TEST_DRILL=$kills SHOAL_TEST_KILLS=whole build/dev/tests/fault/kill_test
        return
    fi
    for ((k = 0; k < jobs; k++)); do
        kill_some "$k" &
        some+=($!)
    done
    for k in "${some[@]}"; do
        wait "$k" || all_status=1
    done
    for k in $(build/dev/tests/fault/kill_test --list); do
        cat "$kills.${k%/*}" >>"$kills" && rm "$kills.${k%/*}"
    done
    return "$all_status"
}
jobs=${SHOAL_DRILL_JOBS:-1}
progress_run "drill: kills" logged kill_all || status=1

# Numbers of processes change from run to run.
clean() { sed -E 's/process [0-9]+/process P/g; s/processes [0-9]+ and [0-9]+/processes P and Q/g' "$1"; }

{
    cat <<'TEXT'
# The drill

What ranks can do wrong to each other, and what each of three ranks got. Written by `make drill` from
`tests/fault/drill_test.c` and `tests/fault/kill_test.c`. `make test` runs the first of them whole and a sample of the
second. Deadlines are 400 ms where one is waited for. "Left": blocks of memory, descriptors and mapped bytes that a rank
still held after it had closed its world, and files in `/dev/shm`.

| what was done | what every rank got | left | |
|---|---|---|---|
TEXT
    clean "$rows"
    cat <<'TEXT'

## Killed and stopped everywhere

One of three ranks (each in turn), with a small and a large count, is killed (`kill -9`) or stopped at every fail point
that it passes in the operation. The others must return an error, and hold nothing after they have closed. After a death
they have 1 s for that; after a stop, 1 s from the deadline (300 ms) on. If the rank died, the error of every survivor
names a rank that died. If it was only stopped, at least one survivor names it; the others may name a survivor that they
wait for, which in turn waits for the stopped rank. "Times" is how often a rank was struck, and "slowest" is how long
the slowest survivor of all rounds took.

| operation | | times | slowest | |
|---|---|---|---|---|
TEXT
    clean "$kills"
} >docs/drill.md
cat docs/drill.md
echo
grep -E '^FAIL|_test\.c:[0-9]+:' "$log" || true
echo "drill: $([[ $status == 0 ]] && echo ok || echo FAILED) ($((SECONDS - begin)) s)"
exit $status
