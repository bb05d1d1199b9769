#!/bin/bash
# SPDX-License-Identifier: MIT
# clang-tidy with the tree's .clang-tidy.
#
#   scripts/tidy.sh            every C file of src, nn, tools and examples
#   scripts/tidy.sh FILE...
set -euo pipefail
cd "$(dirname "$0")/.."

cmake --preset dev >/dev/null
database=build/dev/compile_commands.json

if [[ $# -gt 0 ]]; then
    wanted=("$@")
else
    mapfile -t wanted < <(find src nn tools examples -name '*.c' | sort)
fi

# Only what this machine's build compiles: files for other processors have no entry.
files=()
for file in "${wanted[@]}"; do
    if grep -qF "\"file\": \"$PWD/$file\"" "$database"; then
        files+=("$file")
    fi
done
if [[ ${#files[@]} -eq 0 ]]; then
    exit 0
fi

# Some files have flags that only gcc knows.
# The files that define what tidy_facts.h redefines can not be read behind it.
printf '%s\n' "${files[@]}" | grep -vx -e src/base/error.c -e src/checkpoint/path.c | xargs -r -P "$(nproc)" -n 4 \
    clang-tidy-14 --quiet -p build/dev --warnings-as-errors='*' \
    --extra-arg=-Wno-ignored-optimization-argument --extra-arg=-include --extra-arg="$PWD/scripts/tidy_facts.h" 2>&1 |
    sed '/^[0-9]* warnings\{0,1\} generated\.$/d'
