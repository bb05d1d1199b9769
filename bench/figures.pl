#!/usr/bin/perl
# SPDX-License-Identifier: MIT
# Makes the tables of docs/performance.md of the reports that bench/figures.sh left.
#
#   bench/figures.pl MACHINE NAME [REPORTS]     prints one: bench/figures.pl small kernels
#   bench/figures.pl --fill [REPORTS]           puts them all into the page
#   bench/figures.pl --check [REPORTS]          fails when the page has other tables than the reports give
#
# REPORTS is bench/reports by default. In the page a table lies between <!-- figures MACHINE NAME --> and <!-- end -->; where there
# is no report, or one of a command that failed, the page keeps what it has, and it is named.
use strict;
use warnings;
use Text::Wrap ();

my $page_path = 'docs/performance.md';

sub slurp { my ($path) = @_; open my $file, '<', $path or die "$path: $!\n"; local $/; return <$file> // ''; }

# Reports ---------------------------------------------------------------------------------------------------

# What a report says about itself, and what the command printed; undef where there is none to use.
sub read_report
{
    my ($folder, $machine, $name) = @_;
    my $path = "$folder/$machine/$name.txt";
    return undef if !-e $path; ## no critic
    my %report = (path => $path, text => slurp($path));
    $report{$1} //= $2 while $report{text} =~ /^# (command|machine|date|commit|load before|status): (.*)$/mg;
    return ($report{status} // '') eq '0' ? \%report : undef;
}

# The rows of JSON, each with its keys and values.
sub json_rows
{
    my ($text) = @_;
    my @rows;
    for my $line (grep { /^\{/ } split /\n/, $text) {
        my %row;
        $row{$1} = $2 // $3 while $line =~ /"(\w+)": (?:"([^"]*)"|([-\w.]+))/g;
        push @rows, \%row;
    }
    return @rows;
}

# Markdown --------------------------------------------------------------------------------------------------

# table [HEADINGS], ROWS...: without columns in which nobody has anything.
sub table
{
    my ($headings, @rows) = @_;
    my @kept = grep { my $i = $_; grep { defined $_->[$i] && $_->[$i] !~ /^-?$/ } @rows } 0 .. $#$headings;
    my $line = sub { my ($cells) = @_; return '| ' . join(' | ', map { $cells->[$_] // '' } @kept) . " |\n" };
    my $n_columns = () = $line->($headings) =~ / \|/g;
    return $line->($headings) . '|' . '---|' x $n_columns . "\n" . join '', map { $line->($_) } @rows;
}

sub number { my ($format, $value) = @_; return defined $value && $value =~ /^-?[\d.]+$/ ? sprintf($format, $value) : $value; }
sub verdict { my ($is_met) = @_; return $is_met ? 'met' : '**missed**'; }

# Bars as bench/compare.pl and bench/mpi.sh print them: name, what was measured, the bound, ok or short.
sub bars
{
    my ($text) = @_;
    my @rows;
    while ($text =~ /^(\S+\/\S+) +([\d.-]+) +([\d.]+) (ok|short)$/mg) {
        push @rows, [ "`$1`", $2, $3, verdict($4 eq 'ok') ];
    }
    return @rows ? "\n" . table([ 'bar', 'measured', 'bound', '' ], @rows) : '';
}

# Those of a report of JSON.
sub bars_of_json
{
    my ($report) = @_;
    open my $compare, '-|', 'bench/compare.pl', 'bench/bars.txt', $report->{path} or die "bench/compare.pl: $!\n";
    local $/;
    my $text = <$compare>;
    close $compare;
    return bars($text);
}

# columns REPORT, [KEY, FORMAT]...: a table of some keys of all rows.
sub columns
{
    my ($report, @columns) = @_;
    my @rows = map { my $row = $_; [ map { number($_->[1], $row->{ $_->[0] }) } @columns ] } json_rows($report->{text});
    return table([ map { "`$_->[0]`" } @columns ], @rows);
}

sub with_bars { my ($report, @columns) = @_; return columns($report, @columns) . bars_of_json($report); }

# A table for each row of bench/figures.txt ---------------------------------------------------------------------

my %bar_of_dtype = ('f32' => 0.8, 'bf16' => 0.6, 'f32->bf16' => 0.6, 'bf16->f32' => 0.6);

sub kernels
{
    my ($report) = @_;
    my (%cell, @order, $overhead);
    for my $row (json_rows($report->{text})) {
        $overhead = $row->{ns} if $row->{kernel} eq 'op_overhead_ns';
        next if ($row->{is_default} // '') ne 'true';
        my $name = "$row->{kernel} | $row->{dtype}";
        push @order, $name if !$cell{$name};
        my $size = $row->{bytes} < 1 << 24 ? 'small' : 'large';
        $cell{$name}{$size} = $row;
        $cell{$name}{variant} = $row->{variant};
        $cell{$name}{bar} = $bar_of_dtype{ $row->{dtype} };
    }
    my @rows;
    for my $name (@order) {
        my ($small, $large, $bar) = @{ $cell{$name} }{qw(small large bar)};
        my @short = !defined $bar ? () : ($small->{ratio} < $bar ? '512 KiB' : (), $large->{ratio} < $bar ? '192 MiB' : ());
        my $said = !defined $bar ? '' : @short ? "$bar: **missed** at " . join(' and ', @short) : "$bar: met";
        push @rows, [ $name, (map { number('%.1f', $_->{gbps}), number('%.2f', $_->{ratio}) } $small, $large), $said ];
    }
    my $variant = $cell{ $order[0] }{variant};
    return table([ 'kernel | dtype', '512 KiB: GB/s', 'of memcpy', '192 MiB: GB/s', 'of memcpy', 'bar' ], @rows)
        . "\nThe variant is `$variant`. `op_overhead_ns` is " . number('%.0f', $overhead) . '; the bar of 300 is '
        . verdict($overhead < 300) . ".\n";
}

# pivot SIZES, HEADINGS, CELLS: a line for each name, in the order of @$names, and a column for each size.
sub pivot
{
    my ($sizes, $headings, $names, $cells) = @_;
    return table([ @$headings, @$sizes ], map { my $name = $_; [ $name, map { $cells->{$name}{$_} } @$sizes ] } @$names);
}

# Five of the sizes; the report has all.
sub collectives
{
    my ($report) = @_;
    my (%cells, @names);
    for my $line (split /\n/, $report->{text}) {
        my ($op, $buffers, $bytes, $algorithm, $ours, @others) = split ' ', $line;
        next if @others != 5 || $op !~ /^[a-z_]+$/ || $op eq 'op'; # "bench: ..." is progress
        my $name = "$op | $buffers";
        push @names, $name if !$cells{$name};
        $cells{$name}{$bytes} = $others[3] eq '-' ? $ours : "$ours ($others[3])";
    }
    return pivot([qw(0 1K 64K 1M 16M 64M)], ['call | buffers'], \@names, \%cells) . bars($report->{text});
}

sub mpi
{
    my ($report) = @_;
    my ($over, %cells, @names) = ('');
    for my $line (split /\n/, $report->{text}) {
        $over = "$1 | $2" if $line =~ /^(\w+), \d+ ranks, (\w+)$/;
        my ($op, $bytes, $ours, $ratio) = $line =~ /^(\w+) +(\d+) B +mpi +[\d.]+ us +shoal +([\d.]+) us +ratio +([\d.]+)/ or next;
        my $size = $bytes >= 1 << 20 ? ($bytes >> 20) . 'M' : $bytes >= 1 << 10 ? ($bytes >> 10) . 'K' : $bytes;
        push @names, "$over | $op" if !$cells{"$over | $op"};
        $cells{"$over | $op"}{$size} = "$ours ($ratio)";
    }
    return pivot([qw(8 64 512 4K 1M 8M 64M)], ['library | over | call'], \@names, \%cells) . bars($report->{text});
}

# Its table is in markdown; the bar is that of the ratio, its last column.
sub hosts
{
    my ($report) = @_;
    my ($lines, @ratios) = ('');
    for my $line (grep { /^\|/ } split /\n/, $report->{text}) {
        $lines .= "$line\n";
        push @ratios, $1 if $line =~ /\| ([\d.]+) \|$/;
    }
    my ($worst) = sort { $b <=> $a } @ratios;
    my $n_short = grep { $_ > 1.1 } @ratios;
    return $lines . "\nThe bar is a ratio of 1.1; the largest is $worst: "
        . ($n_short ? "**missed** by $n_short of " . @ratios : 'met') . ".\n";
}

sub train
{
    my ($report) = @_;
    my ($headings, undef, @lines) = map { [ map { s/^ +| +$//gr } split /\|/, s/^\|//r ] } grep { /^\|/ } split /\n/, $report->{text};
    return table($headings, @lines) . bars($report->{text});
}

sub trace
{
    my ($report) = @_;
    my $text = $report->{text};
    my ($step) = $text =~ /^a step takes ([\d.]+) ms/m or die "$report->{path}: no step\n";
    my ($events, $event, $off) = $text =~ /has (\d+) events; one costs (\d+) ns \(([\d.]+) ns without/;
    my @rows;
    while ($text =~ /^(wall|processor) time, with a trace : without: ([\d.]+), between ([\d.]+) and ([\d.]+) \(([^)]*)\)/mg) {
        my $said = $5 eq 'at most 2 %' ? 'met' : $5 eq 'not decided' ? 'not decided' : '**missed**';
        push @rows, [ "$1 time of a step, with : without", $2, "$3 to $4", "1.02: $said" ];
    }
    return table([ 'what', 'median', '95 % bounds', 'bar' ], @rows)
        . "\nA step takes " . number('%.1f', $step) . " ms and has $events events of $event ns; a place that is not recorded costs"
        . " $off ns.\n";
}

# "NAME, N ranks: model M MB; at the peak P MB a rank; shared / ranks up to S, private up to Q"
sub memory
{
    my ($report) = @_;
    my @rows;
    my $line = qr/^(?:\[rank 0\] )?(.+), (\d+) ranks: model ([\d.]+) MB; at the peak ([\d.]+) MB a rank;/m;
    while ($report->{text} =~ /$line shared \/ ranks up to ([\d.]+), private up to ([\d.]+)$/mg) {
        push @rows, [ $1, $2, $3, $5, $6, $4 ];
    }
    return table([ 'model', 'ranks', 'model, MB', 'shared, MB', 'private, MB', 'peak, MB' ], @rows);
}

sub nn
{
    my ($report) = @_;
    my @rows = map { [ @{$_}{qw(case pass shape)}, number('%.1f', $_->{rate}), number('%.1f', $_->{reference_rate}),
                      number('%.2f', $_->{ratio}), $_->{bar} > 0 ? "$_->{bar}: " . verdict($_->{ratio} >= $_->{bar}) : '' ] }
        json_rows($report->{text});
    return table([ 'case', 'pass', 'shape', 'GFLOP/s', 'sgemm, GFLOP/s', 'ratio', 'bar' ], @rows);
}

# What has a bar, and the passes by the number of nodes.
sub passes
{
    my ($report) = @_;
    my (@rows, %cells, @names, %sizes);
    for my $row (json_rows($report->{text})) {
        for my $key (grep { defined $row->{$_} } qw(fuse_schedule_1024_ms capture_12_layers_ms)) {
            push @rows, [ "`$key`", $row->{nodes}, number('%.2f', $row->{$key}), number('%.2f', $row->{cpu_ms}) ];
        }
        next if !defined $row->{pass};
        my $name = "`$row->{pass}`";
        my $size = 10**int(log($row->{nodes}) / log(10) + 0.5) . ' nodes: ms';
        push @names, $name if !$cells{$name};
        $cells{$name}{$size} = number('%.2f', $row->{ms});
        $sizes{$size} = $row->{nodes};
    }
    my @sizes = sort { $sizes{$a} <=> $sizes{$b} } keys %sizes;
    return table([ 'what', 'nodes', 'ms', '`cpu_ms`' ], @rows) . bars_of_json($report)
        . (@names ? "\n" . pivot(\@sizes, ['pass'], \@names, \%cells) : '');
}

my @fsdp = ([ 'ranks', '%d' ], [ 'params', '%d' ], [ 'blas_threads', '%d' ], [ 'step_us_none', '%.0f' ], [ 'step_us_fsdp', '%.0f' ],
    [ 'ratio', '%.3f' ], [ 'exposed_us', '%.0f' ], [ 'lanes_us', '%.0f' ], [ 'host_us_per_unit', '%.2f' ], [ 'host_us_plain', '%.2f' ]);
my @compiled = ([ 'bench', '%s' ], [ 'ranks', '%d' ], [ 'step_us_eager', '%.0f' ], [ 'step_us_compiled', '%.0f' ],
    [ 'step_us_none', '%.0f' ], [ 'ratio', '%.3f' ], [ 'exposed_us', '%.0f' ], [ 'exposed_us_plain', '%.0f' ],
    [ 'exposed_ratio', '%.2f' ], [ 'exposed_ratio_low', '%.2f' ], [ 'exposed_ratio_high', '%.2f' ], [ 'peak_ratio', '%.3f' ],
    [ 'allocations', '%d' ]);
my @checkpoint = ([ 'ranks', '%d' ], [ 'bytes', '%d' ], [ 'format', '%s' ], [ 'save_ms', '%.0f' ], [ 'save_ms_plain', '%.0f' ],
    [ 'save_ratio', '%.2f' ], [ 'load_ms', '%.0f' ], [ 'load_ms_plain', '%.0f' ], [ 'load_ratio', '%.2f' ], [ 'cached', '%.2f' ],
    [ 'memory_mib', '%.1f' ], [ 'background_ratio', '%.2f' ]);
my %maker = (
    kernels => \&kernels, collectives => \&collectives, mpi => \&mpi, hosts => \&hosts, train => \&train, trace => \&trace,
    memory => \&memory, attention => \&nn, layers => \&nn, passes => \&passes,
    functional => sub { with_bars(@_, [ 'ranks', '%d' ], [ 'bytes', '%d' ], [ 'raw_us', '%.2f' ], [ 'functional_us', '%.2f' ],
                                [ 'overhead_us', '%.2f' ]) },
    overlap => sub { with_bars(@_, [ 'ranks', '%d' ], [ 'bytes', '%d' ], [ 'comm_us', '%.0f' ], [ 'compute_us', '%.0f' ],
                             [ 'both_us', '%.0f' ], [ 'hidden', '%.2f' ]) },
    fusion_torch => sub { columns(@_, [ 'torch', '%s' ], [ 'pass', '%s' ], [ 'gradients', '%d' ], [ 'nodes', '%d' ], [ 'ms', '%.0f' ]) },
    (map { $_ => sub { with_bars(@_, @fsdp) } } qw(fsdp fsdp_8)),
    (map { $_ => sub { with_bars(@_, @compiled) } } qw(compiled compiled_8)),
    checkpoint => sub { with_bars(@_, @checkpoint) },
);

# The page ---------------------------------------------------------------------------------------------------

# The lines between the marks: the command, when and where it was run, the table. Undef: no report.
sub figures
{
    my ($folder, $machine, $name) = @_;
    my $make = $maker{$name} or die "bench/figures.pl: no table for $name\n";
    my $report = read_report($folder, $machine, $name) or return undef; ## no critic
    local $Text::Wrap::columns = 121;
    local $Text::Wrap::huge = 'overflow';
    my @said = ("`$report->{command}`", $report->{date}, $report->{machine});
    push @said, "load before $report->{'load before'}" if defined $report->{'load before'};
    my $kept = "bench/reports/$machine/$name.txt";
    my $text = join(', ', @said) . (-e $kept ? " ([report](../$kept)):" : ':');
    return Text::Wrap::wrap('', '', $text) . "\n\n" . $make->($report);
}

my ($mode, @rest) = @ARGV;
die "usage: bench/figures.pl MACHINE NAME [REPORTS] | --fill [REPORTS] | --check [REPORTS]\n" if !defined $mode;
if ($mode !~ /^--/) {
    my $text = figures($rest[1] // 'bench/reports', $mode, $rest[0] // '');
    die "bench/figures.pl: no report of $mode $rest[0]\n" if !defined $text;
    print $text;
    exit 0;
}
die "bench/figures.pl: bad argument: $mode\n" if $mode ne '--fill' && $mode ne '--check';
my $folder = $rest[0] // 'bench/reports';
my $page = slurp($page_path);
my (%rows, %shown, @differ);
my $list = slurp('bench/figures.txt');
$rows{"$2 $1"} = 1 while $list =~ /^(\w+) +(small|big) +\d+ /mg;
my $filled = $page =~ s{(<!-- figures (\w+) (\w+) -->\n)(.*?)(<!-- end -->)}{
    my ($begin, $machine, $name, $old, $end) = ($1, $2, $3, $4, $5);
    $shown{"$machine $name"} = 1;
    my $new = figures($folder, $machine, $name);
    print "$machine $name: no report\n" if !defined $new;
    push @differ, "$machine $name" if defined $new && $new ne $old;
    $begin . ($new // $old) . $end
}gesr;
for my $name (sort keys %rows) {
    push @differ, "$name (in bench/figures.txt, not in the page)" if !$shown{$name};
}
for my $name (sort keys %shown) {
    push @differ, "$name (in the page, not in bench/figures.txt)" if !$rows{$name};
}
if ($mode eq '--check') {
    print "$page_path: $_ differs from its report\n" for @differ;
    exit(@differ ? 1 : 0);
}
open my $file, '>', $page_path or die "$page_path: $!\n";
print $file $filled;
close $file;
