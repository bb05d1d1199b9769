#!/bin/bash
# SPDX-License-Identifier: MIT
# Collectives of Shoal over MPI beside those of MPI itself, both in the same processes (bench/peers/mpi_beside.c), 8 B to 4 KiB and
# 1 to 64 MiB:
#
#   tcp   MPI restricted to TCP, every rank a host of its own: what bars.txt has bars for
#   shm   small sizes in MPI's shared memory: a harder comparison, for ranks of one host, which Shoal carries itself
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

# The longest of our times relative to MPI's over the sizes of a bar.
show_bars() {
    awk -v flavour="$1" '
        function bytes(text) { return text * (text ~ /K$/ ? 1024 : text ~ /M$/ ? 1048576 : 1) }
        function measured(at) { return op[at] == $1 && size[at] >= bytes($3) && size[at] <= bytes($4) }
        NR == FNR {
            op[++n] = $1
            size[n] = $2
            ratio[n] = $0
            sub(/.*ratio */, "", ratio[n])
            ratio[n] += 0
        }
        NR != FNR && $2 == "messages" && $5 == "mpi_tcp" {
            worst = 0
            for (i = 1; i <= n; i++)
                if (measured(i) && ratio[i] > worst)
                    worst = ratio[i]
            verdict = worst == 0 ? "absent" : worst <= $6 ? "ok" : "short"
            printf "%-40s %7.2f %5s %s\n", $1 "/" $3 "-" $4 "/" flavour, worst, $6, verdict
        }' - bench/bars.txt
}

for flavour in openmpi mpich; do
    if ! command -v "mpicc.$flavour" >/dev/null || [[ ! -e $lib/shoal/libshoal_mpi_$flavour-1.so ]]; then
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
    # MPICH of Debian is built on UCX. Without shared memory between the ranks of a host it uses TCP there.
    over_tcp=(env SHOAL_PRETEND_HOSTS="$hosts" UCX_TLS="tcp,self" UCX_NET_DEVICES=lo MPIR_CVAR_NOLOCAL=1
        MPIR_CVAR_ODD_EVEN_CLIQUES=0
        "${run[@]}" "${tcp[@]}" "$program")
    echo "$flavour, $ranks ranks, tcp"
    {
        "${over_tcp[@]}" 8 4096
        "${over_tcp[@]}" 1048576 67108864
    } | tee "$work/mpi.tcp"
    echo "$flavour, $ranks ranks, shm"
    "${run[@]}" "$program" 8 4096
    show_bars "$flavour" <"$work/mpi.tcp"
done
