#!/bin/bash
# SPDX-License-Identifier: MIT
# The soak (tests/procs/soak_test.c): small mixed collectives over several groups from several threads of two ranks. Then
# groups made, used and closed (tests/procs/group_close_test.c).
#
#   scripts/soak.sh [CALLS [THREADS [GROUPS]]]      default: 1000000 calls of each rank, by 2 threads; 10000 groups
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/progress.sh

cmake --preset dev >/dev/null
cmake --build --preset dev -j "$(nproc)" --target test_procs_soak test_procs_group_close >/dev/null
SHOAL_TEST_SOAK_CALLS=${1:-1000000} SHOAL_TEST_SOAK_THREADS=${2:-2} progress_run "soak: calls" build/dev/tests/procs/soak_test
for ranks in threads processes; do
    SHOAL_TEST_GROUPS=${3:-10000} progress_run "soak: groups" build/dev/tests/procs/group_close_test "many_groups_made_used_and_closed/$ranks"
done
