#!/bin/bash
# SPDX-License-Identifier: MIT
# The whole sweep of the collectives (tests/conformance/collectives_sweep_test.c): ranks as processes under the address
# sanitizer, ranks as threads under the thread sanitizer. Without options also, without a sanitizer, plans beyond 4 GiB
# (unit/graph/plan_large), which need 13 GiB of memory, checkpoints between all ways of sharding on 1 to 6 ranks,
# saves with a rank killed or refused at every request, digests of `shoal train` in all modes after 20 steps, and all cases
# of tests of which `make test` runs one half with ranks as threads and the other half as processes.
#
#   scripts/sweep.sh                   everything
#   scripts/sweep.sh -r 3              with 3 ranks
#   scripts/sweep.sh -o all_reduce     one form: a name of tests/conformance/collectives/sweep_ops.def
#   scripts/sweep.sh -d f32            one dtype
#   scripts/sweep.sh -b asan           one build: asan, tsan, or dev (both launchers, no sanitizer)
#
# On two busy cores u64 with 2, 6 and 9 ranks took 4 minutes under the address sanitizer, i16 with 2, 3, 4, 5 and 7
# ranks 5 minutes under the thread sanitizer; there are 15 dtypes and 9 numbers of ranks.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/progress.sh

ranks="" builds=(asan tsan)
export SHOAL_TEST_SWEEP=whole SHOAL_TEST_SWEEP_OP="" SHOAL_TEST_SWEEP_DTYPE=""
while getopts r:o:d:b: option; do
    case $option in
        r) ranks="ranks_$OPTARG" ;;
        o) SHOAL_TEST_SWEEP_OP=$OPTARG ;;
        d) SHOAL_TEST_SWEEP_DTYPE=$OPTARG ;;
        b) builds=("$OPTARG") ;;
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
if [ $# = 0 ]; then
    cmake --preset dev >/dev/null
    cmake --build --preset dev -j "$(nproc)" --target test_unit_graph_plan_large >/dev/null
    echo "sweep: plans beyond 4 GiB"
    progress_run "sweep: large plans" build/dev/tests/unit/graph/plan_large_test || failed=true
    checkpoints=(unit_checkpoint_round_trip unit_checkpoint_load_saved parallel_checkpoint_nn_modules)
    cmake --build --preset dev -j "$(nproc)" --target "${checkpoints[@]/#/test_}" >/dev/null
    echo "sweep: checkpoints between all ways of sharding and numbers of ranks"
    for program in unit/checkpoint/{round_trip,load_saved} parallel/checkpoint/nn/modules; do
        progress_run "sweep: $program" "build/dev/tests/${program}_test" || failed=true
    done
    cmake --build --preset dev -j "$(nproc)" --target test_procs_checkpoint_faults >/dev/null
    echo "sweep: a rank killed, and a full or broken disk, at every request of a save"
    progress_run "sweep: faults of saves" build/dev/tests/procs/checkpoint_faults_test || failed=true
    cmake --build --preset dev -j "$(nproc)" --target shoal_tool >/dev/null
    echo "sweep: digests of shoal train in all modes, 20 steps, with dropout and without"
    ctest --preset dev -R '^cli/train_digest$' || failed=true
    targets=(test_parallel_fsdp_bits test_parallel_fsdp_mixed test_procs_mismatch_matrix test_unit_comm_prepared
        replay_ddp_fusion shoal_transport_socket)
    cmake --build --preset dev -j "$(nproc)" --target "${targets[@]}" >/dev/null
    echo "sweep: all cases of tests that are halved in make test"
    ctest --preset dev -R '^(parallel/fsdp/(bits|mixed)|procs/mismatch_matrix|unit/comm/prepared|cli/replay_ddp_fusion)(/|$)' ||
        failed=true
fi
! $failed
