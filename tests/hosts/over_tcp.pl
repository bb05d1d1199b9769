#!/usr/bin/perl
# SPDX-License-Identifier: MIT
# An agent as ssh is, whose connection crosses the network of the hosts: what happens to the link happens to it. Like
# ssh without keepalives, it notices nothing when a link is cut.
#
#   over_tcp.pl --serve                      on a host of fixture.sh: runs what comes until killed (/tmp/over_tcp.pid)
#   over_tcp.pl [OPTION...] HOST COMMAND...  words joined by blanks, read by a shell there; hands on no environment
#
# The command, ended by a zero byte, and its standard input go there; blocks of its outputs come back, each with a
# letter and its length; then its exit status.
use strict;
use warnings;
use IO::Select;
use IO::Socket::INET;

my $port = 20022;
$SIG{PIPE} = 'IGNORE';
exit(@ARGV && $ARGV[0] eq '--serve' ? serve() : agent());

sub write_all {
    my ($handle, $bytes) = @_;
    while (length $bytes) {
        my $n = syswrite $handle, $bytes;
        return if !defined $n;
        substr $bytes, 0, $n, '';
    }
    return 1;
}

sub run_command {
    my ($peer) = @_;
    my ($command, $byte) = ('', '');
    while (sysread($peer, $byte, 1) && $byte ne "\0") {
        $command .= $byte;
    }
    pipe my $stdin, my $to or die "over_tcp: $!\n";
    pipe my $out, my $stdout or die "over_tcp: $!\n";
    pipe my $err, my $stderr or die "over_tcp: $!\n";
    my $child = fork // die "over_tcp: $!\n";
    if (!$child) {
        $SIG{PIPE} = 'DEFAULT';
        open STDIN, '<&', $stdin or die;
        open STDOUT, '>&', $stdout or die;
        open STDERR, '>&', $stderr or die;
        exec 'env', '-i', "PATH=$ENV{PATH}", 'HOME=/root', 'sh', '-c', "cd; $command" or die "over_tcp: $!\n";
    }
    close $_ for $stdin, $stdout, $stderr;
    my %letters = ($out => 'o', $err => 'e');
    my $select = IO::Select->new($peer, $out, $err);
    while ($select->exists($out) || $select->exists($err)) {
        for my $handle ($select->can_read) {
            my $n = sysread $handle, my $bytes, 1 << 16;
            if (!$n) {
                # The end of the connection is the end of the command's input: it must end by itself.
                $select->remove($handle);
                close $to if $handle == $peer;
            } elsif ($handle == $peer) {
                write_all($to, $bytes);
            } else {
                write_all($peer, pack('aN', $letters{$handle}, length $bytes) . $bytes);
            }
        }
    }
    waitpid $child, 0;
    write_all($peer, pack('aN', 'x', $? & 127 ? 128 + ($? & 127) : $? >> 8));
    return 0;
}

sub serve {
    my $server = IO::Socket::INET->new(LocalPort => $port, Listen => 8, ReuseAddr => 1) or die "over_tcp: $@\n";
    open my $file, '>', '/tmp/over_tcp.pid' or die "over_tcp: $!\n";
    print $file "$$\n";
    close $file;
    while (my $peer = $server->accept) {
        my $child = fork // die "over_tcp: $!\n";
        # A grandchild, which nobody has to wait for.
        if (!$child) {
            close $server;
            exit(fork // 1 ? 0 : run_command($peer));
        }
        close $peer;
        waitpid $child, 0;
    }
    return 1;
}

sub read_all {
    my ($handle, $n_wanted) = @_;
    my $bytes = '';
    while (length $bytes < $n_wanted) {
        sysread($handle, $bytes, $n_wanted - length $bytes, length $bytes) or return;
    }
    return $bytes;
}

sub agent {
    shift @ARGV while @ARGV && $ARGV[0] =~ /^-/;
    my ($host, @words) = @ARGV;
    my $peer = IO::Socket::INET->new(PeerAddr => $host, PeerPort => $port, Timeout => 5);
    if (!$peer) {
        print STDERR "over_tcp: $host: no connection: $@\n";
        return 255;
    }
    write_all($peer, "@words\0");
    my $select = IO::Select->new($peer, \*STDIN);
    while (1) {
        for my $handle ($select->can_read) {
            if ($handle == $peer) {
                my $head = read_all($peer, 5) // last_words($host);
                my ($letter, $number) = unpack 'aN', $head;
                return $number if $letter eq 'x';
                write_all($letter eq 'o' ? \*STDOUT : \*STDERR, read_all($peer, $number) // last_words($host));
            } elsif (sysread STDIN, my $bytes, 1 << 16) {
                write_all($peer, $bytes);
            } else {
                $select->remove(\*STDIN);
                shutdown $peer, 1;
            }
        }
    }
    return 255;
}

sub last_words {
    print STDERR "over_tcp: $_[0]: the connection has ended\n";
    exit 255;
}
