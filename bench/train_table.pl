#!/usr/bin/perl
# SPDX-License-Identifier: MIT
# Turns the rows of bench/train.sh into a table, and into a line of JSON per case for bench/compare.pl.
#
#   bench/train_table.pl --processors N ROWS OUT.jsonl
#
# A row is a case, a binding, a program and a line of JSON. Medians over rounds count. Times of a step are those of the slowest
# rank; for mode none their mean over ranks stands beside it, to show how far ranks differ that do not wait for each other.
use strict;
use warnings;

die "usage: bench/train_table.pl --processors N ROWS OUT.jsonl\n" if @ARGV != 4 || $ARGV[0] ne '--processors';
my (undef, $processors, $rows_path, $out_path) = @ARGV;

# $value{case}{binding}{program}{key}: a list over rounds. @order: [case, binding].
my (%value, %seen, @order, @left_out);
open(my $rows, '<', $rows_path) or die "$rows_path: $!\n";
while (my $line = <$rows>) {
    my ($case, $binding, $program, $json) = $line =~ /^(\S+) (\S+) (\S+) (.*)$/ or next;
    push @order, [ $case, $binding ] if !$seen{"$case $binding"}++;
    if ($json =~ /"left_out": "([^"]*)"/ || $json !~ /"step_ms_median"/) {
        push @left_out, "$case $binding $program: " . ($1 // 'no result');
        next;
    }
    push @{ $value{$case}{$binding}{$program}{$1} }, $2 while $json =~ /"(\w+)": (-?[\d.]+)/g;
}
close($rows);

sub median
{
    my ($case, $binding, $program, $key) = @_;
    my $list = $value{$case}{$binding}{$program}{$key};
    return undef if !$list; # also in lists
    my @sorted = sort { $a <=> $b } @$list;
    return ($sorted[ $#sorted / 2 ] + $sorted[ @sorted / 2 ]) / 2;
}

sub quotient { my ($a, $b) = @_; return defined $a && $b ? $a / $b : undef }
sub cell { my ($number, $format) = @_; return defined $number ? sprintf($format, $number) : '' }

my @columns = ('case', 'bind', 'parameters', 'none', 'none, mean', 'fsdp', 'exposed', 'fsdp / none', 'PyTorch none', 'PyTorch FSDP2',
    'fsdp / FSDP2', 'none / PyTorch none', 'fsdp MB', 'FSDP2 MB');
print '| ', join(' | ', @columns), " |\n", '|', '---|' x @columns, "\n";
open(my $out, '>', $out_path) or die "$out_path: $!\n";
for (@order) {
    my ($case, $binding) = @$_;
    my $get = sub { return median($case, $binding, @_) };
    my %ms = map { $_ => $get->($_, 'step_ms_median') } qw(none fsdp torch_none torch_fsdp);
    my $ranks = $get->('none', 'ranks') // $get->('fsdp', 'ranks') // 1;
    my $ratio = quotient($ms{fsdp}, $ms{none});
    my $to_torch = $ranks > 1 ? quotient($ms{fsdp}, $ms{torch_fsdp}) : quotient($ms{none}, $ms{torch_none});
    print '| ', join(' | ', $case, $ranks > 1 ? $binding : '-', cell($get->('none', 'params'), '%d'), cell($ms{none}, '%.1f'),
        cell($get->('none', 'compute_ms_median'), '%.1f'), cell($ms{fsdp}, '%.1f'),
        cell($get->('fsdp', 'exposed_comm_ms_median'), '%.1f'), cell($ratio, '%.3f'), cell($ms{torch_none}, '%.1f'),
        cell($ms{torch_fsdp}, '%.1f'), cell(quotient($ms{fsdp}, $ms{torch_fsdp}), '%.3f'),
        cell(quotient($ms{none}, $ms{torch_none}), '%.3f'), cell($get->('fsdp', 'peak_rss_mb'), '%.0f'),
        cell($get->('torch_fsdp', 'peak_rss_mb'), '%.0f')), " |\n";
    print $out qq({"bench": "train_$case", "processors": $processors, "ranks": $ranks);
    print $out qq(, "ratio": $ratio) if defined $ratio;
    print $out qq(, "torch_ratio": $to_torch) if defined $to_torch;
    print $out qq(, "wrong": 0}\n);
}
close($out);
print "\nTimes of a step in ms, of the slowest rank; memory of a rank at most.\n";
print "left out: $_\n" for @left_out;
