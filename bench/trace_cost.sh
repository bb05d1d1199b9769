#!/bin/bash
# SPDX-License-Identifier: MIT
# What a trace costs: ratios of steps with and without one, in pairs, with bounds. Needs the release build (make). The bar:
# at most 2 % of a step. "not decided": the machine is too busy for so few pairs; give more of them.
#
#   bench/trace_cost.sh [RANKS [PAIRS [LAYERS WIDTH BATCH CONTEXT]]]      2 ranks, 100 pairs, 6 256 4 128
set -euo pipefail
cd "$(dirname "$0")/.."

build=${SHOAL_BENCH_BUILD:-build}
ranks=${1:-2}
shift || true
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cc -O2 -std=c11 -D_DEFAULT_SOURCE -Iinclude bench/trace_cost.c -o "$folder/trace_cost" \
    -L"$build/lib" -Wl,-rpath,"$PWD/$build/lib" -lshoal_nn -lshoal -lm
shoal=$PWD/$build/bin/shoal
cd "$folder"
"$shoal" run --no-label -n "$ranks" "$folder/trace_cost" "$@"
