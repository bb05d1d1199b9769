#!/bin/bash
# SPDX-License-Identifier: MIT
# Ranks of an mpirun that are killed or stopped from outside, at start-up, in the middle of calls and before they close their
# world (tests/fault/mpi_signal.c): signals_test.sh openmpi|mpich. The others return in time and name the rank. One that was
# stopped returns too when it is continued, and nobody crashes.
set -euo pipefail
. "$SHOAL_TEST_SOURCE_DIR/tests/fixtures/mpi.sh"
signal_program=$SHOAL_TEST_BUILD_DIR/tests/fault/mpi_signal

# await FILES...: until all are there, or nobody waits for them any more
await() {
    local file
    for file in "$@"; do
        for ((i = 0; i < 2500; i++)); do
            [[ -e $file ]] && break
            sleep 0.02
        done
    done
}

# strike SIGNAL VICTIM: in the background. A rank that was stopped goes on when all others have ended.
strike() {
    local process
    await "$scratch/ready.$2"
    process=$(cat "$scratch/ready.$2")
    kill -s "$1" "$process"
    if [[ $1 == STOP ]]; then
        for ((i = 0; i < 2500 && $(cat "$scratch"/rank.* 2>/dev/null | grep -c ^status) < 2; i++)); do sleep 0.02; done
        : >"$scratch/go"
        kill -s CONT "$process"
    fi
}

# The status with which the others end the phase in which a rank is struck, and how they name it.
declare -A wanted=(
    ["start KILL"]="open: SHOAL_ERR_(TIMEOUT|PEER): start-up: .*rank @"
    ["start STOP"]="open: SHOAL_ERR_TIMEOUT: start-up: .*rank @ did not arrive"
    ["steps KILL"]="steps: SHOAL_ERR_PEER: (the group has failed before: )?rank @ \\(process "
    ["steps STOP"]="steps: SHOAL_ERR_TIMEOUT: .*ranks? "
    ["close KILL"]="close: SHOAL_(OK|ERR_PEER): (.*rank @ |\$)"
    ["close STOP"]="close: SHOAL_ERR_TIMEOUT: .*rank @ did not close it in time"
)

# names VICTIM: at least one of the others names the rank that was stopped; some may name one that waits for it in turn.
names() {
    local rank named=false
    for rank in 0 1 2; do
        if [[ $rank -ne $1 ]] && grep -qE "^[a-z]+: SHOAL_ERR_[A-Z]+: .*ranks? ([0-9], )*$1 " "$scratch/rank.$rank"; then
            named=true
        fi
    done
    $named || complain "nobody names rank $1"
}

# struck TRANSPORT PHASE SIGNAL VICTIM
struck() {
    local phase=$2 signal=$3 victim=$4 rank pattern striker
    echo "$flavour, transport $1: rank $victim gets $signal, at: $phase"
    rm -f "$scratch"/{rank,ready}.* "$scratch/go"
    strike "$signal" "$victim" &
    striker=$!
    # A rank that has not given MPI up waits at its exit for those that have.
    SHOAL_TRANSPORT=$1 survives 3 env SHOAL_TRANSPORT_MPI_FINALIZE_SECONDS=0 SHOAL_LOG=warn "$signal_program" \
        "$scratch" "$victim" "$phase"
    wait "$striker" || complain "rank $victim could not be sent $signal"
    pattern=${wanted["$phase $signal"]//@/$victim}
    for rank in 0 1 2; do
        cp "$scratch/rank.$rank" "$scratch/out"
        if [[ $rank -ne $victim ]]; then
            grep -qE "^$pattern" "$scratch/out" || complain "rank $rank: not '$pattern'"
            grep -qE '^status [01]$' "$scratch/out" || complain "rank $rank has crashed"
        elif [[ $signal == KILL ]]; then
            says 1 "status 137"
        else
            grep -qE '^status [01]$' "$scratch/out" || complain "rank $rank, which was stopped, has crashed"
        fi
    done
    [[ $signal == KILL ]] || names "$victim"
}

# Under plain mpirun, which may end everybody: nobody hangs.
struck_plainly() {
    local striker
    echo "$flavour, transport $1: rank 1 gets KILL, plain"
    rm -f "$scratch"/{rank,ready}.* "$scratch/go"
    strike KILL 1 &
    striker=$!
    runs fail env SHOAL_TRANSPORT="$1" "${mpirun[@]}" -n 3 "$signal_program" "$scratch" 1 steps
    wait "$striker" || complain "rank 1 could not be sent KILL"
}

for signal in KILL STOP; do
    struck shm start "$signal" $((1 + RANDOM % 2))
    struck shm steps "$signal" $((RANDOM % 3))
    struck shm close "$signal" $((RANDOM % 3))
    struck mpi steps "$signal" $((RANDOM % 3))
done
struck_plainly shm
struck_plainly mpi
! $failed
