#!/usr/bin/perl
# SPDX-License-Identifier: MIT
# Draws the pictures of the docs from text.
#
#   scripts/draw.pl FILE.txt...            writes FILE.svg beside each
#   scripts/draw.pl --check FILE.txt...    fails if one of them is not what the text gives
#
# A text begins with "kind stack|timeline|sequence" and "title ...". Lines that begin with # are comments. Then:
#
#   stack      band LABEL                a row, from top to bottom
#              box TEXT | TEXT ...       its boxes, side by side; "/" begins a new line in one
#   timeline   track LABEL               a line in time, from top to bottom
#              bar BEGIN END KIND TEXT   KIND: compute, gather, reduce, wait, other
#   sequence   column LABEL              who takes part, from left to right
#              step FROM TO TEXT         an arrow between two columns, by number from 0; FROM = TO: something done there
#              note TEXT                 a line of its own
use strict;
use warnings;

my $FONT = 12;
my $LINE = 16;
my $WIDTH = 760;

sub escape {
    my ($text) = @_;
    $text =~ s/&/&amp;/g;
    $text =~ s/</&lt;/g;
    $text =~ s/>/&gt;/g;
    return $text;
}

sub text_at {
    my ($x, $y, $text, $class, $anchor) = @_;
    return sprintf qq(<text class="%s" x="%g" y="%g" text-anchor="%s">%s</text>\n), $class, $x, $y, $anchor, escape($text);
}

sub box_at {
    my ($x, $y, $width, $height, $class) = @_;
    return sprintf qq(<rect class="%s" x="%g" y="%g" width="%g" height="%g" rx="3"/>\n), $class, $x, $y, $width, $height;
}

# Lines of text around the middle of a box.
sub lines_in {
    my ($x, $y, $width, $height, @lines) = @_;
    my $first = $y + $height / 2 - (@lines - 1) * $LINE / 2 + $FONT * 0.36;
    return join '', map { text_at($x + $width / 2, $first + $_ * $LINE, $lines[$_], 'ink', 'middle') } 0 .. $#lines;
}

sub draw_stack {
    my ($entries) = @_;
    my ($left, $gap, $y, $label, $svg) = (110, 6, 34, '', '');
    for my $entry (@$entries) {
        my ($word, $rest) = @$entry;
        if ($word eq 'band') {
            $label = $rest;
            next;
        }
        die "stack: unknown word $word\n" if $word ne 'box';
        my @boxes = map { [split m{\s*/\s*}, $_] } split /\s*\|\s*/, $rest;
        my ($n_lines) = sort { $b <=> $a } map { scalar @$_ } @boxes;
        my $height = 14 + $n_lines * $LINE;
        my $width = ($WIDTH - $left - 10 - $gap * $#boxes) / @boxes;
        $svg .= text_at($left - 10, $y + $height / 2 + $FONT * 0.36, $label, 'soft', 'end');
        for my $i (0 .. $#boxes) {
            my $x = $left + $i * ($width + $gap);
            $svg .= box_at($x, $y, $width, $height, 'box') . lines_in($x, $y, $width, $height, @{$boxes[$i]});
        }
        $label = '';
        $y += $height + $gap;
    }
    return ($svg, $y + 4);
}

sub draw_timeline {
    my ($entries) = @_;
    my ($left, $height, $y, $svg) = (150, 26, 8, '');
    my ($last) = sort { $b <=> $a } map { $_->[0] eq 'bar' ? (split ' ', $_->[1])[1] : 0 } @$entries;
    my $scale = ($WIDTH - $left - 10) / $last;
    for my $entry (@$entries) {
        my ($word, $rest) = @$entry;
        if ($word eq 'track') {
            $y += $height + 6;
            $svg .= text_at($left - 10, $y + $height / 2 + $FONT * 0.36, $rest, 'soft', 'end');
            $svg .= sprintf qq(<line class="line" x1="%g" x2="%g" y1="%g" y2="%g"/>\n), $left, $WIDTH - 10, $y + $height,
                $y + $height;
            next;
        }
        die "timeline: unknown word $word\n" if $word ne 'bar';
        my ($begin, $end, $kind, $text) = split ' ', $rest, 4;
        my ($x, $width) = ($left + $begin * $scale, ($end - $begin) * $scale);
        $svg .= box_at($x, $y, $width - 1.5, $height - 2, $kind);
        $svg .= lines_in($x, $y, $width, $height - 2, $text) if defined $text;
    }
    $y += $height + 16;
    $svg .= text_at($WIDTH - 10, $y, 'time', 'soft', 'end');
    $svg .= sprintf qq(<line class="arrow" x1="%g" x2="%g" y1="%g" y2="%g" marker-end="url(#tip)"/>\n), $left, $WIDTH - 46,
        $y - 4, $y - 4;
    return ($svg, $y + 10);
}

sub draw_sequence {
    my ($entries) = @_;
    my @columns = map { $_->[1] } grep { $_->[0] eq 'column' } @$entries;
    my $pitch = ($WIDTH - 20) / @columns;
    my @middle = map { 10 + ($_ + 0.5) * $pitch } 0 .. $#columns;
    my ($y, $steps) = (74, '');
    my @ends = (50); # of the pieces of a column's line, which notes interrupt
    for my $entry (@$entries) {
        my ($word, $rest) = @$entry;
        next if $word eq 'column';
        if ($word eq 'note') {
            $steps .= text_at($WIDTH / 2, $y + 4, $rest, 'soft', 'middle');
            push @ends, $y - 10, $y + 10;
        } elsif ($word eq 'step') {
            my ($from, $to, $text) = split ' ', $rest, 3;
            if ($from == $to) {
                my $width = 7 * length($text) + 12;
                $steps .= box_at($middle[$from] - $width / 2, $y - 11, $width, 22, 'box');
                $steps .= lines_in($middle[$from] - $width / 2, $y - 11, $width, 22, $text);
            } else {
                my $end = $middle[$to] + ($to > $from ? -4 : 4);
                $steps .= sprintf qq(<line class="arrow" x1="%g" x2="%g" y1="%g" y2="%g" marker-end="url(#tip)"/>\n),
                    $middle[$from], $end, $y + 6, $y + 6;
                $steps .= text_at(($middle[$from] + $middle[$to]) / 2, $y, $text, 'ink', 'middle');
            }
        } else {
            die "sequence: unknown word $word\n";
        }
        $y += 32;
    }
    push @ends, $y - 12;
    my $svg = '';
    for my $i (0 .. $#columns) {
        for (my $k = 0; $k + 1 < @ends; $k += 2) {
            next if $ends[$k] >= $ends[$k + 1];
            $svg .= sprintf qq(<line class="line" x1="%g" x2="%g" y1="%g" y2="%g"/>\n), $middle[$i], $middle[$i],
                $ends[$k], $ends[$k + 1];
        }
        $svg .= text_at($middle[$i], 44, $columns[$i], 'bold', 'middle');
    }
    return ($svg . $steps, $y);
}

my %kinds = (stack => \&draw_stack, timeline => \&draw_timeline, sequence => \&draw_sequence);

# Class, what of it is coloured, and its colours on light and on dark paper. No variables: not every reader of SVG knows them.
my @COLOURS = (
    ['ink', 'fill', '#1b1f24', '#e6e8eb'], ['bold', 'fill', '#1b1f24', '#e6e8eb'], ['soft', 'fill', '#5b6470', '#a2abb5'],
    ['tip', 'fill', '#1b1f24', '#e6e8eb'], ['arrow', 'stroke', '#1b1f24', '#e6e8eb'], ['line', 'stroke', '#c4cad1', '#4a525b'],
    ['box', 'fill', '#eef2f7', '#2a323c'], ['compute', 'fill', '#a9c4f5', '#35548f'], ['gather', 'fill', '#8fd3b6', '#23674b'],
    ['reduce', 'fill', '#e3be85', '#76531f'], ['wait', 'fill', '#efa39b', '#8c342b'], ['other', 'fill', '#cbb8ea', '#55408a'],
);

sub style {
    my $light = join '', map { ".$_->[0]\{$_->[1]:$_->[2]\}" } @COLOURS;
    my $dark = join '', map { ".$_->[0]\{$_->[1]:$_->[3]\}" } @COLOURS;
    return "<style>\ntext{font:${FONT}px ui-sans-serif,system-ui,sans-serif}.bold{font-weight:600}\n$light\n"
        . "\@media(prefers-color-scheme:dark){$dark}\n</style>\n"
        . '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        . '<path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>' . "\n";
}

sub draw {
    my ($path) = @_;
    open(my $file, '<', $path) or die "$path: $!\n";
    my ($kind, $title, @entries);
    while (my $line = <$file>) {
        next if $line =~ /^\s*(#|$)/;
        $line =~ /^\s*(\w+)\s+(.*?)\s*$/ or die "$path:$.: not a line of a picture: $line";
        if ($1 eq 'kind') { $kind = $2 }
        elsif ($1 eq 'title') { $title = $2 }
        else { push @entries, [$1, $2] }
    }
    die "$path: no kind, or no title\n" if !$kind || !$kinds{$kind} || !$title;
    my ($svg, $height) = $kinds{$kind}->(\@entries);
    return qq(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 $WIDTH $height" width="$WIDTH" height="$height" role="img">\n)
        . '<title>' . escape($title) . "</title>\n" . style() . text_at(10, 20, $title, 'bold', 'start') . $svg . "</svg>\n";
}

my $is_check = @ARGV && $ARGV[0] eq '--check' ? shift : '';
my $n_wrong = 0;
for my $path (@ARGV) {
    my $svg = draw($path);
    (my $target = $path) =~ s/\.txt$/.svg/ or die "$path: not a .txt file\n";
    if ($is_check) {
        open(my $file, '<', $target) or die "$target: $!\n";
        my $there = do { local $/; <$file> };
        if ($there ne $svg) {
            print STDERR "$target is not what $path gives: run scripts/draw.pl $path\n";
            $n_wrong++;
        }
        next;
    }
    open(my $file, '>', $target) or die "$target: $!\n";
    print $file $svg;
    close($file) or die "$target: $!\n";
}
exit($n_wrong > 0);
