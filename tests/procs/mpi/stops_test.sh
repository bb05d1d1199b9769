#!/bin/bash
# SPDX-License-Identifier: MIT
# Ranks that stop, or fail, in the middle of a collective that sends from the caller's memory: stops_test.sh openmpi|mpich.
set -euo pipefail
. "$SHOAL_TEST_SOURCE_DIR/tests/fixtures/mpi.sh"
stop_program=$SHOAL_TEST_BUILD_DIR/tests/fault/mpi_stop

# leaves HOW NUMBER KIND: rank 1 stops at a fail point of a large collective, or fails there, and everybody unmaps the
# buffers when its call has returned. Nobody crashes. Where all live, MPI can still be used by others.
leaves() {
    local how=$1 rank status=TIMEOUT
    echo "$flavour: rank 1 does not go on at fail point $2 of an $3: $how"
    [[ $how == fail ]] && status=SYSTEM
    # A rank that has not given MPI up waits at its exit for those that have.
    SHOAL_PRETEND_HOSTS=0,1,2 survives 3 env SHOAL_TRANSPORT_MPI_FINALIZE_SECONDS=0 SHOAL_LOG=warn \
        "$stop_program" "$scratch" 1 "$2" "$how" "$3"
    for rank in 0 1 2; do
        cp "$scratch/rank.$rank" "$scratch/out"
        says 1 "group: SHOAL_ERR_$status: "
        says 1 "status 1"
        if [[ $how == fail && $rank -ne 1 ]]; then
            says 1 "others: SHOAL_OK"
        fi
    done
}

leaves stop 7 all_gather
leaves fail $((4 + RANDOM % 12)) all_gather
# Before it sends its data, and before it sends the result of its share.
leaves stop $((5 + RANDOM % 2)) all_reduce
! $failed
