#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal bench` between hosts: one table from rank 0, over TCP and each MPI that is here; shared memory is refused by name.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=fixture.sh
. "${BASH_SOURCE[0]%/*}/fixture.sh"

export SHOAL_RSH=$hosts_rsh SHOAL_MODULE_PATH=$SHOAL_TEST_BUILD_DIR/lib/shoal
failed=false

complain() {
    echo "$1"
    sed 's/^/  /' "$scratch/out"
    failed=true
}

# started WANTED WORD...: `shoal bench` on two ranks of each host.
started() {
    local wanted=$1 status=0
    shift
    timeout 120 "$SHOAL_TEST_TOOL" run --hosts "$scratch/hosts.txt" "${how[@]}" -- "$SHOAL_TEST_TOOL" bench "$@" \
        >"$scratch/out" 2>&1 </dev/null || status=$?
    [[ ($wanted == fail && $status -ne 0 && $status -ne 124) || $status == "$wanted" ]] || complain "${how[*]} $*: exit status $status"
}

# measures TRANSPORT
measures() {
    started 0 all_reduce all_gather barrier --sizes 1K:64K:64 --iterations 5 --transport "$1"
    [[ $(grep -c '#op ' "$scratch/out") -eq 1 ]] || complain "$1: not one table"
    [[ $(grep -cE '^\[0\] (all_(reduce|gather)|barrier) +4 .* 0$' "$scratch/out") -eq 5 ]] || complain "$1: not five rows with nothing wrong"
    started 0 fsdp --units 2 --width 16 --tokens 4 --iterations 2 --json
    grep -q '^\[0\] .*"ranks": 4, .*"wrong": 0' "$scratch/out" || complain "fsdp: nothing measured"
}

hosts_up a b
printf 'a slots=2\nb slots=2\n' >"$scratch/hosts.txt"
how=(--launcher ssh)
measures socket
started fail all_reduce --transport shm --sizes 1K
grep -q "transport shm carries ranks of one host only" "$scratch/out" || complain "does not refuse shm by its name"
for flavour in openmpi mpich; do
    if command -v "mpirun.$flavour" >/dev/null && [[ -e $SHOAL_MODULE_PATH/libshoal_mpi_$flavour-1.so ]]; then
        how=(--mpirun "mpirun.$flavour")
        measures mpi
    fi
done
[[ $failed == false ]]
