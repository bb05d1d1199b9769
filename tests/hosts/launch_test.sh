#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal run --hosts` on hosts that really are several, through ssh's stand-in and both mpiruns, with a program that needs no
# library: places, failures, a host that is cut off or not there, a launcher that is killed. Nothing is left on any host.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=fixture.sh
. "${BASH_SOURCE[0]%/*}/fixture.sh"

export SHOAL_RSH=$hosts_rsh
cat >"$scratch/program" <<'END'
rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$SHOAL_RANK}}
echo "rank $rank on $(hostname), $SHOAL_SYNC $MORE"
echo $$ >"$0.$rank"
case $1 in
killed) [ "$rank" != 1 ] || kill -9 $$ ;;
failed) [ "$rank" != 2 ] || exit 3 ;;
deaf) [ "$rank" != 0 ] || exit 4; trap '' TERM; sleep 1000 ;;
wait) sleep 1000 ;;
esac
[ "$1" = places ] || sleep 0.5
echo "rank $rank ends"
END

# started STATUS ARGS...: runs it; a time limit shows what does not end.
started() {
    local wanted=$1 status=0
    shift
    timeout 60 "$SHOAL_TEST_TOOL" run --hosts "$scratch/hosts.txt" -x MORE=more "${how[@]}" "$@" \
        >"$scratch/out" 2>"$scratch/err" </dev/null || status=$?
    [[ $status -eq $wanted ]] || complain "${how[*]} $*: exit status $status, expected $wanted: $(tail -n 5 "$scratch/err")"
}

says() {
    grep -qF -- "$2" "$scratch/$1" || complain "${how[*]}: standard $1 has no '$2': $(tail -n 5 "$scratch/$1")"
}

try_launcher() {
    local rank
    printf 'a slots=2\nb\n' >"$scratch/hosts.txt"
    SHOAL_SYNC=1 started 0 sh "$scratch/program" places
    says out "[0] rank 0 on a, 1 more"
    says out "[1] rank 1 on a, 1 more"
    says out "[2] rank 2 on b, 1 more"
    expect_empty
    started 137 sh "$scratch/program" killed
    says err "shoal run: rank 1 on a was killed by signal 9"
    for rank in 0 2; do
        says out "[$rank] rank $rank ends"
    done
    expect_empty
    started 3 sh "$scratch/program" failed
    says err "shoal run: rank 2 on b ended with exit code 3"
    says out "[0] rank 0 ends"
    expect_empty
    started 4 --grace 0.5 sh "$scratch/program" deaf
    says err "shoal run: rank 0 on a ended with exit code 4"
    expect_empty
    # The launcher goes, and everything with it.
    "$SHOAL_TEST_TOOL" run --hosts "$scratch/hosts.txt" --grace 0.5 "${how[@]}" sh "$scratch/program" wait >"$scratch/out" 2>&1 &
    hosts_wait_for grep -q 'rank 2 on b' "$scratch/out"
    hosts_wait_for grep -q 'rank 0 on a' "$scratch/out"
    kill -KILL $!
    wait $! 2>/dev/null || true
    expect_empty
}

# The agent of a host that is not there says so; one of a host that is cut off says nothing more at all.
test_absent() {
    how=(--launcher ssh --grace 0.5)
    printf 'a\nnowhere\n' >"$scratch/hosts.txt"
    started 255 sh "$scratch/program" wait
    says err "rsh: nowhere: no such host"
    says err "shoal run: the agent of nowhere ($hosts_rsh) ended with exit code 255 before 1 of its 1 rank"
    expect_empty
    printf 'a\nb\n' >"$scratch/hosts.txt"
    hosts_cut b
    started 255 sh "$scratch/program" wait
    says err "rsh: b: no route to host"
    hosts_mend b
    expect_empty
}

hosts_up a b
for flavour in ssh openmpi mpich; do
    how=(--launcher "$flavour")
    if [[ $flavour != ssh ]]; then
        command -v "mpirun.$flavour" >/dev/null || { echo "  mpirun.$flavour is not here" && continue; }
        how=(--mpirun "mpirun.$flavour")
    fi
    part "$flavour" try_launcher
done
part absent test_absent
! $failed
