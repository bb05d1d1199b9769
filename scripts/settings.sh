#!/bin/bash
# SPDX-License-Identifier: MIT
# Random sharded networks under random settings, compiled beside eager (tests/parallel/compile/shard_sweep_test.c), on 2,
# 3, 4 and 6 ranks, as threads and as processes, and how many of them had which setting.
#
#   scripts/settings.sh [NUMBER [FIRST]]      default: 200 networks for each number of ranks, from number 1 on
set -euo pipefail
cd "$(dirname "$0")/.."

cmake --preset dev >/dev/null
cmake --build --preset dev -j "$(nproc)" --target test_parallel_compile_shard_sweep >/dev/null
export SHOAL_TEST_TABLE=1 SHOAL_TEST_STEPS=${1:-200} SHOAL_TEST_STEPS_FIRST=${2:-1}
build/dev/tests/parallel/compile/shard_sweep_test
