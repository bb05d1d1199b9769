#!/bin/bash
# SPDX-License-Identifier: MIT
# What the README shows is what happens: its example prints what it says, its programs compile as C99 and print
# what it says, alone and as ranks.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
readme=$SHOAL_TEST_SOURCE_DIR/README.md
release=$SHOAL_TEST_RELEASE_DIR
export LD_LIBRARY_PATH=$release/lib

# Lines that people read in a terminal; rows of tables cannot be broken.
if awk 'length > 120 && !/^\|/ { print FILENAME ":" FNR ": " length " columns" }' "$readme" | grep .; then
    exit 1
fi

# Numbers, the BLAS and how many lines there are differ from run to run, what the lines say does not.
shape() {
    sed -E 's/ +/ /g; s/(products:|digest of parameters).*/\1/; s/[0-9]+(\.[0-9]+)?/N/g' | uniq
}
# What the model writes is nobody's to foresee.
without_sample() {
    sed '/^what it writes:$/,/^  run /{/^  run /!d}'
}
sed -n '/^fsdp on 2 ranks: /,/ gave the same bits\.$/p' "$readme" | without_sample | shape >"$scratch/wanted"
"$release/bin/shoal" train --ranks 2 --layers 1 --width 16 --heads 2 --context 16 --batch 2 --steps 4 --prompt 'static ' --sample 4 \
    --verify --verify-steps 2 | without_sample | shape >"$scratch/printed"
diff "$scratch/wanted" "$scratch/printed"

sed -n '/^\$ shoal run .*14_checkpoint$/,/^```$/p' "$readme" | sed '1d;$d' | shape >"$scratch/wanted"
(cd "$scratch" && "$release/bin/shoal" run --no-label -n 2 "$release/examples/14_checkpoint") | shape >"$scratch/printed"
diff "$scratch/wanted" "$scratch/printed"

# program HEADING OUT: the program of a section, compiled
program() {
    # shellcheck disable=SC2016 # the quotes hold no expansion, but a code fence
    sed -n "/^## $1\$/,/^## /p" "$readme" | sed -n '/^```c$/,/^```$/p' | sed '1d;$d' >"$2.c"
    cc -std=c99 -Wall -Wextra -Werror -I"$SHOAL_TEST_SOURCE_DIR/include" "$2.c" -o "$2" -L"$release/lib" -lshoal
}

program "Ten lines" "$scratch/program"
grep -q shoal_backward "$scratch/program.c"
printed=$("$scratch/program")
wanted=$(sed -nE 's|.*/\* ([0-9]+) \*/.*|\1|p' "$scratch/program.c")
if [[ -z $wanted || $printed != "$wanted" ]]; then
    echo "the ten lines print '$printed', the README says '$wanted'"
    exit 1
fi

program Ranks "$scratch/ranks"
grep -q shoal_group_all_reduce "$scratch/ranks.c"
sed -n '/^\$ shoal run -n 3 /,/^```$/p' "$readme" | sed '1d;$d' >"$scratch/wanted"
"$release/bin/shoal" run -n 3 "$scratch/ranks" | sort >"$scratch/printed"
diff "$scratch/wanted" "$scratch/printed"
