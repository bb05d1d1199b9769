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

# Those that make C++ programs: a compiler may be here without the headers of its standard library.
compilers=()
for compiler in g++ clang++; do
    command -v "$compiler" >/dev/null || continue
    if "$compiler" -std=c++17 -fsyntax-only -x c++ - <<<'#include <cstdint>' >/dev/null 2>&1; then
        compilers+=("$compiler")
    else
        echo "$compiler: finds no <cstdint>: not tested"
    fi
done

for path in "$include"/shoal{,_compat,_nn}/*.h; do
    header=${path#"$include"/}
    for compiler in gcc clang; do
        command -v "$compiler" >/dev/null || continue
        try "$compiler" c99 c "$header"
        try "$compiler" c11 c "$header"
    done
    for compiler in "${compilers[@]}"; do
        try "$compiler" c++17 cc "$header"
    done
done

# Every struct with struct_size has an initializer, which works without warnings in C and C++.
structs=$(sed -nE '/^typedef struct/{s/^typedef struct ([a-z_0-9]+) \{$/\1/;h}; /^    size_t struct_size;/{x;p}' \
    "$include"/shoal{,_compat,_nn}/*.h)
{
    printf '#include <stdio.h>\n#include "shoal/shoal.h"\n'
    # shellcheck disable=SC2046 # a word for each header
    printf '#include "shoal_nn/%s"\n' $(cd "$include/shoal_nn" && echo *.h)
    printf 'int main(void)\n{\n    int failed = 0;\n'
    for struct in $structs; do
        macro=${struct^^}_INIT
        printf '    {\n        %s value = %s;\n        if (value.struct_size != sizeof value) {\n' "$struct" "$macro"
        printf '            failed += printf("%s is wrong\\n") > 0;\n        }\n    }\n' "$macro"
    done
    printf '    return failed;\n}\n'
} | tee "$scratch/init.c" >"$scratch/init.cc"
# So do those of the kinds of collectives, one macro each.
{
    printf '#include "shoal/group.h"\nint main(void)\n{\n    float a[4] = {0};\n    float b[4] = {0};\n'
    printf '    size_t n[2] = {1, 1};\n'
    printf '    shoal_collective calls[] = {\n'
    printf '        SHOAL_COLLECTIVE_%s,\n' BARRIER 'BROADCAST(a, 2, SHOAL_F32, 0)' \
        'ALL_REDUCE(a, b, 2, SHOAL_F32, SHOAL_SUM)' 'REDUCE(a, b, 2, SHOAL_F32, SHOAL_SUM, 0)' \
        'ALL_GATHER(a, b, 2, SHOAL_F32)' 'ALL_GATHER_V(a, b, n, SHOAL_F32)' \
        'REDUCE_SCATTER(a, b, 2, SHOAL_F32, SHOAL_SUM)' 'REDUCE_SCATTER_V(a, b, n, SHOAL_F32, SHOAL_SUM)' \
        'ALL_TO_ALL(a, b, 2, SHOAL_F32)' 'ALL_TO_ALL_V(a, n, b, n, SHOAL_F32)' \
        'GATHER(a, b, 2, SHOAL_F32, 0)' 'GATHER_V(a, b, n, SHOAL_F32, 0)' \
        'SCATTER(a, b, 2, SHOAL_F32, 0)' 'SCATTER_V(a, b, n, SHOAL_F32, 0)'
    printf '    };\n    for (int i = 1; i < SHOAL_KIND_COUNT; i++) {\n'
    printf '        if ((int)calls[i - 1].kind != i || calls[i - 1].struct_size != sizeof calls[0]) {\n'
    printf '            return 1;\n        }\n    }\n    return 0;\n}\n'
} | tee "$scratch/kinds.c" >"$scratch/kinds.cc"
for build in "gcc c99 c" "gcc c11 c" "clang c99 c" "g++ c++17 cc" "clang++ c++17 cc"; do
    read -r compiler standard language <<<"$build"
    command -v "$compiler" >/dev/null || continue
    compiled=$((compiled + 1))
    for program in init kinds; do
        if ! "$compiler" "-std=$standard" -Wall -Wextra -Wpedantic -Werror -I"$include" \
            "$scratch/$program.$language" -o "$scratch/$program" || ! "$scratch/$program"; then
            echo "initializers do not work: $program, $compiler -std=$standard"
            failed=$((failed + 1))
        fi
    done
done
if [[ $(wc -w <<<"$structs") -lt 16 ]]; then
    echo "found only these structs with struct_size: $structs"
    failed=$((failed + 1))
fi

# Who installed the library does not have its sources.
if grep -n '\bsrc/' "$include"/shoal{,_compat,_nn}/*.h; then
    echo "a public header points to a source file"
    failed=$((failed + 1))
fi

echo "$compiled compiled, $failed failed"
[[ $compiled -gt 0 && $failed -eq 0 ]]
