#!/bin/bash
# SPDX-License-Identifier: MIT
# docs/pytorch.md is true: its tables have the names that pytorch_names.txt lists, part by part; every name of ours is
# declared by a public header; every row says what there is, or why there is nothing. The checks are then made on
# copies of the page with a mistake in each, and must find it.
# Quotes of the page are backquotes, and no commands.
# shellcheck disable=SC2016
set -euo pipefail
export LC_ALL=C

doc=$SHOAL_TEST_SOURCE_DIR/docs/pytorch.md
names=$SHOAL_TEST_SOURCE_DIR/tests/abi/pytorch_names.txt
include=$SHOAL_TEST_SOURCE_DIR/include
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What may stand in quotes: words of the headers' code (a name that only a sentence mentions does not exist), PyTorch's
# names with or without the class, and arguments of fully_shard and DistributedDataParallel.
{
    cat "$include"/shoal{,_compat,_nn}/*.h | perl -0pe 's{/\*.*?\*/}{ }gs' | grep -oE '\b[A-Za-z_][A-Za-z0-9_]*'
    perl -ne 'next if /^#/; for (split /[.\s]+/) { print "$_\n" }' "$names"
    printf '%s\n' shoal_ shoal_nn_ legacy_ reshard_after_forward shard_placement_fn ignored_params mp_policy recurse is_deep
    printf '%s\n' process_group bucket_cap_mb find_unused_parameters init_sync gradient_as_bucket_view static_graph mixed_precision
} | sort -u >"$work/words"
declare -A is_compat=()
for name in $(perl -0ne 's{/\*.*?\*/}{ }gs; print "$1\n" while /^SHOAL_API [^({;]*?(shoal_\w+)\(/gm' \
    "$include/shoal_compat/torch.h"); do
    is_compat[$name]=yes
done
# "part name", a line for each name of PyTorch.
perl -ne 'if (/^# (\S.*)/) { $part = $1 } elsif (/^[^#\s]/) { print "$part $_" }' "$names" | sort >"$work/names"

# What is wrong with a page: a line each.
complaints() {
    perl -ne 'if (/^## (.*)/) { $part = $1 } elsif (/^\| `([^`]+)` \|/) { print "$part $1\n" }' "$1" |
        sort >"$work/rows"
    { diff "$work/names" "$work/rows" || true; } | sed -nE 's/^< (.*)/no row: \1/p; s/^> (.*)/a row too many: \1/p'

    # Names in quotes. Those with a dot or a slash are files and modules.
    { grep -oE '`[A-Za-z_][A-Za-z0-9_]*[`(]' "$1" || true; } | tr -d '`(' | sort -u |
        comm -23 - "$work/words" | sed 's/$/ is in no public header/'

    grep '^|' "$1" | while IFS='|' read -r _ theirs ours note rest; do
        [[ $theirs =~ ^(-+|\ PyTorch\ )$ ]] && continue
        if [[ -n $rest || ! $theirs =~ ^\ \`[A-Za-z_.0-9]+\`\ $ ]]; then
            echo "not a row of a name, what there is and a note: $theirs"
        elif [[ $ours == " none " ]]; then
            [[ $note =~ [a-z] ]] || echo "$theirs has nothing, and no reason"
        elif [[ ! $ours =~ ^\ \`(shoal_[a-z0-9_]+)\`(\ \(compat\))?\ $ ]]; then
            echo "$theirs: neither a name of ours nor none: $ours"
        elif [[ -n ${BASH_REMATCH[2]} ]]; then
            [[ -n ${is_compat[${BASH_REMATCH[1]}]:-} ]] || echo "${BASH_REMATCH[1]} is not in shoal_compat/torch.h"
        elif [[ -n ${is_compat[${BASH_REMATCH[1]}]:-} ]]; then
            echo "${BASH_REMATCH[1]} is in shoal_compat/torch.h"
        fi
    done || true
}

# Fields of options that docs/graph.md names for PyTorch's.
grep -oE '`[a-z_]+` of `shoal_[a-z_]+`' "$SHOAL_TEST_SOURCE_DIR/docs/graph.md" | tr -d '`' | sort -u >"$work/fields"
while read -r field _ struct; do
    perl -0ne 's{/\*.*?\*/}{ }gs; exit !/\btypedef struct '"$struct"' \{[^}]*\b'"$field"';/' "$include/shoal/compile.h" || {
        echo "docs/graph.md: $struct has no field $field"
        exit 1
    }
done <"$work/fields"
[[ $(wc -l <"$work/fields") -ge 9 ]]

complaints "$doc" >"$work/found"
sed 's|^|docs/pytorch.md: |' "$work/found"
n_names=$(wc -l <"$work/names")
echo "$n_names names"
[[ ! -s $work/found && $n_names -gt 430 ]]

# mistake CHANGE TEXT: the page with the change of a perl expression must be found wrong, with this text.
mistake() {
    perl -0pe "$1" "$doc" >"$work/page.md"
    cmp -s "$doc" "$work/page.md" && echo "nothing changed: $1" && return 1
    complaints "$work/page.md" >"$work/found"
    grep -qF "$2" "$work/found" || {
        echo "not found: $1"
        return 1
    }
}
mistake 's/`shoal_all_reduce`/`shoal_all_reduces`/' 'shoal_all_reduces is in no public header'
mistake 's/field `max_reduces`/field `most_reduces`/' 'most_reduces is in no public header'
mistake 's/\| `chunk_cat`.*\n//' 'no row: torch.distributed.fsdp._fully_shard._fsdp_collectives chunk_cat'
mistake 's/(\| `chunk_cat`.*\n)/$1$1/' 'a row too many'
mistake 's/\| `chunk_cat`/| `chunk_cats`/' 'a row too many'
mistake 's/\| `move_block_before`.*\n//' 'no row: torch._inductor.fx_passes.ddp_fusion move_block_before'
mistake 's/\| `DeviceMesh.get_group`.*\n//' 'no row: torch.distributed.device_mesh DeviceMesh.get_group'
mistake 's/\| `async_save`.*\n//' 'no row: torch.distributed.checkpoint async_save'
mistake 's/^\|.*\n//gm' 'no row: torch.distributed._functional_collectives all_reduce'
mistake 's/.*//s' 'no row: Later than 2.11 all_gather_single'
mistake 's/(\| `OffloadPolicy` \| none \|).*/$1 |/' 'has nothing, and no reason'
mistake 's/(\| `OffloadPolicy` \|) none/$1 nothing/' 'neither a name of ours nor none'
mistake 's/`shoal_all_gather_tensor` \|/`shoal_all_gather_tensor` (compat) |/' 'is not in shoal_compat/torch.h'
mistake 's/(`shoal_chunk_cat`) \(compat\)/$1/' 'shoal_chunk_cat is in shoal_compat/torch.h'
