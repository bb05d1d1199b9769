#!/bin/bash
# SPDX-License-Identifier: MIT
# Every public header compiles alone, twice included, as C99, C11 and C++17, without a warning, with each
# compiler that is here.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
include=$SHOAL_TEST_SOURCE_DIR/include
failed=0
compiled=0

# try COMPILER STANDARD LANGUAGE HEADER
try() {
    printf '#include "%s"\n#include "%s"\nint not_empty;\n' "$4" "$4" >"$scratch/alone.$3"
    compiled=$((compiled + 1))
    if ! "$1" "-std=$2" -Wall -Wextra -Wpedantic -Wundef -Werror -I"$include" -fsyntax-only "$scratch/alone.$3"; then
        echo "$4 does not compile alone: $1 -std=$2"
        failed=$((failed + 1))
    fi
}

for path in "$include"/shoal/*.h "$include"/shoal_nn/*.h; do
    header=${path#"$include"/}
    for compiler in gcc clang; do
        command -v "$compiler" >/dev/null || continue
        try "$compiler" c99 c "$header"
        try "$compiler" c11 c "$header"
    done
    for compiler in g++ clang++; do
        command -v "$compiler" >/dev/null || continue
        try "$compiler" c++17 cc "$header"
    done
done

# Who installed the library does not have its sources.
if grep -n '\bsrc/' "$include"/shoal/*.h "$include"/shoal_nn/*.h; then
    echo "a public header points to a source file"
    failed=$((failed + 1))
fi

echo "$compiled compiled, $failed failed"
[[ $compiled -gt 0 && $failed -eq 0 ]]
