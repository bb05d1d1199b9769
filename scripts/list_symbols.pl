#!/usr/bin/perl
# SPDX-License-Identifier: MIT
# Prints, sorted, the names of the functions that public headers declare with SHOAL_API.
#
#   scripts/list_symbols.pl include/shoal/*.h
use strict;
use warnings;

my %names;
for my $path (@ARGV) {
    open(my $file, '<', $path) or die "$path: $!\n";
    my $text = do { local $/; <$file> };
    $text =~ s{/\*.*?\*/}{ }gs;
    $text =~ s{^\s*#.*$}{}gm;
    while ($text =~ /\bSHOAL_API\b([^;]*);/g) {
        my $declaration = $1;
        $declaration =~ /\b(shoal_\w+)\s*\(/
            or die "$path: cannot find the name in:$declaration\n";
        $names{$1} = 1;
    }
}
print "$_\n" for sort keys %names;
