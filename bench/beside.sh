#!/bin/bash
# SPDX-License-Identifier: MIT
# Small collectives beside other work: how often they are slow, for us and for both MPI libraries, in the same runs.
#
#   bench/beside.sh [--tool build/bin/shoal] [--old TOOL] [--runs 20] [--cases "2:2 8:16 16:16"] [--states "idle busy starting"]
#                   [--op all_reduce] [--sizes 64:4K:4] [--calls meet|back-to-back] [--mpich ARCHIVE] [--budget SECONDS]
#                   [--output FILE]
#
#   --cases     ranks:processors; the first processors that this script may use. Cases that need more than there are, are left out
#   --states    idle: nothing else runs; busy: one process keeps a processor busy, not pinned; starting: a process of 50 ms starts
#               every 100 ms
#   --calls     meet: ranks meet before each call, as in bench/run.sh; back-to-back: they do not
#   --old       another build of the tool, measured as `old`, for a comparison
#   --mpich     of bench/pack_mpich.sh, where no MPICH is installed
#   --budget    after so many seconds no run is begun; 0, the default: no bound
#
# Before that, for each case: processor time of ranks that wait for rank 0, 2 ms and 8 ms. docs/benchmarks.md explains the columns.
# Exit status 1 when a program failed or a result was wrong; a bar that is short is no failure.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
. bench/mpi_peers.sh

tool=build/bin/shoal
old=
runs=20
cases="2:2 8:16 16:16"
states="idle busy starting"
op=all_reduce
sizes=64:4K:4
calls=meet
archive=
budget=0
report=
while [[ $# -gt 0 ]]; do
    case $1 in
    --tool) tool=$2 ;;
    --old) old=$2 ;;
    --runs) runs=$2 ;;
    --cases) cases=$2 ;;
    --states) states=$2 ;;
    --op) op=$2 ;;
    --sizes) sizes=$2 ;;
    --calls) calls=$2 ;;
    --mpich) archive=$2 ;;
    --budget) budget=$2 ;;
    --output) report=$2 ;;
    *)
        echo "bench/beside.sh: bad argument: $1" >&2
        exit 2
        ;;
    esac
    shift 2 || exit 2
done
if [[ $calls != meet && $calls != back-to-back ]]; then
    echo "bench/beside.sh: bad argument: --calls $calls" >&2
    exit 2
fi
more=()
[[ $calls == back-to-back ]] && more=(--back-to-back)

work=build/bench
mkdir -p "$work"
rows=$work/beside.jsonl
: >"$rows"
meeting=$(mktemp -u /dev/shm/shoal-beside.XXXXXX)
other=
trap 'rm -f "$meeting"; [[ -n $other ]] && kill "$other" 2>/dev/null' EXIT
failed=false
is_short=false
limit_s=5 # for a run, which takes about half a second on an idle machine
declare -A n_long=() # by state, library and ranks: runs that took longer
mpi_peers_find "$work" "$archive"
libraries=(shoal)
[[ -n $old ]] && libraries+=(old)
[[ ${#openmpi_run[@]} -gt 0 ]] && libraries+=(openmpi)
[[ ${#mpich_run[@]} -gt 0 ]] && libraries+=(mpich)

# The first so many processors that this script may use, as taskset wants them.
first_processors() {
    taskset -cp $$ | sed 's/.*: //' | tr ',' '\n' | while IFS=- read -r from to; do
        seq "$from" "${to:-$from}"
    done | head -n "$1" | paste -sd,
}

# The other work ---------------------------------------------------------------------------------------------

start_again_and_again() {
    while :; do
        perl -MTime::HiRes=time -e '$end = time + 0.05; 1 while time < $end'
        sleep 0.05
    done
}

# begin_state STATE PROCESSORS
begin_state() {
    case $1 in
    busy) taskset -c "$2" perl -e '1 while 1' & ;;
    starting) taskset -c "$2" bash -c "$(declare -f start_again_and_again); start_again_and_again" & ;;
    *) return ;;
    esac
    other=$!
}

end_state() {
    if [[ -n $other ]]; then
        kill "$other"
        wait "$other" 2>/dev/null
    fi
    other=
}

# Runs -------------------------------------------------------------------------------------------------------

# run_library LIBRARY RANKS PROCESSORS OPTION...: prints rows
run_library() {
    local library=$1 ranks=$2 processors=$3 limit=(timeout "$limit_s" taskset -c "$3")
    shift 3
    local options=("$op" --ranks "$ranks" --json "$@")
    rm -f "$meeting"
    case $library in
    shoal) "${limit[@]}" "$tool" bench "${options[@]}" --symmetric ;;
    old) "${limit[@]}" "$old" bench "${options[@]}" --symmetric ;;
    openmpi)
        set_openmpi_options "$ranks"
        "${limit[@]}" "${openmpi_run[@]}" "${openmpi_options[@]}" -n "$ranks" "$work/mpi_collectives.openmpi" \
            "${options[@]}" --page "$meeting"
        ;;
    mpich)
        "${limit[@]}" "${mpich_run[@]}" -bind-to none -n "$ranks" "$work/mpi_collectives.mpich" "${options[@]}" \
            --page "$meeting"
        ;;
    esac
}

# measured STATE LIBRARY RANKS PROCESSORS RUN OPTION...: rows with who, when and where go to the file. A run that takes too long
# is a result, too: so it can be beside other work. After three of these the library is left out in this state.
measured() {
    local state=$1 library=$2 ranks=$3 processors=$4 run=$5 status=0
    shift 5
    if ((budget > 0 && SECONDS > budget)); then
        is_short=true
        return
    fi
    if ((${n_long[$state/$library/$ranks]:-0} == 3)); then
        return
    fi
    run_library "$library" "$ranks" "$processors" "$@" >"$work/beside.part" || status=$?
    sed "s/^{/{\"state\": \"$state\", \"library\": \"$library\", \"processors\": $(tr ',' '\n' <<<"$processors" | wc -l), \"run\": $run, /" \
        "$work/beside.part" >>"$rows"
    if [[ $status -eq 124 ]]; then
        echo "# $state, $library, $ranks ranks, run $run: not done after $limit_s s"
        n_long[$state/$library/$ranks]=$((${n_long[$state/$library/$ranks]:-0} + 1))
    elif [[ $status -ne 0 ]]; then
        echo "# $state, $library, $ranks ranks, run $run: FAILED, exit status $status"
        failed=true
    fi
}

# Longer iterations are slow: some times what they take on an idle machine.
slow_us() {
    echo $(($1 <= 2 ? 4 : $1 <= 8 ? 10 : 20))
}

# measure_waiting RANKS PROCESSORS
measure_waiting() {
    local late library run
    for late in 2000 8000; do
        for run in 1 2; do
            for library in "${libraries[@]}"; do
                measured "late $late" "$library" "$1" "$2" "$run" \
                    --sizes 1K:1K --late "$late" --iterations $((400000 / late)) --back-to-back
            done
        done
    done
}

# measure_calls RANKS PROCESSORS RUN: in all states.
measure_calls() {
    local state library
    for state in $states; do
        begin_state "$state" "$2"
        for library in "${libraries[@]}"; do
            measured "$state" "$library" "$1" "$2" "$3" --sizes "$sizes" --slow "$(slow_us "$1")" "${more[@]}"
        done
        end_state
    done
}

# for_cases FUNCTION ARGUMENT...: calls it with ranks, processors and the arguments for each case that this machine has.
for_cases() {
    local function=$1 pair ranks processors
    shift
    for pair in $cases; do
        IFS=: read -r ranks processors <<<"$pair"
        if ((processors <= $(nproc))); then
            "$function" "$ranks" "$(first_processors "$processors")" "$@"
        fi
    done
}

main() {
    local run
    echo "# $("$tool" --version), $(date -u +%Y-%m-%d), $(uname -m), kernel $(uname -r), $(nproc) processors," \
        "$(sed -nE '/^(model name|CPU part)/{s/^[^:]*: *//p;q}' /proc/cpuinfo)"
    echo "# bench/beside.sh: $op, $sizes, $runs runs, $calls; load before: $(cut -d' ' -f1-3 /proc/loadavg)"
    print_mpi_peers
    for_cases measure_waiting
    # Run after run: if the budget ends, all cases have as many.
    for ((run = 1; run <= runs; run++)); do
        for_cases measure_calls "$run"
    done
    [[ $is_short == true ]] && echo "# the budget of $budget s left out some runs"
    echo "# $SECONDS s"
    echo
    bench/beside.pl "$rows" || failed=true
    [[ $failed == false ]]
}

if [[ -n $report ]]; then
    main | tee "$report"
    exit "${PIPESTATUS[0]}"
fi
main
