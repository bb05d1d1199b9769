#!/bin/bash
# SPDX-License-Identifier: MIT
# docs/extending.md: its library and program compile as C99 and print what it says; its other code is in the file or patch that
# it names; all patches of tests/extending apply to the tree, compile, and are as large as the page says.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
source=$SHOAL_TEST_SOURCE_DIR
page=$source/docs/extending.md
release=$SHOAL_TEST_RELEASE_DIR
failed=false

# Prose and code that people read in a terminal; rows of tables cannot be broken.
if awk 'length > 120 && !/^\|/ { print FILENAME ":" FNR ": " length " columns" }' "$page" | grep .; then
    failed=true
fi

# Each block of C begins with a comment that says where it belongs. Those of mine.c and use.c are written there; what the others
# show must stand in the file, or be added by the patch, line after line.
perl - "$page" "$source" "$scratch" <<'PERL' || failed=true
use strict;
use warnings;
my ($page, $source, $scratch) = @ARGV;
sub slurp { my ($path) = @_; open my $file, '<', $path or die "$path: $!\n"; local $/; return <$file>; }
my $text = slurp($page);
my (%written, $n_shown, $n_bad);
while ($text =~ /^( *)```c\n(.*?)^ *```$/msg) {
    my ($indent, $block) = ($1, $2);
    $block =~ s/^$indent//mg;
    $block =~ s{^/\* (?:(\w+)\.patch: )?(\S+) \*/\n}{} or die "a block that does not say where it belongs:\n$block";
    my ($patch, $file) = ($1, $2);
    if ($file =~ /^(?:mine|use)\.c$/) {
        $written{$file} .= ($written{$file} ? "\n" : '') . $block;
        next;
    }
    my $whole = $patch ? slurp("$source/tests/extending/$patch.patch") : slurp("$source/$file");
    if ($patch) {
        my ($part) = $whole =~ m{^diff --git a/\Q$file\E .*?\n(.*?)(?=^diff |\z)}ms;
        $whole = join '', map { "$_\n" } map { /^\+(?!\+\+ )(.*)/ ? $1 : () } split /\n/, $part // '';
    }
    $n_shown++;
    next if index($whole, $block) >= 0;
    print "not in $file", ($patch ? " of $patch.patch" : ''), ":\n$block";
    $n_bad++;
}
for my $file (keys %written) {
    open my $out, '>', "$scratch/$file" or die "$file: $!\n";
    print $out $written{$file};
}
$text =~ /^```graph\n(.*?)^```$/ms or die "no graph\n";
open my $out, '>', "$scratch/step.graph" or die "step.graph: $!\n";
print $out $1;
die "only $n_shown blocks\n" if $n_shown < 10;
# "op.patch: 8 files, 40 lines"
for my $path (glob "$source/tests/extending/*.patch") {
    my ($name) = $path =~ m{([^/]+)$};
    my $patch = slurp($path);
    my $n_files = () = $patch =~ /^diff --git /mg;
    my $n_lines = () = $patch =~ /^\+(?!\+\+ )/mg;
    next if index($text, "`$name`: $n_files files, $n_lines lines.") >= 0;
    print "$name has $n_files files and $n_lines lines, the page says something else\n";
    $n_bad++;
}
exit($n_bad ? 1 : 0);
PERL

# shown COMMAND: what the page says that it prints
shown() {
    awk -v command="\$ $1" '$0 == command { found = 1; next } found && (/^\$ / || /^```/) { exit } found' "$page"
}

# prints COMMAND...: it prints what the page shows for it
prints() {
    local command="$*"
    if ! diff <(shown "$command") <(cd "$scratch" && PATH=$scratch:$release/bin:$PATH bash -c "$command" 2>&1); then
        echo "$command: prints something else than the page says"
        failed=true
    fi
}

export LD_LIBRARY_PATH=$release/lib:$scratch
options=(-std=c99 -O2 -Wall -Wextra -Werror -I"$source/include" -L"$release/lib" -L"$scratch")
cc -fPIC -shared "${options[@]}" "$scratch/mine.c" -o "$scratch/libmine.so" -lshoal
cc "${options[@]}" "$scratch/use.c" -o "$scratch/use" -lmine -lshoal
prints ./use
prints shoal opt --load=./libmine.so --passes=use_square --run step.graph
prints shoal opt --load=./libmine.so --passes=use_square --lower --run -n 2 step.graph

if ! command -v git >/dev/null; then
    echo "git is not here: patches are not tried"
    $failed && exit 1
    exit 0
fi

# The patches, all in one copy: they do not collide. What they touch compiles, and what expands the tables.
mkdir -p "$scratch/tree/tests"
cp -r "$source/compat" "$source/include" "$source/src" "$scratch/tree"
cp -r "$source"/tests/{conformance,fixtures,harness,ir,modules,unit} "$scratch/tree/tests"
cd "$scratch/tree"
export GIT_CEILING_DIRECTORIES=$scratch # inside a repository git would take the paths for those of its root
for patch in "$source"/tests/extending/*.patch; do
    git apply "$patch" || { echo "${patch##*/} does not apply; make it again" && failed=true; }
done
mapfile -t touched < <(sed -n 's|^+++ b/\(.*\.c\)$|\1|p' "$source"/tests/extending/*.patch | sort -u)
cc -std=c11 -D_GNU_SOURCE -fsyntax-only -Wall -Wextra -Wno-unused-parameter -Wswitch-enum -Wmissing-prototypes -Werror \
    -Iinclude -Isrc -Itests "${touched[@]}" src/base/options.c src/bootstrap/meet/environment.c src/device/device.c src/graph/passes/passes.c \
    src/transport/collective.c src/transport/shm/algorithm.c src/comm/call/descriptor.c tests/conformance/ops_test.c \
    tests/unit/autograd/gradients_test.c || failed=true

if $failed; then
    exit 1
fi
echo "${#touched[@]} files of $(find "$source/tests/extending" -name '*.patch' | wc -l) patches compile"
