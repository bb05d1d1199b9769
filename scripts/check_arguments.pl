#!/usr/bin/perl
# SPDX-License-Identifier: MIT
# Checks that tests/conformance/deviation/arguments.def has a row for every parameter of every function, and for every
# field of every options struct, of the headers whose calls ranks make together, and no row for anything else.
#
#   scripts/check_arguments.pl TABLE HEADER...          prints what is missing or left over, and fails then
#   scripts/check_arguments.pl --list HEADER...         prints "call argument" lines
use strict;
use warnings;

# Returns a list of [call, argument, ...], in the order of the header.
sub read_header {
    my ($path) = @_;
    open(my $file, '<', $path) or die "$path: $!\n";
    my $text = do { local $/; <$file> };
    $text =~ s{/\*.*?\*/}{ }gs;
    $text =~ s{^\s*#.*$}{}gm;
    my @calls;
    while ($text =~ /typedef\s+struct\s+(shoal_\w+)\s*\{([^}]*)\}/g) {
        my ($name, $body) = ($1, $2);
        push @calls, [$name, map { name_of($_) } grep { /\S/ } split /;/, $body] if $body =~ /\bstruct_size\b/;
    }
    while ($text =~ /\bSHOAL_API\b([^;]*);/g) {
        my $declaration = $1;
        $declaration =~ /\b(shoal_\w+)\s*\((.*)\)\s*$/s or die "$path: cannot read:$declaration\n";
        my ($name, $parameters) = ($1, $2);
        my @arguments = map { name_of($_) } grep { !/^\s*void\s*$/ } split /,/, $parameters;
        # Of PyTorch's names, those that take no group are no calls that ranks make together.
        push @calls, [$name, @arguments] if $path !~ m{/shoal_compat/} || grep { $_ eq 'group' } @arguments;
    }
    return @calls;
}

# The last word of "const int64_t *shape" and of "int64_t shape[8]"; of a function pointer the name inside.
sub name_of {
    my ($declaration) = @_;
    return $1 if $declaration =~ /\(\s*\*\s*(\w+)\s*\)/;
    $declaration =~ s/\[[^\]]*\]//g;
    $declaration =~ /(\w+)\s*$/ or die "cannot find a name in: $declaration\n";
    return $1;
}

# "call argument" => number of rows; "call" alone for a call that is local.
sub read_table {
    my ($path) = @_;
    open(my $file, '<', $path) or die "$path: $!\n";
    my $text = do { local $/; <$file> };
    $text =~ s{/\*.*?\*/}{ }gs;
    my %rows;
    $rows{"$1 $2"}++ while $text =~ /^(?:COMPARED|TESTED|PER_RANK|FIELDS)\(\s*(\w+),\s*(\w+),/gm;
    $rows{$1}++ while $text =~ /^LOCAL\(\s*(\w+),/gm;
    return %rows;
}

# Rows TESTED whose test is not there: unit/graph/run/run/of_one is TEST(of_one) of tests/unit/graph/run/run_test.c.
sub missing_tests {
    my ($path) = @_;
    my ($tests) = $path =~ m{^(.*?tests)/};
    open(my $file, '<', $path) or die "$path: $!\n";
    my $text = do { local $/; <$file> };
    my @missing;
    while ($text =~ m{^TESTED\(\s*(\w+),\s*(\w+),\s*"([\w/]+)/(\w+)"\)}gm) {
        my ($call, $argument, $program, $test) = ($1, $2, $3, $4);
        my $source = '';
        if (open(my $program_file, '<', "$tests/${program}_test.c")) {
            $source = do { local $/; <$program_file> };
        }
        push @missing, "$call $argument: there is no test $program/$test" if $source !~ /^TEST\w*\($test\b/m;
    }
    return @missing;
}

# Splits at commas of function pointers too: such fields end before their parameters.
sub pairs {
    return map { my ($call, @arguments) = @$_; map { "$call $_" } @arguments } @_;
}

my $is_list = @ARGV && $ARGV[0] eq '--list';
my $table = shift @ARGV or die "usage: $0 TABLE HEADER...\n";
my @calls = map { read_header($_) } @ARGV;
if ($is_list) {
    print "$_\n" for pairs(@calls);
    exit 0;
}
my %rows = read_table($table);
my $n_wrong = 0;
for my $missing (missing_tests($table)) {
    print "$table: $missing\n";
    $n_wrong++;
}
my %known;
for my $call (@calls) {
    my ($name) = @$call;
    $known{$name} = 1;
    my @arguments = pairs($call);
    $known{$_} = 1 for @arguments;
    if ($rows{$name}) {
        next;
    }
    for my $argument (@arguments ? @arguments : $name) {
        my $n = $rows{$argument} // 0;
        next if $n == 1;
        print "$table: ", ($n == 0 ? 'no row for' : 'several rows for'), " $argument\n";
        $n_wrong++;
    }
}
for my $row (sort keys %rows) {
    my ($name, $argument) = split / /, $row;
    if (!$known{$row} || (defined $argument && $rows{$name})) {
        print "$table: a row for $row, which no header has, or which is local\n";
        $n_wrong++;
    }
}
exit($n_wrong ? 1 : 0);
