#!/bin/bash
# SPDX-License-Identifier: MIT
# Conformance between hosts that have a network of their own: the tests of collectives, of groups, and a sample of the
# sweep (tests/conformance), whose expected values are computed apart, as ranks on two and three hosts, in blocks and
# in turns. TCP carries what crosses hosts, or each MPI that is here.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=fixture.sh
. "${BASH_SOURCE[0]%/*}/fixture.sh"

export SHOAL_RSH=$hosts_rsh
build=$SHOAL_TEST_BUILD_DIR
# What the ranks of a test share lies where all hosts see it (tests/harness/launched.c).
export SHOAL_TEST_PLACED=1 SHOAL_TEST_SEED=${SHOAL_TEST_SEED:-$((RANDOM * 32768 + RANDOM))} SHOAL_MODULE_PATH=$build/lib/shoal
echo "  seed $SHOAL_TEST_SEED"

# by_hand PROGRAM WORD...: each rank is started by itself, as another launcher would; outputs as of `shoal run`.
by_hand() {
    local rank=0 host status=0 process processes=()
    for host in $ranks; do
        {
            on "$host" env SHOAL_RANK="$rank" SHOAL_RANKS="$n_ranks" SHOAL_ADDRESS="${ranks%% *}:20117" \
                SHOAL_TOKEN=secret "$@" 2>&1 | sed -u "s/^/[$rank] /"
        } &
        processes+=($!)
        rank=$((rank + 1))
    done
    for process in "${processes[@]}"; do
        wait "$process" || status=$?
    done
    return "$status"
}

# start PROGRAM WORD...: on the hosts of $ranks, in this order.
start() {
    local host how=(--launcher ssh)
    for host in $(tr ' ' '\n' <<<"$ranks" | sort -u); do
        echo "$host slots=$(tr ' ' '\n' <<<"$ranks" | grep -cx "$host")"
    done >"$scratch/hosts.txt"
    case $launcher-$order in
    ssh-cyclic)
        by_hand "$@"
        return
        ;;
    openmpi-block) how=(--mpirun mpirun.openmpi) ;;
    openmpi-cyclic) how=(--mpirun "mpirun.openmpi --map-by node") ;;
    mpich-block) how=(--mpirun mpirun.mpich) ;;
    mpich-cyclic) how=(--mpirun "mpirun.mpich -ppn 1") ;;
    esac
    timeout 120 "$SHOAL_TEST_TOOL" run --hosts "$scratch/hosts.txt" "${how[@]}" "$@"
}

# conforms ORDER "HOST..." PROGRAM WORD...: every rank passes, on its host, over what the launcher brings.
conforms() {
    local status=0 rank=0 host program crossing=mpi n_said
    order=$1 ranks=$2 program=$3
    n_ranks=$(wc -w <<<"$ranks")
    shift 3
    [[ $launcher != ssh ]] || crossing=socket
    mkdir "$scratch/shared"
    # shellcheck disable=SC2016 # expanded there
    SHOAL_LOG=debug SHOAL_TEST_LAUNCHED=$scratch/shared/ start sh -c \
        'echo "on $(hostname)"; exec "$0" "$@"' "$build/tests/conformance/${program}_test" "$@" \
        >"$scratch/out" 2>&1 </dev/null || status=$?
    rm -rf "$scratch/shared"
    for host in $ranks; do
        grep -qx "\[$rank\] on $host" "$scratch/out" || complain "$launcher, $program: rank $rank is not on $host"
        grep -qE "^\[$rank\] [1-9][0-9]* passed, 0 failed" "$scratch/out" || status=1
        rank=$((rank + 1))
    done
    n_said=$(grep -cE "groups on several of them use two_level over $crossing$" "$scratch/out" || true)
    [[ $n_said -ge $n_ranks ]] || complain "not two_level over $crossing"
    [[ $status -eq 0 ]] ||
        complain "$launcher, $program on $ranks: status $status: $(grep -v debug "$scratch/out" | tail -n 20)"
    n_cases=$((n_cases + $(sed -nE 's/^\[0\] ([0-9]+) passed.*/\1/p' "$scratch/out" || echo 0)))
    expect_empty
}

try_launcher() {
    n_cases=0
    # Two hosts.
    conforms block "a a b b" collectives
    conforms cyclic "a b a b" collectives_groups
    conforms block "a b" collectives_sweep
    conforms cyclic "a b a b" collectives_sweep
    # Three.
    conforms block "a a b c" collectives_groups
    conforms cyclic "a b c a" collectives
    conforms block "a a b b c" collectives_sweep
    conforms cyclic "a b c a b" collectives_sweep
    echo "    $launcher: $n_cases tests on 8 placements"
}

hosts_up a b c
cd "$SHOAL_TEST_SOURCE_DIR"
for launcher in ssh openmpi mpich; do
    module=$build/lib/shoal/libshoal_mpi_$launcher-1.so
    if [[ $launcher != ssh ]] && { ! command -v "mpirun.$launcher" >/dev/null || [[ ! -e $module ]]; }; then
        echo "  mpirun.$launcher or its module is not here"
        continue
    fi
    if [[ -z ${HOSTS_ONLY:-} || $launcher =~ $HOSTS_ONLY ]]; then
        part "$launcher" try_launcher
    fi
done
! $failed
