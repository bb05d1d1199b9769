#!/bin/bash
# SPDX-License-Identifier: MIT
# Shows what clang-format would change. Version 14 only: others disagree about details.
#
#   scripts/check_format.sh [--fix] [FILE...]     default: every C and C++ file of the tree
set -euo pipefail
cd "$(dirname "$0")/.."

fix=false
if [[ ${1:-} == --fix ]]; then
    fix=true
    shift
fi
files=("$@")
if [[ ${#files[@]} -eq 0 ]]; then
    folders=()
    for folder in src include tests tools examples nn bench python; do
        [[ -d $folder ]] && folders+=("$folder")
    done
    mapfile -t files < <(find "${folders[@]}" \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cpp' \) | sort)
fi
if $fix; then
    clang-format-14 -i "${files[@]}"
    exit 0
fi

# One process for many files says whether there is something to show.
check_files() {
    local file failed=false
    clang-format-14 --dry-run -Werror "$@" 2>/dev/null && return
    for file in "$@"; do
        clang-format-14 "$file" | diff -u --label "$file" --label "$file (formatted)" "$file" - || failed=true
    done
    ! $failed
}
export -f check_files
if ! printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 50 bash -c 'set -o pipefail; check_files "$@"' check_files; then
    echo "format: run scripts/check_format.sh --fix" >&2
    exit 1
fi
