#!/usr/bin/env perl
# SPDX-License-Identifier: MIT
# The rows of tests/conformance/README.md about fully sharded data parallelism and about the communication compiler: every
# test that is named exists, and what has none ("later: ...", "not ours: ...") has one of the reasons that are
# allowed. Without a test and without a reason a row is nothing. Of the compiler's catalogue every line has a row.
#
#   scripts/check_conformance.pl [-v] [DIRECTORY]       -v: says how many rows there are
use strict;
use warnings;

my $is_verbose = @ARGV && $ARGV[0] eq '-v' ? shift : 0;
my $root = shift // '.';
my @reasons = (
    'needs a GPU', 'needs checkpoint files',
    'tensor parallelism is out of scope for now',
    'tensor parallelism and named dimensions are out of scope for now',
    'device streams are out of scope for now',
    'CPU offload is out of scope for now',
    'there is no forward-mode differentiation',
    # of the communication compiler
    'overlap scheduler',
    'forward and backward are captured together',
    'a plan allocates its comm memory once',
    'there are no random ops',
    'no op has such an argument',
    'shapes are known when a graph is made, and another shape is another graph',
    'a graph names groups',
    'a plan is run as a whole',
    'kernels are not fused',
    'tables of NVIDIA\'s hardware',
    'no rank decides what is saved for backward',
    'buckets are packed',
    'there are no manual plans',
    'inputs are packed by cat, one dtype each',
);
# Lines of the compiler's catalogue, by letter.
my %catalogue = (D => 33, L => 20, S => 12, R => 18, B => 25, O => 6, U => 33);
my $n_wrong = 0;

sub wrong {
    my ($line, $text) = @_;
    print "tests/conformance/README.md:$line: $text\n";
    $n_wrong++;
}

# Of the compiler's tests: bucket is unit/graph/passes/bucket, lower_check is unit/graph/lower/check.
sub path_of_graph {
    my ($name) = @_;
    my ($room, $rest) = $name =~ /^([a-z]+)_(\w+)$/;
    my @files = grep { -e } glob("$root/tests/unit/graph/*/${name}_test.c");
    push @files, grep { -e } "$root/tests/unit/graph/$room/${rest}_test.c" if $room;
    return @files ? $files[0] =~ s{^.*/tests/(.*)_test\.c$}{$1}r : "unit/graph/$name";
}

# The file that a name in front of a slash stands for.
sub path_of {
    my ($name, $is_graph) = @_;
    return "parallel/compile/$name" if $is_graph && $name =~ /^(compile|machine|settings)$/;
    return path_of_graph($name) if $is_graph;
    return "unit/parallel/fsdp/engine/$name" if $name =~ /^(tables|events|pool)$/;
    return 'parallel/fully_shard/fully_shard' if $name eq 'modules';
    return 'parallel/fully_shard/nn/norm' if $name eq 'module_norm';
    return "parallel/fully_shard/$1" if $name =~ /^module_(\w+)$/;
    return "parallel/ddp/$1" if $name =~ /^ddp_(\w+)$/;
    return "parallel/fsdp/$name";
}

# The tests of a file as patterns: macros make names of a number.
my %tests;
sub tests_of {
    my ($path) = @_;
    return $tests{$path} //= do {
        my @patterns;
        if (open my $file, '<', "$root/tests/${path}_test.c") {
            while (<$file>) {
                next unless /^\s*TEST(?:_RANKS|_PROCESSES)?\((\w[\w#]*)/;
                (my $pattern = $1) =~ s/##\w+(##)?/\\w+/g;
                push @patterns, qr/^$pattern$/;
            }
            close $file;
        }
        \@patterns;
    };
}

sub has_test {
    my ($path, $name) = @_;
    my @patterns = @{tests_of($path)};
    return scalar @patterns if $name eq '*';
    if ((my $begin = $name) =~ s/\*$//) {
        return grep { my $p = "$_"; $p =~ /\^\Q$begin\E/ } @patterns;
    }
    return grep { $name =~ $_ } @patterns;
}

open my $readme, '<', "$root/tests/conformance/README.md" or die "tests/conformance/README.md: $!\n";
my ($is_inside, $is_graph, $n_rows, $n_tested, $n_later) = (0, 0, 0, 0, 0);
my %lines;
while (my $line = <$readme>) {
    if ($line =~ /^## /) {
        $is_graph = $line =~ /^## The communication compiler/;
        $is_inside = $is_graph || $line =~ /^## Fully sharded/;
    }
    next unless $is_inside && $line =~ /^\| (.*?) \| (.*) \|$/;
    my ($case, $text) = ($1, $2);
    next if $text =~ /^-+$/ || $text eq 'test';
    $n_rows++;
    while ($is_graph && $case =~ /\G([A-Z](?:\d+|-mem))(?:, )?/g) {
        wrong($., "$1 has a row already") if $lines{$1}++;
    }
    my ($path, $n_named) = ('', 0);
    while ($text =~ /`([^`]*)`/g) {
        my $name = $1;
        next if $name =~ /^(tests\/cli\/.*|shoal bench .*|shoal_\w+|scripts\/.*)$/;
        if ($is_graph && $name =~ /^(\w+\.graph|tests\/.*)$/) {
            my $file = $name =~ /^tests/ ? $name : "tests/ir/$name";
            wrong($., "$case: there is no $file") unless -e "$root/$file";
            $n_named++;
            next;
        }
        $path = path_of($1, $is_graph) if $name =~ s/^(\w+)\///;
        if ($path eq '' || $name !~ /^[\w*]+$/ || !has_test($path, $name)) {
            wrong($., "$case: there is no test $name in tests/${path}_test.c");
        }
        $n_named++;
    }
    my $n_waits = 0;
    while ($text =~ /(?:later|not ours): ([^;:|]*[^;:| ])/g) {
        my $reason = $1;
        wrong($., "$case: \"$reason\" is no reason to wait") unless grep { $reason eq $_ } @reasons;
        $n_waits++;
    }
    wrong($., "$case: neither a test nor a reason") if $n_named + $n_waits == 0;
    $n_tested += $n_named > 0;
    $n_later += $n_waits > 0 && $n_named == 0;
}
for my $letter (%lines ? sort keys %catalogue : ()) {
    for my $number (grep { !$lines{"$letter$_"} } 1 .. $catalogue{$letter}) {
        wrong($., "line $letter$number has no row");
    }
}
print "$n_rows rows, $n_tested with tests, $n_later later\n" if $is_verbose;
exit($n_wrong > 0);
