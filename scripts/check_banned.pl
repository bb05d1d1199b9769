#!/usr/bin/perl
# SPDX-License-Identifier: MIT
# Reports what no file may contain and compilers accept: see @rules, and the limits at the end.
#
#   scripts/check_banned.pl [ROOT]
#
# Words are looked for in code only: comments and strings are blanked first, lines keep their numbers.
use strict;
use warnings;
use File::Find;

my $root = $ARGV[0] // '.';
chdir $root or die "$root: $!\n";

my $max_lines = 800;
my $max_columns = 120; # of public headers, which are read as documents

# where (regex on the path), except (likewise), what, why. A member of a table (services->sleep) may have any name.
my @rules = (
    [ qr{^src/}, qr{^src/base/mem\.c$},
        qr/(?<!->)\b(?:malloc|calloc|realloc|reallocarray|free|strdup|strndup|aligned_alloc|posix_memalign|memalign|asprintf|vasprintf|getline)\s*\(/,
        'memory comes from base/mem.h' ],
    [ qr{^src/}, qr{^src/base/log\.c$},
        qr/\b(?:printf|fprintf|dprintf|vprintf|vfprintf|vdprintf|puts|fputs|putchar|fputc|perror)\s*\(/,
        'the library never prints' ],
    [ qr{^src/}, undef, qr/\b(?:exit|_exit|_Exit|quick_exit|abort|raise)\s*\(/, 'the library never ends the process' ],
    [ qr{^src/}, qr{^src/base/(?:os/)?wait\.c$},
        qr/(?<!->)\b(?:sched_yield|pthread_yield|thrd_yield|thrd_sleep|sleep|usleep|nanosleep|clock_nanosleep|pause|_mm_pause|__builtin_ia32_pause|__yield)\s*\(/,
        'waiting is done by base/wait.h' ],
    [ qr{^src/(?!transport/)}, qr{^src/base/os/},
        qr/\b(?:memfd_create|fallocate|mmap|munmap|mremap|mprotect|madvise|eventfd|accept4|syscall|getrandom|sched_getaffinity)\s*\(|\bF_(?:SETLK|GETLK|ADD_SEALS|GET_SEALS)\b|\bSO_PEERCRED\b/,
        'Linux is asked by base/os' ],
    [ qr{^(?:src|tools|nn|examples|tests|bench)/}, undef,
        qr/\b(?:gets|strcpy|strcat|strncpy|strncat|sprintf|vsprintf|strtok|alloca|atoi|atol|atof)\s*\(/,
        'there is a safer function' ],
    # There it has been checked to be host memory (device/address.h), or is a plan's, which is on the CPU, or becomes the
    # buffer of a raw collective, or DLPack's, which is told the device, or is given to the program, which knows the device.
    [ qr{^src/}, qr{^src/(?:kernel/|device/|comm/call/shared_device\.c|tensor/(?:dlpack|memory|storage|tensor)\.c|op/ops_device\.c|collective/(?:launch|symmetric)\.c|graph/run/plan_
        |parallel/ddp/(?:reduction|values)\.c
        |parallel/fsdp/(?:param_api|explicit/step|module/(?:broadcast|watch))\.c
        |parallel/fsdp/engine/(?:gather/(?:copy|custom|encoded|rows|window)|reduce/(?:landing|reduction|scatter)|state/(?:custom|extension)|step/(?:pending|same_units|transfer))\.c)}x,
        qr/\b(?:address_pointer)\s*\(/, 'an address of a device is read and written by kernels' ],
    # What module apart and the CUDA driver for tests do while they sleep is to be late.
    [ qr{^tests/}, qr{^tests/(?:harness|modules/apart|fakecuda)/}, qr/\b(?:sleep|usleep|nanosleep|thrd_sleep)\s*\(/,
        'sleeping is not synchronization' ],
);

# Turns comments and the inside of strings into spaces; returns the lines where a // comment starts too.
sub blank_text
{
    my ($text) = @_;
    my @slashes;
    my $blank = sub { my ($s) = @_; $s =~ s/[^\n]/ /g; return $s };
    $text =~ s{(/\*.*?\*/)|(//[^\n]*)|("(?:\\.|[^"\\\n])*")|('(?:\\.|[^'\\\n])*')}{
        push @slashes, 1 + (substr($text, 0, $-[0]) =~ tr/\n//) if defined $2;
        $blank->($&)
    }gse;
    return ($text, @slashes);
}

my $n_violations = 0;

sub report
{
    my ($path, $line, $why) = @_;
    print STDERR "$path:$line: $why\n";
    $n_violations++;
}

sub check_code
{
    my ($path, $text) = @_;
    report($path, 1, 'the first line is not the SPDX line')
        if $path !~ /\.def$/ && $text !~ m{\A/\* SPDX-License-Identifier: MIT \*/\n};
    report($path, 1 + (substr($text, 0, $-[0]) =~ tr/\n//), 'waiting is done by base/wait.h')
        if $path =~ m{^src/} && $path ne 'src/base/wait.c' && $text =~ /\b(?:asm|__asm|__asm__)\b[^;]*"(?:yield|pause|wfe|isb)\b/;
    my ($code, @slashes) = blank_text($text);
    report($path, $_, 'comments are written /* so */') for @slashes;
    my $line = 0;
    for my $code_line (split /\n/, $code) {
        $line++;
        for my $rule (@rules) {
            my ($where, $except, $what, $why) = @$rule;
            next if $path !~ $where || (defined $except && $path =~ $except);
            report($path, $line, "$1: $why") if $code_line =~ /($what)/;
        }
    }
}

sub check_file
{
    my ($path) = @_;
    open(my $file, '<', $path) or die "$path: $!\n";
    my $text = do { local $/; <$file> } // '';
    my $n_lines = ($text =~ tr/\n//);
    report($path, $n_lines, "more than $max_lines lines") if $n_lines > $max_lines;
    my $line = 0;
    for my $text_line (split /\n/, $text) {
        $line++;
        report($path, $line, "$1: open an issue instead") if $text_line =~ /\b(TO[D]O|FIX[M]E|X[X]X)\b/;
        report($path, $line, 'white space at the end of the line') if $text_line =~ /[ \t\r]$/;
        report($path, $line, "more than $max_columns columns")
            if $path =~ m{^include/} && length($text_line) > $max_columns;
        report($path, $line, 'grep -q leaves early: with pipefail the writer then fails, sometimes')
            if $path =~ /\.sh$/ && $text_line =~ /(?<!\|)\|\s*grep\s+-\w*q/;
    }
    check_code($path, $text) if $path =~ /\.(?:cu?|h|def)$/;
}

my @folders = grep { -d $_ } qw(src include tests tools examples nn bench scripts cmake);
my @paths;
find({ no_chdir => 1, wanted => sub {
    push @paths, $_ if -f $_ && m{(?:\.(?:cu?|h|def|sh|pl|cmake|in|map)|CMakeLists\.txt)$};
} }, @folders) if @folders;
check_file($_) for sort @paths;

if ($n_violations > 0) {
    print STDERR "banned: $n_violations violations\n";
    exit 1;
}
