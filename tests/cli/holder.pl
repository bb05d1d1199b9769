#!/usr/bin/perl
# SPDX-License-Identifier: MIT
# A rank that makes its launcher wait (tools/shoal/run/hold.h), for tests of shoal run.
#
#   holder.pl FILE SECONDS     writes its number to FILE.RANK; so long after a signal it prints "saved" and ends
use strict;
use warnings;
use Fcntl qw(F_SETLK F_RDLCK SEEK_SET);
use Time::HiRes qw(time);

my ($file, $seconds) = @ARGV;
my $signal = 0;
my %numbers = (INT => 2, USR1 => 10, TERM => 15);
for my $name (keys %numbers) {
    $SIG{$name} = sub { $signal ||= $numbers{$name} };
}
my $fd = $ENV{_SHOAL_RUN_HOLD} // die "no file to hold\n";
open(my $hold, '<&=', $fd) or die "file $fd: $!\n";
my $lock = pack('s s x4 q q i x4', F_RDLCK, SEEK_SET, 0, 0, 0);
fcntl($hold, F_SETLK, $lock) or die "lock: $!\n";
open(my $out, '>', "$file.$ENV{SHOAL_RANK}.part") or die "$file: $!\n";
print $out "$$\n";
close $out;
rename "$file.$ENV{SHOAL_RANK}.part", "$file.$ENV{SHOAL_RANK}" or die "$file: $!\n";
select undef, undef, undef, 0.05 while $signal == 0;
my $end = time() + $seconds;
select undef, undef, undef, 0.05 while time() <= $end;
print "saved\n";
exit 128 + $signal;
