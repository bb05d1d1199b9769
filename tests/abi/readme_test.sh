#!/bin/bash
# SPDX-License-Identifier: MIT
# What the README shows is what happens: its example prints what it says, and its ten lines compile as C99 and
# print the number in their comment.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
readme=$SHOAL_TEST_SOURCE_DIR/README.md
release=$SHOAL_TEST_RELEASE_DIR
export LD_LIBRARY_PATH=$release/lib

sed -n '/^step 10 /,/^```$/p' "$readme" | sed '$d' >"$scratch/wanted"
"$release/examples/00_tensors" >"$scratch/printed"
diff "$scratch/wanted" "$scratch/printed"

# shellcheck disable=SC2016 # the quotes hold no expansion, but a code fence
sed -n '/^```c$/,/^```$/p' "$readme" | sed '1d;$d' >"$scratch/program.c"
grep -q shoal_backward "$scratch/program.c"
cc -std=c99 -Wall -Wextra -Werror -I"$SHOAL_TEST_SOURCE_DIR/include" "$scratch/program.c" -o "$scratch/program" \
    -L"$release/lib" -lshoal
printed=$("$scratch/program")
wanted=$(sed -nE 's|.*/\* ([0-9]+) \*/.*|\1|p' "$scratch/program.c")
if [[ -z $wanted || $printed != "$wanted" ]]; then
    echo "the ten lines print '$printed', the README says '$wanted'"
    exit 1
fi
