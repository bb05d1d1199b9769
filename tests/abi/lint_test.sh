#!/bin/bash
# SPDX-License-Identifier: MIT
# The checks of scripts/ see what they are there for: each is run over a small tree that is right, and then
# over the same tree with one thing wrong.
# shellcheck disable=SC1003,SC2016 # what is planted is meant as it is written
set -euo pipefail

scripts=$SHOAL_TEST_SOURCE_DIR/scripts
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
tree=$scratch/tree
failed=false

spdx='/* SPDX-License-Identifier: MIT */'

plant_tree() {
    rm -rf "$tree"
    mkdir -p "$tree"/{include/shoal,include/shoal_nn,src/base,src/op,nn,examples,tests/unit,tests/conformance}
    printf '%s\n' "$spdx" 'SHOAL_API int' 'shoal_one(void);' '/* SHOAL_API int shoal_gone(void); */' \
        >"$tree/include/shoal/one.h"
    printf '%s\n' "$spdx" '#define SHOAL_VERSION_MAJOR 0' '#define SHOAL_VERSION_MINOR 1' \
        '#define SHOAL_VERSION_PATCH 0' >"$tree/include/shoal/version.h"
    printf '%s\n' "$spdx" '#include "base/mem.h"' '#include "shoal/one.h"' \
        '/* free(x), http://example.org */' 'const char *url = "http://example.org malloc(1)";' \
        >"$tree/src/base/error.c"
    printf '%s\n' "$spdx" '#include "base/mem.h"' 'int x = free_all(1);' >"$tree/src/op/add.c"
    printf '%s\n' "$spdx" 'void *p = malloc(1);' >"$tree/src/base/mem.c"
    printf '%s\n' "$spdx" '#include "shoal/one.h"' >"$tree/examples/00.c"
    printf '%s\n' 'SHOAL_0.1 {' 'global:' '    shoal_one;' 'local:' '    *;' '};' >"$tree/src/shoal.map"
    printf '%s\n' "$spdx" '#include "shoal/one.h"' 'SHOAL_API int shoal_nn_one(void);' >"$tree/include/shoal_nn/nn.h"
    printf '%s\n' "$spdx" '#include "blas.h"' '#include "shoal_nn/nn.h"' >"$tree/nn/ops.c"
    printf '%s\n' "$spdx" >"$tree/nn/blas.h"
    printf '%s\n' 'SHOAL_NN_0.1 {' 'global:' '    shoal_nn_one;' 'local:' '    *;' '};' >"$tree/nn/shoal_nn.map"
    printf '%s\n' "$spdx" 'TEST_RANKS(of_one, 1)' '    TEST_RANKS(of_##n, n) \' >"$tree/tests/conformance/fsdp_bits_test.c"
    printf '%s\n' '## Fully sharded data parallelism' '| case | test |' '|---|---|' '| one | `bits/of_one`, `of_2` |' \
        '| two | later: needs a GPU; without: `bits/*`, `of_*` |' >"$tree/tests/conformance/README.md"
    printf '%s\n' '# Changes' '' '## 0.1.0 (unreleased)' '' '## 0.0.9' >"$tree/CHANGELOG.md"
}

# accept CHECK...: the tree as it is passes.
accept() {
    if ! "$@" "$tree" >"$scratch/out" 2>&1; then
        echo "refused a tree that is right: $1"
        cat "$scratch/out"
        failed=true
    fi
}

# refuse WORDS FILE LINE CHECK...: with LINE added to FILE the check fails, and its message contains WORDS.
refuse() {
    local words=$1 file=$2 line=$3
    shift 3
    plant_tree
    if [[ ! -e $tree/$file ]]; then
        mkdir -p "$(dirname "$tree/$file")"
        echo "$spdx" >"$tree/$file"
    fi
    printf '%s\n' "$line" >>"$tree/$file"
    if "$@" "$tree" >"$scratch/out" 2>&1; then
        echo "did not see, in $file: $line"
        failed=true
    elif ! grep -qF "$words" "$scratch/out"; then
        echo "refused $file: $line, but did not say '$words':"
        cat "$scratch/out"
        failed=true
    fi
}

plant_tree
layers=("$scripts/check_layers.sh")
accept "${layers[@]}"
refuse 'op is a higher layer' src/base/error.c '#include "op/op.h"' "${layers[@]}"
refuse 'src/base/error.c:6' src/base/error.c '  #  include "lower/plan.h"' "${layers[@]}"
refuse 'higher layer' src/tensor/rows.def '#include "kernel/kernel.h"' "${layers[@]}"
refuse 'higher layer' src/transport/shm/shm.c '#include "comm/lane.h"' "${layers[@]}"
refuse 'not a full path' src/op/add.c '#include "mem.h"' "${layers[@]}"
refuse 'not in the list of layers' src/util/util.c '' "${layers[@]}"
refuse 'not a public header' examples/00.c '#include "base/mem.h"' "${layers[@]}"
refuse 'not a public header' include/shoal/one.h '#include "tensor/tensor.h"' "${layers[@]}"
refuse 'not a public header' include/shoal/one.h '#include "shoal_nn/nn.h"' "${layers[@]}"
refuse 'not a full path' src/op/add.c '#include "shoal_nn/nn.h"' "${layers[@]}"
refuse 'not a public header' nn/ops.c '#include "base/mem.h"' "${layers[@]}"
refuse 'not a public header' include/shoal_nn/nn.h '#include "base/mem.h"' "${layers[@]}"

plant_tree
banned=("$scripts/check_banned.pl")
head_without_spdx() {
    sed -i 1d "$tree/src/op/none.h"
    "${banned[@]}" "$1"
}
accept "${banned[@]}"
refuse 'src/op/add.c:4' src/op/add.c 'int y; // why' "${banned[@]}"
refuse 'tests/unit/a_test.c:2' tests/unit/a_test.c '// why' "${banned[@]}"
refuse 'base/mem.h' src/op/add.c 'void *p = malloc (1);' "${banned[@]}"
refuse 'base/mem.h' src/op/add.c 'char *p = strdup("//");' "${banned[@]}"
refuse 'never prints' src/op/add.c 'int x = printf("%d", 1);' "${banned[@]}"
refuse 'never ends' src/op/add.c 'void f(void) { abort(); }' "${banned[@]}"
refuse 'base/wait.h' src/op/add.c 'void f(void) { while (1) sched_yield(); }' "${banned[@]}"
refuse 'base/wait.h' src/op/add.c 'void f(void) { __asm__ volatile("yield"); }' "${banned[@]}"
refuse 'open an issue' src/op/add.c "/* TO""DO: later */" "${banned[@]}"
refuse 'more than 800 lines' src/op/long.c "$(yes 'int x;' | head -n 800)" "${banned[@]}"
refuse 'not synchronisation' tests/unit/a_test.c 'void f(void) { usleep(1); }' "${banned[@]}"
refuse 'leaves early' scripts/a.sh "nm x | grep ""-q y" "${banned[@]}"
refuse 'SPDX' src/op/none.h '' head_without_spdx

plant_tree
symbols=("$scripts/check_symbols.sh")
accept "${symbols[@]}"
refuse 'shoal_two: in the public headers, but not in' include/shoal/two.h 'SHOAL_API int shoal_two(void);' \
    "${symbols[@]}"
refuse 'shoal_zero: in src/shoal.map, but not in' src/shoal.map '    shoal_zero;' "${symbols[@]}"
refuse 'twice' src/shoal.map '    shoal_one;' "${symbols[@]}"
refuse 'shoal_nn_two: in the public headers, but not in nn/shoal_nn.map' include/shoal_nn/nn.h \
    'SHOAL_API int shoal_nn_two(void);' "${symbols[@]}"

plant_tree
conformance=("$scripts/check_conformance.pl")
rows=tests/conformance/README.md
accept "${conformance[@]}"
refuse 'README.md:6: three: there is no test two' $rows '| three | `bits/of_one`, `two` |' "${conformance[@]}"
refuse 'no test of_one in tests/conformance/fully_shard_bits' $rows '| three | `module_bits/of_one` |' "${conformance[@]}"
refuse 'no reason to wait' $rows '| three | later: no time |' "${conformance[@]}"
refuse 'neither a test nor a reason' $rows '| three | left out |' "${conformance[@]}"

plant_tree
version=("$scripts/check_version.sh")
accept "${version[@]}"
sed -i 's/## 0.1.0/## 0.2.0/' "$tree/CHANGELOG.md"
if "${version[@]}" "$tree" 2>/dev/null; then
    echo "did not see that CHANGELOG.md and version.h differ"
    failed=true
fi

! $failed
