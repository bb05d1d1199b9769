#!/bin/bash
# SPDX-License-Identifier: MIT
# Ranks on two hosts: an all-reduce and `shoal train`, with the bits of one host; deaths of a rank and of a host; start-ups that
# cannot succeed. Every rank ends within its deadline, and says who or what is the reason.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=fixture.sh
. "${BASH_SOURCE[0]%/*}/fixture.sh"

export SHOAL_RSH=$hosts_rsh
build=$SHOAL_TEST_BUILD_DIR
launchers=(ssh)
for flavour in openmpi mpich; do
    # Without its module there is nothing to carry data.
    if command -v "mpirun.$flavour" >/dev/null && [[ -e $build/lib/shoal/libshoal_mpi_$flavour-1.so ]]; then
        launchers+=("$flavour")
    fi
done

# choose LAUNCHER: the options of `shoal run` for it, and variables. No transport is asked for: what carries messages between
# hosts is the launcher's MPI, or TCP.
choose() {
    how=(--launcher ssh)
    variables=()
    crossing=socket
    if [[ $1 != ssh ]]; then
        how=(--mpirun "mpirun.$1")
        crossing=mpi
    fi
}

# run_hosts STATUS ARGS...: any other status than 0 stands for all of them.
run_hosts() {
    local wanted=$1 status=0
    shift
    env "${variables[@]}" timeout 120 "$SHOAL_TEST_TOOL" run --hosts "$scratch/hosts.txt" "${how[@]}" "$@" \
        >"$scratch/out" 2>"$scratch/err" </dev/null || status=$?
    if [[ $wanted -eq 0 && $status -ne 0 || $wanted -ne 0 && $status -eq 0 || $status -eq 124 ]]; then
        complain "${how[*]} $*: exit status $status: $(tail -n 8 "$scratch/err" "$scratch/out")"
    fi
    expect_empty
}

# names RANK PATTERN: this rank says so
names() {
    grep -qE "^\[$1\] .*($2)" "$scratch/err" || complain "rank $1 does not say '$2': $(tail -n 12 "$scratch/err")"
}

test_sums() {
    local launcher
    for launcher in "${launchers[@]}"; do
        choose "$launcher"
        variables=(SHOAL_LOG=info)
        run_hosts 0 "$build/examples/01_all_reduce"
        [[ $(grep -c ': sums 4 6 14$' "$scratch/out") -eq 4 ]] || complain "$launcher: sums: $(<"$scratch/out")"
        [[ $(grep -c "2 hosts, groups on several of them use two_level over $crossing\$" "$scratch/err") -eq 4 ]] ||
            complain "$launcher: not two_level over $crossing: $(<"$scratch/err")"
    done
}

small=(--layers 1 --width 32 --heads 2 --context 16 --batch 2 --steps 6 --data "$SHOAL_TEST_SOURCE_DIR/README.md" --json)

digest() {
    grep -oE '"digest": "[0-9a-f]{16}"' "$1"
}

test_train() {
    local launcher mode
    for mode in fsdp ddp; do
        timeout 120 "$SHOAL_TEST_TOOL" train --ranks 4 --mode "$mode" "${small[@]}" >"$scratch/one" 2>"$scratch/err" </dev/null ||
            complain "train on one host: $(<"$scratch/err")"
        for launcher in "${launchers[@]}"; do
            choose "$launcher"
            run_hosts 0 "$SHOAL_TEST_TOOL" train --mode "$mode" "${small[@]}"
            [[ -n $(digest "$scratch/one") && $(digest "$scratch/one") == "$(digest "$scratch/out")" ]] ||
                complain "$launcher, $mode: one host $(digest "$scratch/one"), two $(digest "$scratch/out")"
        done
    done
}

# start_train: one that lasts, in the background; returns when its ranks compute.
start_train() {
    rm -f "$scratch/status"
    : >"$scratch/out"
    {
        local status=0
        env "${variables[@]}" SHOAL_TIMEOUT=20 SHOAL_HEARTBEAT=2 timeout 120 "$SHOAL_TEST_TOOL" run --hosts "$scratch/hosts.txt" "${how[@]}" \
            "$SHOAL_TEST_TOOL" train "${small[@]:0:10}" --steps 1000000 --data "$SHOAL_TEST_SOURCE_DIR/README.md" \
            >"$scratch/out" 2>"$scratch/err" </dev/null || status=$?
        echo "$status" >"$scratch/status"
    } &
    hosts_wait_for grep -q 'step' "$scratch/out"
}

# ended LIMIT_S: the job has ended, with a failure, within this time.
ended() {
    local begin=$SECONDS
    while [[ ! -s $scratch/status ]]; do
        sleep 0.1
        if ((SECONDS - begin > $1)); then
            complain "not ended after $1 s"
            break
        fi
    done
    wait
    [[ $(<"$scratch/status") -ne 0 && $(<"$scratch/status") -ne 124 ]] || complain "exit status $(<"$scratch/status")"
    echo "    ended after $((SECONDS - begin)) s"
}

# The process of a rank on a host: the one that has SHOAL_RANK or its like in its environment, and no child.
kill_rank() {
    # shellcheck disable=SC2016 # expanded there
    on "$1" bash -c 'for process in /proc/[0-9]*; do
        if tr "\0" "\n" <"$process/environ" 2>/dev/null | grep -xE "(SHOAL_RANK|OMPI_COMM_WORLD_RANK|PMI_RANK)=$0" >/dev/null &&
            tr "\0" " " <"$process/cmdline" | grep "^[^ ]*shoal train" >/dev/null; then kill -9 "${process#/proc/}"; fi; done' "$2"
}

# killed_by_signal: the ranks of which `shoal run` says so, as alternatives of a pattern
killed_by_signal() {
    sed -nE 's/^shoal run: rank ([0-9]+) on [ab] was killed by signal.*/\1/p' "$scratch/err" | paste -sd '|'
}

# Every rank that lives names who was killed. Over TCP that is rank 3 alone. Under an MPI its library may end a second
# one (docs/cluster.md), which the launcher then names too: others may name that one, and nobody else.
test_killed_rank() {
    local launcher rank killed
    for launcher in "${launchers[@]}"; do
        choose "$launcher"
        start_train
        kill_rank b 3
        ended 40
        killed=$(killed_by_signal)
        [[ "|$killed|" == *"|3|"* ]] ||
            complain "$launcher: the launcher does not name rank 3, but '$killed': $(<"$scratch/err")"
        [[ $launcher != ssh || $killed == 3 ]] || complain "ranks $killed were killed, where only 3 was"
        for rank in 0 1 2; do
            [[ "|$killed|" == *"|$rank|"* ]] || names "$rank" "rank ($killed) \\(process [0-9]+\\) died"
        done
        echo "    $launcher: ended by signals: $killed"
        expect_empty
    done
}

test_cut_host() {
    choose ssh
    start_train
    hosts_cut b
    ended 40
    names 0 "rank [23]"
    names 1 "rank [23]"
    names 2 "rank [01]"
    names 3 "rank [01]"
    hosts_mend b
    expect_empty
}

# The same, with agents whose connections cross the links: the one of the cut host says nothing more, not even that it
# has ended. The launcher still ends, after both graces, and says which agent it has lost.
test_cut_agent() {
    local host
    choose ssh
    how=(--launcher ssh --grace 1)
    variables=(SHOAL_RSH="$hosts_folder/over_tcp.pl")
    for host in a b; do
        on "$host" "$hosts_folder/over_tcp.pl" --serve 2>/dev/null &
        disown $!
        hosts_wait_for on "$host" sh -c 'ss -ltn | grep :20022 >/dev/null'
    done
    start_train
    hosts_cut b
    ended 40
    names 0 "rank [23]"
    names 1 "rank [23]"
    grep -qE "^shoal run: the agent of b \(.*over_tcp.pl\) has not told the end of 2 of its 2 ranks" "$scratch/err" ||
        complain "the launcher does not say that it lost the agent of b: $(tail -n 12 "$scratch/err")"
    ! grep -q "the agent of a" "$scratch/err" || complain "the agent of a was not lost: $(tail -n 12 "$scratch/err")"
    hosts_mend b
    hosts_wait_for hosts_reach a b
    for host in a b; do
        # shellcheck disable=SC2016 # expanded there
        on "$host" sh -c 'kill "$(cat /tmp/over_tcp.pid)"'
    done
    expect_empty
}

# by_hand RANK HOST TOKEN SECONDS [COMMAND...]: one rank, started by nobody's launcher; outputs in $scratch/RANK
by_hand() {
    local rank=$1 host=$2 token=$3 seconds=$4
    shift 4
    {
        local status=0
        on "$host" env SHOAL_RANK="$rank" SHOAL_RANKS=2 SHOAL_ADDRESS=a:20111 SHOAL_TOKEN="$token" \
            timeout 60 "$@" "$build/tests/hosts/sum" "$seconds" >"$scratch/$rank" 2>&1 || status=$?
        echo "status $status" >>"$scratch/$rank"
    } &
}

# said RANK STATUS PATTERN: how a rank by hand has ended
said() {
    if ! grep -qx "status $2" "$scratch/$1" || ! grep -qE "$3" "$scratch/$1"; then
        complain "rank $1: $(<"$scratch/$1"), expected '$3'"
    fi
}

test_start_up() {
    by_hand 0 a secret 30
    by_hand 1 b secret 30
    wait
    said 0 0 "rank 0 of 2: sum 2"
    said 1 0 "rank 1 of 2: sum 2"
    # Another token: who comes is refused at once, and rank 0 waits for the right one until its time is over.
    by_hand 0 a secret 3
    hosts_wait_for on a sh -c 'ss -ltn | grep :20111 >/dev/null'
    by_hand 1 b guessed 3
    wait
    said 1 1 "10.77.0.1:20111 has another token"
    said 0 1 "rank 1"
    by_hand 0 a "" 3
    wait
    said 0 1 "but SHOAL_TOKEN is not"
    # Hosts that cannot reach each other, and are not told so.
    ip link set "$(<"$FIXTURE_HOSTS_DIR/b.port")" down
    by_hand 0 a secret 3
    by_hand 1 b secret 3
    wait
    ip link set "$(<"$FIXTURE_HOSTS_DIR/b.port")" up
    said 0 1 "rank 1"
    said 1 1 "10.77.0.1:20111"
    hosts_wait_for hosts_reach a b
}

# The boot id is the same on all hosts: it lies. Here it lies the other way: two ranks of one host have different ones.
test_boot_id() {
    echo 00000000-0000-0000-0000-000000000001 >"$scratch/boot_id"
    # shellcheck disable=SC2016 # expanded there
    by_hand 0 a secret 30 unshare --mount sh -c 'mount --bind "$0" /proc/sys/kernel/random/boot_id; exec "$@"' "$scratch/boot_id"
    by_hand 1 a secret 30
    wait
    said 0 0 "rank 0 of 2: sum 2"
    said 1 0 "rank 1 of 2: sum 2"
}

# Slow and lossy: the same bits.
test_relay() {
    hosts_down
    hosts_up_relay 5 1 a b
    choose ssh
    run_hosts 0 "$build/examples/01_all_reduce"
    run_hosts 0 "$SHOAL_TEST_TOOL" train --mode fsdp "${small[@]}"
    timeout 120 "$SHOAL_TEST_TOOL" train --ranks 4 --mode fsdp "${small[@]}" >"$scratch/one" 2>"$scratch/err" </dev/null
    [[ $(digest "$scratch/one") == "$(digest "$scratch/out")" ]] || complain "other bits over a slow network"
}

hosts_up a b
printf 'a slots=2\nb slots=2\n' >"$scratch/hosts.txt"
# Both files that tests read are looked for from here.
cd "$SHOAL_TEST_SOURCE_DIR"
for test in sums train killed_rank cut_host cut_agent start_up boot_id relay; do
    if [[ -z ${HOSTS_ONLY:-} || $test =~ $HOSTS_ONLY ]]; then
        part "$test" "test_$test"
    fi
done
! $failed
