#!/bin/bash
# SPDX-License-Identifier: MIT
# Compares the functions that the public headers declare, those that the map of the library lists (src/shoal.map,
# nn/shoal_nn.map, compat/shoal_compat.map) and, when a build is given, those that its libraries export. Checks that
# there are not more public functions in include/shoal than max_functions, inline ones included, and that each is written
# out in a source: grep, ctags and debuggers must find it. The lists for Debian (debian/*.symbols) must have the same names.
#
#   scripts/check_symbols.sh [--lib DIR] [ROOT]      DIR holds libshoal.so, libshoal.a and the others
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
# Of libshoal. A new function that makes them more needs a reason, or another one that goes. 342 are for training, 11 write
# safetensors files, 40 are for state (items, checkpoints, ZeRO); shoal/graph.h and shoal/compile.h, which a program that only
# trains never calls, have the rest. Twenty are for devices, six for updates of parameters and for clipping on any device.
max_functions=502

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

scripts_list() { "$scripts/list_symbols.pl" "$1"/*.h; }

# check_library NAME HEADERS MAP
check_library() {
    local name=$1 headers=$2 map=$3 in_headers in_map in_shared in_static
    in_headers=$(scripts_list "$headers")
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

# Inline functions of public headers.
inline_functions() {
    find include/shoal -name '*.h' -exec perl -0ne \
        's{/\*.*?\*/}{ }gs; print "$1\n" while /\bstatic\s+inline\b[^;{]*?\b(shoal_\w+)\s*\(/g' {} +
}

check_count() {
    local n_functions
    n_functions=$({ scripts_list include/shoal; inline_functions; } | sort -u | sed '/^$/d' | wc -l)
    if [[ $n_functions -gt $max_functions ]]; then
        echo "include/shoal: $n_functions public functions, more than the $max_functions of scripts/check_symbols.sh" >&2
        failed=true
    fi
}

# check_written SOURCES NAME...: a definition begins with the name, or has it behind its type.
check_written() {
    local sources=$1 name definitions
    shift
    definitions=$(find "$sources" -name '*.c' -exec perl -ne \
        'print "$1\n" if /^(?:[a-z][A-Za-z0-9_ ]*[ *]+)*(shoal_[a-z0-9_]+)\(/' {} + | sort -u)
    while read -r name; do
        echo "$name: no definition in $sources begins with its name or type: write it out" >&2
        failed=true
    done < <(comm -23 <(printf '%s\n' "$@" | sort -u) <(echo "$definitions"))
}

check_library shoal include/shoal src/shoal.map
check_count
mapfile -t functions < <(scripts_list include/shoal)
check_written src "${functions[@]}"
for companion in nn compat; do
    if [[ -d $companion ]]; then
        check_library "shoal_$companion" "include/shoal_$companion" "$companion/shoal_$companion.map"
        mapfile -t functions < <(scripts_list "include/shoal_$companion")
        check_written "$companion" "${functions[@]}"
    fi
done

if ! "$scripts/make_symbols.sh" --check "$PWD"; then
    failed=true
fi
if $failed; then
    exit 1
fi
