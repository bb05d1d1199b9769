#!/bin/bash
# SPDX-License-Identifier: MIT
# The programs of docs/first_hour.md compile as C99 and print what the page says; the one with MPI with each MPI that is
# here.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
page=$SHOAL_TEST_SOURCE_DIR/docs/first_hour.md
release=$SHOAL_TEST_RELEASE_DIR
export LD_LIBRARY_PATH=$release/lib
# Open MPI wants a remote shell even for ranks of this machine, and a session directory that no other test has.
mkdir "$scratch/session"
export OMPI_MCA_plm_rsh_agent=true OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
cd "$scratch"

# compiles COMPILER PROGRAM: PROGRAM.c, without a warning
compiles() {
    "$1" -std=c99 -Wall -Wextra -Werror -I"$SHOAL_TEST_SOURCE_DIR/include" "$2.c" -o "$2" -L"$release/lib" -lshoal_nn -lshoal
}
# shown COMMAND: what the page shows below "$ COMMAND", up to the next command or the end of the block
shown() {
    WANTED=$1 perl -0ne 'print $1 if /^\$ \Q$ENV{WANTED}\E\n(.*?)^(?:\$ |`)/ms' "$page" >wanted
    [[ -s wanted ]] || {
        echo "the page shows nothing for $1"
        exit 1
    }
}

# shellcheck disable=SC2016 # the quotes hold no expansions, but a code fence
perl -0ne 'print "$1\0" while /^```c\n(.*?)^```$/gms' "$page" >blocks
mapfile -d '' -t blocks <blocks
[[ ${#blocks[@]} -eq 4 ]]
n_programs=0
for name in ten trainer mpi nccl; do
    printf '%s' "${blocks[n_programs]}" >"$name.c"
    n_programs=$((n_programs + 1))
done

compiles cc ten
[[ $(./ten) == "$(sed -nE 's|.*/\* prints ([0-9]+) \*/.*|\1|p' ten.c)" ]]

# Losses end in digits of a BLAS. They fall, also after the run has been resumed on more ranks.
numbers='s/[0-9]+\.[0-9]+/N/'
compiles cc trainer
: >losses
for n in 2 3; do
    shown "shoal run --no-label -n $n ./trainer"
    "$release/bin/shoal" run --no-label -n "$n" ./trainer >printed
    diff <(sed -E "$numbers" wanted) <(sed -E "$numbers" printed)
    cat printed >>losses
done
awk '{ if (NR > 1 && $4 >= before) exit 1; before = $4 } END { if (NR != 4) exit 1 }' losses

compiles cc nccl
shown "shoal run -n 4 ./program"
"$release/bin/shoal" run -n 4 ./nccl | sort >printed
diff wanted printed

shown "mpirun -n 3 ./program"
for mpi in openmpi mpich; do
    if ! command -v "mpicc.$mpi" >/dev/null || ! command -v "mpirun.$mpi" >/dev/null ||
        ! "mpicc.$mpi" -x c - -o probe <<<'#include <mpi.h>
int main(void) { return 0; }' >/dev/null 2>&1; then
        echo "$mpi is not here: not tested"
        continue
    fi
    cp mpi.c "$mpi.c"
    compiles "mpicc.$mpi" "$mpi"
    options=()
    [[ $mpi == openmpi ]] && options=(--oversubscribe)
    # What an MPI misses on this machine it tells on standard output, too.
    TMPDIR=$scratch/session timeout 100 "mpirun.$mpi" "${options[@]}" -n 3 "./$mpi" </dev/null >out
    grep '^rank ' out | sort >printed || true
    diff wanted printed || { cat out && exit 1; }
done
