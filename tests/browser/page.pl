#!/usr/bin/perl
# SPDX-License-Identifier: MIT
# The page of `shoal report`, as Chromium shows it: values under the pointer are those of the log, zoomed axes end where they
# were asked to, the timeline has the spans of the trace, nothing is requested, and the console stays empty.
#
#   tests/browser/page.pl TOOL
use strict;
use warnings;
use File::Temp;
use FindBin;
use JSON::PP;
use Time::HiRes;
use lib $FindBin::Bin;
use driver;

my ($tool) = @ARGV;
my $scratch = File::Temp->newdir;
my $n_failed = 0;
my $n_checked = 0;

sub check
{
    my ($is_right, $what) = @_;
    $n_checked++;
    return if $is_right;
    print "FAILED: $what\n";
    $n_failed++;
}

sub is
{
    my ($found, $wanted, $what) = @_;
    check(defined $found && $found eq $wanted, "$what: " . ($found // 'nothing') . ", wanted $wanted");
}

sub shoal
{
    my (@words) = @_;
    system("$tool " . join(' ', map { s/'/'\\''/gr =~ s/.*/'$&'/sr } @words) . " >$scratch/out 2>$scratch/err") == 0
        or die "shoal @words failed: " . `cat $scratch/out $scratch/err`;
    return `cat $scratch/out`;
}

sub read_steps
{
    my ($path) = @_;
    open my $file, '<', $path or die "$path: $!\n";
    return grep { !exists $_->{type} } map { decode_json($_) } <$file>;
}

sub write_file
{
    my ($path, $text) = @_;
    open my $file, '>', $path or die "$path: $!\n";
    print $file $text;
    close $file or die "$path: $!\n";
}

# Opens a page, and fails if it asks for anything but itself.
sub visit
{
    my ($browser, $path) = @_;
    $browser->console;
    $browser->requests;
    $browser->open_page($path);
    my @others = grep { $_ ne "file://$path" } $browser->requests;
    check(!@others, "$path asks for @others");
}

sub check_console
{
    my ($browser, $what) = @_;
    my @messages = map { $_->{message} } $browser->console;
    check(!@messages, "$what: the console says @messages");
}

# Where a step is drawn in a chart: x and y in the window.
sub place
{
    my ($browser, $chart, $step) = @_;
    return $browser->run('
        const svg = document.querySelector(`[data-chart=${arguments[0]}] svg`);
        svg.scrollIntoView({block: "center"});
        const box = svg.getBoundingClientRect(), first = Number(svg.dataset.first), last = Number(svg.dataset.last);
        return [box.left + 56 + (arguments[1] - first) / (last - first) * (box.width - 66), box.top + box.height / 2];', $chart, $step);
}

sub shown { my ($browser, $field) = @_; return $browser->run('return document.querySelector(`b[data-field=${arguments[0]}]`).textContent', $field); }

sub ends
{
    my ($browser, $chart) = @_;
    return $browser->run('
        const svg = document.querySelector(`[data-chart=${arguments[0]}] svg`);
        return [svg.querySelector(".first").textContent, svg.querySelector(".last").textContent, svg.dataset.first, svg.dataset.last,
            document.getElementById("from").value, document.getElementById("to").value].join(" ");', $chart);
}

# A text of the page, as a number, is the one of the log.
sub same_number
{
    my ($text, $value, $what) = @_;
    my ($number) = ($text // '') =~ /^([-+0-9.e]+)/;
    check(defined $value ? defined $number && $number == $value : ($text // '') eq "\x{2013}", "$what: shows '" . ($text // '') . "', the log has " . ($value // 'nothing'));
}

sub check_hover
{
    my ($browser, @steps) = @_;
    my @fields = qw(loss val_loss lr norm compute_ms exposed_ms hidden_ms memory_mb);
    for my $k (3, 20, 37) { # by the mouse
        my $at = place($browser, 'loss', $k);
        $browser->mouse($at);
        same_number(shown($browser, $_), $steps[$k - 1]{$_}, "the pointer on step $k, $_") for @fields;
        my $text = $browser->run('return document.getElementById("at").textContent');
        my $step = $steps[$k - 1];
        check($text =~ /^Step $k: ([0-9.]+) ms, .* slowest rank $step->{slowest}, which computes ([0-9.]+) ms$/ &&
            $1 == $step->{step_ms} && $2 == $step->{compute_ms_max}, "the line of step $k: $text");
    }
    for my $k (1 .. @steps) { # each of them
        my $texts = $browser->run('shoalReport.hover(arguments[0]); return arguments[1].map(field => document.querySelector(`b[data-field=${field}]`).textContent)',
            $k, \@fields);
        same_number($texts->[$_], $steps[$k - 1]{$fields[$_]}, "step $k, $fields[$_]") for 0 .. $#fields;
    }
}

sub check_zoom
{
    my ($browser) = @_;
    is(ends($browser, 'loss'), '1 40 1 40 1 40', 'the ends of the axis at first');
    my ($from, $to) = (place($browser, 'time', 10), place($browser, 'time', 25));
    $browser->mouse($from, [($from->[0] + $to->[0]) / 2, $from->[1]], $to);
    is(ends($browser, $_), '10 25 10 25 10 25', "the ends of the axis of $_ after steps 10 to 25 were drawn over") for qw(time loss norm);
    $browser->run('document.getElementById("from").value = 7; document.getElementById("to").value = 12; document.querySelector("#zoom button").click()');
    is(ends($browser, 'loss'), '7 12 7 12 7 12', 'the ends that were typed');
    $browser->run('document.getElementById("from").value = 39; document.getElementById("to").value = 4000; document.querySelector("#zoom button").click()');
    is(ends($browser, 'loss'), '39 40 39 40 39 40', 'ends beyond the run');
    $browser->run('document.getElementById("all").click()');
    is(ends($browser, 'loss'), '1 40 1 40 1 40', 'all of it again');
    $browser->run('const svg = document.querySelector("[data-chart=loss] svg"); svg.focus();
        for (let i = 0; i < 3; i++) { svg.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight", bubbles: true})); }');
    check($browser->run('return document.getElementById("at").textContent') =~ /^Step 3:/, 'arrow keys go from step to step');
}

sub check_timeline
{
    my ($browser, $trace) = @_;
    my $step = $browser->run('return JSON.parse(document.getElementById("data").textContent).timeline.step');
    my $table = shoal('trace', '--steps', $trace);
    for my $rank (0, 1) {
        my ($count) = $table =~ /^ +$step +$rank(?: +[0-9.]+){4} +(\d+)$/m;
        check(defined $count && $count > 20, "shoal trace says how many spans step $step of rank $rank has");
        is($browser->run('return shoalReport.countSpans(arguments[0])', $rank), $count // 0, "spans of rank $rank");
    }
    my $drawn = $browser->run('return document.querySelectorAll("#timeline svg rect").length');
    check($drawn > 40, "boxes of the timeline: $drawn");
    # Inside the step, which may take less than a millisecond.
    my $last = $browser->run('return Number(document.querySelector("#timeline svg").dataset.last)');
    my ($from, $to) = (int($last / 4), int($last / 2));
    check($to > $from, "the step takes some microseconds: $last");
    $browser->run('document.getElementById("timeline-from").value = arguments[0] / 1000;
        document.getElementById("timeline-to").value = arguments[1] / 1000; document.querySelector("#timeline-zoom button").click()', $from, $to);
    is($browser->run('const svg = document.querySelector("#timeline svg"); return Math.round(svg.dataset.first) + " " + Math.round(svg.dataset.last)'), "$from $to",
        'the ends of the timeline in microseconds');
    my ($unit, $gather, $reduce, $other) = $table =~ /^unit .*\n(\S.*?) +([0-9.]+) +([0-9.]+) +([0-9.]+)/m;
    is($browser->run('return document.getElementById("worst-unit").textContent'), $unit, 'the unit that is waited for longest');
    my $exposed = $browser->run('return Array.from(document.querySelectorAll("#units tbody tr:first-child td")).map(cell => cell.textContent).join(" ")');
    check($exposed =~ /^ ?([0-9.]+) \Q$gather $reduce $other\E /, "its row: $exposed, shoal trace: $gather $reduce $other");
}

# Light and dark, wide and narrow.
sub check_looks
{
    my ($browser) = @_;
    my @colours;
    for my $scheme (qw(light dark)) {
        $browser->devtools('Emulation.setEmulatedMedia', {features => [{name => 'prefers-color-scheme', value => $scheme}]});
        push @colours, $browser->run('return getComputedStyle(document.body).backgroundColor + " " + getComputedStyle(document.body).color');
    }
    check($colours[0] ne $colours[1], "light and dark have the same colours: $colours[0]");
    for my $width (1400, 800, 390) {
        $browser->devtools('Emulation.setDeviceMetricsOverride', {width => $width, height => 900, deviceScaleFactor => 1, mobile => JSON::PP::false});
        $browser->call(POST => "$browser->{session}/execute/async",
            {script => 'const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50)))', args => []});
        my $wide = $browser->run('return document.documentElement.scrollWidth');
        check($wide <= $width, "a window of $width pixels: the page has $wide");
        my $drawn = $browser->run('const svg = document.querySelector("[data-chart=loss] svg"); return Math.abs(svg.viewBox.baseVal.width - svg.clientWidth)');
        check($drawn < 2, "a window of $width pixels: the chart is drawn for another width");
    }
    $browser->devtools('Emulation.clearDeviceMetricsOverride', {});
}

sub check_run
{
    my ($browser) = @_;
    shoal('train', '--data', "$FindBin::Bin/../../LICENSE", qw(--layers 2 --width 16 --heads 2 --context 16 --batch 1 --ranks 2 --steps 40 --val 0.2
        --val-every 5 --log), "$scratch/log.jsonl", '--trace', "$scratch/trace.json", '--report', "$scratch/page.html");
    visit($browser, "$scratch/page.html");
    check_zoom($browser);
    check_hover($browser, read_steps("$scratch/log.jsonl"));
    check_timeline($browser, "$scratch/trace.json");
    check_looks($browser);
    check_console($browser, 'a run');
}

# Names that would be script, were they not escaped.
sub check_hostile
{
    my ($browser) = @_;
    my $evil = '</script><script>window.hacked = 1</script><img src=http://example.invalid/x onerror=hacked=1>"\'&<b><!--<script ';
    my $header = {shoal_log => 1, type => 'run', version => $evil, time => $evil, after => 0, hosts => [$evil, $evil],
        config => {data => $evil, mode => $evil, $evil => $evil, steps => 2, context => 1, samples_per_step => 1}, fields => {$evil => $evil}};
    write_file("$scratch/evil.jsonl", join '', map { encode_json($_) . "\n" } $header, {step => 1, loss => 2, step_ms => 1, exposed_ms => 0},
        {step => 2, loss => 1, step_ms => 1, exposed_ms => 0},
        {type => 'ranks', after => 0, to => 2, step_ms => [1, 1], exposed_ms => [0, 0], hidden_ms => [0, 0], memory_mb => [1, 1]},
        {type => 'end', digest => $evil, step => 2});
    write_file("$scratch/evil.json", encode_json([{ph => 'i', cat => 'step', name => 'step', pid => 0, tid => 1, ts => 0, args => {step => 5}},
        {ph => 'X', cat => 'op', name => $evil, pid => 0, tid => 1, ts => 1, dur => 5, args => {}},
        {ph => 'X', cat => 'wait', name => $evil, pid => 0, tid => 1, ts => 6, dur => 3, args => {op => 'all_gather', unit => $evil}},
        {ph => 'X', cat => 'collective', name => $evil, pid => 0, tid => 9, ts => 2, dur => 7, args => {op => 'all_gather', unit => $evil}},
        {ph => 'M', name => 'thread_name', pid => 0, tid => 9, args => {name => $evil}}]));
    shoal('report', "$scratch/evil.jsonl", "$scratch/evil.json", '-o', "$scratch/<script>hacked=1<" . '!--.html');
    rename "$scratch/<script>hacked=1<!--.html", "$scratch/evil.html";
    visit($browser, "$scratch/evil.html");
    check(!$browser->run('return "hacked" in window'), 'a name became script');
    is($browser->run('return document.scripts.length'), 2, 'scripts of the page');
    is($browser->run('return document.images.length'), 0, 'images of the page');
    is($browser->run('return document.getElementById("worst-unit").textContent'), $evil, 'the name of a unit');
    is($browser->run('return document.getElementById("digest").textContent'), $evil, 'the digest');
    check_console($browser, 'hostile names');
}

# Numbers at the ends of their ranges: the page opens, and draws numbers.
sub check_extreme
{
    my ($browser) = @_;
    write_file("$scratch/extreme.jsonl", join '', map { "$_\n" } '{"shoal_log":1,"type":"run","after":0}',
        '{"step":9223372036854773000,"loss":1e308,"lr":1e308,"norm":null,"step_ms":1e308,"compute_ms":1e308,"exposed_ms":1e308}',
        '{"step":9223372036854775807,"loss":-1e308,"lr":1e308,"norm":1,"step_ms":1e308,"compute_ms":1e308,"exposed_ms":1e308}');
    shoal('report', "$scratch/extreme.jsonl", '-o', "$scratch/extreme.html");
    visit($browser, "$scratch/extreme.html");
    $browser->run('shoalReport.zoom(9223372036854775800, 9223372036854775807)');
    my $drawn = $browser->run('return Array.from(document.querySelectorAll("figure.chart svg"), svg => svg.innerHTML).join("")');
    check($drawn =~ /<path class="line loss"/, 'no line of extreme losses');
    check($drawn !~ /NaN|Infinity/, 'extreme numbers are drawn as none');
    check_console($browser, 'extreme numbers');
}

# Long runs: all values are there, and it opens at once.
sub check_long
{
    my ($browser, $n_steps) = @_;
    my $header = {shoal_log => 1, type => 'run', version => '0', time => '', after => 0, hosts => ['a'],
        config => {mode => 'single', ranks => 1, parameters => 1e6, steps => $n_steps, context => 128, samples_per_step => 8}, fields => {}};
    open my $file, '>', "$scratch/long.jsonl" or die $!;
    print $file encode_json($header), "\n";
    my @losses;
    srand 1;
    for my $k (1 .. $n_steps) {
        push @losses, sprintf '%.9g', 2 + 4 * exp(-$k / 8000) + rand;
        printf $file "{\"step\":%d,\"loss\":%s,%s\"lr\":%.9g,\"norm\":%.9g,\"step_ms\":%.3f,\"compute_ms\":%.3f,\"exposed_ms\":%.3f,\"hidden_ms\":%.3f," .
            "\"outside_ms\":0.100,\"compute_ms_max\":12.000,\"slowest\":0,\"memory_mb\":%.3f}\n", $k, $losses[-1],
            $k % 500 == 0 ? "\"val_loss\":$losses[-1]," : '', 1e-3 * $k / $n_steps, 1 + rand, 15.5, 12.25, 3.25, 2.125, 100 + $k / 1000;
    }
    close $file;
    my $begin = Time::HiRes::time();
    shoal('report', "$scratch/long.jsonl", '-o', "$scratch/long.html");
    my $written_s = Time::HiRes::time() - $begin;
    visit($browser, "$scratch/long.html");
    my $ready_ms = $browser->run('return shoalReport.readyMs');
    my $painted_ms = $browser->run('const paint = performance.getEntriesByName("first-contentful-paint")[0]; return paint ? paint.startTime : 0');
    my $zoom_ms = $browser->run('const begin = performance.now(); shoalReport.zoom(1000, 90000); return performance.now() - begin');
    my $hover_ms = $browser->run('const begin = performance.now(); shoalReport.hover(5000); return performance.now() - begin');
    printf "%d steps: written in %.2f s, %.1f MB, open after %.2f s (first paint %.2f s), a zoom %.0f ms, a step under the pointer %.1f ms\n",
        $n_steps, $written_s, (-s "$scratch/long.html") * 1e-6, $ready_ms * 1e-3, $painted_ms * 1e-3, $zoom_ms, $hover_ms;
    check($ready_ms < 20000, "100,000 steps need $ready_ms ms to open"); # 2 s on an idle machine
    is(ends($browser, 'loss'), '1000 90000 1000 90000 1000 90000', 'the ends after a zoom');
    for my $k (1, 2, 500, 4999, 77777, $n_steps) {
        my $texts = $browser->run('shoalReport.hover(arguments[0]); return ["loss", "val_loss"].map(field => document.querySelector(`b[data-field=${field}]`).textContent)', $k);
        same_number($texts->[0], $losses[$k - 1], "loss of step $k");
        same_number($texts->[1], $k % 500 == 0 ? $losses[$k - 1] : undef, "validation of step $k");
    }
    my $n_points = $browser->run('return document.querySelector("[data-chart=loss] .line").getAttribute("d").length');
    check($n_points < 40000, "the line of the loss has $n_points characters");
    check_console($browser, 'a long run');
}

my $browser = driver->start;
my $is_done = eval {
    check_run($browser);
    check_hostile($browser);
    check_extreme($browser);
    check_long($browser, 100000);
    1;
};
print "FAILED: $@" if !$is_done;
$browser->stop;
print "$n_checked checks, $n_failed failed\n";
exit($is_done && $n_failed == 0 ? 0 : 1);
