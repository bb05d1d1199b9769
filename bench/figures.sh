#!/bin/bash
# SPDX-License-Identifier: MIT
# Takes the figures of docs/performance.md again: runs the commands of bench/figures.txt one after the other, each for a bounded
# time, and keeps what each prints in a file, with the machine, the day, the commit and the load before it.
#
#   bench/figures.sh [--machine small|big] [--rows "kernels passes"] [--output DIR] [--budget SECONDS] [--commit NAME] [--continue]
#   bench/figures.sh --list [--machine small|big]
#
#   --machine   whose rows: small (2 processors) or big (16); by the number of processors if not given
#   --rows      only these
#   --output    bench/reports/MACHINE by default, from where `bench/figures.pl --fill` takes the tables of the page
#   --budget    seconds after which no row is begun that might not end before; 0, the default: no bound but that of the rows
#   --commit    what was built, for a tree without its history; otherwise git says it
#   --continue  leaves out rows that have a report there which did not fail
#   --list      prints the rows and how long they take at most
#
# Needs the release build (make), and for the row memory that of the tests; nothing else should run on the machine. Exit status 1 when a row failed, 3 when the budget left
# some out: with --continue the same command goes on there.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

machine=
only=
output=
budget=0
commit=
goes_on=false
lists=false
while [[ $# -gt 0 ]]; do
    case $1 in
    --list)
        lists=true
        shift
        continue
        ;;
    --continue)
        goes_on=true
        shift
        continue
        ;;
    --machine) machine=${2:-} ;;
    --rows) only=${2:-} ;;
    --output) output=${2:-} ;;
    --budget) budget=${2:-} ;;
    --commit) commit=${2:-} ;;
    *)
        echo "bench/figures.sh: bad argument: $1" >&2
        exit 2
        ;;
    esac
    shift 2 || exit 2
done
if [[ -z $machine ]]; then
    machine=small
    (($(nproc) >= 16)) && machine=big
fi
if [[ $machine != small && $machine != big ]]; then
    echo "bench/figures.sh: bad machine: $machine" >&2
    exit 2
fi
output=${output:-bench/reports/$machine}
commit=${commit:-$(git describe --always --dirty 2>/dev/null || echo unknown)}

rows=()
while read -r row; do
    read -r name where _ <<<"$row"
    [[ $where == "$machine" ]] || continue
    [[ -z $only || " $only " == *" $name "* ]] && rows+=("$row")
done < <(grep -v '^#' bench/figures.txt)
for name in $only; do
    if ! grep -qE "^$name +$machine " bench/figures.txt; then
        echo "bench/figures.sh: no row $name for machine $machine" >&2
        exit 2
    fi
done

if [[ $lists == true ]]; then
    total=0
    for row in "${rows[@]}"; do
        read -r name where limit command <<<"$row"
        printf '%-14s %-6s %5s s  %s\n' "$name" "$where" "$limit" "$command"
        total=$((total + limit))
    done
    echo "at most $total s, $machine"
    exit 0
fi
if [[ ! -x build/bin/shoal ]]; then
    echo "bench/figures.sh: there is no build/bin/shoal: run make first" >&2
    exit 1
fi

describe_machine() {
    local model
    model=$(lscpu 2>/dev/null | sed -n 's/^ *Model name: *//p' | head -n 1)
    echo "${model:-$(uname -m)}, $(nproc) processors, $(cc -dumpfullversion -dumpversion 2>/dev/null | sed 's/^/gcc /')"
}

is_done() {
    [[ -e $output/$1.txt ]] && grep -q '^# status: 0$' "$output/$1.txt"
}

# The report is moved into place at the end: one that is there is whole.
run_row() {
    local name=$1 limit=$2 command=$3 begin=$SECONDS status=0
    local scratch=$output/.$name.txt
    {
        echo "# command: $command"
        echo "# machine: $(describe_machine)"
        echo "# date: $(date -u +%F)"
        echo "# commit: $commit"
        echo "# load before: $(cut -d' ' -f1 /proc/loadavg)"
        timeout -k 5 "$limit" bash -c "$command" 2>&1 || status=$?
        echo "# seconds: $((SECONDS - begin))"
        echo "# status: $status"
    } >"$scratch"
    mv "$scratch" "$output/$name.txt"
    is_done "$name"
}

mkdir -p "$output"
failed=false
is_short=false
for row in "${rows[@]}"; do
    read -r name _ limit command <<<"$row"
    if [[ $goes_on == true ]] && is_done "$name"; then
        continue
    fi
    if ((budget > 0 && SECONDS + limit > budget)); then
        echo "$name: no time"
        is_short=true
        continue
    fi
    begin=$SECONDS
    if run_row "$name" "$limit" "$command"; then
        echo "$name: $((SECONDS - begin)) s"
    else
        echo "$name: FAILED after $((SECONDS - begin)) s, see $output/$name.txt"
        failed=true
    fi
done
[[ $failed == false ]] || exit 1
[[ $is_short == false ]] || exit 3
