# shellcheck shell=bash
# SPDX-License-Identifier: MIT
# Several hosts on one machine, to be sourced first by a test of this folder. The test is run again in namespaces of its own
# (network, host name, mounts, processes): that is the "head", where a launcher runs. Each host has namespaces again, so that
# it has its own addresses, its own name, /tmp and /dev/shm, and numbers of processes that other hosts use too. The root
# directory and the kernel (hence the boot id) are those of the machine.
#
#   hosts_up NAME...                 hosts that are joined by veth pairs and a bridge
#   hosts_up_relay MS PERCENT NAME...  hosts that are joined by the relay: MS of delay each way, PERCENT of packets lost
#   on HOST COMMAND...               runs it there; `head` is this shell's own place
#   hosts_rate RATE                  tbf in both directions of every host (1gbit, 100mbit); nothing: no limit
#   hosts_cut HOST, hosts_mend HOST  ip link set down and up
#   hosts_reach FROM TO              whether an answer comes
#   hosts_down                       ends the hosts; hosts_up may follow
#   hosts_bytes HOST                 bytes that HOST has sent and received so far
#   $hosts_rsh                       an agent for mpirun and `shoal run`: $hosts_rsh HOST COMMAND, as ssh is called
#   $scratch                         a directory that all hosts see
#   hosts_address HOST               its address
#
# Nothing stays. No name is made outside of these namespaces, and all processes end with the one that was called: it is
# process 1 of its namespace, and ends with whoever called it.

hosts_folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
hosts_network=10.77.0
hosts_head_number=100

# Exit status 77: skipped, as in the other tests.
hosts_skip() {
    echo "$(basename "$0"): skipped: $1"
    exit 77
}

hosts_require() {
    local command
    [[ $(id -u) -eq 0 ]] || hosts_skip "namespaces of networks need root"
    for command in ip tc nsenter unshare setpriv mount; do
        command -v "$command" >/dev/null || hosts_skip "there is no $command (packages iproute2, util-linux)"
    done
    unshare --net --uts --mount --pid --ipc --fork true 2>/dev/null || hosts_skip "the kernel lets us make no namespaces"
}

if [[ -z ${FIXTURE_HOSTS_INSIDE:-} ]]; then
    hosts_require
    scratch=$(mktemp -d "${TMPDIR:-/var/tmp}/shoal_hosts.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    status=0
    trap 'kill "$inside" 2>/dev/null' INT TERM HUP
    FIXTURE_HOSTS_INSIDE=$scratch setpriv --pdeathsig KILL \
        unshare --net --uts --mount --pid --ipc --fork --kill-child --mount-proc bash "$0" "$@" &
    inside=$!
    wait "$inside" || status=$?
    # A signal ends the wait, not the namespace: killing its process 1 does.
    if kill -0 "$inside" 2>/dev/null; then
        kill -KILL "$inside" 2>/dev/null || true
        wait "$inside" || true
    fi
    exit "$status"
fi

scratch=$FIXTURE_HOSTS_INSIDE
export FIXTURE_HOSTS_DIR=$scratch/hosts
# shellcheck disable=SC2034 # for tests
hosts_rsh=$hosts_folder/rsh
hosts_names=()
hosts_relay=""
# Process 1 ignores every signal that it has no handler for.
trap 'exit 143' INT TERM HUP

# The others of the bridge, and the names that all hosts know.
hosts_begin() {
    local name number=1
    mkdir -p "$FIXTURE_HOSTS_DIR"
    hosts_names=("$@")
    {
        echo "127.0.0.1 localhost"
        echo "$hosts_network.$hosts_head_number head"
        for name in "$@"; do
            echo "$hosts_network.$((number++)) $name"
        done
    } >"$scratch/etc_hosts"
    hostname head
    ip link set lo up
    umount /etc/hosts 2>/dev/null || true
    mount --bind "$scratch/etc_hosts" /etc/hosts
}

# hosts_start NAME: its namespaces, held by a process that does nothing. Its number goes where the agent looks.
hosts_start() {
    local name=$1 ready=$FIXTURE_HOSTS_DIR/$1.ready
    rm -f "$ready"
    # shellcheck disable=SC2016 # expanded there
    setpriv --pdeathsig KILL unshare --net --uts --mount --pid --ipc --fork --kill-child --mount-proc sh -c '
        set -e
        mount -t tmpfs -o mode=1777 tmpfs /tmp
        mount -t tmpfs -o mode=1777 tmpfs /dev/shm
        hostname "$0"
        ip link set lo up
        : >"$1"
        exec sleep infinity' "$name" "$ready" </dev/null &
    hosts_wait_for test -e "$ready"
    # The process that unshare started is process 1 of the host.
    tr -d ' ' <"/proc/$!/task/$!/children" >"$FIXTURE_HOSTS_DIR/$name"
    echo "$!" >"$FIXTURE_HOSTS_DIR/$name.holder"
    # Bash says nothing about its end.
    disown "$!"
}

# hosts_wait_for COMMAND...: until it succeeds, for ten seconds.
hosts_wait_for() {
    local end=$((SECONDS + 10))
    until "$@" 2>/dev/null; do
        if ((SECONDS > end)); then
            echo "fixture: waited in vain for: $*" >&2
            exit 1
        fi
        sleep 0.01
    done
}

on() {
    local name=$1
    shift
    if [[ $name == head ]]; then
        "$@"
    else
        nsenter -t "$(<"$FIXTURE_HOSTS_DIR/$name")" -n -u -m -p -i -- "$@"
    fi
}

hosts_address() {
    awk -v name="$1" '$2 == name { print $1 }' "$scratch/etc_hosts"
}

hosts_up() {
    local name number=1
    hosts_begin "$@"
    ip link add bridge0 type bridge
    ip addr add "$hosts_network.$hosts_head_number/24" dev bridge0
    ip link set bridge0 up
    for name in "$@"; do
        hosts_start "$name"
        ip link add "port$number" type veth peer name eth0 netns "$(<"$FIXTURE_HOSTS_DIR/$name")"
        ip link set "port$number" master bridge0 up
        on "$name" ip addr add "$hosts_network.$number/24" dev eth0
        on "$name" ip link set eth0 up
        echo "port$number" >"$FIXTURE_HOSTS_DIR/$name.port"
        number=$((number + 1))
    done
}

hosts_up_relay() {
    local delay_ms=$1 loss=$2 name number=1 links=()
    shift 2
    hosts_begin "$@"
    links=("$$:eth0:$hosts_network.$hosts_head_number")
    for name in "$@"; do
        hosts_start "$name"
        links+=("$(<"$FIXTURE_HOSTS_DIR/$name"):eth0:$hosts_network.$((number++))")
    done
    "$SHOAL_TEST_BUILD_DIR/tests/hosts/relay" "$delay_ms" "$loss" "${links[@]}" &
    hosts_relay=$!
    disown "$hosts_relay"
    for name in head "$@"; do
        hosts_wait_for on "$name" ip link show dev eth0 >/dev/null
        on "$name" ip addr add "$(hosts_address "$name")/24" dev eth0
        on "$name" ip link set eth0 up
    done
}

# The bucket holds 2 ms at 1 Gbit/s; what does not fit waits, for 50 ms at most.
hosts_limit() {
    tc qdisc del dev "$1" root 2>/dev/null || true
    [[ -z ${2:-} ]] || tc qdisc add dev "$1" root tbf rate "$2" burst 256kb latency 50ms
}

hosts_rate() {
    local name
    for name in "${hosts_names[@]}"; do
        hosts_limit "$(<"$FIXTURE_HOSTS_DIR/$name.port")" "${1:-}"
        # Functions do not go into namespaces.
        on "$name" tc qdisc del dev eth0 root 2>/dev/null || true
        [[ -z ${1:-} ]] || on "$name" tc qdisc add dev eth0 root tbf rate "$1" burst 256kb latency 50ms
    done
}

hosts_bytes() {
    # shellcheck disable=SC2016 # of awk
    on "$1" awk '$1 == "eth0:" { print $10, $2 }' /proc/net/dev
}

# hosts_reach FROM TO: an answer comes, if only that nobody listens there.
hosts_reach() {
    local answer
    answer=$(on "$1" timeout 2 bash -c "exec 3<>/dev/tcp/$2/1" 2>&1) || true
    [[ $answer == *refused* ]]
}

hosts_cut() {
    on "$1" ip link set eth0 down
}

hosts_mend() {
    on "$1" ip link set eth0 up
}

hosts_down() {
    local name
    for name in "${hosts_names[@]}"; do
        kill -KILL "$(<"$FIXTURE_HOSTS_DIR/$name.holder")" 2>/dev/null || true
        hosts_wait_for test ! -e "/proc/$(<"$FIXTURE_HOSTS_DIR/$name")"
    done
    if [[ -n $hosts_relay ]]; then
        kill "$hosts_relay" 2>/dev/null || true
        hosts_wait_for test ! -e "/proc/$hosts_relay"
        hosts_relay=""
    fi
    ip link del bridge0 2>/dev/null || true
    rm -rf "$FIXTURE_HOSTS_DIR"
    hosts_names=()
}

# Checks ------------------------------------------------------------------------------------------------------------

failed=false
complain() {
    echo "FAIL: $*"
    # shellcheck disable=SC2034 # tests look at it
    failed=true
}

# part NAME COMMAND...: one part of a test, with its time.
part() {
    local name=$1 begin=$SECONDS
    shift
    "$@"
    echo "  $name: $((SECONDS - begin)) s"
}

# hosts_are_empty: no process but the one that holds the namespaces (and who asks) is on any host.
hosts_are_empty() {
    local name processes
    for name in "${hosts_names[@]}"; do
        # shellcheck disable=SC2016 # expanded there
        processes=$(on "$name" sh -c 'for p in /proc/[0-9]*; do
            [ "$p" = /proc/1 ] || [ "$p" = "/proc/$$" ] || tr "\0" " " <"$p/cmdline"; done' 2>/dev/null)
        if [[ -n $processes ]]; then
            hosts_left="$name: $processes"
            return 1
        fi
    done
}

# Everything that a job has started must go by itself.
expect_empty() {
    local end=$((SECONDS + 5))
    until hosts_are_empty; do
        if ((SECONDS > end)); then
            complain "left on ${hosts_left:0:300}"
            return
        fi
        sleep 0.05
    done
}
