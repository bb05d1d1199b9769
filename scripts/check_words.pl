#!/usr/bin/perl
# SPDX-License-Identifier: MIT
# Reports habits of writing that make pages, headers, comments and error texts hard to read: see @words and @openings.
# Reports long lines of pages, and public headers that do not say who owns what, which threads may call, and what errors
# look like.
#
#   scripts/check_words.pl [ROOT]
#
# Of code, only comments and strings are read. Of manuals (docs/man), strings like \- are read as they are printed.
use strict;
use warnings;
use Encode qw(decode);
use File::Find;

my $root = $ARGV[0] // '.';
chdir $root or die "$root: $!\n";

my $max_columns = 120; # of pages; check_banned.pl has the same limit for headers

# what (in small letters), and what to write instead. One spelling and one word per thing. Names in code
# (is_initialised) are not words.
my @words = (
    [ qr/\bcan\s+not\b/, 'cannot' ],
    [ qr/\bwho\s+ever\b/, 'whoever' ],
    [ qr/\b(?:initialis|finalis|synchronis|serialis|normalis|organis|recognis|optimis|vectoris|materialis)\w+/,
        'the spelling with z, as in optimizer' ],
    [ qr/\b(?:behavior|neighbor)\w*/, 'behaviour, neighbour' ],
    [ qr/\bcanceled\b/, 'cancelled' ],
    [ qr/\b(?:don|can|won|isn|aren|doesn|didn|hasn|haven|wasn|shouldn)(?:'|\xe2\x80\x99)t\b|\bit(?:'|\xe2\x80\x99)s\b/,
        'the words in full' ],
    [ qr/\b(?:whilst|amongst)\b/, 'while, among' ],
    [ qr/\bin\s+order\s+to\b/, 'to' ],
    [ qr/\b(?:e\.g\.|i\.e\.|etc\.)/, 'for example, that is, or the rest of the list' ],
    [ qr{\band/or\b}, 'or' ],
    [ qr/\b(?:note\s+that|obviously|basically|simply|of\s+course)\b/, 'nothing: the sentence says the same without' ],
    [ qr/\butili[sz]e/, 'use' ],
    [ qr/(?<![-\/.`\w{,])startup(?![-\/.\w,])/, 'start-up' ],
    [ qr/\btime-outs?\b/, 'timeout' ],
    [ qr/\b(?:life-time|life\s+time)\b/, 'lifetime' ],
    [ qr/\bcall-back/, 'callback' ],
    [ qr/\bdata\s+types?\b/, 'dtype' ],
    [ qr/\bfilename/, 'file name' ],
    [ qr/\b(?:dead\s+lock|dead-lock)/, 'deadlock' ],
    [ qr/\bre-us/, 'reuse' ],
    [ qr/(?<!")\ballreduces?\b/, 'all-reduce' ],
    [ qr/\breduce\s+scatter\b/, 'reduce-scatter' ],
    [ qr/\bthread-?safe\b/, 'which threads may call it' ],
    [ qr/\bworld\s+size\b/, 'number of ranks' ],
    [ qr/\b(?:rank|ranks|peer|peers|they|it|nobody|all)\s+(?:has|have|does\s+not|do\s+not|never)\s+(?:come|came)\b(?!\s+(?:back|to|from|is)\b)/,
        'arrive' ],
    [ qr/\bhalf\s+a\s+family\b|\bfor\s+their\s+mean\b/, 'a sentence with a subject and a verb' ],
);

# How no comment of a public header begins: a reader of one call has not read the comment before it.
my @openings = (
    [ qr/(?:Likewise|The same|As above|As before)\b/i, 'what this call does' ],
    [ qr/(?:Those|That) of\b/i, 'of what, by its name' ],
    [ qr/One more (?:owner|handle|reference)\b/i, 'Adds a reference' ],
);

# A call that is public begins so.
my $declares = qr/^(?:SHOAL_API|static inline)\b/m;
# What the first comment of its header says, or where another header says it.
my @blocks = ('Ownership', 'Threads', 'Errors');
my $refers = qr{Ownership, threads, errors: as in shoal(?:_nn)?/\w+\.h};

my $n_violations = 0;

sub report
{
    my ($path, $line, $why) = @_;
    print STDERR "$path:$line: $why\n";
    $n_violations++;
}

# The text of comments and strings; everything else becomes blanks, so that lines keep their numbers.
sub prose_of_code
{
    my ($text) = @_;
    my $blank = sub { my ($s) = @_; $s =~ s/[^\n]/ /g; return $s };
    my ($prose, $end) = ('', 0);
    while ($text =~ m{/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'}gs) {
        my ($from, $to) = ($-[0], $+[0]);
        $prose .= $blank->(substr($text, $end, $from - $end)) . substr($text, $from, $to - $from);
        $end = $to;
    }
    return $prose . $blank->(substr($text, $end));
}

# Words are looked for in small letters, and may have the end of a line between them.
sub check_words
{
    my ($path, $prose) = @_;
    $prose =~ s{^([ ]*)[*>](?=[ ])}{$1 }mg;
    $prose = lc $prose;
    for my $word (@words) {
        my ($what, $instead) = @$word;
        while ($prose =~ /$what/g) {
            my ($begin, $found) = ($-[0] + 0, $&);
            $found =~ s/\s+/ /g;
            report($path, 1 + (substr($prose, 0, $begin) =~ tr/\n//), "'$found': write $instead");
        }
    }
}

sub check_header
{
    my ($path, $text) = @_;
    while ($text =~ m{/\*\s*(?:\*\s+)?(\S[^*]*)}g) {
        my ($begin, $comment) = ($-[0], $1);
        for my $opening (@openings) {
            my ($what, $instead) = @$opening;
            next if $comment !~ /^($what)/;
            report($path, 1 + (substr($text, 0, $begin) =~ tr/\n//), "a comment begins with '$1': write $instead");
        }
    }
    return if $text !~ $declares;
    my $first = $text =~ m{\A[^\n]*\n(/\*.*?\*/)}s ? $1 : '';
    return if $first =~ $refers;
    for my $block (@blocks) {
        report($path, 2, "the first comment has no line '$block:'") if $first !~ /^[ ]\* $block: \S/m;
    }
}

# Tables and links cannot be broken, and neither can lines that a program has printed as JSON.
sub check_columns
{
    my ($path, $text) = @_;
    my $line = 0;
    for my $text_line (split /\n/, $text) {
        $line++;
        next if length(decode('UTF-8', $text_line)) <= $max_columns || $text_line =~ /^\s*(?:\||\{")/;
        next if $text_line =~ /^\s*(?:[-*] )?\S*\]\(\S+\)\S*$/ || $text_line =~ /^\[[^\]]+\]: /;
        report($path, $line, "more than $max_columns columns");
    }
}

sub check_file
{
    my ($path) = @_;
    open(my $file, '<', $path) or die "$path: $!\n";
    my $text = do { local $/; <$file> } // '';
    if ($path =~ /\.(?:cu?|h|def)$/) {
        check_words($path, prose_of_code($text));
        check_header($path, $text) if $path =~ m{^include/.*\.h$};
        return;
    }
    $text =~ s/\\-/-/g if $path =~ /\.1$/;
    check_words($path, $text);
    check_columns($path, $text) if $path =~ /\.md$/ && $path ne 'CHANGELOG.md'; # one line for each change
}

my @folders = grep { -d $_ } qw(docs include src nn tools examples tests bench);
my @paths = grep { -f $_ } qw(README.md CONTRIBUTING.md CHANGELOG.md);
find({ no_chdir => 1, wanted => sub {
    push @paths, $_ if -f $_ && /\.(?:cu?|h|def|md|1)$/;
} }, @folders) if @folders;
check_file($_) for sort @paths;

if ($n_violations > 0) {
    print STDERR "words: $n_violations violations\n";
    exit 1;
}
