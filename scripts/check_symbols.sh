#!/bin/bash
# SPDX-License-Identifier: MIT
# Compares the functions that the public headers declare, those that the map of the library lists (src/shoal.map,
# nn/shoal_nn.map) and, when a build is given, those that its libraries export.
#
#   scripts/check_symbols.sh [--lib DIR] [ROOT]      DIR holds libshoal.so, libshoal.a and those of shoal_nn
set -euo pipefail

lib_dir=
if [[ ${1:-} == --lib ]]; then
    lib_dir=$(cd "$2" && pwd)
    shift 2
fi
scripts=$(cd "$(dirname "$0")" && pwd)
cd "${1:-$scripts/..}"
export LC_ALL=C

failed=false

# compare WHAT-A WHAT-B LIST-A LIST-B: names that one list has and the other lacks.
compare() {
    local name
    while read -r name; do
        echo "$name: in $1, but not in $2" >&2
        failed=true
    done < <(comm -23 <(sort -u <<<"$3") <(sort -u <<<"$4") | sed '/^$/d')
    while read -r name; do
        echo "$name: in $2, but not in $1" >&2
        failed=true
    done < <(comm -13 <(sort -u <<<"$3") <(sort -u <<<"$4") | sed '/^$/d')
}

# check_library NAME HEADERS MAP
check_library() {
    local name=$1 headers=$2 map=$3 in_headers in_map in_shared in_static
    in_headers=$("$scripts/list_symbols.pl" "$headers"/*.h)
    in_map=$(sed -nE 's/^[[:space:]]+([A-Za-z_][A-Za-z0-9_]*);$/\1/p' "$map")
    compare "the public headers" "$map" "$in_headers" "$in_map"
    if ! sort -c -u <<<"$in_map" 2>/dev/null; then
        echo "$map: the names are not sorted, or one is there twice" >&2
        failed=true
    fi
    if [[ -n $lib_dir ]]; then
        # Version names themselves are absolute symbols (type A).
        in_shared=$(nm -D --defined-only "$lib_dir/lib$name.so" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }')
        compare "$map" "lib$name.so" "$in_map" "$in_shared"
        in_static=$(nm -g --defined-only "$lib_dir/lib$name.a" | awk 'NF == 3 { print $3 }')
        compare "$map" "lib$name.a" "$in_map" "$in_static"
    fi
}

check_library shoal include/shoal src/shoal.map
if [[ -d nn ]]; then
    check_library shoal_nn include/shoal_nn nn/shoal_nn.map
fi

if $failed; then
    exit 1
fi
