#!/bin/bash
# SPDX-License-Identifier: MIT
# Which MPI is taken, and what is wrong with the others: choice_test.sh openmpi|mpich.
set -euo pipefail
. "$SHOAL_TEST_SOURCE_DIR/tests/fixtures/mpi.sh"
kill_program=$SHOAL_TEST_BUILD_DIR/tests/fault/mpi_kill
example=$SHOAL_TEST_BUILD_DIR/examples/01_all_reduce

# A host on which the module is missing: every rank hears of it at once.
differs() {
    local rank
    echo "$flavour: rank 2 has no module for it"
    mkdir -p "$scratch/modules"
    cp "$module_folder/libshoal_transport_socket-1.so" "$scratch/modules"
    # shellcheck disable=SC2016 # the ranks' shells expand it
    SHOAL_TEST_TCP=1 SHOAL_PRETEND_HOSTS=0,0,1 survives 3 bash -c '
        if [[ ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} == 2 ]]; then SHOAL_MODULE_PATH=$1/modules; fi
        exec "$2" "$1" -1 1' - "$scratch" "$kill_program"
    for rank in 0 1 2; do
        cp "$scratch/rank.$rank" "$scratch/out"
        says 1 "open: SHOAL_ERR_MISMATCH: start-up: ranks would use different transports between hosts: mpi on rank "
        says 1 ", socket on rank 2 ("
    done
}

# One rank asks for MPI, and the others do not begin it.
asks_alone() {
    echo "$flavour: only rank 0 asks for it"
    # shellcheck disable=SC2016 # the ranks' shells expand it
    survives 2 bash -c '
        if [[ ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} == 0 ]]; then export SHOAL_TRANSPORT=mpi; fi
        exec "$1" brief' - "$program"
    cp "$scratch/rank.0" "$scratch/out"
    says 1 "s for MPI_Init on all ranks, which must all use transport mpi"
    says 1 "status 1"
    cp "$scratch/rank.1" "$scratch/out"
    says 1 "for rank 0, which did not arrive"
    says 1 "status 1"
}

# The mpirun of one and the library of the other: each rank is alone in its MPI.
wrong() {
    local other=$1 text=$2 size=$3
    [[ -e $module_folder/libshoal_mpi_$other-1.so ]] || return 0
    echo "$flavour is not $other"
    runs fail env SHOAL_TRANSPORT=mpi SHOAL_MPI="$other" "${mpirun[@]}" -n 2 "$example"
    says 1 "$text"
    says 1 "was the program started by the mpirun of another MPI"
    # The same of a program that gives its communicator.
    runs fail "${mpirun[@]}" -n 2 "$SHOAL_TEST_BUILD_DIR/tests/interop/mpi_world_$other" multiple
    says 1 "${size} is 2, but MPI_COMM_WORLD of"
    says 1 "has 1 rank: was the program started by the mpirun of another MPI"
}

differs
asks_alone
case $flavour in
openmpi) wrong mpich "Open MPI says rank" OMPI_COMM_WORLD_SIZE ;;
mpich) wrong openmpi "PMI (MPICH) says rank" PMI_SIZE ;;
esac
echo "$flavour without mpirun"
# Two processes of Open MPI without its mpirun that begin at once make the same directory, and one of them may fail.
for _ in 1 2 3; do
    runs fail "$SHOAL_TEST_BUILD_DIR/bin/shoal" run -n 2 "$program" multiple
    grep -F "A call to mkdir was unable" "$scratch/out" >/dev/null || break
done
says 1 "SHOAL_RANKS is 2, but MPI_COMM_WORLD of"
runs fail env SHOAL_TRANSPORT=mpi SHOAL_MPI=lam "$example"
says 1 'SHOAL_MPI is "lam", openmpi or mpich expected'
other=openmpi
[[ $flavour == openmpi ]] && other=mpich
runs fail env SHOAL_MPI="$other" "$program" multiple
says 1 "SHOAL_MPI is $other, but the process has loaded"
# Several hosts under mpirun: nobody asks for MPI, and it is taken.
runs ok env SHOAL_PRETEND_HOSTS=0,1,2 SHOAL_LOG=info "${mpirun[@]}" -n 3 "$example"
says 3 "transport mpi_$flavour loaded"
says 3 ": sums 3 3 5"
# The launcher says that there are several hosts: the ranks meet through MPI.
runs ok env SHOAL_PRETEND_HOSTS=0,1 "${mpirun[@]}" -n 2 env OMPI_COMM_WORLD_LOCAL_SIZE=1 MPI_LOCALNRANKS=1 "$example"
says 2 ": sums 2 1 1"

echo "none"
mkdir "$scratch/alone"
cp -L "$library_folder/libshoal.so" "$scratch/alone/$(objdump -p "$library_folder/libshoal.so" | sed -nE 's/^ *SONAME *//p')"
runs fail env -u SHOAL_MODULE_PATH LD_LIBRARY_PATH="$scratch/alone" SHOAL_TRANSPORT=mpi "$example"
says 1 "neither libshoal_mpi_openmpi-1.so nor libshoal_mpi_mpich-1.so is installed"
runs fail env -u SHOAL_MODULE_PATH LD_LIBRARY_PATH="$scratch/alone" SHOAL_TRANSPORT=mpi SHOAL_MPI=mpich "$example"
says 1 "libshoal_mpi_mpich-1.so"
! $failed
