#!/bin/bash
# SPDX-License-Identifier: MIT
# Collectives between hosts, against what their links allow: 2 hosts made of namespaces (tests/hosts/fixture.sh), 2 ranks on each, a
# rate by tbf. Prints a table for docs/performance.md. Needs root and the release build (make).
#
#   bench/hosts.sh [RATE_MBIT [ITERATIONS [MIB...]]]      1000, 5, 1 4 16 64
#
# HOSTS="a b", RANKS_PER_HOST=2, LAUNCHER="--launcher ssh" (or "--mpirun mpirun.openmpi"): who takes part, and how. What begins with
# SHOAL_ reaches the ranks: SHOAL_REDUCE=fast bench/hosts.sh shows what the order of a sum costs.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../tests/hosts/fixture.sh
. "$(dirname "${BASH_SOURCE[0]}")/../tests/hosts/fixture.sh"
cd "$hosts_folder/../.."

build=${SHOAL_BENCH_BUILD:-build}
# The ranks need not know.
unset SHOAL_BENCH_BUILD
rate=${1:-1000}
iterations=${2:-5}
sizes=("${@:3}")
[[ ${#sizes[@]} -gt 0 ]] || sizes=(1 4 16 64)
read -ra names <<<"${HOSTS:-a b}"
read -ra launcher <<<"${LAUNCHER:---launcher ssh}"

cc -O2 -std=c11 -D_DEFAULT_SOURCE -Iinclude bench/hosts.c -o "$scratch/program" -L"$build/lib" -Wl,-rpath,"$PWD/$build/lib" -lshoal
hosts_up "${names[@]}"
hosts_rate "${rate}mbit"
export SHOAL_RSH=$hosts_rsh
for name in "${names[@]}"; do
    echo "$name slots=${RANKS_PER_HOST:-2}"
done >"$scratch/hosts.txt"
echo "# ${#names[@]} hosts x ${RANKS_PER_HOST:-2} ranks, $rate Mbit/s, ${launcher[*]}, $iterations iterations, $(nproc) processors"
echo "| call | size | ms | busiest link, of the size | at $rate Mbit/s, ms | ratio |"
echo "|---|---|---|---|---|---|"
"$build/bin/shoal" run --hosts "$scratch/hosts.txt" --no-label "${launcher[@]}" "$scratch/program" eth0 "$rate" "$iterations" "${sizes[@]}"
