#!/bin/bash
# SPDX-License-Identifier: MIT
# The fixture itself: hosts that have their own places, the agent, both mpiruns through it, a rate, a cut, delay and loss.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=fixture.sh
. "${BASH_SOURCE[0]%/*}/fixture.sh"

test_places() {
    hosts_up a b c
    local name
    for name in a b c; do
        [[ $(on "$name" hostname) == "$name" ]] || complain "the name of $name"
        # shellcheck disable=SC2016 # expanded there
        on "$name" sh -c 'echo "$0" >/tmp/own; echo "$0" >/dev/shm/own' "$name"
        [[ $(on "$name" cat /proc/sys/kernel/random/boot_id) == "$(</proc/sys/kernel/random/boot_id)" ]] ||
            complain "the boot id of $name is another one: tests expect that it lies"
    done
    for name in a b c; do
        [[ $(on "$name" cat /tmp/own /dev/shm/own) == "$name"$'\n'"$name" ]] || complain "$name sees files of others"
        [[ ! -e /tmp/own && ! -e /dev/shm/own ]] || complain "files of $name are seen by the head"
        hosts_reach "$name" b || complain "$name does not reach b"
    done
    # One thing has one number on several hosts.
    [[ $(on a sh -c 'echo $$') == "$(on b sh -c 'echo $$')" ]] || complain "processes are numbered together"
}

test_agent() {
    local status=0
    [[ $("$hosts_rsh" -x -o 'A B' b hostname) == b ]] || complain "the agent does not come to b"
    # shellcheck disable=SC2016 # expanded there
    [[ $(SECRET=1 "$hosts_rsh" a 'echo "<$SECRET>"' '"$(hostname)"') == "<> a" ]] || complain "words, or an environment"
    [[ $(echo typed | "$hosts_rsh" c cat) == typed ]] || complain "the agent has no input"
    "$hosts_rsh" b 'exit 7' || status=$?
    [[ $status -eq 7 ]] || complain "exit status 7 became $status"
    status=0
    "$hosts_rsh" nowhere true 2>"$scratch/err" || status=$?
    [[ $status -eq 255 && $(<"$scratch/err") == "rsh: nowhere: no such host" ]] || complain "a host that is not there"
}

# ran NAME COMMAND...: a trivial program on two ranks of a and one of b says on which host it is.
ran() {
    local name=$1 hosts
    shift
    hosts=$(timeout 60 "$@" hostname </dev/null 2>"$scratch/err" | sort | tr '\n' ' ')
    [[ $hosts == "a a b " ]] || complain "$name: '$hosts': $(<"$scratch/err")"
    expect_empty
}

test_mpirun() {
    printf 'a slots=2\nb slots=1\n' >"$scratch/openmpi"
    printf 'a:2\nb:1\n' >"$scratch/mpich"
    if command -v mpirun.openmpi >/dev/null; then
        ran "Open MPI" mpirun.openmpi --allow-run-as-root --mca plm_rsh_agent "$hosts_rsh" --hostfile "$scratch/openmpi" -np 3
    fi
    if command -v mpirun.mpich >/dev/null; then
        ran MPICH mpirun.mpich -launcher rsh -launcher-exec "$hosts_rsh" -f "$scratch/mpich" -n 3
    fi
}

# sends MEGABYTES: from a to b; prints milliseconds.
sends() {
    on b bash -c "exec perl '$hosts_folder/take.pl' 4000" >"$scratch/taken" &
    local taker=$!
    hosts_wait_for on b sh -c 'ss -ltn | grep :4000 >/dev/null'
    local begin
    begin=$(date +%s%N)
    on a bash -c "head -c ${1}000000 /dev/zero >/dev/tcp/b/4000"
    wait "$taker"
    echo $((($(date +%s%N) - begin) / 1000000))
    [[ $(<"$scratch/taken") -eq ${1}000000 ]] || complain "of $1 MB came $(<"$scratch/taken")"
}

# 8 MB at 100 Mbit/s take 640 ms, less what fits the bucket. A machine may be slower, but not faster.
test_rate() {
    hosts_rate 100mbit
    local limited
    limited=$(sends 8)
    ((limited > 500)) || complain "8 MB at 100 Mbit/s in $limited ms"
    hosts_rate
    echo "    8 MB: $limited ms at 100 Mbit/s, $(sends 8) ms without a limit"
}

test_cut() {
    hosts_cut b
    ! "$hosts_rsh" b true 2>"$scratch/err" || complain "a host that is cut off runs commands"
    ! hosts_reach a b || complain "a host that is cut off is reached"
    hosts_reach a c || complain "the cut of b cuts c off"
    hosts_mend b
    hosts_wait_for hosts_reach a b
    hosts_down
}

# A connection takes a round trip: twice the delay.
test_relay() {
    local begin trip
    hosts_up_relay 40 0 a b
    begin=$(date +%s%N)
    hosts_reach a b || complain "a does not reach b through the relay"
    trip=$((($(date +%s%N) - begin) / 1000000))
    ((trip >= 80)) || complain "a round trip of 2 x 40 ms took $trip ms"
    [[ $("$hosts_rsh" b hostname) == b ]] || complain "the agent does not come to b"
    hosts_down
    hosts_up_relay 1 2 a b
    echo "    round trip $trip ms; 4 MB with 2 % of packets lost: $(sends 4) ms"
    hosts_down
    ! ip link show dev eth0 2>/dev/null || complain "a device of the relay stayed"
}

part places test_places
part agent test_agent
part mpirun test_mpirun
part rate test_rate
part cut test_cut
part relay test_relay
! $failed
