#!/usr/bin/perl
# SPDX-License-Identifier: MIT
# Compares two builds of the tool: whether the new one is slower than the old one.
#
#   bench/versions.pl OLD NEW [--pairs N] [--ranks N] [--only WORD]... [--budget SECONDS]
#
# OLD and NEW are two programs `shoal` (build/bin/shoal of two trees). Every pair runs each benchmark three times, old,
# new and old again, in an order that changes from pair to pair, so that what else the machine does reaches all three.
# For each bar of bench/bars.txt, for op_overhead_ns and for the raw time of small calls, one line says:
#
#   new/old   the median over the pairs of new time / old time; a bar over several sizes takes their geometric mean
#   old/old   the median, and from the smallest to the largest, of the second old run / the first: what the machine
#             does by itself
#
# "slower" stands behind a line whose median is above 1.03 and above all that the old one shows against itself.
# --budget: after so many seconds no pair is begun.
# Exit status 1 when there is such a line, 2 when a program failed.
use strict;
use warnings;
use List::Util qw(max min sum shuffle);

my $limit = 1.03;
my ($pairs, $ranks, $budget, @only, @tools) = (10, 2, 0);
while (@ARGV) {
    my $word = shift;
    if    ($word eq '--pairs')  { $pairs = shift }
    elsif ($word eq '--ranks')  { $ranks = shift }
    elsif ($word eq '--only')   { push @only, shift }
    elsif ($word eq '--budget') { $budget = shift }
    else                        { push @tools, $word }
}
die "usage: bench/versions.pl OLD NEW [--pairs N] [--ranks N] [--only WORD]... [--budget SECONDS]\n" if @tools != 2;
my ($old, $new) = @tools;

my @sizes = ('--ranks', $ranks, '--sizes', '1K:64M:4');
my @benchmarks = (
    [qw(all_reduce --symmetric), @sizes],
    [qw(all_reduce), @sizes],
    [qw(reduce_scatter --symmetric), @sizes],
    [qw(reduce_scatter), @sizes],
    [qw(all_gather --window), @sizes],
    [qw(all_gather), @sizes],
    [qw(all_to_all --symmetric), @sizes],
    [qw(all_to_all), @sizes],
    [qw(barrier), '--ranks', $ranks],
    [qw(functional), '--ranks', $ranks],
    [qw(overlap), '--ranks', $ranks],
    [qw(fsdp), '--ranks', $ranks],
    [qw(kernels --kernel op_overhead_ns)],
);
if (@only) {
    @benchmarks = grep { my $words = "@$_"; grep { $words =~ /\Q$_\E/ } @only } @benchmarks;
}

# The figures of one run by name: "all_reduce symmetric 1024", "fsdp ratio". Small is good in all of them.
sub measure
{
    my ($tool, $benchmark) = @_;
    my %figures;
    open(my $out, '-|', $tool, 'bench', @$benchmark, '--json') or die "$tool: $!\n";
    while (my $line = <$out>) {
        my %row;
        $row{$1} = defined $2 ? $2 : $3 while $line =~ /"(\w+)": (?:"([^"]*)"|([-\d.]+))/g;
        if (defined $row{median_us}) {
            $figures{"$row{op} $row{buffers} $row{size}"} = $row{median_us};
        } elsif (defined $row{bench}) {
            for my $column (qw(overhead_us ratio host_us_per_unit)) {
                $figures{"$row{bench} $column"} = $row{$column} if defined $row{$column};
            }
            $figures{"$row{bench} both/compute"} = $row{both_us} / $row{compute_us} if defined $row{both_us};
        } elsif (($row{kernel} // '') eq 'op_overhead_ns') {
            $figures{op_overhead_ns} = $row{ns};
        }
    }
    close($out) or do { print STDERR "$tool bench @$benchmark failed\n"; exit 2 };
    return \%figures;
}

# Bars: [text, figure...].
sub bars
{
    my %unit = (K => 10, M => 20);
    my @bars;
    open(my $file, '<', 'bench/bars.txt') or die "bench/bars.txt: $!\n";
    while (<$file>) {
        my ($op, $buffers, $from, $to, $against) = /^(\w+)\s+(symmetric|heap|window)\s+(\S+)\s+(\S+)\s+(\w+)/ or next;
        my ($low, $high) = map { /^(\d+)([KM])$/ ? $1 << $unit{$2} : $_ } $from, $to;
        push @bars, ["$op $buffers $from-$to", map { "$op $buffers $_" } grep { $_ >= $low && $_ <= $high } map { 1024 << 2 * $_ } 0 .. 8];
    }
    push @bars, map { ["$_ heap 1K", "$_ heap 1024"] } qw(all_reduce all_gather reduce_scatter all_to_all);
    push @bars, ['barrier', 'barrier heap 0'];
    push @bars, map { [ $_, $_ ] } 'functional overhead_us', 'overlap both/compute', 'fsdp ratio', 'fsdp host_us_per_unit', 'op_overhead_ns';
    my %seen;
    return grep { !$seen{ $_->[0] }++ } @bars;
}

sub median { my @s = sort { $a <=> $b } @_; return ($s[ $#s / 2 ] + $s[ @s / 2 ]) / 2 }

# The geometric mean of the quotients of several figures; undef where one was not measured.
sub quotient
{
    my ($above, $below, @names) = @_;
    my @logs;
    for my $name (@names) {
        my ($a, $b) = ($above->{$name}, $below->{$name});
        return undef if !defined $a || !defined $b || $a <= 0 || $b <= 0;
        push @logs, log($a / $b);
    }
    return @logs ? exp(sum(@logs) / @logs) : undef;
}

my @bars = bars();
my (%new_to_old, %old_to_old);
my ($begin, $n_done) = (time, 0);
for my $pair (1 .. $pairs) {
    last if $budget && $n_done && time - $begin > $budget;
    my %runs = (first => {}, new => {}, again => {});
    for my $benchmark (@benchmarks) {
        for my $who (shuffle(qw(first new again))) {
            my $figures = measure($who eq 'new' ? $new : $old, $benchmark);
            @{ $runs{$who} }{ keys %$figures } = values %$figures;
        }
    }
    for my $bar (@bars) {
        my ($text, @names) = @$bar;
        my ($ratio, $self) = (quotient(@runs{qw(new first)}, @names), quotient(@runs{qw(again first)}, @names));
        push @{ $new_to_old{$text} }, $ratio if defined $ratio;
        push @{ $old_to_old{$text} }, $self if defined $self;
    }
    $n_done++;
    print STDERR "pair $pair of $pairs\n";
}

my $n_slower = 0;
printf "%-32s %8s   %s\n", "$n_done pairs, $ranks ranks", 'new/old', 'old/old: median (smallest - largest)';
for my $bar (@bars) {
    my $text = $bar->[0];
    my ($ratios, $selves) = ($new_to_old{$text}, $old_to_old{$text});
    next if !$ratios || !$selves;
    my $ratio = median(@$ratios);
    my $is_slower = $ratio > $limit && $ratio > max(@$selves);
    $n_slower += $is_slower;
    printf "%-32s %8.3f   %.3f (%.3f - %.3f)%s\n", $text, $ratio, median(@$selves), min(@$selves), max(@$selves),
        $is_slower ? '   slower' : '';
}
exit($n_slower ? 1 : 0);
