#!/bin/bash
# SPDX-License-Identifier: MIT
# scripts/stage.sh, which `make run` builds with: one line if a stage is well, all of what it printed if not.
set -euo pipefail

stage=$SHOAL_TEST_SOURCE_DIR/scripts/stage.sh
printed=$("$stage" building bash -c 'echo compiling; echo warning >&2')
[[ $printed =~ ^building:\ [0-9]+\ s$ ]] || { echo "well: printed '$printed'" && exit 1; }

status=0
printed=$("$stage" building bash -c 'echo compiling; echo error >&2; exit 3') || status=$?
[[ $status -eq 3 && $printed == $'compiling\nerror\nbuilding: failed after '* ]] || { echo "status $status, printed '$printed'" && exit 1; }

# `make run` prints nothing else of the build.
recipe=$(make -C "$SHOAL_TEST_SOURCE_DIR" -n run 2>/dev/null | grep -E 'deps\.sh|make.* all$')
! grep -v 'scripts/stage.sh' <<<"$recipe" || { echo "a stage of make run is not quiet" && exit 1; }
