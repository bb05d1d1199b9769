#!/bin/bash
# SPDX-License-Identifier: MIT
# include/shoal-api.json, as a binding uses it: it can be read, it names all functions of both maps, and what it says of
# types, sizes, offsets, values and libraries is what this machine's compiler finds in the headers.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$SHOAL_TEST_SOURCE_DIR"

cat >"$scratch/read.pl" <<'PERL'
use strict;
use warnings;
use JSON::PP;

my ($numbers_path, $types_path, $sonames_path) = @ARGV;
my $n_wrong = 0;
sub wrong { print "@_\n"; $n_wrong++ }
sub slurp { my ($path) = @_; open(my $file, '<', $path) or die "$path: $!\n"; local $/; return <$file> }

my $api = decode_json(slurp('include/shoal-api.json'));
my $version = join '.', slurp('include/shoal/version.h') =~ /^#define SHOAL_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$/mg;
wrong("version $api->{version}, expected $version") if $api->{version} ne $version;
wrong("format $api->{format}, abi $api->{abi}") if $api->{format} != 1 || $api->{abi} ne 'LP64';
my ($core, $compat, $nn) = @{ $api->{libraries} };
wrong('not these libraries') if join(' ', map { $_->{name} } @{ $api->{libraries} }) ne 'libshoal libshoal_compat libshoal_nn';

# Every name of the maps, and no other; sorted, each once.
for ([ $core, 'src/shoal.map' ], [ $compat, 'compat/shoal_compat.map' ], [ $nn, 'nn/shoal_nn.map' ]) {
    my ($library, $map) = @$_;
    my @described = map { $_->{name} } @{ $library->{functions} };
    my @listed = slurp($map) =~ /^\s+([A-Za-z_]\w*);$/mg;
    wrong("$map lists other functions than $library->{name} has, or they are not sorted")
        if join(' ', @described) ne join(' ', sort @listed);
    for my $function (@{ $library->{functions} }) {
        wrong("$function->{name}: no sentence says what it does") if $function->{doc} !~ /\w/;
        wrong("$function->{name}: collective: $function->{collective}") if $function->{collective} !~ /^(?:always|sometimes|never)$/;
    }
}

# Annotations that anybody can tell from a name or a comment.
my %function = map { $_->{name} => $_ } map { @{ $_->{functions} } } @{ $api->{libraries} };
my @calls = sort keys %function;
for my $name (grep { /^shoal_group_(?:\w*_)?(?:reduce|gather|scatter|broadcast|barrier|to_all)(?:_scatter)?(?:_v)?(?:_start)?$/ } @calls) {
    wrong("$name is collective") if $function{$name}{collective} ne 'always';
}
for my $name (grep { /_(?:free|unref)$/ } @calls) {
    wrong("$name ends its argument") if ($function{$name}{parameters}[0]{ownership} // '') ne 'taken';
}
for my $name (grep { /_start$/ && !/trace_start$/ } @calls) {
    my ($last) = grep { /_out$/ } map { $_->{name} } reverse @{ $function{$name}{parameters} };
    my ($out) = grep { $_->{name} eq ($last // '') } @{ $function{$name}{parameters} };
    wrong("$name gives a handle") if ($out->{ownership} // '') ne 'given';
}
# What the caller must release, something releases.
my %opaque = map { $_->{name} => $_ } map { @{ $_->{opaque} } } @{ $api->{libraries} };
for my $name (@calls) {
    for my $parameter (grep { ($_->{ownership} // '') eq 'given' } @{ $function{$name}{parameters} }) {
        my ($type) = $parameter->{type} =~ /^(shoal_\w+) \*\*$/ or next;
        wrong("$name gives a $type, which nothing releases") if $opaque{$type} && !$opaque{$type}{released_by};
    }
}

# Numbers: a program that compares them.
my ($includes, $numbers, $types) = ('', '', '');
for my $header (map { @{ $_->{headers} } } @{ $api->{libraries} }) {
    $includes .= "#include <$header>\n";
}
my $n_numbers = 0;
sub equals
{
    my ($expression, $value) = @_;
    $numbers .= "    n_wrong += differs(\"$expression\", (long long)($expression), ${value}LL);\n";
    $n_numbers++;
}
sub holds
{
    my ($expression, $of) = @_;
    my $text = ($of // '') . $expression =~ s/"/\\"/gr;
    $numbers .= "    n_wrong += is_false(\"$text\", $expression);\n";
    $n_numbers++;
}
sub compare_fields
{
    my ($struct, $prefix, $fields) = @_;
    for my $field (@$fields) {
        my $path = $prefix . $field->{name};
        equals("offsetof($struct, $path)", $field->{offset});
        equals("sizeof((($struct *)0)->$path)", $field->{size});
        if ($field->{fields}) {
            compare_fields($struct, "$path.", $field->{fields});
        } elsif ($field->{type} !~ /[\[(]/) {
            $types .= "    { $struct *s = 0; $field->{type} *p = s ? &s->$path : 0; (void)p; }\n";
        }
    }
}
my $n = 0;
for my $library (@{ $api->{libraries} }) {
    for my $struct (@{ $library->{structs} }) {
        equals("sizeof($struct->{name})", $struct->{size});
        equals("_Alignof($struct->{name})", $struct->{alignment});
        compare_fields($struct->{name}, '', $struct->{fields});
    }
    for my $enum (@{ $library->{enums} }) {
        equals($_->{name}, $_->{value}) for @{ $enum->{values} };
        equals("sizeof($enum->{name})", $enum->{size}) if $enum->{name};
    }
    for my $constant (@{ $library->{constants} }) {
        equals($constant->{name}, $constant->{value}) if $constant->{kind} eq 'integer';
        holds("$constant->{name} == $constant->{value}") if $constant->{kind} eq 'real';
        holds("strcmp($constant->{name}, \"$constant->{value}\") == 0") if $constant->{kind} eq 'string';
    }
    for my $initializer (grep { $_->{sets} } @{ $library->{initializers} }) {
        $numbers .= "    {\n        $initializer->{type} value = $initializer->{name};\n";
        holds("value.$_->{field} == $_->{value}", "$initializer->{name}: ") for @{ $initializer->{sets} };
        $numbers .= "    }\n";
    }
    # Types: pointers to what the description says are initialized with what the headers have.
    for my $function (@{ $library->{functions} }, @{ $library->{callbacks} }) {
        my $list = join(', ', map({ $_->{type} } @{ $function->{parameters} }), $function->{is_variadic} ? '...' : ()) || 'void';
        my $given = exists $function->{collective} ? $function->{name} : "($function->{name})0";
        $types .= "    { $function->{returns}{type} (*p)($list) = $given; (void)p; }\n";
        $n++;
    }
}
open(my $file, '>', $numbers_path) or die;
print $file "#include <stddef.h>\n#include <stdio.h>\n#include <string.h>\n$includes", <<'C', $numbers, "    return n_wrong != 0;\n}\n";
static int differs(const char *what, long long here, long long described)
{
    if (here != described) {
        printf("%s is %lld, described as %lld\n", what, here, described);
    }
    return here != described;
}

static int is_false(const char *what, int is_true)
{
    if (!is_true) {
        printf("does not hold: %s\n", what);
    }
    return !is_true;
}

int main(void)
{
    int n_wrong = 0;
C
close $file;
open($file, '>', $types_path) or die;
print $file "${includes}void compare(void);\nvoid compare(void)\n{\n$types}\n";
close $file;
open($file, '>', $sonames_path) or die;
print $file "$_->{name} $_->{soname}\n" for @{ $api->{libraries} };
close $file;

# The examples of the page are what the file says.
my @examples = slurp('docs/source.md') =~ /^```json\n(.*?)^```$/msg;
wrong('no examples in docs/source.md') if @examples < 1;
my $canonical = JSON::PP->new->canonical;
for my $example (map { decode_json($_) } @examples) {
    my @same = grep { $_->{name} && $_->{name} eq $example->{name} }
        map { (@{ $_->{functions} }, @{ $_->{structs} }, @{ $_->{opaque} }) } @{ $api->{libraries} };
    wrong("docs/source.md shows another $example->{name}")
        if @same != 1 || $canonical->encode($same[0]) ne $canonical->encode($example);
}

printf "%d functions and callbacks, %d numbers\n", $n, $n_numbers;
wrong('too few') if $n < 500 || $n_numbers < 800;
exit($n_wrong ? 1 : 0);
PERL
perl "$scratch/read.pl" "$scratch/numbers.c" "$scratch/types.c" "$scratch/sonames.txt"

strict=(-std=c11 -Wall -Wextra -Wpedantic -Werror -Iinclude)
"${CC:-cc}" "${strict[@]}" -Wno-float-equal "$scratch/numbers.c" -o "$scratch/numbers"
"$scratch/numbers"
"${CC:-cc}" "${strict[@]}" -fsyntax-only "$scratch/types.c"

# Libraries have the names that a binding loads.
while read -r name soname; do
    [[ $(objdump -p "$SHOAL_TEST_RELEASE_DIR/lib/$name.so" | awk '$1 == "SONAME" { print $2 }') == "$soname" ]] ||
        { echo "$name.so does not have the soname $soname" && exit 1; }
done <"$scratch/sonames.txt"
