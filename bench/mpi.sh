#!/bin/bash
# SPDX-License-Identifier: MIT
# Collectives of Shoal over MPI beside those of MPI itself, both in the same processes (bench/peers/mpi_beside.c):
# 8 B to 4 KiB as the library comes, and 1 to 64 MiB restricted to TCP with every rank a host of its own.
#
#   bench/mpi.sh [--ranks N] [--lib build/lib]
#
# A bar that is short is no failure.
set -euo pipefail
cd "$(dirname "$0")/.."

ranks=2
lib=build/lib
while [[ $# -gt 0 ]]; do
    case $1 in
    --ranks) ranks=$2 ;;
    --lib) lib=$2 ;;
    *)
        echo "bench/mpi.sh: bad argument: $1" >&2
        exit 2
        ;;
    esac
    shift 2
done
work=build/bench
mkdir -p "$work"
lib=$(realpath "$lib")
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_plm_rsh_agent=true
hosts=$(seq -s, 0 $((ranks - 1)))

for flavour in openmpi mpich; do
    if ! command -v "mpicc.$flavour" >/dev/null || [[ ! -e $lib/libshoal_mpi_$flavour.so ]]; then
        echo "$flavour: not here, or without a module"
        continue
    fi
    program=$work/mpi_beside.$flavour
    "mpicc.$flavour" -std=c11 -D_GNU_SOURCE -O2 -Iinclude bench/peers/mpi_beside.c -o "$program" \
        -L"$lib" -lshoal -Wl,-rpath,"$lib"
    run=("mpirun.$flavour" -n "$ranks")
    tcp=()
    if [[ $flavour == openmpi ]]; then
        run+=(--oversubscribe)
        tcp=(--mca btl "tcp,self" --mca pml ob1 --mca btl_tcp_if_include lo)
    fi
    echo "$flavour, $ranks ranks, small"
    "${run[@]}" "$program" 8 4096
    echo "$flavour, $ranks ranks, TCP"
    # MPICH of Debian is built on UCX. Without shared memory between the ranks of a host it uses TCP there.
    SHOAL_TEST_HOSTS=$hosts UCX_TLS=tcp,self UCX_NET_DEVICES=lo MPIR_CVAR_NOLOCAL=1 MPIR_CVAR_ODD_EVEN_CLIQUES=0 \
        "${run[@]}" "${tcp[@]}" "$program" 1048576 67108864
done
