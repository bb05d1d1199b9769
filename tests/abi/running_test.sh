#!/bin/bash
# SPDX-License-Identifier: MIT
# The program of docs/running.md that meets through MPI compiles, and runs with each MPI that is here.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
release=$SHOAL_TEST_RELEASE_DIR
export LD_LIBRARY_PATH=$release/lib
# Open MPI wants a remote shell even for ranks of this machine; any command will do.
export OMPI_MCA_plm_rsh_agent=true OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
n_tested=0

# shellcheck disable=SC2016 # the quotes hold no expansion, but a code fence
sed -n '/^```c$/,/^```$/p' "$SHOAL_TEST_SOURCE_DIR/docs/running.md" | sed '1d;$d' >"$scratch/program.c"
grep -q MPI_Allgather "$scratch/program.c"
printf 'rank %d: 3\n' 0 1 2 >"$scratch/wanted"

for mpi in openmpi mpich; do
    if ! command -v "mpicc.$mpi" >/dev/null || ! command -v "mpirun.$mpi" >/dev/null; then
        echo "$mpi: not here, not tested"
        continue
    fi
    "mpicc.$mpi" -std=c99 -Wall -I"$SHOAL_TEST_SOURCE_DIR/include" "$scratch/program.c" -o "$scratch/$mpi" \
        -L"$release/lib" -lshoal
    options=()
    [[ $mpi == openmpi ]] && options=(--oversubscribe)
    timeout 100 "mpirun.$mpi" "${options[@]}" -n 3 "$scratch/$mpi" </dev/null | sort >"$scratch/printed"
    diff "$scratch/wanted" "$scratch/printed"
    n_tested=$((n_tested + 1))
done
if [[ $n_tested -eq 0 ]]; then
    echo "no MPI here"
    exit 77
fi
