#!/usr/bin/perl
# SPDX-License-Identifier: MIT
# Makes include/shoal-api.json, the description of the public API for bindings, from the public headers. Names, types and
# annotations come from clang's syntax tree, comments from the text of the headers. Sizes, offsets, values of enums and
# of macros are printed by a program that the C compiler makes (CC, or cc), and clang compares them for x86_64 and aarch64.
#
#   scripts/make_api.pl            writes the file
#   scripts/make_api.pl --check    fails, and shows the difference, if the file would become another one
#
# A function that the headers declare and the map of its library does not list is an error, and so is the reverse.
# docs/source.md explains the fields. clang: CLANG, or clang-14, whose tree the script was written for.
use strict;
use warnings;
use File::Basename qw(dirname);
use File::Temp qw(tempdir);
use JSON::PP ();

my $is_check = @ARGV == 1 && $ARGV[0] eq '--check';
die "usage: $0 [--check]\n" if @ARGV > ($is_check ? 1 : 0);
chdir dirname($0) . '/..' or die "cannot find the tree: $!\n";

my $target = 'include/shoal-api.json';
my $clang = $ENV{CLANG} // 'clang-14';
my $cc = $ENV{CC} // 'cc';
my @machines = ('x86_64', 'aarch64');
my $scratch = tempdir(CLEANUP => 1);

# api.h has nothing that a program calls.
my @libraries = (
    { name => 'libshoal', folder => 'shoal', map => 'src/shoal.map' },
    { name => 'libshoal_compat', folder => 'shoal_compat', map => 'compat/shoal_compat.map' },
    { name => 'libshoal_nn', folder => 'shoal_nn', map => 'nn/shoal_nn.map' },
);
my %is_left_out = map { $_ => 1 } ('shoal/api.h', 'shoal/shoal.h');

sub read_text
{
    my ($path) = @_;
    open(my $file, '<', $path) or die "$path: $!\n";
    local $/;
    return <$file> // '';
}

sub write_text
{
    my ($path, $text) = @_;
    open(my $file, '>', $path) or die "$path: $!\n";
    print $file $text;
    close $file or die "$path: $!\n";
}

sub output_of
{
    my @command = @_;
    open(my $pipe, '-|', @command) or die "$command[0]: $!\n";
    my $text = do { local $/; <$pipe> } // '';
    close $pipe or die "failed: @command\n";
    return $text;
}

# Headers as text ------------------------------------------------------------------------------------------------------

# header => { text, lines (from 1), comments by first line, comments by last line }
my %headers;

sub load_header
{
    my ($header, $library) = @_;
    my $text = read_text("include/$header");
    my %h = (text => $text, lines => [ undef, split /\n/, $text ], library => $library, begin => {}, end => {});
    while ($text =~ m{/\*.*?\*/}gs) {
        my ($from, $to) = ($-[0], $+[0]);
        my $first = 1 + (substr($text, 0, $from) =~ tr/\n//);
        my $comment = substr($text, $from, $to - $from);
        my $line_start = rindex($text, "\n", $from - 1) + 1;
        my $before = substr($text, $line_start, $from - $line_start);
        my %c = (text => words_of($comment), column => length $before, is_alone => $before =~ /^\s*$/ ? 1 : 0);
        $c{text} = '' if $comment =~ m{-{10} ?\*/$} || $comment =~ /SPDX/;
        $h{begin}{$first} = \%c;
        $h{end}{ $first + ($comment =~ tr/\n//) } = \%c;
    }
    $headers{$header} = \%h;
}

# The words of the first paragraph of a comment, up to a list.
sub words_of
{
    my ($comment) = @_;
    $comment =~ s{^/\*|\*/$}{}g;
    $comment =~ s{^[ \t]*\*(?: |$)}{}gm;
    my ($paragraph) = grep { /\S/ } split /\n[ \t]*\n/, $comment;
    $paragraph //= '';
    $paragraph =~ s/\n- .*//s;
    $paragraph =~ s/\s+/ /g;
    return $paragraph =~ s/^ | $//gr;
}

# An ellipsis ends no sentence.
sub sentences
{
    my ($words) = @_;
    return split /(?<=[^.][.?])\s+/, $words;
}

# The comment behind a declaration, directly above it, or above the declarations that it stands together with. Of the
# last, a sentence that names the function is preferred.
sub doc_of
{
    my ($header, $first, $last, $name) = @_;
    my $h = $headers{$header};
    my $behind = $h->{begin}{$last};
    if ($behind && !$behind->{is_alone} && $behind->{text} ne '') {
        return (sentences($behind->{text}))[0];
    }
    my $indent = $h->{lines}[$first] =~ /^(\s*)/ ? length $1 : 0;
    for (my $line = $first - 1; $line > 0; $line--) {
        my $above = $h->{end}{$line};
        if ($above && $above->{is_alone} && $above->{column} == $indent) {
            my @all = sentences($above->{text});
            my @mine = grep { /\b\Q$name\E\b/ } @all;
            return @mine && $line < $first - 1 ? $mine[0] : $all[0];
        }
        # A field or a value has no neighbours that its comment could be about.
        return undef if $indent > 0 || $h->{lines}[$line] =~ /^\s*$|^SHOAL_BEGIN_DECLS/;
    }
    return undef;
}

# "const int64_t *shape" => (type, name); a pointer to a function: (type, name, result, parameters).
sub split_declaration
{
    my ($text) = @_;
    $text =~ s{/\*.*?\*/}{ }gs;
    $text =~ s/\s+/ /g;
    $text =~ s/^ | $//g;
    if ($text =~ /^(.*?) ?\( ?\* ?(\w+) ?\) ?\((.*)\)$/) {
        my ($result, $name, $inside) = ($1, $2, $3);
        my @parameters = map { [ split_declaration($_) ] } grep { $_ ne 'void' } split /, ?/, $inside;
        my $types = join(', ', map { $_->[0] } @parameters) || 'void';
        return ("$result (*)($types)", $name, $result, \@parameters);
    }
    $text =~ /^(.*?)(\w+)((?:\[[^\]]*\])*)$/ or die "cannot read the declaration '$text'\n";
    my ($type, $name, $array) = ($1, $2, $3);
    $type =~ s/ $//;
    return ($type . $array, $name);
}

# What a pointer to a function takes and returns, of a declaration in the text of a header.
sub signature_of
{
    my ($header, $from, $to) = @_;
    my $text = substr($headers{$header}{text}, $from, $to - $from);
    $text =~ s/^typedef //;
    $text =~ s/\bSHOAL_(?:GIVES|TAKES) //g;
    my (undef, undef, $result, $parameters) = split_declaration($text);
    return () if !defined $result;
    return (
        returns => { type => $result },
        parameters => [ map { { name => $_->[1], type => $_->[0] } } @$parameters ],
    );
}

# The syntax tree --------------------------------------------------------------------------------------------------------

# clang leaves out the file and line of a place that are those of the place printed before.
my ($last_file, $last_line) = ('', 0);

sub place
{
    my ($at) = @_;
    return undef if !$at || !%$at;
    if ($at->{spellingLoc}) {
        place($at->{spellingLoc});
        return place($at->{expansionLoc});
    }
    return undef if !defined $at->{offset};
    $last_file = $at->{file} if defined $at->{file};
    $last_line = $at->{line} if defined $at->{line};
    my $header = $last_file =~ m{^include/(.*)} ? $1 : '';
    return { header => $header, line => $last_line, offset => $at->{offset}, end => $at->{offset} + $at->{tokLen} };
}

sub find_places
{
    my ($node) = @_;
    my $loc = place($node->{loc});
    my $begin = place($node->{range}{begin});
    my $end = place($node->{range}{end});
    $node->{at} = { loc => $loc, begin => $begin, end => $end };
    find_places($_) for grep { ref $_ && %$_ } @{ $node->{inner} // [] };
}

sub inner_of
{
    my ($node, $kind) = @_;
    return grep { ref $_ && ($_->{kind} // '') eq $kind } @{ $node->{inner} // [] };
}

# The annotations of a declaration, by the names of their macros, which stand in the header.
sub annotations
{
    my ($node) = @_;
    my %found;
    for my $attribute (inner_of($node, 'AnnotateAttr')) {
        my $begin = $attribute->{at}{begin};
        my $word = substr($headers{ $begin->{header} }{text}, $begin->{offset}, $begin->{end} - $begin->{offset});
        $found{$word} = 1;
    }
    return %found;
}

sub type_of
{
    my ($type) = @_;
    $type =~ s/\b_Bool\b/bool/g;
    return $type;
}

my (%functions, %structs, %enums, %callbacks, %opaque, %records);

sub add_function
{
    my ($node, $header) = @_;
    my $name = $node->{name};
    my %is = annotations($node);
    my $doc = doc_of($header, $node->{at}{begin}{line}, $node->{at}{end}{line}, $name) // die
        "$header: no comment says what $name does\n";
    my $result = $node->{type}{qualType} =~ /^(.*?) ?\(/ ? $1 : die "$name: what does it return?\n";
    my @parameters;
    for my $parameter (inner_of($node, 'ParmVarDecl')) {
        my %owner = annotations($parameter);
        my $at = $parameter->{at};
        my %p = (name => $parameter->{name}, type => type_of($parameter->{type}{qualType}));
        $p{ownership} = $owner{SHOAL_GIVES} ? 'given' : 'taken' if $owner{SHOAL_GIVES} || $owner{SHOAL_TAKES};
        %p = (%p, signature_of($header, $at->{begin}{offset}, $at->{end}{end})) if $p{type} =~ /\(\*\)/;
        push @parameters, \%p;
    }
    $functions{$name} = {
        name => $name, header => $header, doc => $doc,
        collective => $is{SHOAL_COLLECTIVE} ? 'always' : $is{SHOAL_SOMETIMES_COLLECTIVE} ? 'sometimes' : 'never',
        must_check => truth(inner_of($node, 'WarnUnusedResultAttr') > 0),
        $node->{variadic} ? (is_variadic => truth(1)) : (),
        returns => { type => type_of($result), $is{SHOAL_GIVES} ? (ownership => 'given') : () },
        parameters => \@parameters,
    };
}

# Fields, with a path for offsetof; those of a struct or union without a name are inside its field.
sub fields_of
{
    my ($record, $header, $path) = @_;
    my (@fields, $nested);
    for my $node (grep { ref $_ } @{ $record->{inner} // [] }) {
        if (($node->{kind} // '') eq 'RecordDecl') {
            $nested = $node;
        } elsif (($node->{kind} // '') eq 'FieldDecl') {
            my $name = $node->{name};
            my $at = $node->{at};
            my %f = (name => $name, type => type_of($node->{type}{qualType}), path => "$path$name");
            if ($f{type} =~ /\((?:unnamed|anonymous)/) {
                $f{type} = $nested->{tagUsed};
                $f{fields} = fields_of($nested, $header, "$path$name.");
            } elsif ($f{type} =~ /\(\*\)/) {
                %f = (%f, signature_of($header, $at->{begin}{offset}, $at->{end}{end}));
            }
            $f{doc} = doc_of($header, $at->{begin}{line}, $at->{end}{line}, $name);
            push @fields, \%f;
        }
    }
    return \@fields;
}

sub add_enum
{
    my ($node, $header) = @_;
    my @values = map { {
        name => $_->{name}, doc => doc_of($header, $_->{at}{begin}{line}, $_->{at}{end}{line}, $_->{name})
    } } inner_of($node, 'EnumConstantDecl');
    my $name = $node->{name};
    $enums{ $name // $values[0]{name} } = {
        defined $name ? (name => $name) : (), header => $header,
        doc => doc_of($header, $node->{at}{begin}{line}, $node->{at}{end}{line}, $name // ''), values => \@values,
    };
}

sub add_typedef
{
    my ($node, $header) = @_;
    my ($name, $at) = ($node->{name}, $node->{at});
    my $type = $node->{type}{qualType};
    my %entry = (name => $name, header => $header, doc => doc_of($header, $at->{begin}{line}, $at->{end}{line}, $name));
    if ($type =~ /^(struct|union) (\w+)$/) {
        my ($kind, $tag) = ($1, $2);
        if ($records{$tag}) {
            $structs{$name} = { %entry, kind => $kind, fields => fields_of($records{$tag}, $header, '') };
        } else {
            $opaque{$name} = \%entry;
        }
    } elsif ($type =~ /\(\*\)/) {
        $callbacks{$name} = { %entry, signature_of($header, $at->{begin}{offset}, $at->{end}{end}) };
    } elsif ($type !~ /^enum /) {
        die "$header: cannot describe the type $name, $type\n";
    }
}

sub read_tree
{
    my $source = "$scratch/all.c";
    write_text($source, join '', map { "#include \"$_\"\n" } sort keys %headers);
    my $tree = JSON::PP->new->utf8->max_depth(4096)->decode(
        output_of($clang, '-std=c11', '-DSHOAL_ANNOTATE', '-Iinclude', '-Xclang', '-ast-dump=json', '-fsyntax-only', $source));
    find_places($tree);
    my @ours = grep { $_->{at}{loc} && $headers{ $_->{at}{loc}{header} } && !$is_left_out{ $_->{at}{loc}{header} } }
        @{ $tree->{inner} };
    for my $node (@ours) {
        $records{ $node->{name} } = $node if $node->{kind} eq 'RecordDecl' && $node->{completeDefinition};
    }
    my @forward;
    for my $node (@ours) {
        my $header = $node->{at}{loc}{header};
        if ($node->{kind} eq 'FunctionDecl') {
            add_function($node, $header);
        } elsif ($node->{kind} eq 'EnumDecl') {
            add_enum($node, $header);
        } elsif ($node->{kind} eq 'TypedefDecl') {
            add_typedef($node, $header);
        } elsif ($node->{kind} eq 'RecordDecl') {
            push @forward, $node if !$records{ $node->{name} };
        } else {
            die "$header: cannot describe a $node->{kind}\n";
        }
    }
    # Types of others, which no header of ours names: struct DLManagedTensor.
    for my $node (grep { !$opaque{ $_->{name} } } @forward) {
        my $at = $node->{at};
        my $name = "struct $node->{name}";
        $opaque{$name} //= { name => $name, header => $at->{loc}{header} };
    }
}

# Macros ---------------------------------------------------------------------------------------------------------------

my (%constants, %initializers, %bodies);

sub read_macros
{
    my ($header) = @_;
    my $text = $headers{$header}{text};
    while ($text =~ /^#define (SHOAL_\w+)(\([^)]*\))?((?:[^\\\n]|\\\n)*)$/mg) {
        my ($name, $parameters, $body, $line) = ($1, $2, $3, 1 + (substr($text, 0, $-[0]) =~ tr/\n//));
        my $last = $line + ($body =~ tr/\n//);
        $body =~ s/\\\n/ /g;
        $body =~ s{/\*.*?\*/}{}gs;
        next if $body !~ /\S/;
        $bodies{$name} = $body;
        my %entry = (name => $name, header => $header, lines => [ $line, $last ]);
        $entry{parameters} = [ split /, */, $parameters =~ s/[()]//gr ] if defined $parameters;
        $constants{$name} = \%entry;
    }
}

# The struct that a macro initializes; '' for another macro.
sub initialized_type
{
    my ($name) = @_;
    my $body = $bodies{$name} // return '';
    return $1 if $body =~ /\b(?:SHOAL_SIZED|sizeof)\((\w+)\)/;
    return $body =~ /^\s*(SHOAL_\w+)/ ? initialized_type($1) : '';
}

sub sort_macros
{
    for my $name (sort keys %constants) {
        my $type = initialized_type($name);
        if ($type ne '') {
            my $macro = delete $constants{$name};
            delete $macro->{lines};
            $initializers{$name} = { %$macro, type => $type };
        } elsif ($constants{$name}{parameters}) {
            die "$name: neither a constant nor an initializer\n";
        } else {
            my ($first, $last) = @{ delete $constants{$name}{lines} };
            $constants{$name}{doc} = doc_of($constants{$name}{header}, $first, $last, $name);
        }
    }
}

# Sizes and values -----------------------------------------------------------------------------------------------------

sub each_field
{
    my ($fields, $do) = @_;
    for my $field (@$fields) {
        $do->($field);
        each_field($field->{fields}, $do) if $field->{fields};
    }
}

sub is_number
{
    my ($field) = @_;
    my $type = $field->{type};
    return $type !~ /[*\[]/ && !$field->{fields} && !$structs{$type} && !$callbacks{$type};
}

# The program that prints; each line of it is a key and a number or a text.
sub write_program
{
    my ($path) = @_;
    my $text = "#include <stddef.h>\n#include <stdio.h>\n";
    $text .= "#include \"$_\"\n" for sort keys %headers;
    $text .= <<'END';
static void print_integer(const char *key, long long value) { printf("%s i %lld\n", key, value); }
static void print_real(const char *key, double value) { printf("%s f %.17g\n", key, value); }
static void print_text(const char *key, const char *value) { printf("%s s %s\n", key, value); }
#define PRINT(key, x) _Generic((x), char *: print_text, const char *: print_text, float: print_real, \
                               double: print_real, default: print_integer)(key, x)
int main(void)
{
END
    for my $name (sort keys %structs) {
        $text .= "    PRINT(\"$name\", sizeof($name));\n    PRINT(\"$name align\", _Alignof($name));\n";
        each_field($structs{$name}{fields}, sub {
            my $path = $_[0]{path};
            $text .= "    PRINT(\"$name.$path\", offsetof($name, $path));\n"
                . "    PRINT(\"$name.$path size\", sizeof((($name *)0)->$path));\n";
        });
    }
    for my $enum (values %enums) {
        $text .= "    PRINT(\"$_->{name}\", $_->{name});\n" for @{ $enum->{values} };
        $text .= "    PRINT(\"$enum->{name}\", sizeof($enum->{name}));\n" if $enum->{name};
    }
    $text .= "    PRINT(\"$_\", $_);\n" for sort keys %constants;
    for my $name (sort keys %initializers) {
        my $type = $initializers{$name}{type};
        next if $initializers{$name}{parameters};
        $text .= "    {\n        $type value = $name;\n";
        $text .= "        PRINT(\"$name.$_->{name}\", value.$_->{name});\n" for grep { is_number($_) } @{ $structs{$type}{fields} };
        $text .= "    }\n";
    }
    write_text($path, "$text    return 0;\n}\n");
}

# The shortest text of a double that is read back as the same.
sub real_text
{
    my ($value) = @_;
    for my $digits (1 .. 17) {
        my $text = sprintf("%.${digits}g", $value);
        return $text =~ /[.e]/ ? $text : "$text.0" if $text == $value;
    }
    return $value;
}

sub fill_in
{
    my ($values) = @_;
    my $number = sub { my ($key) = @_; return \($values->{$key} // die "the program did not print $key\n") };
    for my $name (keys %structs) {
        my $s = $structs{$name};
        $s->{size} = $number->($name);
        $s->{alignment} = $number->("$name align");
        each_field($s->{fields}, sub {
            my ($field) = @_;
            $field->{offset} = $number->("$name.$field->{path}");
            $field->{size} = $number->("$name.$field->{path} size");
        });
    }
    for my $enum (values %enums) {
        $_->{value} = $number->($_->{name}) for @{ $enum->{values} };
        $enum->{size} = $number->($enum->{name}) if $enum->{name};
    }
    for my $constant (values %constants) {
        my $value = $values->{ $constant->{name} };
        $constant->{kind} = ref $value ? 'string' : $value =~ /[.e]/ ? 'real' : 'integer';
        $constant->{value} = ref $value ? $$value : \$value;
    }
    for my $initializer (grep { !$_->{parameters} } values %initializers) {
        my @set;
        for my $field (grep { is_number($_) } @{ $structs{ $initializer->{type} }{fields} }) {
            my $value = $values->{"$initializer->{name}.$field->{name}"};
            push @set, { field => $field->{name}, value => \$value } if $value != 0;
        }
        $initializer->{sets} = \@set;
    }
}

sub measure
{
    my ($source, $program) = ("$scratch/print.c", "$scratch/print");
    write_program($source);
    system($cc, '-std=c11', '-Iinclude', $source, '-o', $program) == 0 or die "failed: $cc $source\n";
    my %values;
    for my $line (split /\n/, output_of($program)) {
        my ($key, $kind, $value) = $line =~ /^(.+) ([ifs]) (.*)$/ or die "cannot read '$line'\n";
        $values{$key} = $kind eq 's' ? \$value : $kind eq 'f' ? real_text($value) : $value;
    }
    fill_in(\%values);
}

# The numbers hold on every machine: clang computes them for each, without headers of its system.
sub compare_machines
{
    my $source = "$scratch/compare.c";
    my $text = join '', map { "#include \"$_\"\n" } sort keys %headers;
    for my $name (sort keys %structs) {
        $text .= "_Static_assert(sizeof($name) == ${ $structs{$name}{size} }, \"$name\");\n";
        $text .= "_Static_assert(_Alignof($name) == ${ $structs{$name}{alignment} }, \"$name\");\n";
        each_field($structs{$name}{fields}, sub {
            my ($path, $offset) = ($_[0]{path}, ${ $_[0]{offset} });
            $text .= "_Static_assert(__builtin_offsetof($name, $path) == $offset, \"$name.$path\");\n";
        });
    }
    for my $enum (values %enums) {
        $text .= "_Static_assert($_->{name} == ${ $_->{value} }, \"$_->{name}\");\n" for @{ $enum->{values} };
    }
    write_text($source, $text);
    for my $machine (@machines) {
        system($clang, '-std=c11', "--target=$machine-linux-gnu", '-ffreestanding', '-fsyntax-only', '-Iinclude', $source) == 0
            or die "$machine: sizes or values differ\n";
    }
}

# Writing --------------------------------------------------------------------------------------------------------------

sub truth { return $_[0] ? JSON::PP::true : JSON::PP::false }

my $strings = JSON::PP->new->allow_nonref->ascii;
my @key_order = qw(format version abi machines libraries name soname headers functions structs opaque enums callbacks
    constants initializers header kind type ownership field offset size alignment value collective must_check is_variadic
    released_by returns parameters sets doc fields values);
my %rank = map { $key_order[$_] => $_ } 0 .. $#key_order;

# Numbers are references to their text. Objects and lists are on one line if they fit there.
sub encode
{
    my ($value, $indent) = @_;
    return $$value if ref $value eq 'SCALAR';
    return $value ? 'true' : 'false' if JSON::PP::is_bool($value);
    return $strings->encode($value) if !ref $value;
    my $inner = "$indent  ";
    my ($open, $close, @parts);
    if (ref $value eq 'HASH') {
        ($open, $close) = ('{', '}');
        my @keys = sort { $rank{$a} <=> $rank{$b} } grep { $_ ne 'path' && defined $value->{$_} } keys %$value;
        @parts = map { "\"$_\": " . encode($value->{$_}, $inner) } @keys;
    } else {
        ($open, $close) = ('[', ']');
        @parts = map { encode($_, $inner) } @$value;
    }
    my $line = $open . join(', ', @parts) . $close;
    return $line if $line !~ /\n/ && length($indent) + length($line) <= 120;
    return "$open\n$inner" . join(",\n$inner", @parts) . "\n$indent$close";
}

sub of_library
{
    my ($library, $entries) = @_;
    return [ map { $entries->{$_} } grep { $headers{ $entries->{$_}{header} }{library} == $library } sort keys %$entries ];
}

# Which functions end an object of this type.
sub add_releases
{
    for my $function (map { $functions{$_} } sort keys %functions) {
        for my $parameter (grep { ($_->{ownership} // '') eq 'taken' } @{ $function->{parameters} }) {
            my ($type) = $parameter->{type} =~ /^(\w+) \*$/ or next;
            push @{ $opaque{$type}{released_by} }, $function->{name} if $opaque{$type};
        }
    }
}

sub compare_with_map
{
    my ($library) = @_;
    my %declared = map { $_->{name} => 1 } @{ of_library($library, \%functions) };
    my %listed = map { $_ => 1 } read_text($library->{map}) =~ /^\s+([A-Za-z_]\w*);$/mg;
    my @missing = grep { !$listed{$_} } sort keys %declared;
    my @left_over = grep { !$declared{$_} } sort keys %listed;
    print STDERR "$_: in the public headers, but not in $library->{map}\n" for @missing;
    print STDERR "$_: in $library->{map}, but not in the public headers\n" for @left_over;
    exit 1 if @missing || @left_over;
}

sub version_parts
{
    my $text = read_text('include/shoal/version.h');
    return map { $text =~ /^#define SHOAL_VERSION_$_ (\d+)$/m or die "no version\n"; $1 } qw(MAJOR MINOR PATCH);
}

sub describe
{
    my ($major, $minor, $patch) = version_parts();
    my $so = $major == 0 ? "$major.$minor" : $major;
    my @described = map {
        my $library = $_;
        {
            name => $library->{name}, soname => "$library->{name}.so.$so",
            headers => [ grep { $headers{$_}{library} == $library && !$is_left_out{$_} } sort keys %headers ],
            functions => of_library($library, \%functions), structs => of_library($library, \%structs),
            opaque => of_library($library, \%opaque), enums => of_library($library, \%enums),
            callbacks => of_library($library, \%callbacks), constants => of_library($library, \%constants),
            initializers => of_library($library, \%initializers),
        }
    } @libraries;
    return {
        format => \1, version => "$major.$minor.$patch", abi => 'LP64', machines => \@machines, libraries => \@described,
    };
}

for my $library (@libraries) {
    for my $path (sort glob "include/$library->{folder}/*.h") {
        my $header = $path =~ s{^include/}{}r;
        load_header($header, $library);
    }
}
read_tree();
compare_with_map($_) for @libraries;
read_macros($_) for grep { !$is_left_out{$_} } sort keys %headers;
sort_macros();
measure();
compare_machines();
add_releases();
my $json = encode(describe(), '') . "\n";

if ($is_check) {
    write_text("$scratch/shoal-api.json", $json);
    if (system('diff', '-u', '--label', $target, '--label', "$target (made again)", $target, "$scratch/shoal-api.json") != 0) {
        print STDERR "$target: run scripts/make_api.pl\n";
        exit 1;
    }
} else {
    write_text($target, $json);
}
