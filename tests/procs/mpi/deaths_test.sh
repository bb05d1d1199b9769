#!/bin/bash
# SPDX-License-Identifier: MIT
# Ranks that kill themselves, in programs that use MPI and between hosts: deaths_test.sh openmpi|mpich.
set -euo pipefail
. "$SHOAL_TEST_SOURCE_DIR/tests/fixtures/mpi.sh"
kill_program=$SHOAL_TEST_BUILD_DIR/tests/fault/mpi_kill

deaths() {
    local mode rank
    for mode in dies dies_foreign dies_locked; do
        echo "$flavour $mode"
        survives 3 "$program" "$mode"
        for rank in 0 1; do
            cp "$scratch/rank.$rank" "$scratch/out"
            says 1 ": rank 2 (process "
            says 1 "status 1"
        done
    done
    echo "$flavour dies, plain"
    runs fail "${mpirun[@]}" -n 3 "$program" dies
}

# dies_between HOSTS VICTIM NUMBER: with two_level over mpi, where ranks also wait for each other in shared memory. Everybody names
# the one that died, also in groups that it was no member of.
dies_between() {
    local hosts=$1 victim=$2 rank group
    echo "$flavour: rank $2 of hosts $1 dies at fail point $3"
    SHOAL_PRETEND_HOSTS=$hosts survives 4 env SHOAL_LOG=info "$kill_program" "$scratch" "$victim" "$3"
    for rank in 0 1 2 3; do
        cp "$scratch/rank.$rank" "$scratch/out"
        says 1 "groups on several of them use two_level over mpi"
        if [[ $rank -eq $victim ]]; then
            says 1 "dies at "
            says 1 "status 137"
        else
            # A rank may hear of the death before its next call.
            for group in group others; do
                grep -qE "^$group: SHOAL_ERR_PEER: (the group has failed before: )?rank $victim \(process " "$scratch/out" ||
                    complain "rank $rank: $group does not hear of rank $victim"
            done
            says 1 "status 1"
        fi
    done
}

# dies_late HOSTS: a rank that dies after it has closed its world. The others do not wait for it in MPI_Finalize.
dies_late() {
    local rank
    echo "$flavour: rank 2 of hosts $1 dies after it has closed its world"
    SHOAL_PRETEND_HOSTS=$1 survives 3 env SHOAL_LOG=warn "$program" dies_late
    for rank in 0 1; do
        cp "$scratch/rank.$rank" "$scratch/out"
        says 1 "rank $rank: ok"
        # Another that has gone for the same reason may be named too.
        grep -qE "exits without MPI_Finalize: ranks? .*2 died, exited or" "$scratch/out" ||
            complain "rank $rank does not say that rank 2 has gone"
        says 1 "status 0"
    done
}

# One that dies after the ranks have met, when all begin MPI: nobody waits for it until the end of start-up.
dies_at_start() {
    local rank
    echo "$flavour: rank 2 dies before it begins MPI"
    SHOAL_PRETEND_HOSTS=0,0,1 survives 3 "$kill_program" "$scratch" 2 0
    for rank in 0 1; do
        cp "$scratch/rank.$rank" "$scratch/out"
        says 1 "open: SHOAL_ERR_PEER: transport mpi: start-up: rank 2 (process "
    done
}

deaths
# After the calls were compared, and then in the middle of the data.
dies_between 0,0,1,1 3 3
dies_between 0,1,0,1 $((RANDOM % 4)) $((4 + RANDOM % 12))
dies_late 0,0,0
dies_late 0,0,1
dies_at_start
! $failed
