# SPDX-License-Identifier: MIT
# take.pl PORT: takes one connection, reads it to its end, and prints how many bytes came.
use strict;
use warnings;
use IO::Socket::INET;

my $server = IO::Socket::INET->new(LocalPort => $ARGV[0], Listen => 1, ReuseAddr => 1) or die "take.pl: $@\n";
my $peer = $server->accept or die "take.pl: $!\n";
my ($total, $bytes) = (0, '');
while (my $n = sysread $peer, $bytes, 1 << 16) {
    $total += $n;
}
print "$total\n";
