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
plant=plant_tree
failed=false

spdx='/* SPDX-License-Identifier: MIT */'

plant_tree() {
    rm -rf "$tree"
    mkdir -p "$tree"/{include/shoal,include/shoal_nn,src/base,src/op,debian,nn,examples,tests/unit,tests/conformance,tests/parallel/fsdp}
    printf '%s\n' "$spdx" 'SHOAL_API int' 'shoal_one(void);' '/* SHOAL_API int shoal_gone(void); */' \
        >"$tree/include/shoal/one.h"
    printf '%s\n' "$spdx" '#define SHOAL_VERSION_MAJOR 0' '#define SHOAL_VERSION_MINOR 1' \
        '#define SHOAL_VERSION_PATCH 0' >"$tree/include/shoal/version.h"
    printf '%s\n' "$spdx" '#include "base/mem.h"' '#include "shoal/one.h"' \
        '/* free(x), http://example.org */' 'const char *url = "http://example.org malloc(1)";' \
        >"$tree/src/base/error.c"
    printf '%s\n' "$spdx" '#include "base/mem.h"' 'int x = free_all(a->free(1));' >"$tree/src/op/add.c"
    printf '%s\n' "$spdx" 'void *p = malloc(1);' >"$tree/src/base/mem.c"
    printf '%s\n' "$spdx" >"$tree/src/base/mem.h"
    printf '%s\n' "$spdx" 'int shoal_one(void)' '{' '    return 1;' '}' >"$tree/src/base/one.c"
    printf '%s\n' "$spdx" 'int shoal_nn_one(void)' '{' '    return 1;' '}' >"$tree/nn/one.c"
    printf '%s\n' "$spdx" '#include "shoal/one.h"' >"$tree/examples/00.c"
    printf '%s\n' 'layer base' '    shows mem.h' 'layer op' '    uses base' >"$tree/src/layers.txt"
    printf '%s\n' 'SHOAL_0.1 {' 'global:' '    shoal_one;' 'local:' '    *;' '};' >"$tree/src/shoal.map"
    printf '%s\n' "$spdx" '#include "shoal/one.h"' 'SHOAL_API int shoal_nn_one(void);' >"$tree/include/shoal_nn/nn.h"
    printf '%s\n' "$spdx" '#include "blas.h"' '#include "shoal_nn/nn.h"' >"$tree/nn/ops.c"
    printf '%s\n' "$spdx" >"$tree/nn/blas.h"
    printf '%s\n' 'SHOAL_NN_0.1 {' 'global:' '    shoal_nn_one;' 'local:' '    *;' '};' >"$tree/nn/shoal_nn.map"
    printf '%s\n' "$spdx" 'TEST_RANKS(of_one, 1)' '    TEST_RANKS(of_##n, n) \' >"$tree/tests/parallel/fsdp/bits_test.c"
    printf '%s\n' '## Fully sharded data parallelism' '| case | test |' '|---|---|' '| one | `bits/of_one`, `of_2` |' \
        '| two | later: needs a GPU; without: `bits/*`, `of_*` |' >"$tree/tests/conformance/README.md"
    printf '%s\n' '# Changes' '' '## 0.1.0 (unreleased)' '' '## 0.0.9' >"$tree/CHANGELOG.md"
    printf '%s\n' 'shoal (0.1.0) unstable; urgency=medium' '' 'shoal (0.0.9) unstable; urgency=medium' >"$tree/debian/changelog"
    printf '%s\n' 'libshoal.so.0.1 libshoal0.1 #MINVER#' '* Build-Depends-Package: libshoal-dev' ' SHOAL_0.1@SHOAL_0.1 0.1.0' \
        ' shoal_one@SHOAL_0.1 0.1.0' >"$tree/debian/libshoal0.1.symbols"
    printf '%s\n' 'libshoal_nn.so.0.1 libshoal-nn0.1 #MINVER#' '* Build-Depends-Package: libshoal-dev' \
        ' SHOAL_NN_0.1@SHOAL_NN_0.1 0.1.0' ' shoal_nn_one@SHOAL_NN_0.1 0.1.0' >"$tree/debian/libshoal-nn0.1.symbols"
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
    $plant
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
layers=("$scripts/check_layers.pl")
accept "${layers[@]}"
refuse 'src/base/error.c:6: base may not use op: "op/op.h"' src/base/error.c '#include "op/op.h"' "${layers[@]}"
refuse 'src/base/error.c:6' src/base/error.c '  #  include "op/plan.h"' "${layers[@]}"
refuse 'base may not use op: "op/add.c"' src/base/error.c '#include <op/add.c>' "${layers[@]}"
refuse '"HEADER" is not a full path' src/base/error.c '#include HEADER' "${layers[@]}"
refuse 'may not use op' src/base/rows.def '#include "op/op.h"' "${layers[@]}"
refuse 'may not use op' src/base/below/deep.c '#include "op/op.h"' "${layers[@]}"
refuse 'not a full path' src/op/add.c '#include "mem.h"' "${layers[@]}"
refuse 'src/util is not a layer' src/util/util.c '' "${layers[@]}"
refuse 'base does not show "base/error.h"' src/op/add.c '#include "base/error.h"' "${layers[@]}"
refuse 'circle of 1 includes: base/mem.h' src/base/mem.h '#include "base/mem.h"' "${layers[@]}"
check_header_circle() {
    echo '#include "base/mem.h"' >"$1/src/base/one.h"
    "${layers[@]}" "$1"
}
refuse 'circle of 2 includes: base/mem.h base/one.h' src/base/mem.h '#include "base/one.h"' check_header_circle
refuse 'not a public header' examples/00.c '#include "base/mem.h"' "${layers[@]}"
refuse 'not a public header' include/shoal/one.h '#include "tensor/tensor.h"' "${layers[@]}"
refuse 'not a public header' include/shoal/one.h '#include "shoal_nn/nn.h"' "${layers[@]}"
refuse 'not a full path' src/op/add.c '#include "shoal_nn/nn.h"' "${layers[@]}"
refuse 'not a public header' nn/ops.c '#include "base/mem.h"' "${layers[@]}"
refuse 'not a public header' include/shoal_nn/nn.h '#include "base/mem.h"' "${layers[@]}"
refuse 'layers.txt:5: op cannot use pass' src/layers.txt '    uses pass' "${layers[@]}"
refuse 'layers.txt:5: op cannot use op' src/layers.txt '    uses op' "${layers[@]}"
refuse 'layers.txt:5: layer base stands here twice' src/layers.txt 'layer base' "${layers[@]}"
refuse 'op shows op.h, which is not there' src/layers.txt '    shows op.h' "${layers[@]}"
refuse 'op shows add.c, which no other layer includes' src/layers.txt '    shows add.c' "${layers[@]}"
refuse 'layers.txt:5: this exception is not needed any more' src/layers.txt \
    'except includes op/add.c -> base/mem.h: for no reason' "${layers[@]}"
refuse 'layers.txt:5: cannot read' src/layers.txt 'except includes op/add.c -> base/mem.h:' "${layers[@]}"

# A crowded folder.
check_crowd() {
    touch "$1"/src/op/{1..45}.h
    "${layers[@]}" "$1"
}
refuse 'src/op: 46 files, more than 45' src/op/add.c '' check_crowd
check_crowd_excused() {
    echo 'except large op: because' >>"$1/src/layers.txt"
    check_crowd "$1"
}
plant_tree
accept check_crowd_excused
refuse 'layers.txt:5: this exception is not needed' src/layers.txt 'except large base: because' "${layers[@]}"

# Exceptions let pass an include of a layer that is not used, and of a header that is not shown.
plant_tree
printf '%s\n' '#include "op/op.h"' >>"$tree/src/base/error.c"
printf '%s\n' '#include "base/error.h"' >>"$tree/src/op/add.c"
printf '%s\n' 'except includes base/error.c -> op/op.h: because' 'except includes op/add.c -> base/error.h: because' \
    >>"$tree/src/layers.txt"
accept "${layers[@]}"

# References: the same check over objects of a tree in which op/top.c uses base/low.c, which uses base/lowest.c.
plant_objects() {
    rm -rf "$tree"
    mkdir -p "$tree"/src/{base,tensor,op}
    printf '%s\n' 'layer base' 'layer tensor' 'layer op' '    uses base' >"$tree/src/layers.txt"
    printf '%s\n' 'void shoal_lowest(void);' 'void shoal_lowest(void) {}' >"$tree/src/base/lowest.c"
    printf '%s\n' 'void shoal_lowest(void), shoal_low(void);' 'void shoal_low(void) { shoal_lowest(); }' \
        >"$tree/src/base/low.c"
    printf '%s\n' 'void shoal_middle(void);' 'void shoal_middle(void) {}' >"$tree/src/tensor/middle.c"
    printf '%s\n' 'void shoal_low(void), shoal_top(void);' 'void shoal_top(void) { shoal_low(); }' \
        >"$tree/src/op/top.c"
}
check_objects() {
    local file objects=$scratch/build/src/CMakeFiles/shoal_objects.dir
    rm -rf "$scratch/build"
    while read -r file; do
        mkdir -p "$objects/$(dirname "$file")"
        "${CC:-cc}" -O2 -fPIC -c "$1/src/$file" -o "$objects/$file.o"
    done < <(cd "$1/src" && find . -name '*.c')
    "${layers[@]}" "$1" "$scratch/build"
}
check_without_top() {
    plant_objects
    check_objects "$1"
    rm "$scratch/build/src/CMakeFiles/shoal_objects.dir/op/top.c.o"
    "${layers[@]}" "$1" "$scratch/build"
}
check_weak() {
    echo 'void shoal_weak(void), shoal_f(void); void shoal_f(void) { shoal_weak(); }' >>"$1/src/base/lowest.c"
    check_objects "$1"
}
plant=plant_objects
plant_objects
accept check_objects
refuse 'src/base/lowest.c: base may not use op: op/top has shoal_top' src/base/lowest.c \
    'void shoal_top(void), shoal_f(void); void shoal_f(void) { shoal_top(); }' check_objects
refuse 'src/tensor/middle.c: tensor may not use base: base/low has shoal_low' src/tensor/middle.c \
    'void shoal_low(void); void (*shoal_callback)(void) = shoal_low;' check_objects
refuse 'src/tensor/middle.c: tensor may not use base: base/low has shoal_low' src/tensor/middle.c \
    'extern void shoal_low(void) __attribute__((weak)); void (*shoal_callback)(void) = shoal_low;' check_objects
refuse 'src/base/lowest.c: base may not use op: op/weak has shoal_weak' src/op/weak.c \
    'void shoal_weak(void); __attribute__((weak)) void shoal_weak(void) {}' check_weak
refuse 'circle of 2 files: base/low base/lowest' src/base/lowest.c \
    'void shoal_low(void), shoal_f(void); void shoal_f(void) { shoal_low(); }' check_objects
refuse '    base/lowest -> base/low: shoal_low' src/base/lowest.c \
    'void shoal_low(void); void (*const shoal_callback)(void) = shoal_low;' check_objects
refuse 'layers.txt:5: this exception is not needed' src/layers.txt 'except circle base: because' check_objects
refuse 'layers.txt:5: this exception is not needed' src/layers.txt 'except refers op/top -> base/low: so' check_objects
refuse 'layers.txt:5: this exception is not needed' src/layers.txt 'except refers op/top -> op/gone: so' check_objects
refuse 'op does not use tensor' src/layers.txt '    uses tensor' check_objects
refuse 'src/op/top.c: ' src/op/top.c '' check_without_top
check_touched() {
    check_objects "$1"
    touch -d '+1 hour' "$1/src/op/top.c"
    "${layers[@]}" "$1" "$scratch/build"
}
refuse 'src/op/top.c: its object in' src/op/top.c '' check_touched

# An exception lets pass what it names, a circle and an arrow upwards alike.
plant_objects
echo 'void shoal_top(void), shoal_f(void); void shoal_f(void) { shoal_top(); }' >>"$tree/src/base/lowest.c"
echo 'except refers base/lowest -> op/top: because' >>"$tree/src/layers.txt"
accept check_objects
plant_objects
echo 'void shoal_low(void), shoal_f(void); void shoal_f(void) { shoal_low(); }' >>"$tree/src/base/lowest.c"
echo 'except circle base: because' >>"$tree/src/layers.txt"
accept check_objects

# Rooms: graph/plan uses graph/ir, nn/ops uses nn/math. A planted arrow the other way, or past what a room shows, fails.
plant_rooms() {
    rm -rf "$tree"
    mkdir -p "$tree"/src/{base,graph/ir,graph/plan} "$tree"/nn/{math,ops}
    printf '%s\n' 'layer base' 'layer graph' '    shows plan/plan.h' 'layer graph/ir' '    shows node.h' \
        'layer graph/plan' '    uses graph/ir' '    shows plan.h' 'layer tool' '    uses graph' >"$tree/src/layers.txt"
    printf '%s\n' 'layer math' '    shows pool.h' 'layer ops' '    uses math' >"$tree/nn/layers.txt"
    touch "$tree"/src/graph/ir/{node.h,own.h} "$tree"/nn/math/pool.h
    mkdir "$tree/src/tool"
    printf '%s\n' '#include "graph/ir/node.h"' >"$tree/src/graph/plan/plan.h"
    printf '%s\n' '#include "graph/plan/plan.h"' >"$tree/src/tool/tool.c"
    printf '%s\n' '#include "graph/ir/own.h"' 'void shoal_node(void);' 'void shoal_node(void) {}' >"$tree/src/graph/ir/node.c"
    printf '%s\n' 'void shoal_node(void), shoal_plan(void);' 'void shoal_plan(void) { shoal_node(); }' \
        >"$tree/src/graph/plan/plan.c"
    printf '%s\n' '#include "math/pool.h"' >"$tree/nn/ops/add.c"
}
# `shows plan.h` of graph/plan is wrong as planted: no other room includes it. Taken out for all but one test.
check_rooms() {
    local shown=$1/src/layers.txt
    [[ ${keep_shown:-} ]] || sed -i '/^layer graph\/plan/,/^layer tool/{/shows plan.h/d}' "$shown"
    "${layers[@]}" "$1"
}
check_room_objects() {
    local file
    rm -rf "$scratch/build"
    while read -r file; do
        mkdir -p "$scratch/build/src/CMakeFiles/a.dir/$(dirname "$file")"
        "${CC:-cc}" -c "-I$1/src" "$1/src/$file" -o "$scratch/build/src/CMakeFiles/a.dir/$file.o"
    done < <(cd "$1/src" && find . -name '*.c')
    sed -i '/^layer graph\/plan/,/^layer tool/{/shows plan.h/d}' "$1/src/layers.txt"
    rm -r "$1/nn"
    "${layers[@]}" "$1" "$scratch/build"
}
plant=plant_rooms
plant_rooms
accept check_rooms
plant_rooms
accept check_room_objects
keep_shown=1 refuse 'graph/plan shows plan.h, which no other room includes' src/base/one.c '' check_rooms
refuse 'src/graph/ir/node.c:4: graph/ir may not use graph/plan: "graph/plan/plan.h"' src/graph/ir/node.c \
    '#include "graph/plan/plan.h"' check_rooms
refuse 'graph/ir does not show "graph/ir/own.h" to other rooms' src/graph/plan/plan.c '#include "graph/ir/own.h"' check_rooms
refuse 'graph does not show "graph/ir/node.h" to other layers' src/tool/tool.c '#include "graph/ir/node.h"' check_rooms
refuse 'src/graph/loose.c: lies beside the rooms of src/graph' src/graph/loose.c '' check_rooms
refuse 'layers.txt:11: graph/run cannot use base: a layer lists layers, and a room rooms' src/layers.txt \
    $'layer graph/run\n    uses base' check_rooms
refuse 'mesh is not a layer above this line' src/layers.txt 'layer mesh/ir' check_rooms
refuse 'nn/math/pool.h:1: math may not use ops: "ops/add.c"' nn/math/pool.h '#include "ops/add.c"' check_rooms
refuse '"add.c" is not a full path below nn/' nn/math/pool.h '#include "add.c"' check_rooms
refuse 'src/graph/ir/node.c: graph/ir may not use graph/plan: graph/plan/plan has shoal_plan' src/graph/ir/node.c \
    'void shoal_plan(void), shoal_f(void); void shoal_f(void) { shoal_plan(); }' check_room_objects
plant=plant_tree

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
refuse 'base/mem.h' src/op/add.c 'int z = a > free(p);' "${banned[@]}"
refuse 'never prints' src/op/add.c 'int x = printf("%d", 1);' "${banned[@]}"
refuse 'never ends' src/op/add.c 'void f(void) { abort(); }' "${banned[@]}"
refuse 'base/wait.h' src/op/add.c 'void f(void) { while (1) sched_yield(); }' "${banned[@]}"
refuse 'base/wait.h' src/op/add.c 'void f(void) { __asm__ volatile("yield"); }' "${banned[@]}"
refuse 'base/os' src/op/add.c 'void f(void) { (void)munmap(0, 1); }' "${banned[@]}"
refuse 'base/os' src/op/add.c 'int option = SO_PEERCRED;' "${banned[@]}"
refuse 'open an issue' src/op/add.c "/* TO""DO: later */" "${banned[@]}"
refuse 'more than 800 lines' src/op/long.c "$(yes 'int x;' | head -n 800)" "${banned[@]}"
refuse 'more than 120 columns' include/shoal/two.h "/* $(printf 'x%.0s' {1..120}) */" "${banned[@]}"
refuse 'not synchronization' tests/unit/a_test.c 'void f(void) { usleep(1); }' "${banned[@]}"
refuse 'leaves early' scripts/a.sh "nm x | grep ""-q y" "${banned[@]}"
refuse 'SPDX' src/op/none.h '' head_without_spdx

# Words are seen in pages, in comments and in error texts, also across the end of a line; names in code are no words.
plant_words() {
    plant_tree
    mkdir -p "$tree/docs/man"
    printf '%s\n' "$spdx" '/*' ' * One thing.' ' *' ' * Ownership: the caller.' ' * Threads: any.' ' * Errors: none.' ' */' \
        'SHOAL_API int' 'shoal_one(void);' >"$tree/include/shoal/one.h"
    printf '%s\n' "$spdx" '/*' ' * Ownership, threads, errors: as in shoal/one.h.' ' */' 'SHOAL_API int shoal_nn_one(void);' \
        >"$tree/include/shoal_nn/nn.h"
    printf '%s\n' 'bool is_initialised = normalise(0) can not;' >>"$tree/src/op/add.c"
    printf '%s\n' '# A page' "$long_table" "$long_link" "$long_json" >"$tree/docs/page.md"
}
long=$(printf 'x%.0s' {1..130})
long_table="| $long |" long_link="- [page]($long)" long_json="{\"bench\": \"$long\"}"
plant=plant_words
plant_words
words=("$scripts/check_words.pl")
accept "${words[@]}"
refuse "docs/page.md:5: 'can not': write cannot" docs/page.md 'It can not fail.' "${words[@]}"
refuse "src/op/add.c:5: 'can not': write cannot" src/op/add.c '/* It can not fail. */' "${words[@]}"
refuse "src/op/add.c:6: 'can not': write cannot" src/op/add.c $'/*\n * It can\n * not fail.\n */' "${words[@]}"
refuse "'can not': write cannot" src/op/add.c 'return error_set(SHOAL_ERR_STATE, "Can not open");' "${words[@]}"
refuse "'initialised': write the spelling with z" docs/page.md 'It is initialised.' "${words[@]}"
refuse "'ranks have come': write arrive" include/shoal/one.h '/* When all ranks have come. */' "${words[@]}"
refuse "'e.g.': write for example" docs/man/shoal.1 'E.g.\\& this.' "${words[@]}"
refuse 'docs/page.md:5: more than 120 columns' docs/page.md "A $long" "${words[@]}"
refuse "one.h:11: a comment begins with 'The same'" include/shoal/one.h '/* The same, with two. */' "${words[@]}"
refuse "one.h:11: a comment begins with 'likewise'" include/shoal/one.h 'int two; /* likewise */' "${words[@]}"
refuse "one.h:11: a comment begins with 'One more owner'" include/shoal/one.h $'/*\n * One more owner.\n */' "${words[@]}"
refuse "two.h:2: the first comment has no line 'Threads:'" include/shoal/two.h 'SHOAL_API int shoal_two(void);' "${words[@]}"
plant=plant_tree

plant_tree
symbols=("$scripts/check_symbols.sh")
accept "${symbols[@]}"
refuse 'shoal_two: in the public headers, but not in' include/shoal/two.h 'SHOAL_API int shoal_two(void);' \
    "${symbols[@]}"
refuse 'shoal_zero: in src/shoal.map, but not in' src/shoal.map '    shoal_zero;' "${symbols[@]}"
refuse 'twice' src/shoal.map '    shoal_one;' "${symbols[@]}"
refuse 'shoal_nn_two: in the public headers, but not in nn/shoal_nn.map' include/shoal_nn/nn.h \
    'SHOAL_API int shoal_nn_two(void);' "${symbols[@]}"
refuse 'debian/libshoal0.1.symbols does not fit src/shoal.map' debian/libshoal0.1.symbols ' shoal_old@SHOAL_0.1 0.1.0' \
    "${symbols[@]}"
many=$(printf 'static inline int shoal_f%d(void) { return 0; }\n' {1..600})
refuse 'public functions, more than the' include/shoal/many.h "$many" "${symbols[@]}"
plant_tree
printf '%s\n' 'int shoal_##name(void)' >"$tree/src/base/one.c"
if "${symbols[@]}" "$tree" >"$scratch/out" 2>&1 || ! grep -qF 'shoal_one: no definition' "$scratch/out"; then
    echo "did not see that a macro defines shoal_one"
    failed=true
fi

# Functions without a caller. The tree is right: examples/00.c calls shoal_one, docs/pytorch.md has shoal_nn_one, the
# table of reasons has shoal_two.
plant_callers() {
    plant_tree
    mkdir -p "$tree"/{scripts,docs}
    echo '{"libraries": [{"name": "libshoal", "functions": [{"name": "shoal_one"}, {"name": "shoal_two"}]},
        {"name": "libshoal_nn", "functions": [{"name": "shoal_nn_one"}]}]}' >"$tree/include/shoal-api.json"
    printf '%s\n' 'int main(void) { return shoal_one(); }' >>"$tree/examples/00.c"
    printf '%s\n' 'int y = shoal_nn_one(); /* its own library */' >>"$tree/nn/ops.c"
    printf '%s\n' '| PyTorch | Shoal | note |' '| `torch.one` | `shoal_nn_one` | |' '' '`shoal_two`' \
        >"$tree/docs/pytorch.md"
    printf '%s\n' '# reasons' '' 'A binding reads' 'it.' '    shoal_two' >"$tree/scripts/uncalled.txt"
}
plant=plant_callers
plant_callers
callers=("$scripts/check_callers.pl")
reasons=scripts/uncalled.txt
accept "${callers[@]}"
refuse 'uncalled.txt:6: shoal_one has a caller by now: examples/00.c' $reasons '    shoal_one' "${callers[@]}"
refuse 'uncalled.txt:6: shoal_nn_one has a row in docs/pytorch.md by now' $reasons '    shoal_nn_one' "${callers[@]}"
refuse 'uncalled.txt:6: shoal_gone is no public function' $reasons '    shoal_gone' "${callers[@]}"
refuse 'uncalled.txt:6: shoal_two is here twice' $reasons '    shoal_two' "${callers[@]}"
refuse 'uncalled.txt:6: a reason behind its functions' $reasons 'Another.' "${callers[@]}"
refuse 'uncalled.txt:7: a reason without functions' $reasons $'\nAnother.' "${callers[@]}"
refuse 'uncalled.txt:7: shoal_two has no reason' $reasons $'\n    shoal_two' "${callers[@]}"
refuse 'uncalled.txt:5: shoal_two has a caller by now: bench/a.c' bench/a.c 'x = shoal_two();' "${callers[@]}"
refuse 'uncalled.txt:5: shoal_two has a caller by now: docs/a.md' docs/a.md $'```c\nshoal_two();\n```' "${callers[@]}"
check_uncalled() {
    sed -i '/shoal_two/d; s/it\./it, /' "$1/$reasons"
    printf '    shoal_one\n' >>"$1/$reasons"
    sed -i '/main/d' "$1/examples/00.c"
    "${callers[@]}" "$1"
}
# Comments, strings and tests call nothing.
none='shoal_two: no caller, no row in docs/pytorch.md, no reason'
refuse "$none" examples/01.c '/* shoal_two(); */ // shoal_two()' check_uncalled
refuse "$none" tools/a.c 'puts("shoal_two()");' check_uncalled
refuse "$none" tests/unit/a.c 'shoal_two();' check_uncalled
plant=plant_tree

plant_tree
conformance=("$scripts/check_conformance.pl")
rows=tests/conformance/README.md
accept "${conformance[@]}"
refuse 'README.md:6: three: there is no test two' $rows '| three | `bits/of_one`, `two` |' "${conformance[@]}"
refuse 'no test of_one in tests/parallel/fully_shard/bits' $rows '| three | `module_bits/of_one` |' "${conformance[@]}"
refuse 'no reason to wait' $rows '| three | later: no time |' "${conformance[@]}"
refuse 'neither a test nor a reason' $rows '| three | left out |' "${conformance[@]}"
compiler=$'## The communication compiler\n'
refuse 'line D2 has no row' $rows "$compiler| D1 | later: needs a GPU |" "${conformance[@]}"
refuse 'D1 has a row already' $rows "$compiler| D1, D2, D1 | later: needs a GPU |" "${conformance[@]}"
refuse 'D1: there is no test b in tests/unit/graph/a' $rows "$compiler| D1 | \`a/b\` |" "${conformance[@]}"
refuse 'D1: there is no tests/ir/a.graph' $rows "$compiler| D1 | \`a.graph\` |" "${conformance[@]}"
refuse '"no time" is no reason to wait' $rows "$compiler| D1 | not ours: no time |" "${conformance[@]}"

plant_versions() {
    plant_tree
    mkdir "$tree/src/transport"
    echo '#define TRANSPORT_INTERFACE 1 /* libshoal.so.0.1 */' >"$tree/src/transport/transport.h"
}
plant_versions
version=("$scripts/check_version.sh")
accept "${version[@]}"
# differs FILE SCRIPT WORDS: with this sed script over FILE the versions differ, and the message contains WORDS.
differs() {
    plant_versions
    sed -i "$2" "$tree/$1"
    if "${version[@]}" "$tree" 2>"$scratch/out" || ! grep -F "$3" "$scratch/out" >/dev/null; then
        echo "did not see that $1 and version.h differ"
        failed=true
    fi
}
differs CHANGELOG.md 's/## 0.1.0/## 0.2.0/' "CHANGELOG.md starts with '0.2.0'"
differs debian/changelog 's/0.1.0/0.1.1/' "debian/changelog starts with '0.1.1'"
differs src/transport/transport.h 's/so.0.1/so.0.0/' 'not that of libshoal.so.0.1: modules of two versions'

! $failed
