#!/bin/bash
# SPDX-License-Identifier: MIT
# docs/pytorch.md is true: its tables have the names that pytorch_names.txt lists, part by part; every name of ours is
# declared by a public header; every row says what there is, or why there is nothing; and in parts with a column for
# tests each row with a name of ours has one that uses it. The checks are then made on copies of the page with a mistake
# in each, and must find it.
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

# "test word ...", a line for each test: the words of it and of what it includes that the headers have, with or without
# their prefix.
(cd "$SHOAL_TEST_SOURCE_DIR/tests" && find . -name '*_test.*' | sed 's|^\./||' | perl -e '
    open my $known, "<", shift or die;
    my %known = map { chomp; $_ => 1 } <$known>;
    my %words;
    sub words {
        my ($file) = @_;
        return $words{$file} if $words{$file};
        $words{$file} = {};
        open my $in, "<", $file or return {};
        my $text = do { local $/; <$in> };
        my %all = map { $_ => 1 } grep { $known{$_} || $known{"shoal_$_"} } $text =~ /\w+/g;
        my ($folder) = $file =~ m{^(.*)/};
        for my $name ($text =~ /^#include "([^"]+)"/mg) {
            my ($found) = grep { -e $_ } $name, "$folder/$name";
            %all = (%all, %{ words($found) }) if $found;
        }
        return $words{$file} = \%all;
    }
    while (my $file = <STDIN>) {
        chomp $file;
        print join(" ", $file =~ s/_test\.\w+$//r, sort keys %{ words($file) }), "\n";
    }' "$work/words") >"$work/uses"
kinds=$(cd "$SHOAL_TEST_SOURCE_DIR/tests" && printf '%s|' */ | sed 's|/||g; s/|$//')

# check_tests PAGE: tests that the page names and that do not exist, and rows of parts with a column for them that no
# test shows, or that name tests which use neither the name nor the fields of the row.
check_tests() {
    perl -e '
        my ($uses, $kinds, $page) = @ARGV;
        open my $in, "<", $uses or die;
        my %uses = map { my ($test, @words) = split; $test => { map { $_ => 1 } @words } } <$in>;
        open $in, "<", $page or die;
        my ($has_tests, %said) = (0);
        while (<$in>) {
            for my $test (m{`((?:$kinds)/[a-z0-9_/]+)`}g) {
                print "there is no test $test\n" if !$uses{$test} && !$said{$test}++;
            }
            next if !/^\|/;
            my (undef, $theirs, $ours, $note, $tests) = split /\|/;
            $has_tests = $tests eq " shown by " if $theirs eq " PyTorch ";
            next if !$has_tests || $theirs !~ /`/;
            my @tests = $tests =~ /`([^`]+)`/g;
            print "$theirs: no test shows it\n" if !@tests && $ours ne " none ";
            my @words = map { /`([a-z_]+)`/g } $note =~ /fields? (`[a-z_]+`(?: and `[a-z_]+`)?)/g;
            push @words, "shoal_$1", $1 if $ours =~ /shoal_([a-z0-9_]+)/;
            next if !@words || !@tests || grep { !$uses{$_} } @tests;
            print "$theirs: none of its tests uses any of @words\n"
                if !grep { my $test = $_; grep { $uses{$test}{$_} } @words } @tests;
        }' "$work/uses" "$kinds" "$1"
}

# What is wrong with a page: a line each.
complaints() {
    perl -ne 'if (/^## (.*)/) { $part = $1 } elsif (/^\| `([^`]+)` \|/) { print "$part $1\n" }' "$1" |
        sort >"$work/rows"
    { diff "$work/names" "$work/rows" || true; } | sed -nE 's/^< (.*)/no row: \1/p; s/^> (.*)/a row too many: \1/p'

    # Names in quotes. Those with a dot or a slash are files and modules.
    { grep -oE '`[A-Za-z_][A-Za-z0-9_]*[`(]' "$1" || true; } | tr -d '`(' | sort -u |
        comm -23 - "$work/words" | sed 's/$/ is in no public header/'

    check_tests "$1"

    local has_tests=false
    grep '^|' "$1" | while IFS='|' read -r _ theirs ours note tests rest; do
        [[ $theirs == " PyTorch " ]] && { [[ $tests == " shown by " ]] && has_tests=true || has_tests=false; }
        [[ $theirs =~ ^(-+|\ PyTorch\ )$ ]] && continue
        ! $has_tests && rest=$tests
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
mistake 's|`conformance/ops_meaning`|`conformance/ops_meanings`|' 'there is no test conformance/ops_meanings'
mistake 's/(\| `chunk_cat`.*\|) `.*/$1 |/' ' `chunk_cat` : no test shows it'
mistake 's{(\| `chunk_cat`.*)`conformance/ops_meaning`}{$1`unit/base/log`}' ' `chunk_cat` : none of its tests uses any of'
mistake 's|`cli/replay_fsdp` and|`cli/replay_zero` and|' 'there is no test cli/replay_zero'
mistake 's/(\| `DeviceMesh.get_group`.*)/$1 `unit\/mesh\/mesh` |/' 'not a row of a name, what there is and a note'
