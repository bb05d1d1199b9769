#!/bin/bash
# SPDX-License-Identifier: MIT
# Programs in which one rank deviates from the others in an argument or in order (tests/conformance/deviation_test.c),
# and a table of how often each argument deviated: told, legal, refused, failed.
#
#   scripts/deviate.sh [ROUNDS [TEXT]]      default: 20 programs for each compared argument, 100 for each order;
#                                           TEXT: only arguments of calls whose name has it
set -euo pipefail
cd "$(dirname "$0")/.."

cmake --preset dev >/dev/null
cmake --build --preset dev -j "$(nproc)" --target test_conformance_deviation >/dev/null
export SHOAL_DEVIATION_TABLE=1 SHOAL_DEVIATION_ROUNDS=${1:-20}
if [[ $# -gt 1 ]]; then
    export SHOAL_DEVIATION_ONLY=$2
fi
build/dev/tests/conformance/deviation_test
