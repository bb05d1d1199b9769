#!/bin/bash
# SPDX-License-Identifier: MIT
# clang-tidy with the tree's .clang-tidy.
#
#   scripts/tidy.sh [--quick]            every C file of src, nn, compat, tools and examples
#   scripts/tidy.sh [--quick] FILE...
#
# --quick ends the analyzer's walk through a function early, and takes a quarter of the time: what lint does.
set -euo pipefail
cd "$(dirname "$0")/.."

n_nodes=225000 # clang's own default
if [[ ${1:-} == --quick ]]; then
    n_nodes=20000
    shift
fi

cmake --preset dev >/dev/null
database=build/dev/compile_commands.json

if [[ $# -gt 0 ]]; then
    wanted=("$@")
else
    mapfile -t wanted < <(find src nn compat tools examples -name '*.c' | sort)
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
# The files that define what tidy_facts.h redefines cannot be read behind it.
printf '%s\n' "${files[@]}" | grep -vx -e src/base/error.c -e src/checkpoint/io/path.c | xargs -r -P "$(nproc)" -n 4 \
    clang-tidy-14 --quiet -p build/dev --warnings-as-errors='*' \
    --extra-arg=-Xclang --extra-arg=-analyzer-config --extra-arg=-Xclang --extra-arg=max-nodes=$n_nodes \
    --extra-arg=-Wno-ignored-optimization-argument --extra-arg=-include --extra-arg="$PWD/scripts/tidy_facts.h" 2>&1 |
    sed '/^[0-9]* warnings\{0,1\} generated\.$/d'
