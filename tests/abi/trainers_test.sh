#!/bin/bash
# SPDX-License-Identifier: MIT
# The C blocks of docs/trainers.md are one program, which compiles as C99 and prints what the page says, with any number of
# ranks; so does the same with whole replicas, and so do not the ways in which the page says that bits differ.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
page=$SHOAL_TEST_SOURCE_DIR/docs/trainers.md
release=$SHOAL_TEST_RELEASE_DIR
export LD_LIBRARY_PATH=$release/lib

# compiles FILE.c OUT
compiles() {
    cc -std=c99 -O2 -Wall -Wextra -Werror -I"$SHOAL_TEST_SOURCE_DIR/include" "$1" -o "$2" -L"$release/lib" -lshoal
}

# shellcheck disable=SC2016 # the quotes hold no expansion, but a code fence
sed -n '/^```c$/,/^```$/p' "$page" | grep -v '^```' >"$scratch/trainer.c"
compiles "$scratch/trainer.c" "$scratch/trainer"
sed -n '/shoal run .*trainer$/,/^```$/p' "$page" | sed '1d;$d' >"$scratch/wanted"
for n in 1 2 3 4; do
    "$release/bin/shoal" run --no-label -n "$n" "$scratch/trainer" >"$scratch/printed" 2>"$scratch/told"
    grep -q '^rank peak ' "$scratch/told"
    diff <(sed "s/^3 ranks/$n ranks/" "$scratch/wanted") "$scratch/printed"
done

# changed NAME SCRIPT WORDS: with the sed script, the program says these words about its bits on three ranks.
changed() {
    sed "$2" "$scratch/trainer.c" >"$scratch/$1.c"
    if cmp -s "$scratch/trainer.c" "$scratch/$1.c"; then
        echo "$1: nothing to change"
        exit 1
    fi
    compiles "$scratch/$1.c" "$scratch/$1"
    "$release/bin/shoal" run --no-label -n 3 "$scratch/$1" >"$scratch/printed" 2>&1 || true
    if ! grep -q "the bits are $3" "$scratch/printed"; then
        echo "$1: its bits are not $3"
        cat "$scratch/printed"
        exit 1
    fi
}

changed replicated 's/shoal_fsdp_create(group/shoal_fsdp_create_replicated(group/' 'those of one process'
changed recomputed 's/^    multiply_backward(shoal_fsdp_full_param/    memset(h, 0xff, sizeof h);\n    multiply(shoal_fsdp_full_param(f, MATRIX));\n&/' \
    'those of one process'
changed always_reduced '/shoal_fsdp_set_sync(.*, micro ==/d' DIFFERENT
changed reciprocal 's|sums\[id\]\[i\] /= (float)n_parts;|sums[id][i] *= 1.0F / (float)n_parts;|' DIFFERENT
changed one_buffer 's/memset(part_gradients, 0, sizeof part_gradients);/if (part == 0) memset(part_gradients, 0, sizeof part_gradients);/; s/part == 0 ? part_gradients\[id\]\[i\] : sums\[id\]\[i\] + part_gradients\[id\]\[i\]/part_gradients[id][i]/' DIFFERENT
twice='s/^    measure_loss_backward(shoal_fsdp_full_param.*/&\n    DO(shoal_fsdp_post_backward(f, ENDS));/'
twice+=';s/^    embed_backward(d_table, token);/    DO(shoal_fsdp_pre_backward(f, ENDS));\n    d_table = shoal_fsdp_grad(f, TABLE);\n&/'
twice+=';s/N_MICRO = 4/N_MICRO = 1/'
changed twice "$twice" DIFFERENT
