#!/bin/bash
# SPDX-License-Identifier: MIT
# The whole sweep of the collectives (tests/conformance/collectives_sweep_test.c): ranks as processes under the address
# sanitizer, ranks as threads under the thread sanitizer. Without options also, without a sanitizer, plans beyond 4 GiB
# (unit/graph/run/plan_large), which need 13 GiB of memory, raw collectives beyond 4 GiB on a device
# (conformance/collectives_device), which need 10 GiB, checkpoints between all ways of sharding on 1 to 6 ranks, saves with
# a rank killed or refused at every request, digests of `shoal train` in all modes after 20 steps, and all cases of tests of
# which `make test` runs one half with ranks as threads and the other half as processes.
#
#   scripts/sweep.sh                   everything
#   scripts/sweep.sh -r 3              with 3 ranks
#   scripts/sweep.sh -o all_reduce     one form: a name of tests/conformance/collectives/sweep_ops.def
#   scripts/sweep.sh -d f32            one dtype
#   scripts/sweep.sh -b asan           one build: asan, tsan, or dev (both launchers, no sanitizer)
#   scripts/sweep.sh -m all            between hosts only, all rows of `placements` below; -m mpich/3: that begin so
#   scripts/sweep.sh -t                variants (alignments, in place or not) take turns instead of all being run
#
# Between hosts, which are pretended (SHOAL_PRETEND_HOSTS), and under mpirun the sweep runs in the build dev: the
# libraries of MPI are not made for sanitizers. Options -o, -d and -t go with -m.
#
# On two busy cores u64 with 2, 6 and 9 ranks took 4 minutes under the address sanitizer, i16 with 2, 3, 4, 5 and 7
# ranks 5 minutes under the thread sanitizer; there are 15 dtypes and 9 numbers of ranks.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/progress.sh

# How many hosts / the order of ranks on them, and the host of each rank. Each carrier of messages between hosts runs
# all of them; on one host every message goes over the carrier. Where each rank has a host of its own, large payloads
# go over MPI from the memory of the caller (docs/design/message.md, Lending).
placements=(
    "1/block 0,0,0,0"
    "2/block 0,0,1,1"
    "2/cyclic 0,1,0,1"
    "3/block 0,0,1,1,2"
    "3/cyclic 0,1,2,0,1"
    "4/each 0,1,2,3"
)
carriers=(socket openmpi mpich)

ranks="" builds=(asan tsan) rows=""
[ $# -gt 0 ] || rows=all
export SHOAL_TEST_SWEEP=whole SHOAL_TEST_SWEEP_OP="" SHOAL_TEST_SWEEP_DTYPE=""
while getopts r:o:d:b:m:t option; do
    case $option in
        r) ranks="ranks_$OPTARG" ;;
        o) SHOAL_TEST_SWEEP_OP=$OPTARG ;;
        d) SHOAL_TEST_SWEEP_DTYPE=$OPTARG ;;
        b) builds=("$OPTARG") ;;
        m) rows=$OPTARG builds=() ;;
        t) export SHOAL_TEST_SWEEP_TURNS=1 ;;
        *) exit 2 ;;
    esac
done

failed=false
for build in "${builds[@]}"; do
    cmake --preset "$build" >/dev/null
    cmake --build --preset "$build" -j "$(nproc)" --target test_conformance_collectives_sweep >/dev/null
    case $build in
        asan) words=("$ranks/processes") ;;
        tsan) words=("$ranks/threads") ;;
        *) words=("$ranks/processes" "$ranks/threads") ;;
    esac
    echo "sweep: $build ${words[*]}"
    begin=$SECONDS
    if TSAN_OPTIONS=halt_on_error=1 progress_run "sweep: $build" "build/$build/tests/conformance/collectives_sweep_test" "${words[@]}"; then
        echo "sweep: $build ok ($((SECONDS - begin)) s)"
    else
        echo "sweep: $build FAILED ($((SECONDS - begin)) s)"
        failed=true
    fi
done

# sweep_row CARRIER HOSTS_OF_RANKS N_RANKS: prints how many cases there were.
sweep_row() {
    local program=build/dev/tests/conformance/collectives_sweep_test log status=0
    if [ "$1" != socket ]; then
        [ "$2" = 0,0,0,0 ] || export SHOAL_PRETEND_HOSTS=$2
        SHOAL_MODULE_PATH=$PWD/build/dev/lib/shoal SHOAL_TEST_LAUNCHED_SECONDS=21600 \
            bash tests/fixtures/launched.sh "$1" "$3" "$program"
        return
    fi
    log=$(mktemp)
    if [ "$2" = 0,0,0,0 ]; then
        export SHOAL_TRANSPORT=socket
    else
        export SHOAL_PRETEND_HOSTS=$2
    fi
    SHOAL_TRANSPORT_SOCKET_ADDRESS=127.0.0.1 SHOAL_MODULE_PATH=$PWD/build/dev/lib/shoal SHOAL_LOG=debug \
        "$program" "ranks_$3/processes" >"$log" 2>&1 || status=$?
    # Those that must cross hosts have crossed them.
    [ "$2" = 0,0,0,0 ] || grep -q "connected to group .* over two_level" "$log" || status=1
    [ "$status" = 0 ] || tail -n 40 "$log"
    grep -oE '[0-9]+ ranks: .* cases so far' "$log" | tail -n 1
    rm -f "$log"
    return "$status"
}

# The rows that were asked for.
n_rows=0
for carrier in "${carriers[@]}"; do
    for placement in "${placements[@]}"; do
        read -r name hosts <<<"$placement"
        name=$carrier/$name
        [ "$rows" = all ] || { [ -n "$rows" ] && [[ $name == "$rows"* ]]; } || continue
        if [ "$n_rows" = 0 ]; then
            cmake --preset dev >/dev/null
            cmake --build --preset dev -j "$(nproc)" --target hosts_programs >/dev/null
        fi
        n_rows=$((n_rows + 1)) begin=$SECONDS status=0
        n_ranks=$(tr -cd ',' <<<"$hosts," | wc -c)
        (progress_run "sweep: $name" sweep_row "$carrier" "$hosts" "$n_ranks") || status=$?
        case $status in
            0) echo "sweep: $name ok ($n_ranks ranks, $((SECONDS - begin)) s)" ;;
            77) echo "sweep: $name skipped" ;;
            *) echo "sweep: $name FAILED ($((SECONDS - begin)) s)" && failed=true ;;
        esac
    done
done
[ -z "$rows" ] || [ "$n_rows" -gt 0 ] || { echo "sweep: no row begins with '$rows'" && exit 2; }

if [ $# = 0 ]; then
    cmake --preset dev >/dev/null
    cmake --build --preset dev -j "$(nproc)" --target test_unit_graph_run >/dev/null
    echo "sweep: plans beyond 4 GiB"
    progress_run "sweep: large plans" build/dev/tests/unit/graph/run/plan_large_test || failed=true
    cmake --build --preset dev -j "$(nproc)" --target test_conformance_collectives_device >/dev/null
    echo "sweep: collectives beyond 4 GiB on a device"
    SHOAL_MODULE_PATH=$PWD/build/dev/tests/modules progress_run "sweep: large collectives" \
        build/dev/tests/conformance/collectives_device_test beyond_32_bits || failed=true
    targets=(test_unit_checkpoint test_unit_checkpoint_load test_parallel_checkpoint_nn_modules)
    cmake --build --preset dev -j "$(nproc)" --target "${targets[@]}" >/dev/null
    echo "sweep: checkpoints between all ways of sharding and numbers of ranks"
    for program in unit/checkpoint/{round_trip,load/saved} parallel/checkpoint/nn/modules; do
        progress_run "sweep: $program" "build/dev/tests/${program}_test" || failed=true
    done
    cmake --build --preset dev -j "$(nproc)" --target test_procs_checkpoint_faults >/dev/null
    echo "sweep: a rank killed, and a full or broken disk, at every request of a save"
    progress_run "sweep: faults of saves" build/dev/tests/procs/checkpoint_faults_test || failed=true
    cmake --build --preset dev -j "$(nproc)" --target shoal_tool >/dev/null
    echo "sweep: digests of shoal train in all modes, 20 steps, with dropout and without"
    ctest --preset dev -R '^cli/train_digest$' || failed=true
    targets=(test_parallel_fsdp_bits test_parallel_fsdp_mixed test_procs_mismatch_matrix test_unit_comm_call
        replay_ddp_fusion shoal_transport_socket)
    cmake --build --preset dev -j "$(nproc)" --target "${targets[@]}" >/dev/null
    echo "sweep: all cases of tests that are halved in make test"
    ctest --preset dev -R '^(parallel/fsdp/(bits|mixed)|procs/mismatch_matrix|unit/comm/call/prepared|cli/replay_ddp_fusion)(/|$)' ||
        failed=true
fi
! $failed
