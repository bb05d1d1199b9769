#!/usr/bin/perl
# SPDX-License-Identifier: MIT
# Sums up the rows of bench/beside.sh: a line for each state, number of ranks, library and size, and then one for each bar.
#
#   bench/beside.pl ROWS.jsonl
#
# Exit status 1 when a result was wrong.
use strict;
use warnings;
use List::Util qw(max min sum);

die "usage: bench/beside.pl ROWS.jsonl\n" if @ARGV != 1;

my (%rows, @cases);
my $n_wrong = 0;
open(my $file, '<', $ARGV[0]) or die "$ARGV[0]: $!\n";
while (my $line = <$file>) {
    my %row;
    $row{$1} = defined $2 ? $2 : $3 while $line =~ /"(\w+)": (?:"([^"]*)"|([-\d.]+))/g;
    next if !defined $row{median_us};
    $n_wrong += $row{wrong};
    my $case = "$row{state}/$row{ranks}/$row{processors}";
    push @cases, $case if !$rows{$case};
    push @{ $rows{$case}{ $row{library} }{ $row{size} } }, \%row;
}
close($file);

sub median { my @sorted = sort { $a <=> $b } @_; return ($sorted[ $#sorted / 2 ] + $sorted[ @sorted / 2 ]) / 2 }
sub mean { return sum(@_) / @_ }
sub column { my ($name, $rows) = @_; return map { $_->{$name} } @$rows }

# %sums{case}{library}{size}: what the runs come to.
my %sums;
for my $case (@cases) {
    for my $library (keys %{ $rows{$case} }) {
        for my $size (keys %{ $rows{$case}{$library} }) {
            my $runs = $rows{$case}{$library}{$size};
            my @medians = column('median_us', $runs);
            my $lowest = min(@medians);
            $sums{$case}{$library}{$size} = {
                runs => scalar @medians,
                lowest => $lowest,
                median => median(@medians),
                highest => max(@medians),
                slow_runs => scalar(grep { $_ > 3 * $lowest } @medians),
                slow => mean(column('slow', $runs)),
                mean => mean(column('mean_us', $runs)),
                cpu => median(column('cpu_us', $runs)),
            };
        }
    }
}

my @libraries = qw(shoal old openmpi mpich);

printf "%-9s %5s %5s %-8s %6s %5s %9s %9s %9s %9s %8s %10s %9s\n", qw(state ranks procs library bytes runs lowest_us median_us
    highest_us slow_runs slow mean_us cpu_us);
for my $case (grep { !/^late/ } @cases) {
    my ($state, $ranks, $processors) = split m{/}, $case;
    for my $library (grep { $sums{$case}{$_} } @libraries) {
        for my $size (sort { $a <=> $b } keys %{ $sums{$case}{$library} }) {
            my $sum = $sums{$case}{$library}{$size};
            printf "%-9s %5d %5d %-8s %6d %5d %9.2f %9.2f %9.2f %9d %8.4f %10.2f %9.2f\n", $state, $ranks, $processors,
                $library, $size, @$sum{qw(runs lowest median highest slow_runs slow mean cpu)};
        }
    }
}

print "\nprocessor time of a rank that waits for rank 0, in a call\n";
printf "%8s %5s %5s", qw(late_us ranks procs);
printf " %9s", $_ for @libraries;
print "\n";
for my $case (grep { /^late/ } @cases) {
    my ($state, $ranks, $processors) = split m{/}, $case;
    printf "%8d %5d %5d", substr($state, 5), $ranks, $processors;
    printf " %9s", $sums{$case}{$_} ? sprintf('%.1f', $sums{$case}{$_}{1024}{cpu}) : '-' for @libraries;
    print "\n";
}

# name measured bound ok|short, as bench/compare.pl prints bars.
sub bar
{
    my ($name, $measured, $bound) = @_;
    return if !defined $measured;
    printf "%-44s %8.2f %8.2f %s\n", $name, $measured, $bound, $measured <= $bound ? 'ok' : 'short';
    return;
}

print "\n";
for my $case (grep { !/^late/ } @cases) {
    my ($state, $ranks, $processors) = split m{/}, $case;
    my $ours = $sums{$case}{shoal} or next;
    my $name = "$state/$ranks:$processors";
    my @sizes = sort { $a <=> $b } keys %$ours;
    my $is_tight = $state eq 'busy' && $processors <= $ranks;
    bar("$name/highest_to_lowest", max(map { $ours->{$_}{highest} / $ours->{$_}{lowest} } @sizes), 3);
    bar("$name/highest_us", max(map { $ours->{$_}{highest} } grep { $_ <= 4096 } @sizes), 4) if $ranks == 2 && !$is_tight;
    my @quotients;
    for my $size ($is_tight ? @sizes : ()) {
        my @theirs = map { $_->{median} } grep { defined } map { $sums{$case}{$_}{$size} } qw(openmpi mpich);
        push @quotients, $ours->{$size}{median} / min(@theirs) if @theirs;
    }
    bar("$name/median_to_mpi", max(@quotients), 1) if @quotients;
}
print "wrong: $n_wrong\n" if $n_wrong;
exit($n_wrong ? 1 : 0);
