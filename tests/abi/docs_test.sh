#!/bin/bash
# SPDX-License-Identifier: MIT
# Pages, manuals and comments of public headers name what exists: files and folders of the tree, names of the library,
# variables, commands of the tool and their options, targets of make. docs/source.md names every public header, every
# example and every folder of src.
set -euo pipefail
cd "$SHOAL_TEST_SOURCE_DIR"

perl - <<'PERL'
use strict;
use warnings;
use File::Find;

sub slurp { my ($path) = @_; open my $file, '<', $path or die "$path: $!\n"; local $/; return <$file> // ''; }

my (%exists, $words, @found);
find({no_chdir => 1, wanted => sub {
    my $path = $File::Find::name =~ s{^\./}{}r;
    return $File::Find::prune = 1 if $path =~ m{^(?:build|\.git)$};
    $exists{$path} = 1;
    return if !-f $path || $path !~ /\.(?:c|h|def|cmake|sh|json)$/ || $path eq 'tests/abi/docs_test.sh';
    my $text = slurp($path);
    $text =~ s{/\*.*?\*/}{ }gs if $path =~ /\.(?:c|h|def)$/; # a name that only a sentence mentions does not exist
    $text =~ s/\bshoal_//g if $path =~ m{^(?:tests|bench|tools)/};  # the library's names are not made there
    $words .= $text;
}}, '.');
my %is_word = map { $_ => 1 } $words =~ /\b\w+/g;
$is_word{"SHOAL_$_"} = 1 for slurp('src/base/options.def') =~ /^OPTION\((\w+)/mg;
# Options that exist only once a recipe of extending.md was followed.
my %is_added = map { ("SHOAL_$_" => 1) } map { slurp($_) =~ /^\+OPTION\((\w+)/mg } glob 'tests/extending/*.patch';
$is_word{"SHOAL_TRANSPORT_$_"} = 1 for map { slurp($_) =~ /->variable\("(\w+)"\)/g } glob 'src/transport/*/*.c';
my $tree = join "\n", map { "/$_" } sort keys %exists;

# A file or folder, by its path or the end of it ("comm/lane/lane.c"). [ch], {a,b} and * are patterns.
sub is_there {
    my ($name) = @_;
    my $pattern = quotemeta $name;
    $pattern =~ s/\\\[ch\\\]/[ch]/g;
    $pattern =~ s/\\\{([^}]*)\\\}/'(?:' . join('|', split m{\\,}, $1) . ')'/ge;
    $pattern =~ s/\\\*/[^\/\n]*/g;
    return $tree =~ m{/$pattern$}m;
}

# Where links with # may lead: headings in small letters, with - for blanks.
sub places {
    return map { lc($_) =~ s/[^\w -]//gr =~ tr/ /-/r } slurp($_[0]) =~ /^#+ (.*)$/mg;
}

# Commands of the tool, each with the options that its sources have as strings; targets of make; options of scripts.
sub options_of { return map { $_ => 1 } map { slurp($_) =~ s{/\*.*?\*/}{}gsr =~ /"(--[a-z][a-z-]*)/g } @_; }
my %target = map { $_ => 1 } map { split } slurp("Makefile") =~ /^([a-z][a-z -]*):/mg;
my %bench = map { $_ => 1 } "all", slurp('tools/shoal/bench/benches.def') =~ /^BENCH\((\w+)/mg;
my %options;
my %beside = (bench => 'bench/measure/*.c', help => 'tools/shoal/help.c', train => 'tools/shoal/config/*.c'); # sources in other folders
for my $command (slurp('tools/shoal/common/commands.def') =~ /^COMMAND\((\w+)/mg) {
    $options{$command} = {'--help' => 1, options_of(glob("tools/shoal/$command/*.c"),
                                                        map { glob } grep { defined } $beside{$command})};
}
my %any_option = map { %$_ } values %options;
%any_option = (%any_option, options_of(grep { /^(?:tools|bench|examples)\/.*\.c$/ } keys %exists));
for my $script (grep { /^(?:scripts|bench|python|\.ci)\/.*\.(?:sh|py|pl)$/ } keys %exists) {
    $any_option{$_} = 1 for slurp($script) =~ s/^\s*#.*//mgr =~ /(--[a-z][a-z-]*)/g;
}
# Of other programs, as our pages use them.
my $foreign = qr/\b(?:cmake|ctest|mpirun|mpiexec|srun|sbatch|SBATCH|scontrol|torchrun|docker|ip|git|perf|pkg-config|valgrind)\b/;

# What a line of code, or a piece in quotes, gets wrong about commands. A command counts up to the next one.
sub look_at_command
{
    my ($page, $code, $own) = @_;
    for my $name ($code =~ /(?:^|[;&(]\s*)make((?: [a-z][a-z-]*)+)/mg) {
        $target{$_} or push @found, "$page: make has no target $_" for split ' ', $name;
    }
    for my $part (split /(?=(?:^|[\s\/"])shoal [a-z])/m, $code) {
        my ($command, $bench) = $part =~ /^[\s\/"]?shoal ([a-z]+)(?: ([a-z]\w*))?/;
        push @found, "$page: shoal has no command $command" if defined $command && !$options{$command};
        push @found, "$page: there is no shoal bench $bench"
            if ($command // '') eq 'bench' && defined $bench && !$bench{$bench};
        my $known = $options{$command // $own // ''} // \%any_option;
        # What is run by the command has options of its own.
        my $words = ($command // '') eq 'run' ? $part =~ s/ (?:\.\/|build\/|python|--( |$)).*//sr : $part;
        next if $words =~ $foreign;
        for my $option ($words =~ /(?<![\w-])(--[a-z][a-z-]*)/g) {
            next if $known->{$option};
            my $whose = defined $command ? "shoal $command has no option" : 'there is no option';
            push @found, "$page: $whose $option";
        }
    }
}

# Code of a page: blocks, and pieces in quotes. A line that ends with \ goes on.
sub code_of
{
    my ($text) = @_;
    $text =~ s/\\\n\s*/ /g;
    my @code = map { split /\n/ } $text =~ /^```[^\n]*\n(.*?)^```/msg;
    $text =~ s/^```.*?^```//msg;
    push @code, $text =~ /^ {4,}(\S.*)$/mg, $text =~ /`([^`\n]+)`/g;
    return @code;
}

# What is wrong with a page.
sub look_at {
    my ($page, $text) = @_;
    my $folder = $page =~ m{^(.*/)} ? $1 : '';
    for my $name ($text =~ /(?<![\w.])(shoal_[a-z0-9_]+|SHOAL_[A-Z0-9_]+)\b(?![*<])/g) {
        next if $page eq 'docs/extending.md' && $is_added{$name};
        push @found, "$page: there is no $name" if !$is_word{$name} && $name !~ /_$/;
    }
    # In quotes, with a folder, and a suffix or a slash at the end.
    for my $name ($text =~ m{`((?:[\w.\[\]\{\},*-]+/)+(?:[\w.\[\]\{\},*-]+\.[\w\[\]]+)?)`}g) {
        next if $name =~ m{^(?:\./|build/|lib/|share/|dlpack/)};
        push @found, "$page: there is no file or folder $name" if !is_there($name =~ s{/$}{}r);
    }
    if ($page =~ m{/man/(?:shoal-)?(\w+)\.1$}) {
        my $command = $1 eq 'shoal' ? undef : $1;
        my $plain = $text =~ s/\\f.|^\.\w+ ?//mgr;
        look_at_command($page, $_, $command) for split /\n/, $plain;
    } elsif ($page !~ /\.h$/) {
        look_at_command($page, $_) for code_of($text);
    }
    for my $name ($text =~ m{`([\w-]+\.(?:c|h|sh|pl|def|cmake|graph))`}g) {
        push @found, "$page: there is no file $name" if !is_there($name);
    }
    for my $link ($text =~ /\]\(([^):]+)\)/g) {
        my ($file, $place) = split /#/, $link, 2;
        my $target = $file eq '' ? $page : $folder . $file;
        1 while $target =~ s{[^/]+/\.\./}{};
        push @found, "$page: the link to $link leads nowhere"
            if !$exists{$target} || defined $place && !grep { $_ eq $place } places($target);
    }
}

# Mistakes are found.
for my $mistake ('shoal_nothing', '`shoal_group_free`', 'SHOAL_NOTHING', '`src/comm/nothing.c`', '`nothing.c`',
                 '`src/nothing/`',
                 '`make nothing`', '`shoal nothing`', '`shoal bench nothing`', '`shoal run --nothing`', '`--nothing`',
                 "```\nshoal info --bind cores\n```\n", '    shoal train --nothing', '[page](docs/nothing.md)',
                 '[place](README.md#nothing)') {
    @found = ();
    look_at('a page', $mistake);
    die "not found: $mistake\n" if !@found;
}
@found = ();
look_at('a page', '`shoal_group_close`, `SHOAL_TIMEOUT`, `comm/lane/lane.[ch]`, `src/`, [page](README.md#status), '
    . '`make test`, `shoal run -n 2 ./program --its-own`, `cmake --preset dev`');
die "wrongly found: @found\n" if @found;

my @pages = ('README.md', 'CONTRIBUTING.md', glob('docs/*.md docs/design/*.md docs/man/*.1'));
look_at($_, slurp($_) =~ s/\\-/-/gr) for @pages;
look_at('CHANGELOG.md', slurp('CHANGELOG.md') =~ s/^### Renamed and removed\n.*//msr);
for my $header (glob 'include/shoal/*.h include/shoal_compat/*.h include/shoal_nn/*.h') {
    look_at($header, join "\n", slurp($header) =~ m{/\*.*?\*/}gs);
}
# What the tour of the source leaves out.
sub lacks {
    my ($text) = @_;
    my @names = ((map { s{^include/}{}r } glob 'include/shoal/*.h include/shoal_compat/*.h include/shoal_nn/*.h'), glob('examples/*.c'),
                 grep { -d } glob 'src/*');
    return grep { $_ ne 'shoal/api.h' && $text !~ m{[`(/]\Q$_\E[`)/]} } @names;
}
my $tour = slurp('docs/source.md');
for my $name ('shoal/mesh.h', 'examples/05_ring.c', 'src/device') {
    die "not missed: $name\n" if "@{[lacks($tour =~ s/\Q$name\E//gr)]}" ne $name;
}
push @found, map { "docs/source.md: does not name $_" } lacks($tour);
# Settings that a capture refuses stand in both tables about that.
sub lacks_refused {
    my ($table) = @_;
    my ($rows) = slurp('src/parallel/fsdp/module/captured.c') =~ /static shoal_status check_settings\b.*?\{\n(.*?)\n\}/s;
    my @names = $rows =~ /"shoal_fsdp_(set_\w+)"/g;
    die "no settings are refused\n" if !@names;
    return grep { $table !~ /\b(?:shoal_fsdp_)?$_\b/ } @names;
}
my ($in_page) = slurp('docs/graph.md') =~ /^### Settings of sharded units\n(.*?)^##/ms;
my ($in_header) = slurp('include/shoal/fully_shard.h') =~ /( \*     setting +in a captured step\n.*?) \*\n/s;
die "not missed\n"
    if !grep { $_ eq 'set_custom_all_gather' } lacks_refused($in_header =~ s/set_custom_all_gather//r);
push @found, map { "docs/graph.md: the table of settings lacks $_" } lacks_refused($in_page);
push @found, map { "include/shoal/fully_shard.h: the table of settings lacks $_" } lacks_refused($in_header);

print "$_\n" for @found;
printf "%d pages, %d files and folders\n", scalar @pages, scalar keys %exists;
exit(@found ? 1 : 0);
PERL
