#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal bench` on the ranks of an mpirun: bench_test.sh openmpi|mpich. One table from rank 0, over each transport.
set -euo pipefail
. "$SHOAL_TEST_SOURCE_DIR/tests/fixtures/mpi.sh"

for transport in shm socket mpi; do
    echo "$flavour: $transport"
    runs ok "${mpirun[@]}" -n 4 "$SHOAL_TEST_TOOL" bench all_reduce all_gather --sizes 1K:64K:64 --iterations 3 \
        --transport "$transport"
    [[ $(grep -c "^#op " "$scratch/out") -eq 1 ]] || complain "not one table"
    [[ $(grep -cE "^all_(reduce|gather) +4 .* $transport .* 0$" "$scratch/out") -eq 4 ]] || complain "not four rows with nothing wrong"
done
runs fail "${mpirun[@]}" -n 2 "$SHOAL_TEST_TOOL" bench all_reduce --ranks 2
says 1 "--ranks is about ranks that the command starts itself"
runs ok "${mpirun[@]}" -n 2 "$SHOAL_TEST_TOOL" info
[[ $(grep -c "^version " "$scratch/out") -eq 1 ]] || complain "info prints more than once"

! $failed
