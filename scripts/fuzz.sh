#!/bin/bash
# SPDX-License-Identifier: MIT
# Random changes of good files into everything that reads files (tests/fuzz), under the address sanitizer.
#
#   scripts/fuzz.sh [SECONDS [NAME...]]      default: 60 seconds for each of tests/fuzz/*_fuzz.c
#
# An input that fails stays in the working directory as NAME.crash; SHOAL_TEST_SEED repeats a run.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/scripts/progress.sh"

seconds=${1:-60}
names=("${@:2}")
if [[ ${#names[@]} -eq 0 ]]; then
    for source in "$root"/tests/fuzz/*_fuzz.c; do
        names+=("$(basename "$source" _fuzz.c)")
    done
fi

build=$root/build/asan
(cd "$root" && cmake --preset asan >/dev/null && cmake --build --preset asan -j "$(nproc)" \
    --target "${names[@]/#/fuzz_}" >/dev/null)
number=0
for name in "${names[@]}"; do
    number=$((number + 1))
    SHOAL_FUZZ_SECONDS=$seconds progress_run "fuzz: $name ($number of ${#names[@]})" "$build/tests/fuzz/${name}_fuzz"
done
