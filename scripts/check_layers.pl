#!/usr/bin/perl
# SPDX-License-Identifier: MIT
# Checks the layering of the tree: over its #include lines, and over the symbols that object files define and need.
#
#   scripts/check_layers.pl ROOT [BUILD]     fails, and prints every violation
#
# The rules stand in ROOT/src/layers.txt, which explains how they are written; nn and tools/shoal have rules of their own
# in the same form. BUILD is a build tree in which the objects of these folders are up to date. Without it only #include
# lines are looked at. A reference counts for the object in which it stands, so a callback counts where its pointer is
# set.
#
# Violations:
#   - a layer, or a room of one, uses another that it does not list: it includes a header of it, or refers to a symbol
#   - a file includes a header of another layer or room that does not show it
#   - a file lies in a folder that is no layer, or beside the rooms of a layer and in none of them
#   - a folder holds more than 45 files: it should be divided
#   - source files form a circle of references, or headers a circle of #include lines
#   - an exception is not needed any more, or names what is not there
#   - public headers, examples or nn/ include what is not public (nn/: nor in its own folder)
#   - Shoal itself includes shoal_nn/, the headers of the companion library
use strict;
use warnings;

my $root = shift @ARGV // '.';
my $build = shift @ARGV;
chdir $root or die "$root: $!\n";

my $tree;     # the folder whose rules are checked: src
my $rules;    # $tree/layers.txt
my $largest = 45;    # files of a folder
my $n_violations = 0;

sub report {
    print STDERR "$_[0]\n";
    $n_violations++;
}

# The rules ------------------------------------------------------------------------------------------------------------

my @layers;        # names of layers and rooms, lowest first
my %uses;          # layer => {layer => 1 when it was used}
my %shows;         # layer => {header => how often another layer includes it}
my %has_rooms;     # folder => 1 when it is divided into rooms
my @exceptions;    # {kind, from, to, folders, line, is_needed}

sub parent_of { return $_[0] =~ m{^(.*)/[^/]+$} ? $1 : '' }

# Why a layer or room cannot list another one under `uses`; undef when it can.
sub find_fault_of_use {
    my ($layer, $used) = @_;
    return 'a layer uses only what stands above it here' if !$uses{$used} || $used eq $layer;
    return undef if parent_of($layer) eq parent_of($used);
    return 'a layer lists layers, and a room rooms of the same folder';
}

sub read_rules {
    open(my $file, '<', $rules) or die "$rules: $!\n";
    my $layer;
    while (my $text = <$file>) {
        my $where = "$rules:$.";
        $text =~ s/#.*//;
        next if $text !~ /\S/;
        if ($text =~ m{^layer\s+(\w+(?:/\w+)*)\s*$}) {
            $layer = $1;
            report("$where: layer $layer stands here twice") if $uses{$layer};
            if ($layer =~ m{^(\w+)/}) {
                report("$where: $1 is not a layer above this line") if !$uses{$1};
                $has_rooms{parent_of($layer)} = 1;
            }
            push @layers, $layer;
            $uses{$layer} = {};
            $shows{$layer} = {};
        } elsif ($layer && $text =~ /^\s+uses\s+(.*\S)/) {
            for my $used (split ' ', $1) {
                my $fault = find_fault_of_use($layer, $used);
                report("$where: $layer cannot use $used: $fault") if $fault;
                $uses{$layer}{$used} = 0;
            }
        } elsif ($layer && $text =~ /^\s+shows\s+(.*\S)/) {
            $shows{$layer}{$_} = 0 for split ' ', $1;
        } elsif ($text =~ /^except\s+(refers|includes)\s+(\S+)\s+->\s+(\S+):\s*(\S.*)/) {
            push @exceptions, {kind => $1, from => $2, to => $3, line => $where, is_needed => 0};
        } elsif ($text =~ /^except\s+large\s+(\S+):\s*(\S.*)/) {
            push @exceptions, {kind => 'large', from => $1, to => '', line => $where, is_needed => 0};
        } elsif ($text =~ /^except\s+circle\s+([^:]*[^:\s])\s*:\s*(\S.*)/) {
            push @exceptions, {kind => 'circle', folders => [split ' ', $1], line => $where, is_needed => 0};
        } else {
            report("$where: cannot read this line; an exception is followed by a colon and its reason");
        }
    }
}

sub find_exception {
    my ($kind, $from, $to) = @_;
    for my $exception (@exceptions) {
        return $exception if $exception->{kind} eq $kind && $exception->{from} eq $from && $exception->{to} eq $to;
    }
    return undef;
}

# Files ----------------------------------------------------------------------------------------------------------------

# The files below a folder whose names match, sorted.
sub find_files {
    my ($folder, $pattern) = @_;
    return () if !-d $folder;
    opendir(my $entries, $folder) or die "$folder: $!\n";
    my @names = sort grep { !/^\./ } readdir $entries;
    return map { -d "$folder/$_" ? find_files("$folder/$_", $pattern) : /$pattern/ ? "$folder/$_" : () } @names;
}

# [line, path] of every #include "path", <path> of ours, and NAME, a macro that could be any path.
sub read_includes {
    my ($path) = @_;
    my @includes;
    open(my $file, '<', $path) or die "$path: $!\n";
    while (<$file>) {
        next if !/^\s*#\s*include\s*(?:"([^"]*)"|<([^>]*)>|(\w+))/;
        push @includes, [$., $1 // $3 // $2] if !defined $2 || -e "src/$2";
    }
    return @includes;
}

# Paths below are relative to the tree of the rules.
sub inside { return $_[0] =~ s{^\Q$tree\E/}{}r }

sub layer_of { return $_[0] =~ m{^(\w+)/} ? $1 : '' }

# The room in which a file lies, the innermost one; '' outside of rooms.
sub room_of {
    my ($path) = @_;
    for (my $folder = parent_of($path); $folder =~ m{/}; $folder = parent_of($folder)) {
        return $folder if $uses{$folder};
    }
    return '';
}

# Two files of one layer: [the room of the first, the room of the second] for the rooms whose rules hold between them. The
# first is '' where it lies in no room of the folder that has the second one's; undef where no rules hold.
sub find_rooms {
    my ($from, $to) = @_;
    my ($user, $used) = (room_of($from), room_of($to));
    return undef if $used eq '' || $user eq $used;
    my $folder = parent_of($used);
    $user = parent_of($user) while $user ne '' && parent_of($user) ne $folder;
    return [$uses{$user} ? $user : '', $used];
}

# Circles --------------------------------------------------------------------------------------------------------------

# The sets of nodes that reach each other, and nodes that reach themselves at once; a graph is {from => {to => text}}.
# After Tarjan, with a stack of its own because chains of files may be long.
sub find_circles {
    my ($graph) = @_;
    my (%number, %lowest, @open, %is_open, @circles);
    for my $start (sort keys %$graph) {
        next if defined $number{$start};
        my @path = ([$start, [sort keys %{$graph->{$start} // {}}]]);
        $number{$start} = $lowest{$start} = keys %number;
        push @open, $start;
        $is_open{$start} = 1;
        while (@path) {
            my ($node, $left) = @{$path[-1]};
            if (defined(my $next = shift @$left)) {
                if (!defined $number{$next}) {
                    $number{$next} = $lowest{$next} = keys %number;
                    push @open, $next;
                    $is_open{$next} = 1;
                    push @path, [$next, [sort keys %{$graph->{$next} // {}}]];
                } elsif ($is_open{$next} && $number{$next} < $lowest{$node}) {
                    $lowest{$node} = $number{$next};
                }
                next;
            }
            pop @path;
            if (@path && $lowest{$node} < $lowest{$path[-1][0]}) {
                $lowest{$path[-1][0]} = $lowest{$node};
            }
            if ($lowest{$node} == $number{$node}) {
                my @circle;
                do {
                    push @circle, pop @open;
                    $is_open{$circle[-1]} = 0;
                } while ($circle[-1] ne $node);
                push @circles, [sort @circle] if @circle > 1 || $graph->{$node}{$node};
            }
        }
    }
    return @circles;
}

# True, and noted as needed, when an exception allows circles among all of these files.
sub is_excused_circle {
    my @files = @_;
    for my $exception (grep { $_->{kind} eq 'circle' } @exceptions) {
        my $folders = join '|', map { quotemeta } @{$exception->{folders}};
        if (!grep { !m{^(?:$folders)/} } @files) {
            $exception->{is_needed} = 1;
            return 1;
        }
    }
    return 0;
}

# Reports circles of a graph without the arrows that exceptions take out, and notes which of those close one.
sub check_circles {
    my ($graph, $kind, $what) = @_;
    my @taken_out = grep { $_->{kind} eq $kind && $graph->{$_->{from}}{$_->{to}} } @exceptions;
    my %text = map { ($_ => delete $graph->{$_->{from}}{$_->{to}}) } @taken_out;
    for my $circle (find_circles($graph)) {
        next if is_excused_circle(@$circle);
        my %is_inside = map { $_ => 1 } @$circle;
        report('circle of ' . @$circle . " $what: @$circle");
        for my $from (@$circle) {
            for my $to (grep { $is_inside{$_} } sort keys %{$graph->{$from}}) {
                report("    $from -> $to: $graph->{$from}{$to}");
                $n_violations--;
            }
        }
    }
    for my $exception (@taken_out) {
        my ($from, $to) = @$exception{qw(from to)};
        $graph->{$from}{$to} = $text{$exception};
        my $n_closed = grep { my %is_inside = map { $_ => 1 } @$_; $is_inside{$from} && $is_inside{$to} }
            find_circles($graph);
        $exception->{is_needed} = 1 if $n_closed > 0;
        delete $graph->{$from}{$to};
    }
    $graph->{$_->{from}}{$_->{to}} = $text{$_} for @taken_out;
}

# Includes of src/ -----------------------------------------------------------------------------------------------------

# True when an exception allows it.
sub is_excused {
    my ($exception) = @_;
    $exception->{is_needed} = 1 if $exception;
    return $exception;
}

sub check_include {
    my ($path, $line, $included) = @_;
    my $file = inside($path);
    my ($from, $to) = (layer_of($file), layer_of($included));
    return if !$uses{$from} || $included =~ m{^shoal/};
    my $exception = find_exception('includes', $file, $included);
    if ($included !~ m{/} || !$uses{$to}) {
        return if $tree ne 'src' && !-e "$tree/$included" && grep { -e "$_/$included" } qw(src include bench);
        report("$path:$line: \"$included\" is not a full path below $tree/") if !is_excused($exception);
        return;
    }
    my $rooms;
    if ($from eq $to) {
        $rooms = find_rooms($file, $included) or return;
        ($from, $to) = @$rooms;
    }
    if ($from ne '' && !exists $uses{$from}{$to}) {
        report("$path:$line: $from may not use $to: \"$included\"") if !is_excused($exception);
        return;
    }
    $uses{$from}{$to} = 1 if $from ne '';
    my $header = $included =~ s{^\Q$to\E/}{}r;
    if (exists $shows{$to}{$header}) {
        $shows{$to}{$header}++;
    } elsif (!is_excused($exception)) {
        my $others = $rooms ? 'rooms' : 'layers';
        report("$path:$line: $to does not show \"$included\" to other $others");
    }
}

sub check_place {
    my ($path) = @_;
    my $file = inside($path);
    my $folder = layer_of($file);
    report("$path: $tree/$folder is not a layer of $rules") if $folder ne '' && !$uses{$folder};
    for (my $above = parent_of($file); $above ne ''; $above = parent_of($above)) {
        last if $uses{$above} && $above =~ m{/};
        report("$path: lies beside the rooms of $tree/$above, in none of them") if $has_rooms{$above};
    }
}

sub check_sizes {
    my %n_files;
    $n_files{parent_of(inside($_))}++ for find_files($tree, qr/\.(?:cu?|h|def)$/);
    for my $folder (grep { $n_files{$_} > $largest } sort keys %n_files) {
        next if is_excused(find_exception('large', $folder, ''));
        report("$tree/$folder: $n_files{$folder} files, more than $largest: divide it into rooms");
    }
}

sub check_tree_includes {
    my %graph;
    for my $path (find_files($tree, qr/\.(?:cu?|h|def)$/)) {
        check_place($path);
        for my $include (read_includes($path)) {
            my ($line, $included) = @$include;
            check_include($path, $line, $included);
            $graph{inside($path)}{$included} = "line $line" if -e "$tree/$included";
        }
    }
    check_circles(\%graph, 'includes', 'includes');
}

# Includes of the rest -------------------------------------------------------------------------------------------------

sub check_public_includes {
    for my $path (map { find_files($_, qr/\.(?:cu?|h|def)$/) } qw(include examples nn compat)) {
        for my $include (read_includes($path)) {
            my ($line, $included) = @$include;
            next if $included =~ m{^shoal_(?:nn|compat)/} && $path !~ m{^include/shoal/};
            next if $included =~ m{^shoal/} || ($path =~ m{^nn/} && -e "nn/$included");
            report("$path:$line: \"$included\" is not a public header");
        }
    }
}

# References -----------------------------------------------------------------------------------------------------------

# Sources for some processors only, which have no object elsewhere.
sub find_optional_sources {
    open(my $file, '<', "$tree/CMakeLists.txt") or return ();
    my $text = do { local $/; <$file> };
    my %optional;
    $optional{"$tree/$1/$2"} = 1 while $text =~ /^\s*shoal_isa_source\((\S+)\s+(\S+)/gm;
    $optional{"$tree/$1"} = 1 while $text =~ /^\s*shoal_nn_isa_source\((\S+)/gm;
    return %optional;
}

# {source in the tree without its ending => object}. CMake puts the object of folder/sub/x.c to
# folder/CMakeFiles/target.dir/sub/x.c.o, for the library and for modules alike.
sub find_objects {
    my %objects;
    my %is_optional = find_optional_sources();
    my $folder = $tree =~ s{/.*}{}r;
    for my $object (find_files("$build/$folder", qr/\.c\.o$/)) {
        my $source = substr($object, length "$build/") =~ s{CMakeFiles/[^/]+\.dir/}{}r =~ s{\.o$}{}r;
        $objects{$1} = $object if $source =~ m{^\Q$tree\E/(.*)\.c$} && -e $source;
    }
    for my $source (find_files($tree, qr/\.c$/)) {
        my $name = inside($source) =~ s{\.c$}{}r;
        if (!$objects{$name}) {
            report("$source: $build has no object of it") if !$is_optional{$source};
        } elsif ((stat $source)[9] > (stat $objects{$name})[9]) {
            report("$source: its object in $build is older");
        }
    }
    return %objects;
}

# {from => {to => symbols}}
sub read_references {
    my %objects = find_objects();
    my (%defined_in, %needed);
    for my $name (sort keys %objects) {
        open(my $symbols, '-|', 'nm', $objects{$name}) or die "nm: $!\n";
        while (<$symbols>) {
            if (/^\S+ [TDBRCGSVWiu] (\S+)/) {
                $defined_in{$1} = $name;
            } elsif (/^\s+[Uvw] (\S+)/) {
                push @{$needed{$name}}, $1;
            }
        }
        close($symbols) or die "nm $objects{$name}: failed\n";
    }
    my %graph;
    for my $from (keys %needed) {
        for my $symbol (sort @{$needed{$from}}) {
            my $to = $defined_in{$symbol};
            next if !defined $to || $to eq $from;
            $graph{$from}{$to} = defined $graph{$from}{$to} ? "$graph{$from}{$to} $symbol" : $symbol;
        }
    }
    return \%graph;
}

sub check_references {
    my $graph = read_references();
    for my $from (sort keys %$graph) {
        for my $to (sort keys %{$graph->{$from}}) {
            my ($user, $used) = (layer_of($from), layer_of($to));
            next if !$uses{$user} || !$uses{$used};
            if ($user eq $used) {
                my $rooms = find_rooms($from, $to) or next;
                ($user, $used) = @$rooms;
                next if $user eq '';
            }
            if (exists $uses{$user}{$used}) {
                $uses{$user}{$used} = 1;
            } elsif (my $exception = find_exception('refers', $from, $to)) {
                $exception->{is_needed} = 1;
            } else {
                report("$tree/$from.c: $user may not use $used: $to has $graph->{$from}{$to}");
            }
        }
    }
    check_circles($graph, 'refers', 'files');
}

# What the rules say but nothing needs ---------------------------------------------------------------------------------

sub check_rules {
    for my $layer (@layers) {
        for my $header (sort keys %{$shows{$layer}}) {
            if (!-e "$tree/$layer/$header") {
                report("$rules: $layer shows $header, which is not there");
            } elsif ($shows{$layer}{$header} == 0) {
                my $other = $layer =~ m{/} ? 'room' : 'layer';
                report("$rules: $layer shows $header, which no other $other includes");
            }
        }
        next if !defined $build || !-d "$tree/$layer";
        for my $used (grep { !$uses{$layer}{$_} && -d "$tree/$_" } sort keys %{$uses{$layer}}) {
            report("$rules: $layer does not use $used");
        }
    }
    for my $exception (grep { !$_->{is_needed} } @exceptions) {
        next if !defined $build && $exception->{kind} =~ /^(?:refers|circle)$/;
        report("$exception->{line}: this exception is not needed any more: remove it");
    }
}

sub check_tree {
    ($tree) = @_;
    $rules = "$tree/layers.txt";
    (@layers, %uses, %shows, %has_rooms, @exceptions) = ();
    read_rules();
    check_sizes();
    check_tree_includes();
    check_references() if defined $build;
    check_rules();
}

for my $folder (grep { $_ eq 'src' || -e "$_/layers.txt" } qw(src nn tools/shoal)) {
    check_tree($folder);
}
check_public_includes();
if ($n_violations > 0) {
    print STDERR "layers: $n_violations violations\n";
    exit 1;
}
