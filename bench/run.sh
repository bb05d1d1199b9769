#!/bin/bash
# SPDX-License-Identifier: MIT
# Measures our collectives and those of Open MPI, MPICH and Gloo in one run, op by op, and compares them.
#
#   bench/run.sh [--tool build/bin/shoal] [--output FILE] [--ops "all_reduce all_gather"] [OPTION...]
#
# Further options go to every program: --ranks --sizes --dtype --rotate --iterations. The environment has the same
# by other names, for make: RANKS SIZES ROTATE ROUNDS REPORT. Peers that are not installed are named and left out;
# --mpich ARCHIVE uses the MPICH that bench/pack_mpich.sh has packed.
# Nobody is pinned. Exit status 1 when a program failed or a result was wrong; a bar that is short is no failure.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
. scripts/progress.sh
. bench/mpi_peers.sh

tool=build/bin/shoal
ops="all_reduce all_gather reduce_scatter all_to_all broadcast barrier functional overlap fsdp compiled passes checkpoint"
ranks=${RANKS:-2}
rounds=${ROUNDS:-2}
report=${REPORT:-}
mpich_archive=
sizes=${SIZES:-1K:64M:4}
rotate=${ROTATE:-0}
data=()
more=()
while [[ $# -gt 0 ]]; do
    case $1 in
    --tool) tool=$2 ;;
    --output) report=$2 ;;
    --ops) ops=$2 ;;
    --mpich) mpich_archive=$2 ;;
    --ranks) ranks=$2 ;;
    --rounds) rounds=$2 ;;
    --sizes) sizes=$2 ;;
    --rotate) rotate=$2 ;;
    --dtype) data+=("$1" "$2") ;;
    --iterations) more+=("$1" "$2") ;;
    *)
        echo "bench/run.sh: bad argument: $1" >&2
        exit 2
        ;;
    esac
    shift 2 || exit 2
done
options=(--ranks "$ranks" --sizes "$sizes" --rotate "$rotate" "${data[@]}" "${more[@]}")

work=build/bench
mkdir -p "$work"
: >"$work/rows.jsonl"
meeting=$(mktemp -u /dev/shm/shoal-bench.XXXXXX)
trap 'rm -f "$meeting"' EXIT
failed=false

# The peers -------------------------------------------------------------------------------------------------

find_python() {
    local python
    for python in ${PYTHON:-} python3 /usr/bin/python3; do
        if "$python" -c 'import torch.distributed as d; assert d.is_gloo_available()' 2>/dev/null; then
            echo "$python"
            return
        fi
    done
}

mpi_peers_find "$work" "$mpich_archive"
python=$(find_python)
if [[ -n $python ]]; then
    cc "${measure_flags[@]}" -fPIC -shared -o "$work/libmeasure.so" "${measure_sources[@]}" || python=
fi

set_openmpi_options "$ranks"

# Runs ------------------------------------------------------------------------------------------------------

# measured WHAT COMMAND...: its rows go to the file; a failure is remembered. 3 is "there is no such thing".
measured() {
    local what=$1 status=0
    shift
    timeout "${LIMIT:-120}" "$@" >>"$work/rows.jsonl" || status=$?
    if [[ $status -eq 3 ]]; then
        echo "# $what: absent"
    elif [[ $status -ne 0 ]]; then
        echo "# $what: FAILED, exit status $status"
        failed=true
    fi
}

# Nobody else has them.
run_sharded() {
    measured "shoal fsdp" "$tool" bench fsdp --ranks "$ranks" --json
}

run_compiled() {
    LIMIT=${LIMIT:-600} measured "shoal compiled" "$tool" bench compiled --ranks "$ranks" --json
}

run_passes() {
    measured "shoal passes" "$tool" bench passes --json
}

# Where there are processors for it: what its bars are about.
run_checkpoint() {
    local size=(--ranks "$ranks")
    [[ $(nproc) -ge 16 ]] && size=(--ranks 4 --bytes 1G)
    LIMIT=${LIMIT:-600} measured "shoal checkpoint" "$tool" bench checkpoint "${size[@]}" --json
}

run_tensors() {
    measured "shoal $1" "$tool" bench "$1" --ranks "$ranks" "${more[@]}" --json
}

run_op() {
    local op=$1 round=$2
    case $op in
    functional | overlap)
        run_tensors "$op"
        return
        ;;
    fsdp)
        run_sharded
        return
        ;;
    compiled)
        run_compiled
        return
        ;;
    passes)
        run_passes
        return
        ;;
    checkpoint)
        run_checkpoint
        return
        ;;
    esac
    case $op in
    barrier) measured "shoal $op" "$tool" bench "$op" --ranks "$ranks" "${more[@]}" --json ;; # it has no data
    *) measured "shoal $op" "$tool" bench "$op" "${options[@]}" --json ;;
    esac
    case $op in
    all_gather) measured "shoal $op --window" "$tool" bench "$op" --window "${options[@]}" --json ;;
    barrier) ;;
    *) measured "shoal $op --symmetric" "$tool" bench "$op" --symmetric "${options[@]}" --json ;;
    esac
    if [[ ${#openmpi_run[@]} -gt 0 ]]; then
        measured "openmpi $op" "${openmpi_run[@]}" "${openmpi_options[@]}" -n "$ranks" \
            "$work/mpi_collectives.openmpi" "$op" --page "$meeting" "${options[@]}" --json
    fi
    if [[ ${#mpich_run[@]} -gt 0 ]]; then
        measured "mpich $op" "${mpich_run[@]}" -bind-to none -n "$ranks" \
            "$work/mpi_collectives.mpich" "$op" --page "$meeting" "${options[@]}" --json
    fi
    # Gloo is far away and slow: once is enough.
    if [[ -n $python && $round -eq 1 ]]; then
        measured "gloo $op" "$python" bench/peers/gloo_collectives.py "$op" --library "$work/libmeasure.so" \
            "${options[@]}" --json
    fi
}

print_machine() {
    echo "# $("$tool" --version), $(date -u +%Y-%m-%d), $(uname -m), $(nproc) processors," \
        "$(sed -nE '/^(model name|CPU part)/{s/^[^:]*: *//p;q}' /proc/cpuinfo)"
    echo "# bench/run.sh ${options[*]} --rounds $rounds; nobody is pinned"
    echo "# load before: $(cut -d' ' -f1-3 /proc/loadavg); huge pages:" \
        "$(cat /sys/kernel/mm/transparent_hugepage/enabled 2>/dev/null || echo unknown)"
    print_mpi_peers
    echo "# gloo: ${python:+PyTorch $("$python" -c 'import torch; print(torch.__version__)') }${python:-absent}"
}

main() {
    local names number
    print_machine
    read -ra names <<<"$ops"
    for ((round = 1; round <= rounds; round++)); do
        number=0
        for op in $ops; do
            number=$((number + 1))
            # Again only where a bar depends on it.
            [[ $round -eq 1 ]] || grep -q "^${op}[ _]" bench/bars.txt || continue
            progress_say "bench: $op, round $round of $rounds, $(progress_time "$SECONDS")" "$number" "${#names[@]}"
            run_op "$op" "$round"
        done
    done
    progress_end
    echo
    bench/compare.pl bench/bars.txt "$work/rows.jsonl" || failed=true
    [[ $failed == false ]]
}

if [[ -n $report ]]; then
    main | tee "$report"
    exit "${PIPESTATUS[0]}"
fi
main
