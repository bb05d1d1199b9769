#!/bin/bash
# SPDX-License-Identifier: MIT
# What the README shows is what happens: its run, its programs and its error print what it says, and the commands of its
# figures exist. It is short.
# shellcheck disable=SC2016 # the quotes hold no expansions, but backquotes of the page
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
readme=$SHOAL_TEST_SOURCE_DIR/README.md
release=$SHOAL_TEST_RELEASE_DIR
export LD_LIBRARY_PATH=$release/lib
export SHOAL_MACHINE=neoverse_v1 # where its programs printed what it shows

if awk 'length > 120 { print FILENAME ":" FNR ": " length " columns" }' "$readme" | grep .; then
    exit 1
fi
n_lines=$(wc -l <"$readme")
if [[ $n_lines -ge 200 ]]; then
    echo "$readme: $n_lines lines; it has less than 200"
    exit 1
fi

# Numbers, the BLAS and how many lines there are differ from run to run, what the lines say does not.
shape() {
    sed -E 's/ +/ /g; s/(products:|digest of parameters).*/\1/; s/[0-9]+(\.[0-9]+)?/N/g' | uniq
}
sed -n '/^fsdp on 2 ranks: /,/ gave the same bits\.$/p' "$readme" | shape >"$scratch/wanted"
"$release/bin/shoal" train --ranks 2 --layers 1 --width 16 --heads 2 --context 16 --batch 2 --steps 4 --verify --verify-steps 2 |
    shape >"$scratch/printed"
diff "$scratch/wanted" "$scratch/printed"

# compiles PROGRAM: PROGRAM.c as C99, without a warning
compiles() {
    cc -std=c99 -Wall -Wextra -Werror -I"$SHOAL_TEST_SOURCE_DIR/include" "$1.c" -o "$1" -L"$release/lib" -lshoal_nn -lshoal
}

# The C blocks are what all programs begin with, and the programs.
perl -0ne 'print "$1\0" while /^```c\n(.*?)^```$/gms' "$readme" >"$scratch/blocks"
mapfile -d '' -t blocks <"$scratch/blocks"
[[ ${#blocks[@]} -eq 4 ]]
n_programs=0
for name in ranks sharded compiled; do
    n_programs=$((n_programs + 1))
    printf '%s%s' "${blocks[0]}" "${blocks[n_programs]}" >"$scratch/$name.c"
    compiles "$scratch/$name"
    # "$ shoal run ... ./name", and what it prints, up to the next command or the end of the block
    perl -0ne "print \"\$1\n\$2\" if /^\\\$ shoal run ([^\n]* )\.\/$name\n(.*?)^(?:\\\$ |\`)/ms" "$readme" >"$scratch/shown"
    sed 1d "$scratch/shown" >"$scratch/wanted"
    [[ -s $scratch/wanted ]]
    read -r -a options <"$scratch/shown"
    "$release/bin/shoal" run "${options[@]}" "$scratch/$name" | sort -V >"$scratch/printed"
    case $name in
    sharded) # the last digits are those of a BLAS
        diff <(shape <"$scratch/wanted") <(shape <"$scratch/printed")
        awk '{ loss = $4 } NR > 1 && loss >= before { exit 1 } { before = loss }' "$scratch/printed" ;;
    *) diff "$scratch/wanted" "$scratch/printed" ;;
    esac
done

# Ranks that call different things.
cat >"$scratch/differ.c" <<'C'
#include <shoal/shoal.h>
#include <stdio.h>

int main(void)
{
    shoal_world *world;
    float values[8] = {0};
    if (shoal_world_open(NULL, &world) != SHOAL_OK) {
        return 1;
    }
    size_t count = shoal_world_rank(world) == 0 ? 8 : 7;
    shoal_status status = shoal_group_all_reduce(shoal_world_group(world), values, values, count, SHOAL_F32, SHOAL_SUM);
    printf("%s\n", status == SHOAL_ERR_MISMATCH ? shoal_error_text() : "nothing");
    return 0;
}
C
compiles "$scratch/differ"
"$release/bin/shoal" run --no-label -n 2 "$scratch/differ" >"$scratch/printed" || true
said=$(sort -u "$scratch/printed")
[[ $(wc -l <"$scratch/printed") -eq 2 ]]
grep -qF "\`$said\`" "$readme" || {
    echo "the README does not have: $said"
    exit 1
}

# Every figure names its command, and the commands are there.
commands=$(grep -oE '\[[0-9]\] `[^`]+`' "$readme")
grep -oE '\| \[[0-9]\] \|$' "$readme" | grep -oE '\[[0-9]\]' | sort -u >"$scratch/wanted"
grep -oE '^\[[0-9]\]' <<<"$commands" | sort >"$scratch/printed"
diff "$scratch/wanted" "$scratch/printed"
while read -r _ first second _; do
    first=${first#\`}
    if [[ $first == shoal ]]; then
        "$release/bin/shoal" help "$second" >/dev/null
    elif [[ ! -x $SHOAL_TEST_SOURCE_DIR/$first ]]; then
        echo "there is no $first"
        exit 1
    fi
done <<<"$commands"
