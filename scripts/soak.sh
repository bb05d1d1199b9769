#!/bin/bash
# SPDX-License-Identifier: MIT
# The soak (tests/procs/soak_test.c): small mixed collectives over several groups from several threads of two ranks.
#
#   scripts/soak.sh [CALLS [THREADS]]      default: 1000000 calls of each rank, by 2 threads
set -euo pipefail
cd "$(dirname "$0")/.."

cmake --preset dev >/dev/null
cmake --build --preset dev -j "$(nproc)" --target test_procs_soak >/dev/null
SHOAL_TEST_SOAK_CALLS=${1:-1000000} SHOAL_TEST_SOAK_THREADS=${2:-2} build/dev/tests/procs/soak_test
