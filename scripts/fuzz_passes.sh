#!/bin/bash
# SPDX-License-Identifier: MIT
# Random graphs through random passes, between 2 ranks, 3 ranks, and a quarter of them between 4; then planted faults
# (tests/unit/graph/passes/pass_fuzz_test.c).
#
#   scripts/fuzz_passes.sh [GRAPHS [FIRST]]      default: 5000 graphs from number 1 on
#
# A graph that fails is printed with its number, text and passes; `scripts/fuzz_passes.sh 1 NUMBER` repeats it.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/progress.sh

cmake --preset dev >/dev/null
cmake --build --preset dev -j "$(nproc)" --target test_unit_graph_passes >/dev/null
export SHOAL_FUZZ_GRAPHS=${1:-5000} SHOAL_FUZZ_FIRST=${2:-1}
progress_run "fuzz: passes" build/dev/tests/unit/graph/passes/pass_fuzz_test
