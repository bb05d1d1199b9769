#!/usr/bin/perl
# SPDX-License-Identifier: MIT
# Writes tools/shoal/text/unicode.def, the letters and numbers of Unicode, from the tables of Perl.
#
#   scripts/make_unicode.pl             writes it
#   scripts/make_unicode.pl --check     fails if the file is another one, and Perl has the same version of Unicode
use strict;
use warnings;
use Unicode::UCD;

my $path = 'tools/shoal/text/unicode.def';
my $version = Unicode::UCD::UnicodeVersion();

# [first, last] of all code points that the pattern matches, surrogates left out.
sub ranges {
    my ($pattern) = @_;
    my @ranges;
    for my $code (0 .. 0xd7ff, 0xe000 .. 0x10ffff) {
        next if chr($code) !~ $pattern;
        if (@ranges && $ranges[-1][1] == $code - 1) {
            $ranges[-1][1] = $code;
        } else {
            push @ranges, [ $code, $code ];
        }
    }
    return @ranges;
}

sub rows {
    my ($name, @ranges) = @_;
    my ($text, $line) = ('', '');
    for (@ranges) {
        my $row = sprintf '%s(0x%x, 0x%x)', $name, @$_;
        if (length($line) + 1 + length($row) > 110) {
            $text .= "$line\n";
            $line = '';
        }
        $line .= ($line eq '' ? '' : ' ') . $row;
    }
    return "$text$line\n";
}

my $text = "/* The letters (general category L) and numbers (N) of Unicode $version, as ranges: NAME(first, last), ascending.\n"
    . "   scripts/make_unicode.pl has written this file. */\n"
    . rows('LETTERS', ranges(qr/\p{L}/)) . rows('NUMBERS', ranges(qr/\p{N}/));

if (@ARGV && $ARGV[0] eq '--check') {
    open(my $file, '<', $path) or die "$path: $!\n";
    my $old = do { local $/; <$file> };
    exit 0 if $old eq $text;
    die "$path: scripts/make_unicode.pl writes another one\n" if $old =~ /Unicode \Q$version\E,/;
    exit 0;
}
open(my $file, '>', $path) or die "$path: $!\n";
print $file $text;
close $file or die "$path: $!\n";
