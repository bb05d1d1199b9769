#!/usr/bin/perl
# SPDX-License-Identifier: MIT
# Reads the JSON lines of `shoal bench` and of the peers, prints them side by side, and then a line per bar.
#
#   bench/compare.pl BARS ROWS.jsonl
#
# Of several rounds the smallest median counts, for everybody. `mpi` is the faster of the MPI libraries that
# were measured, size by size. The benchmarks of tensors have no peer: their bars are about a column of ours, of
# which the best round counts. Exit status 1 when a result was wrong.
use strict;
use warnings;

my @mpi = qw(openmpi mpich);
my @peers = (@mpi, 'gloo');
my %is_peer = map { $_ => 1 } @peers;

die "usage: bench/compare.pl BARS ROWS.jsonl\n" if @ARGV != 2;
my ($bars_path, $rows_path) = @ARGV;

# $time{op}{ours' buffers or peer}{bytes}: microseconds. @tensor_rows: of benchmarks without a peer.
my (%time, %algorithm, @order, @tensor_rows);
my $n_wrong = 0;

open(my $rows, '<', $rows_path) or die "$rows_path: $!\n";
while (my $line = <$rows>) {
    my %row;
    $row{$1} = defined $2 ? $2 : $3 while $line =~ /"(\w+)": (?:"([^"]*)"|([-\d.]+))/g;
    push @tensor_rows, \%row if defined $row{bench};
    $n_wrong += $row{wrong} if defined $row{bench};
    next if !defined $row{median_us};
    my $who = $is_peer{ $row{transport} } ? $row{transport} : $row{buffers};
    my $old = $time{ $row{op} }{$who}{ $row{size} };
    $n_wrong += $row{wrong};
    if (!defined $old || $row{median_us} < $old) {
        $time{ $row{op} }{$who}{ $row{size} } = $row{median_us};
        $algorithm{ $row{op} }{$who}{ $row{size} } = $row{algorithm};
    }
    push @order, $row{op} if !grep { $_ eq $row{op} } @order;
}
close($rows);

# The shortest time of these peers; undef when none was measured.
sub fastest
{
    my ($op, $size, @who) = @_;
    my @times = sort { $a <=> $b } grep { defined } map { $time{$op}{$_}{$size} } @who;
    return $times[0];
}

sub bytes
{
    my ($text) = @_;
    my %unit = (K => 10, M => 20, G => 30);
    return $text =~ /^(\d+)([KMG])$/ ? $1 << $unit{$2} : $text;
}

sub short_bytes
{
    my ($bytes) = @_;
    for my $unit ([ 30, 'G' ], [ 20, 'M' ], [ 10, 'K' ]) {
        my ($shift, $letter) = @$unit;
        return ($bytes >> $shift) . $letter if $bytes > 0 && $bytes % (1 << $shift) == 0;
    }
    return $bytes;
}

sub cell { my ($value, $format) = @_; return defined $value ? sprintf($format, $value) : '-' }

printf "%-14s %-9s %6s %-9s %10s %10s %10s %10s %9s %9s\n", qw(op buffers bytes algorithm ours_us), @peers,
    qw(ours/mpi ours/gloo);
for my $op (@order) {
    for my $buffers (grep { !$is_peer{$_} } sort keys %{ $time{$op} }) {
        for my $size (sort { $a <=> $b } keys %{ $time{$op}{$buffers} }) {
            my $ours = $time{$op}{$buffers}{$size};
            my ($fast_mpi, $gloo) = (fastest($op, $size, @mpi), fastest($op, $size, 'gloo'));
            printf "%-14s %-9s %6s %-9s %10.2f %10s %10s %10s %9s %9s\n", $op, $buffers, short_bytes($size),
                $algorithm{$op}{$buffers}{$size}, $ours,
                (map { cell($time{$op}{$_}{$size}, '%.2f') } @peers),
                cell($fast_mpi ? $ours / $fast_mpi : undef, '%.3f'), cell($gloo ? $ours / $gloo : undef, '%.3f');
        }
    }
}
print "\n" if @tensor_rows;
for my $row (@tensor_rows) {
    my @columns = grep { defined $row->{$_} } qw(raw_us functional_us overhead_us comm_us compute_us both_us hidden
        params core gflops step_us_fsdp step_us_eager step_us_compiled step_us_plain step_us_none ratio exposed_us
        exposed_us_plain exposed_ratio exposed_ratio_low exposed_ratio_high cpu_us_compiled cpu_us_plain cpu_us_none switches_compiled
        switches_plain switches_none peak_bytes_eager peak_bytes peak_ratio unsharded_bytes_host_eager allocations moved lanes_us lanes_gbps host_us_per_unit host_us_per_unit_2
        unsharded_bytes_host gradients fuse_schedule_1024_ms ms cpu_ms ns_per_node
        save_ms save_ms_plain save_ratio load_ms load_ms_plain load_ratio cached memory_mib start_ms step_ms step_ms_saving
        background_ratio steps_saving);
    my $size = defined $row->{bytes} ? short_bytes($row->{bytes})
        : defined $row->{pass} ? "$row->{pass} $row->{nodes} nodes" : "$row->{ranks} ranks";
    print join(' ', "$row->{bench} $size", map { "$_ $row->{$_}" } @columns), "\n";
}
print "\nwrong results: $n_wrong\n\n";

# The worst ratio over the sizes of a bar; undef when a side was not measured.
sub worst_ratio
{
    my ($op, $buffers, $from, $to, @against) = @_;
    my $worst;
    for my $size (keys %{ $time{$op}{$buffers} }) {
        my $theirs = fastest($op, $size, @against);
        next if $size < $from || $size > $to || !$theirs;
        my $ratio = $time{$op}{$buffers}{$size} / $theirs;
        $worst = $ratio if !defined $worst || $ratio > $worst;
    }
    return $worst;
}

# The best of a column over rounds; undef when it was not measured, or with too few processors. Bytes: '-' for benchmarks
# that have none.
sub best_column
{
    my ($bench, $processors, $ranks, $bytes, $column, $rule) = @_;
    my ($from, $to) = split ':', $ranks;
    my @values = sort { $a <=> $b } map { $_->{$column} }
        grep { $_->{bench} eq $bench && defined $_->{$column} && ($bytes eq '-' || $_->{bytes} == bytes($bytes))
            && $_->{ranks} >= $from && $_->{ranks} <= $to && $_->{processors} >= $processors * $_->{ranks} }
        @tensor_rows;
    return $rule eq 'at_most' ? $values[0] : $values[-1];
}

sub print_bar
{
    my ($name, $value, $bound, $verdict) = @_;
    printf "%-40s %7s %5s %s\n", $name, cell($value, '%.3f'), $bound, $verdict;
}

open(my $bars, '<', $bars_path) or die "$bars_path: $!\n";
while (my $line = <$bars>) {
    next if $line =~ /^\s*(?:#|$)/;
    if ($line =~ /\sat_(?:most|least)\s/) {
        my ($bench, $processors, $ranks, $bytes, $column, $rule, $bound) = split ' ', $line;
        my $value = best_column($bench, $processors, $ranks, $bytes, $column, $rule);
        my $is_met = defined $value && ($rule eq 'at_most' ? $value <= $bound : $value >= $bound);
        my $what = $bytes eq '-' ? $ranks : $bytes;
        print_bar("$bench/$what/$column", $value, $bound, !defined $value ? 'absent' : $is_met ? 'ok' : 'short');
        next;
    }
    my ($op, $buffers, $from, $to, $against, $bound) = split ' ', $line;
    my $ratio = worst_ratio($op, $buffers, bytes($from), bytes($to), $against eq 'mpi' ? @mpi : $against);
    my $verdict = !defined $ratio ? 'absent' : $ratio <= $bound ? 'ok' : 'short';
    print_bar("$op/$buffers/$from-$to/$against", $ratio, $bound, $verdict);
}
close($bars);
exit($n_wrong > 0 ? 1 : 0);
