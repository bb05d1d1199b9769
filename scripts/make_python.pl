#!/usr/bin/perl
# SPDX-License-Identifier: MIT
# Makes python/shoal/_api.py, the declarations of libshoal for Python's ctypes, from include/shoal-api.json.
#
#   scripts/make_python.pl            writes the file
#   scripts/make_python.pl --check    fails if the file would become another one
#
# A handle (a pointer to a struct without fields) is a c_void_p, a struct a class, an enum an IntEnum without its prefix,
# a function a row of FUNCTIONS: the type of its result and those of its parameters.
use strict;
use warnings;
use File::Basename qw(dirname);
use JSON::PP ();

my $is_check = @ARGV == 1 && $ARGV[0] eq '--check';
die "usage: $0 [--check]\n" if @ARGV > ($is_check ? 1 : 0);
chdir dirname($0) . '/..' or die "cannot find the tree: $!\n";
my $source = 'include/shoal-api.json';
my $target = 'python/shoal/_api.py';

sub read_text
{
    my ($path) = @_;
    open(my $file, '<', $path) or return '';
    local $/;
    return <$file> // '';
}

my $api = JSON::PP->new->utf8->decode(read_text($source));
my ($library) = grep { $_->{name} eq 'libshoal' } @{ $api->{libraries} };
my %is_opaque = map { $_->{name} => 1 } @{ $library->{opaque} };
my %is_struct = map { $_->{name} => 1 } @{ $library->{structs} };
my %is_enum = map { $_->{name} => 1 } grep { $_->{name} } @{ $library->{enums} };
my %is_callback = map { $_->{name} => 1 } @{ $library->{callbacks} };

my %plain = (
    'void' => 'None', 'bool' => 'c_bool', 'char' => 'c_char', 'int' => 'c_int', 'double' => 'c_double',
    'size_t' => 'c_size_t', 'int64_t' => 'c_int64', 'uint64_t' => 'c_uint64', 'uint32_t' => 'c_uint32',
);

# The struct whose fields are being declared: a pointer to itself is an address.
our $current = '';

# The ctypes type of a C type. A pointer to a handle or to nothing known is an address.
sub type_of
{
    my ($c) = @_;
    $c =~ s/\bconst\b//g;
    $c =~ s/\bstruct\b//g;
    $c =~ s/\s+/ /g;
    $c =~ s/^ | $//g;
    return 'c_void_p' if $c =~ /\(/;
    return type_of($1) . " * $2" if $c =~ /^(.*?) ?\[(\d+)\]$/;
    return 'c_char_p' if $c eq 'char *';
    if ($c =~ /^(.*?) ?\*$/) {
        my $to = $1;
        return 'c_void_p' if $to eq 'void' || $is_opaque{$to} || $to eq 'DLManagedTensor' || $to eq $current;
        return 'POINTER(' . type_of($to) . ')';
    }
    return 'c_int' if $is_enum{$c};
    return $c if $is_struct{$c} || $is_callback{$c};
    return $plain{$c} // die "$source: no type for '$c'\n";
}

my @lines;

sub python_name
{
    my ($name) = @_;
    return $name =~ /^(?:from|in|is|lambda|pass|with|as|global|None)$/ ? "${name}_" : $name;
}

# The classes of nested unions and structs come before the class that has them.
sub add_class
{
    my ($name, $kind, $fields) = @_;
    my @rows;
    for my $field (@$fields) {
        my $type;
        if ($field->{fields}) {
            $type = "${name}_$field->{name}";
            add_class($type, $field->{type} eq 'union' ? 'Union' : 'Structure', $field->{fields});
        } else {
            $type = type_of($field->{type});
        }
        push @rows, sprintf('        ("%s", %s),', python_name($field->{name}), $type);
    }
    push @lines, '', '', "class $name($kind):", '    _fields_ = [', @rows, '    ]';
}

# Structs that other structs contain come first.
my (%done, %struct);
$struct{ $_->{name} } = $_ for @{ $library->{structs} };

sub add_struct
{
    my ($struct) = @_;
    return if $done{ $struct->{name} }++;
    my @open = @{ $struct->{fields} };
    while (my $field = shift @open) {
        push @open, @{ $field->{fields} // [] };
        my $base = $field->{type} =~ s/\bconst\b|\bstruct\b|[\s*]|\[.*//gr;
        add_struct($struct{$base}) if $is_struct{$base};
    }
    local $current = $struct->{name};
    add_class($struct->{name}, $struct->{kind} eq 'union' ? 'Union' : 'Structure', $struct->{fields});
}

sub add_callback
{
    my ($callback) = @_;
    my @types = map { type_of($_->{type}) =~ s/^POINTER\(shoal_\w+\)$/c_void_p/r } @{ $callback->{parameters} };
    my $result = type_of($callback->{returns}{type});
    push @lines, "$callback->{name} = CFUNCTYPE(" . join(', ', $result, @types) . ')';
}

# SHOAL_ERR_PEER of shoal_status is Status.ERR_PEER.
sub add_enum
{
    my ($enum) = @_;
    my $class = join '', map { ucfirst } split /_/, $enum->{name} =~ s/^shoal_//r;
    push @lines, '', '', "class $class(IntEnum):";
    push @lines, map { sprintf '    %s = %d', $_->{name} =~ s/^SHOAL_//r, $_->{value} } @{ $enum->{values} };
}

push @lines, <<'TEXT' =~ s/\n$//r;
# SPDX-License-Identifier: MIT
# Made by scripts/make_python.pl from include/shoal-api.json: do not edit.
"""The declarations of libshoal, for ctypes."""

from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    Union,
    c_bool,
    c_char_p,
    c_double,
    c_int,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from enum import IntEnum
from typing import Any
TEXT
push @lines, '', "VERSION = \"$api->{version}\"", "SONAME = \"$library->{soname}\"";
push @lines, map { sprintf '%s = %s', $_->{name} =~ s/^SHOAL_//r, $_->{kind} eq 'string' ? "\"$_->{value}\"" : $_->{value} }
    grep { $_->{name} !~ /VERSION/ } @{ $library->{constants} };
add_enum($_) for grep { $_->{name} } @{ $library->{enums} };
push @lines, '', '';
add_callback($_) for @{ $library->{callbacks} };
add_struct($_) for @{ $library->{structs} };
push @lines, '', '', '# The size and alignment that the C compiler gave each struct: a test compares them.', 'SIZES = {';
push @lines, map { "    $_->{name}: ($_->{size}, $_->{alignment})," } @{ $library->{structs} };
push @lines, '}', '', 'FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {';
for my $function (@{ $library->{functions} }) {
    my @types = map { type_of($_->{type}) } @{ $function->{parameters} };
    my $list = @types == 1 ? "($types[0],)" : '(' . join(', ', @types) . ')';
    push @lines, "    \"$function->{name}\": (" . type_of($function->{returns}{type}) . ", $list),";
}
push @lines, '}', '';
my $text = join "\n", @lines;
if ($is_check) {
    exit 0 if $text eq read_text($target);
    die "$target is not what scripts/make_python.pl makes: run it\n";
}
open(my $file, '>', $target) or die "$target: $!\n";
print $file $text;
close $file or die "$target: $!\n";
