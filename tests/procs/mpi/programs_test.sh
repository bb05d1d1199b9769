#!/bin/bash
# SPDX-License-Identifier: MIT
# Programs that give Shoal their communicator, at every thread level (tests/interop/mpi_world.c), and what is refused:
# programs_test.sh openmpi|mpich.
set -euo pipefail
. "$SHOAL_TEST_SOURCE_DIR/tests/fixtures/mpi.sh"

# Programs that use MPI themselves.
communicators() {
    local mode
    for mode in multiple split serialized_lock serialized_progress funneled_progress default; do
        echo "$flavour $mode"
        runs ok "${mpirun[@]}" -n 2 "$program" "$mode"
        says 2 ": ok"
    done
    echo "$flavour twice"
    runs ok "${mpirun[@]}" -n 3 "$program" twice
    says 6 ": ok"
}

# refuses MODE TEXT: a world of one says as much as one of many.
refuses() {
    runs fail "$program" "$1"
    says 1 "$2"
}

refusals() {
    echo "$flavour refuses"
    refuses single "MPI_THREAD_SINGLE: ask for MPI_THREAD_MULTIPLE"
    refuses funneled "MPI_THREAD_FUNNELED: ask for MPI_THREAD_MULTIPLE"
    refuses serialized "MPI_THREAD_SERIALIZED: ask for MPI_THREAD_MULTIPLE, or give mpi_lock"
    refuses count "options says rank 0 of 2, but mpi_comm of"
    refuses null "mpi_comm is MPI_COMM_NULL"
    refuses both "both mpi_comm and exchange are given"
}

# Ranks that run another version of the library.
versions() {
    echo "$flavour versions"
    runs fail "${mpirun[@]}" -n 2 "$program" version
    says 1 "ranks have different versions of MPI: rank 0 has"
}

# Processes that an MPI program has started have variables of their own. MPICH 4.0 on UCX cannot start any.
spawns() {
    [[ $flavour == openmpi ]] || return 0
    echo "$flavour spawns"
    runs ok "${mpirun[@]}" -n 3 "$program" spawns
    says 5 ": ok"
}

# A child of fork may call MPI only if it was forked before MPI was initialized.
forks() {
    local mode
    for mode in forks forks_own; do
        echo "$flavour $mode"
        runs ok env SHOAL_PRETEND_HOSTS=0,1,2 "${mpirun[@]}" -n 3 "$program" "$mode"
        says 3 "was forked from one that uses MPI"
        says 3 ": ok"
    done
    echo "$flavour forked"
    runs ok "${mpirun[@]}" -n 2 "$program" forked
    says 2 "mpi_comm is given, but MPI is not initialized"
    says 2 ": ok"
}

communicators
refusals
versions
spawns
forks
! $failed
