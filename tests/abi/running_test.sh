#!/bin/bash
# SPDX-License-Identifier: MIT
# The program of docs/running.md that meets through MPI compiles, and runs with each MPI that is here.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
release=$SHOAL_TEST_RELEASE_DIR
export LD_LIBRARY_PATH=$release/lib
# Open MPI wants a remote shell even for ranks of this machine; any command will do. Jobs of several tests that start at the
# same time fail on its session directory: this one has its own.
mkdir "$scratch/session"
export OMPI_MCA_plm_rsh_agent=true OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
n_tested=0

# shellcheck disable=SC2016 # the quotes hold no expansion, but a code fence
sed -n '/^```c$/,/^```$/p' "$SHOAL_TEST_SOURCE_DIR/docs/running.md" | sed '1d;$d' >"$scratch/program.c"
grep -q MPI_Allgather "$scratch/program.c"
printf 'rank %d: 3\n' 0 1 2 >"$scratch/wanted"

# lacks MPI: why it cannot be tested here. Its compiler comes without its header on some systems.
lacks() {
    if ! command -v "mpicc.$1" >/dev/null || ! command -v "mpirun.$1" >/dev/null; then
        echo "mpicc.$1 or mpirun.$1 is not here"
    elif ! "mpicc.$1" -x c - -o "$scratch/probe" <<<'#include <mpi.h>
int main(void) { return 0; }' >/dev/null 2>&1; then
        echo "mpicc.$1 makes no program with <mpi.h>"
    fi
}

for mpi in openmpi mpich; do
    reason=$(lacks "$mpi")
    if [[ -n $reason ]]; then
        echo "$mpi: $reason: not tested"
        continue
    fi
    "mpicc.$mpi" -std=c99 -Wall -I"$SHOAL_TEST_SOURCE_DIR/include" "$scratch/program.c" -o "$scratch/$mpi" \
        -L"$release/lib" -lshoal
    options=()
    [[ $mpi == openmpi ]] && options=(--oversubscribe)
    # What the MPI misses on this machine (/sys, say) it tells on standard output, too.
    TMPDIR=$scratch/session timeout 100 "mpirun.$mpi" "${options[@]}" -n 3 "$scratch/$mpi" </dev/null >"$scratch/out"
    grep '^rank ' "$scratch/out" | sort >"$scratch/printed" || true
    diff "$scratch/wanted" "$scratch/printed" || { cat "$scratch/out" && exit 1; }
    n_tested=$((n_tested + 1))
done
if [[ $n_tested -eq 0 ]]; then
    echo "no MPI here"
    exit 77
fi
