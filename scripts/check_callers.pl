#!/usr/bin/perl
# SPDX-License-Identifier: MIT
# Checks that every public function is there for somebody. It has a caller: the tool, a library that is built on the
# public headers (nn, compat), an example, a benchmark, or a program in README.md or docs/. Or docs/pytorch.md has it in
# a table, beside PyTorch's name. Or scripts/uncalled.txt says why it is there without either. Tests are no callers. An
# entry of that file that is not needed any more is a violation, too. The functions are those of include/shoal-api.json.
#
#   scripts/check_callers.pl [--list] [ROOT]     fails, and prints every violation; --list: who calls what
use strict;
use warnings;
use File::Find ();
use JSON::PP ();

my $is_list = @ARGV && $ARGV[0] eq '--list' && shift @ARGV;
die "usage: $0 [--list] [ROOT]\n" if @ARGV > 1;
my $root = shift @ARGV // '.';
my $table = 'scripts/uncalled.txt';

# The sources of a library do not count as callers of its own functions.
my %library_of_folder = (nn => 'libshoal_nn', compat => 'libshoal_compat');
my @folders = ('tools', 'nn', 'compat', 'examples', 'bench');

sub text_of
{
    my ($path) = @_;
    open(my $file, '<', "$root/$path") or die "$path: $!\n";
    local $/;
    return <$file> // '';
}

my (%library_of, %callers);
for my $library (@{ JSON::PP::decode_json(text_of('include/shoal-api.json'))->{libraries} }) {
    $library_of{ $_->{name} } = $library->{name} for @{ $library->{functions} };
}

# A name in a comment or a string is no call.
sub note_calls
{
    my ($text, $path, $own_library) = @_;
    $text =~ s{/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"}{ }gs;
    while ($text =~ /\b(shoal_\w+)\b/g) {
        my $library = $library_of{$1};
        $callers{$1} //= $path if defined $library && $library ne $own_library;
    }
}

for my $folder (grep { -d "$root/$_" } @folders) {
    my @files;
    File::Find::find(sub { push @files, $File::Find::name if /\.(?:c|h|def)$/ }, "$root/$folder");
    for my $path (map { substr($_, length("$root/")) } sort @files) {
        note_calls(text_of($path), $path, $library_of_folder{$folder} // '');
    }
}
for my $path (map { substr($_, length("$root/")) } sort(glob("$root/README.md"), glob("$root/docs/*.md"))) {
    next if !-e "$root/$path";
    my $text = text_of($path);
    note_calls($1, $path, '') while $text =~ /^```c\n(.*?)^```/gms;
}

my %has_row;
for my $row (text_of('docs/pytorch.md') =~ /^\|.*/gm) {
    $has_row{$1} = 1 while $row =~ /`(shoal_\w+)`/g;
}

my (@violations, %reason_of, $reason, $n_names);
my $n_line = 0;
for my $line (split /\n/, text_of($table)) {
    my $place = "$table:" . ++$n_line;
    next if $line =~ /^#/;
    if ($line =~ /^\s*$/) {
        push @violations, "$place: a reason without functions" if defined $reason && !$n_names;
        ($reason, $n_names) = (undef, 0);
    } elsif ($line =~ /^\S/) {
        push @violations, "$place: a reason behind its functions" if $n_names;
        $reason = defined $reason ? "$reason $line" : $line;
    } else {
        for my $name (split ' ', $line) {
            $n_names++;
            push @violations, "$place: $name has no reason" if !defined $reason;
            push @violations, "$place: $name is here twice" if exists $reason_of{$name};
            $reason_of{$name} = $reason;
            if (!exists $library_of{$name}) {
                push @violations, "$place: $name is no public function";
            } elsif (exists $callers{$name}) {
                push @violations, "$place: $name has a caller by now: $callers{$name}";
            } elsif ($has_row{$name}) {
                push @violations, "$place: $name has a row in docs/pytorch.md by now";
            }
        }
    }
}
push @violations, "$table:$n_line: a reason without functions" if defined $reason && !$n_names;

for my $name (sort keys %library_of) {
    my $why = $callers{$name} // ($has_row{$name} ? 'docs/pytorch.md' : $reason_of{$name});
    push @violations, "$name: no caller, no row in docs/pytorch.md, no reason in $table" if !defined $why;
    print "$name: ", $why // '', "\n" if $is_list;
}
print STDERR "$_\n" for @violations;
exit(@violations ? 1 : 0);
