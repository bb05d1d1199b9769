#!/bin/bash
# SPDX-License-Identifier: MIT
# Ranks of Slurm, on a node that tests/slurm/fixture.sh sets up on this machine. Needs root; says so otherwise, and skips.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/progress.sh

if [[ $(id -u) -ne 0 ]]; then
    echo "test-slurm: skipped: the daemons of Slurm need root"
    exit 0
fi
cmake --preset dev >/dev/null
progress_run "test-slurm: building" cmake --build --preset dev -j "${JOBS:-$(nproc)}" >/dev/null
export SHOAL_TEST_SOURCE_DIR=$PWD SHOAL_TEST_BUILD_DIR=$PWD/build/dev SHOAL_TEST_TOOL=$PWD/build/dev/bin/shoal
bash tests/slurm/slurm_test.sh
