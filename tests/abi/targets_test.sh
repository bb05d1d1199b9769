#!/bin/bash
# SPDX-License-Identifier: MIT
# The test programs that scripts build by name exist. Targets are named after folders, and a folder that moves takes its
# target along; the scripts of long runs would notice only when somebody starts them.
set -euo pipefail

mapfile -t named < <(cd "$SHOAL_TEST_SOURCE_DIR" &&
    grep -ohE '\btest_(unit|conformance|parallel|procs|fault)_[a-z0-9_]+' scripts/*.sh bench/*.sh Makefile | sort -u)
((${#named[@]} > 5)) || { echo "found only ${#named[@]} names of test programs" && exit 1; }
missing=$(comm -23 <(printf '%s\n' "${named[@]}") \
    <(cmake --build "$SHOAL_TEST_BUILD_DIR" --target help | sed -nE 's/^(\.\.\. )?([A-Za-z0-9_]+).*/\2/p' | sort -u))
[ -z "$missing" ] || { echo "scripts build test programs that do not exist: ${missing//$'\n'/ }" && exit 1; }
