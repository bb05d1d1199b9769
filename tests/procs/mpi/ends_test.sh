#!/bin/bash
# SPDX-License-Identifier: MIT
# The end of MPI: ranks that do not come to MPI_Finalize, or come before their world is closed: ends_test.sh openmpi|mpich.
set -euo pipefail
. "$SHOAL_TEST_SOURCE_DIR/tests/fixtures/mpi.sh"

# A rank that goes on after its world was closed: the others wait for it in MPI_Finalize, but not for ever. What mpirun makes
# of a rank that exits without it is its own affair.
late() {
    echo "$flavour stays"
    runs any env SHOAL_TRANSPORT_MPI_FINALIZE_SECONDS=0 SHOAL_LOG=warn "${mpirun[@]}" -n 2 "$program" stays
    says 1 "exits without MPI_Finalize: not all ranks have reached it"
}

# MPI_Finalize before the world is closed: an error that says so, at every level.
finalizes() {
    local mode
    for mode in finalizes finalizes_locked finalizes_progress; do
        echo "$flavour $mode"
        runs fail "${mpirun[@]}" -n 2 "$program" "$mode"
        says 2 "after MPI_Finalize: SHOAL_ERR_PEER: "
        says 1 "close: SHOAL_ERR_STATE: the application has called MPI_Finalize while the world was open"
        if grep -qE "MPI_ABORT|BAD TERMINATION|signal" "$scratch/out"; then
            complain "a rank was ended"
        fi
    done
}

late
finalizes
! $failed
