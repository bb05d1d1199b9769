#!/bin/bash
# SPDX-License-Identifier: MIT
# Worlds on MPI, for each MPI library with a module: programs that give Shoal their communicator, at every thread level
# (tests/interop/mpi_world.c); which MPI is taken, and what is wrong with the others; a rank that is killed.
set -euo pipefail

if ldd "$SHOAL_TEST_BUILD_DIR/examples/01_all_reduce" | grep libtsan >/dev/null; then
    echo "the thread sanitizer reports the MPI libraries, which were not built with it"
    exit 77
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=false
limit_s=$((60 * ${SHOAL_TEST_TIME_SCALE:-1}))
library_folder=$SHOAL_TEST_BUILD_DIR/lib
example=$SHOAL_TEST_BUILD_DIR/examples/01_all_reduce
kill_program=$SHOAL_TEST_BUILD_DIR/tests/fault/mpi_kill
stop_program=$SHOAL_TEST_BUILD_DIR/tests/fault/mpi_stop
export SHOAL_MODULE_PATH=$library_folder
# Open MPI wants a remote shell even for ranks of this machine; any command will do.
export OMPI_MCA_plm_rsh_agent=true OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 TMPDIR=$scratch
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0

# The launcher of whoever runs this test is not the one to be tested.
for name in $(compgen -e | grep -E '^(SHOAL_(RANK|RANKS|KEY|MPI|TRANSPORT)$|RANK$|WORLD_SIZE$|MASTER_|LOCAL_|OMPI_COMM|PMIX?_|SLURM_|TORCHELASTIC_)'); do
    unset "$name"
done

complain() {
    echo "$1"
    sed 's/^/  out: /' "$scratch/out"
    failed=true
}

# runs WANTED COMMAND...: the exit status is 0, or WANTED is "fail" and it is not. Nobody hangs.
runs() {
    local wanted=$1 status=0
    shift
    timeout "$limit_s" "$@" >"$scratch/out" 2>&1 </dev/null || status=$?
    if [[ $status -eq 124 || ($wanted == ok && $status -ne 0) || ($wanted == fail && $status -eq 0) ]]; then
        complain "$*: exit status $status"
    fi
}

# says N TEXT: N lines at least
says() {
    [[ $(grep -cF -- "$2" "$scratch/out") -ge $1 ]] || complain "not $1 times '$2'"
}

mpirun_of() {
    mpirun=("mpirun.$1")
    if [[ $1 == openmpi ]]; then
        mpirun+=(--oversubscribe)
    fi
}

# Programs that use MPI themselves.
communicators() {
    local flavour=$1 program=$2 mode
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
    local flavour=$1 program=$2
    echo "$flavour refuses"
    refuses single "MPI_THREAD_SINGLE: ask for MPI_THREAD_MULTIPLE"
    refuses funneled "MPI_THREAD_FUNNELED: ask for MPI_THREAD_MULTIPLE"
    refuses serialized "MPI_THREAD_SERIALIZED: ask for MPI_THREAD_MULTIPLE, or give mpi_lock"
    refuses count "options says rank 0 of 2, but mpi_comm of"
    refuses null "mpi_comm is MPI_COMM_NULL"
    refuses both "both mpi_comm and exchange are given"
}

# survives N COMMAND...: N ranks, one of which kills itself; what each says is in $scratch/rank.R. mpirun of MPICH ends
# everybody when one of its own children was killed, so that a shell stays in its place until all have ended.
survives() {
    local n_ranks=$1 recovery=()
    shift
    rm -f "$scratch"/{rank,ready,ended,told}.*
    [[ $flavour == openmpi ]] && recovery=(--enable-recovery)
    # UCX ends a process that was about to read the memory of another that has died (docs/design/mpi.md).
    # shellcheck disable=SC2016 # the ranks' shells expand it
    runs any env UCX_TLS=tcp,self,sysv,posix "${mpirun[@]}" "${recovery[@]}" -n "$n_ranks" \
        bash -c 'out=$1/rank.${OMPI_COMM_WORLD_RANK:-$PMI_RANK}
            n_ranks=$2
            folder=$1
            trap "" USR1
            shift 2
            "$@" >"$out" 2>&1
            echo "status $?" >>"$out"
            for ((i = 0; i < 500 && $(cat "$folder"/rank.* | grep -c ^status) < n_ranks; i++)); do sleep 0.02; done' \
        - "$scratch" "$n_ranks" "$@"
}

deaths() {
    local flavour=$1 program=$2 mode rank
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
    local hosts=$1 victim=$2 rank
    echo "$flavour: rank $2 of hosts $1 dies at fail point $3"
    SHOAL_TEST_HOSTS=$hosts survives 4 env SHOAL_LOG=info "$kill_program" "$scratch" "$victim" "$3"
    for rank in 0 1 2 3; do
        cp "$scratch/rank.$rank" "$scratch/out"
        says 1 "groups on several of them use two_level over mpi"
        if [[ $rank -eq $victim ]]; then
            says 1 "dies at "
            says 1 "status 137"
        else
            says 1 "group: SHOAL_ERR_PEER: rank $victim (process "
            grep -qE "^others: SHOAL_ERR_PEER: (the group has failed before: )?rank $victim \(process " "$scratch/out" ||
                complain "rank $rank: others do not hear of rank $victim"
            says 1 "status 1"
        fi
    done
}

# dies_late HOSTS: a rank that dies after it has closed its world. The others do not wait for it in MPI_Finalize.
dies_late() {
    local rank
    echo "$flavour: rank 2 of hosts $1 dies after it has closed its world"
    SHOAL_TEST_HOSTS=$1 survives 3 env SHOAL_LOG=warn "$program" dies_late
    for rank in 0 1; do
        cp "$scratch/rank.$rank" "$scratch/out"
        says 1 "rank $rank: ok"
        # Another that has gone for the same reason may be named too.
        grep -qE "exits without MPI_Finalize: ranks? .*2 died, exited or" "$scratch/out" ||
            complain "rank $rank does not say that rank 2 has gone"
        says 1 "status 0"
    done
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

# leaves HOW NUMBER KIND: rank 1 stops at a fail point of a large collective, or fails there, and everybody unmaps the
# buffers when its call has returned. Nobody crashes. Where all live, MPI can still be used by others.
leaves() {
    local how=$1 rank status=TIMEOUT
    echo "$flavour: rank 1 does not go on at fail point $2 of an $3: $how"
    [[ $how == fail ]] && status=SYSTEM
    # A rank that has not given MPI up waits at its exit for those that have.
    SHOAL_TEST_HOSTS=0,1,2 survives 3 env SHOAL_TRANSPORT_MPI_FINALIZE_SECONDS=0 SHOAL_LOG=warn \
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
        runs ok env SHOAL_TEST_HOSTS=0,1,2 "${mpirun[@]}" -n 3 "$program" "$mode"
        says 3 "was forked from one that uses MPI"
        says 3 ": ok"
    done
    echo "$flavour forked"
    runs ok "${mpirun[@]}" -n 2 "$program" forked
    says 2 "mpi_comm is given, but MPI is not initialized"
    says 2 ": ok"
}

# A rank that goes on after its world was closed: the others wait for it in MPI_Finalize, but not for ever. What mpirun makes
# of a rank that exits without it is its own affair.
late() {
    local flavour=$1 program=$2
    echo "$flavour stays"
    runs any env SHOAL_TRANSPORT_MPI_FINALIZE_SECONDS=0 SHOAL_LOG=warn "${mpirun[@]}" -n 2 "$program" stays
    says 1 "exits without MPI_Finalize: not all ranks have reached it"
}

# One that dies after the ranks have met, when all begin MPI: nobody waits for it until the end of start-up.
dies_at_start() {
    local rank
    echo "$flavour: rank 2 dies before it begins MPI"
    SHOAL_TEST_HOSTS=0,0,1 survives 3 "$kill_program" "$scratch" 2 0
    for rank in 0 1; do
        cp "$scratch/rank.$rank" "$scratch/out"
        says 1 "open: SHOAL_ERR_PEER: transport mpi: start-up: rank 2 (process "
    done
}

# A host on which the module is missing: every rank hears of it at once.
differs() {
    local rank
    echo "$flavour: rank 2 has no module for it"
    mkdir -p "$scratch/modules"
    cp "$library_folder/libshoal_transport_socket.so" "$scratch/modules"
    # shellcheck disable=SC2016 # the ranks' shells expand it
    SHOAL_TEST_TCP=1 SHOAL_TEST_HOSTS=0,0,1 survives 3 bash -c '
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
    local flavour=$1 other=$2 text=$3 size=$4
    [[ -e $library_folder/libshoal_mpi_$other.so ]] || return 0
    echo "$flavour is not $other"
    runs fail env SHOAL_TRANSPORT=mpi SHOAL_MPI="$other" "${mpirun[@]}" -n 2 "$example"
    says 1 "$text"
    says 1 "was the program started by the mpirun of another MPI"
    # The same of a program that gives its communicator.
    runs fail "${mpirun[@]}" -n 2 "$SHOAL_TEST_BUILD_DIR/tests/interop/mpi_world_$other" multiple
    says 1 "${size} is 2, but MPI_COMM_WORLD of"
    says 1 "has 1 rank: was the program started by the mpirun of another MPI"
}

some=false
for flavour in openmpi mpich; do
    program=$SHOAL_TEST_BUILD_DIR/tests/interop/mpi_world_$flavour
    if [[ ! -x $program ]] || ! command -v "mpirun.$flavour" >/dev/null; then
        echo "$flavour: not here, not tested"
        continue
    fi
    some=true
    mpirun_of "$flavour"
    communicators "$flavour" "$program"
    refusals "$flavour" "$program"
    deaths "$flavour" "$program"
    # After the calls were compared, and then in the middle of the data.
    dies_between 0,0,1,1 3 3
    dies_between 0,1,0,1 $((RANDOM % 4)) $((4 + RANDOM % 12))
    leaves stop 7 all_gather
    leaves fail $((4 + RANDOM % 12)) all_gather
    # Before it sends its data, and before it sends the result of its share.
    leaves stop $((5 + RANDOM % 2)) all_reduce
    late "$flavour" "$program"
    dies_late 0,0,0
    dies_late 0,0,1
    finalizes
    versions
    spawns
    forks
    dies_at_start
    differs
    asks_alone
    case $flavour in
    openmpi) wrong openmpi mpich "Open MPI says rank" OMPI_COMM_WORLD_SIZE ;;
    mpich) wrong mpich openmpi "PMI says rank" PMI_SIZE ;;
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
    runs ok env SHOAL_TEST_HOSTS=0,1,2 SHOAL_LOG=info "${mpirun[@]}" -n 3 "$example"
    says 3 "transport mpi_$flavour loaded"
    says 3 ": sums 3 3 5"
    # The launcher says that there are several hosts: the ranks meet through MPI.
    runs ok env SHOAL_TEST_HOSTS=0,1 "${mpirun[@]}" -n 2 env OMPI_COMM_WORLD_LOCAL_SIZE=1 MPI_LOCALNRANKS=1 "$example"
    says 2 ": sums 2 1 1"
done
if ! $some; then
    exit 77
fi

echo "none"
mkdir "$scratch/alone"
cp -L "$library_folder/libshoal.so" "$scratch/alone/$(objdump -p "$library_folder/libshoal.so" | sed -nE 's/^ *SONAME *//p')"
runs fail env -u SHOAL_MODULE_PATH LD_LIBRARY_PATH="$scratch/alone" SHOAL_TRANSPORT=mpi "$example"
says 1 "neither libshoal_mpi_openmpi.so nor libshoal_mpi_mpich.so is installed"
runs fail env -u SHOAL_MODULE_PATH LD_LIBRARY_PATH="$scratch/alone" SHOAL_TRANSPORT=mpi SHOAL_MPI=mpich "$example"
says 1 "libshoal_mpi_mpich.so"

! $failed
