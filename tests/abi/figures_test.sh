#!/bin/bash
# SPDX-License-Identifier: MIT
# The figures of docs/performance.md: the page has the tables that bench/reports give, each row of bench/figures.txt has a place in
# the page, and all rows of a machine take 20 minutes at most. Nothing is measured.
set -euo pipefail
cd "$SHOAL_TEST_SOURCE_DIR"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
complain() {
    echo "figures: $1" >&2
    exit 1
}

bench/figures.pl --check >"$scratch/out" || complain "$(cat "$scratch/out")"
for machine in small big; do
    seconds=$(bench/figures.sh --list --machine "$machine" | sed -n "s/^at most \([0-9]*\) s, $machine\$/\1/p")
    ((seconds > 0 && seconds <= 1200)) || complain "rows of $machine take $seconds s"
done
if bench/figures.sh --list --rows nothing 2>"$scratch/err"; then
    complain "a row that does not exist is not refused"
fi

# report STATUS LINE...: one of the functional collectives on the big machine.
report() {
    mkdir -p "$scratch/big"
    {
        printf '# command: %s\n# machine: a machine, 16 processors\n# date: 2026-01-02\n# commit: 1234567\n# load before: 0.01\n' \
            'build/bin/shoal bench functional --json'
        printf '%s\n' "${@:2}"
        printf '# seconds: 1\n# status: %s\n' "$1"
    } >"$scratch/big/functional.txt"
}

# What a report says, and whether the bar is met.
row='{"bench": "functional", "processors": 16, "ranks": 2, "bytes": 1024, "raw_us": 1.5, "functional_us": 2.25, "overhead_us": 0.75, "wrong": 0}'
report 0 "$row"
bench/figures.pl big functional "$scratch" >"$scratch/out"
# shellcheck disable=SC2016 # backticks of markdown
for line in '`build/bin/shoal bench functional --json`, 2026-01-02, a machine, 16 processors, load before 0.01' \
    '| 2 | 1024 | 1.50 | 2.25 | 0.75 |' '| `functional/1K/overhead_us` | 0.750 | 1.0 | met |'; do
    grep -qF "$line" "$scratch/out" || complain "not there: $line"
done
report 0 "${row/0.75/1.75}"
bench/figures.pl big functional "$scratch" >"$scratch/out"
grep -qF '| 1.750 | 1.0 | **missed** |' "$scratch/out" || complain "a missed bar is not said"

# A page that shows something else is found; what failed is no report.
if bench/figures.pl --check "$scratch" >"$scratch/out"; then
    complain "a page with other figures is not found"
fi
grep -q 'big functional differs' "$scratch/out" || complain "the table that differs is not named"
report 124 "$row"
bench/figures.pl --check "$scratch" >"$scratch/out" || complain "a report of a command that failed is used"
if bench/figures.pl big functional "$scratch" >"$scratch/out" 2>&1; then
    complain "a table is made of a command that failed"
fi

# A call of each size, with its time and its ratio; a size of MPI likewise.
mkdir -p "$scratch/small"
head=$(printf '# command: x\n# machine: y\n# date: z\n')
printf '%s\n%s\n%s\n# status: 0\n' "$head" \
    'all_reduce     heap          1K oneshot         0.50       1.00       2.00       9.00     0.500     0.056' \
    'all_reduce/heap/64K-64M/mpi                0.900   0.8 short' >"$scratch/small/collectives.txt"
bench/figures.pl small collectives "$scratch" >"$scratch/out"
grep -qF '| all_reduce | heap | 0.50 (0.500) |' "$scratch/out" || complain "collectives: $(cat "$scratch/out")"
# shellcheck disable=SC2016
grep -qF '| `all_reduce/heap/64K-64M/mpi` | 0.900 | 0.8 | **missed** |' "$scratch/out" || complain "collectives: no bar"
printf '%s\n%s\n%s\n# status: 0\n' "$head" 'openmpi, 2 ranks, tcp' \
    'all_gather        4096 B  mpi       10.0 us  shoal       12.0 us  ratio  1.20  least 9.0 11.0' >"$scratch/small/mpi.txt"
bench/figures.pl small mpi "$scratch" >"$scratch/out"
grep -qF '| openmpi | tcp | all_gather | 12.0 (1.20) |' "$scratch/out" || complain "mpi: $(cat "$scratch/out")"
