#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal report` and `shoal train --report`: the page has the values of the log and of the trace, needs nothing else, shows no
# name as markup, and files that are no logs are refused. (tests/browser: what Chromium makes of it.)
# shellcheck disable=SC2016 # perl expands
# shellcheck source-path=SCRIPTDIR source=train_common.sh
. "${BASH_SOURCE[0]%/*}/train_common.sh"
tiny=(--data "$text" --layers 2 --width 16 --heads 2 --context 16 --batch 1)
log=$scratch/log.jsonl

# reports STATUS ARGUMENTS...
reports() {
    local wanted=$1 status=0
    shift
    timeout "$limit_s" "$SHOAL_TEST_TOOL" report "$@" >"$scratch/out" 2>"$scratch/err" || status=$?
    [[ $status -eq $wanted ]] || complain "report $*: exit status $status, wanted $wanted"
}

# declines STATUS TEXT ARGUMENTS...: the first line of the message has the text, a regular expression.
declines() {
    local status=$1 text=$2
    shift 2
    reports "$status" "$@"
    head -n 1 "$scratch/err" | grep -E -- "^shoal report: $text" >/dev/null || complain "report $*: does not say: $text"
}

# checks PAGE SCRIPT: perl that sees the page as $page, its data as $data, values of a field as column("loss"), lines of the log
# as @lines, and those of steps as @steps. It prints what is wrong.
checks() {
    local wrong
    wrong=$(perl -MJSON::PP -MMIME::Base64 -MDigest::SHA=sha256_base64 -e '
        our ($file, $log, $script) = @ARGV;
        sub slurp { open my $in, "<:raw", $_[0] or die "$_[0]: $!\n"; local $/; return scalar <$in> }
        our $page = slurp($file);
        our @lines = map { eval { decode_json($_) } // () } split /\n/, slurp($log);
        our @steps = grep { !exists $_->{type} } @lines;
        our ($json) = $page =~ m{<script type="application/json" id="data">(.*?)</script>}s;
        our $data = decode_json($json);
        sub column {
            my $column = $data->{columns}{$_[0]};
            return unpack "d<*", decode_base64($column->{data}) if $column->{kind} eq "f64";
            return map { $_ == 0xffffffff ? undef : $_ / $column->{per} } unpack "V*", decode_base64($column->{data}) if $column->{kind} eq "u32";
            my @values = (undef) x $data->{n};
            @values[unpack "V*", decode_base64($column->{at})] = unpack "d<*", decode_base64($column->{data});
            return @values;
        }
        sub differ {
            my ($field) = @_;
            my @values = column($field);
            return "$field: " . @values . " values" if @values != @steps;
            for my $i (0 .. $#steps) {
                my ($a, $b) = ($values[$i], $steps[$i]{$field});
                $a = undef if defined $a && $a != $a;
                return "$field of line $i" if defined $a != defined $b || (defined $a && $a != $b);
            }
            return "";
        }
        eval $script;
        print $@ if $@' "$1" "$log" "$2" 2>&1) || true
    [[ -z $wrong ]] || complain "page: $wrong"
}

# All values of the log, all spans of the trace.
trains 0 --ranks 2 --steps 30 --val 0.2 --val-every 4 --log "$log" --trace "$scratch/t.json" --report "$scratch/page.html"
grep -qx "  report  *$scratch/page.html" "$scratch/out" || complain "the summary does not name the page"
find_digest
"$SHOAL_TEST_TOOL" trace --steps "$scratch/t.json" >"$scratch/table"
all='
    print "steps" if $data->{n} != @steps || $data->{first} != 1 || defined $data->{numbers};
    print differ($_) for qw(loss val_loss lr norm step_ms compute_ms exposed_ms hidden_ms outside_ms compute_ms_max slowest memory_mb);
    for my $kind (qw(style script)) {
        my ($found) = $page =~ m{$kind-src .sha256-([^ ;]*)\x27};
        my ($text) = $page =~ m{<$kind>(.*?)</$kind>}s;
        print "the policy has not the hash of the $kind" if !defined $found || $found ne sha256_base64($text) . "=";
    }
    print "markup in the data" if $json =~ /[<>]/;
    print "something is fetched" if $page =~ /(?:src|href|action)\s*=|\@import|url\(|default-src (?!.none.;)/;
    print "styles in attributes, which the policy forbids" if $page =~ m{<body>.* style="}s;'
DIGEST=$digest checks "$scratch/page.html" "$all"'
    my @plots = $page =~ /<svg class="plot".*?<\/svg>/gs;
    print "charts without JavaScript: " . @plots if @plots != 6 || grep { !/<path class="(?:line|area) \w+" d="M[^"]+L/ } @plots;
    print "no timeline without JavaScript" if $page !~ /<div id="timeline".*?<svg .*?<rect class="wait".*?<\/svg>/s;
    print "digest" if $page !~ />$ENV{DIGEST}</;
    print "lost" if $page =~ /is not a number/;
    print "slowest" if $page !~ /The slowest rank is <b id="slowest">[01]</;
    print "memory" if () = $page =~ /id="rank-memory"/g and $page !~ /id="host-memory"/;
    print "unit" if $page !~ /<table id="units">.*transformer\.h\.1/s;'
TABLE=$(cat "$scratch/table") checks "$scratch/page.html" '
    my $timeline = $data->{timeline};
    print "ranks" if @{$timeline->{ranks}} != 2;
    for my $rank (@{$timeline->{ranks}}) {
        my ($count) = $ENV{TABLE} =~ /^ +$timeline->{step} +$rank->{rank}(?: +[0-9.]+){4} +(\d+)$/m;
        my $n = grep { $_->[0] >= $rank->{begin} && $_->[0] < $rank->{end} } map { @{$_->{spans}} } @{$rank->{rows}};
        print "rank $rank->{rank} has $n spans, shoal trace says $count" if $n != $count;
    }'
[[ ! -e $scratch/page.html.jsonl ]] || complain "a log of its own beside the given one"

# Steps are those of the training, with validation after each fourth, in the summary, in `shoal trace` and on the page: what a
# unit moves in a step is the same without validation. Times are of two clocks, and nearly the same.
trains 0 --ranks 2 --steps 30 --trace "$scratch/alone.json"
units() {
    "$SHOAL_TEST_TOOL" trace "$1" | awk 'found && $1 != "(none)" { print $1, $NF } /^unit / { found = 1 }' | sort
}
[[ -n $(units "$scratch/alone.json") && $(units "$scratch/t.json") == "$(units "$scratch/alone.json")" ]] ||
    complain "steps with validation move more: $(units "$scratch/t.json") and $(units "$scratch/alone.json")"
grep -q ': 2 ranks, 30 steps$' "$scratch/table" || complain "the last step does not count"
TABLE=$(cat "$scratch/table") checks "$scratch/page.html" '
    my ($end) = grep { ($_->{type} // "") eq "end" } @lines;
    my ($step, $compute, $exposed) = $ENV{TABLE} =~ /^  mean +([0-9.]+) +([0-9.]+) +([0-9.]+)/m;
    my ($tile_compute, $tile_exposed) = $page =~ /compute ([0-9.]+) \+ exposed ([0-9.]+)</;
    print "the tile is not the end" if abs($tile_exposed - $end->{exposed_ms}) > 0.006 || abs($tile_compute - $end->{compute_ms}) > 0.006;
    print "a step of $step ms in the trace, of $end->{step_ms} ms in the log" if abs($step - $end->{step_ms}) > 0.3 * $step + 0.3;
    my ($speed) = $page =~ m{<dt>Tokens a second</dt><dd>(\d+)};
    print "speed" if $speed != sprintf "%.0f", $end->{tokens_per_s};
    my ($units) = $page =~ m{<table id="units">.*?<tbody>(.*?)</tbody>}s;
    my $sum = 0;
    $sum += $_ for $units =~ m{</svg></td><td>([0-9.]+)</td>}g;
    print "units add up to $sum, exposed is $exposed" if abs($sum - $exposed) > 0.02 + 0.001 * $exposed;
    my ($ranks) = $page =~ m{<table id="rank-times">.*?<tbody>(.*?)</tbody>}s;
    my @of_ranks = $ranks =~ m{</svg></td><td>([0-9.]+)</td>}g;
    for my $rank (0, 1) {
        print "rank $rank" if abs($of_ranks[$rank] - $end->{ranks}{step_ms}[$rank]) > 0.01 * $of_ranks[$rank] + 0.006;
    }
    print "ranks are not of the middle half" if $page !~ /Means over the middle half of each rank/;'

# The log knows its trace, and both their run.
reports 0 "$log" -o "$scratch/found.html"
checks "$scratch/found.html" "$all"'print "the trace of the log is not used" if !$data->{timeline};'
declines 1 "$log is of run [0-9a-f]{16}, and $scratch/alone.json of run [0-9a-f]{16}: both must be of one run" "$log" "$scratch/alone.json"
mv "$scratch/t.json" "$scratch/kept.json"
cp "$scratch/alone.json" "$scratch/t.json"
reports 0 "$log" -o "$scratch/other.html"
rm "$scratch/t.json"
reports 0 "$log" -o "$scratch/lost.html"
for page in other lost; do
    checks "$scratch/$page.html" 'print "a trace" if $data->{timeline}; print "no word about it" if $page !~ m{was to be in .*/t\.json, and is not there};'
done
declines 1 '--step is about a trace, and the log names none that is there: give one' "$log" --step 3
mv "$scratch/kept.json" "$scratch/t.json"
# A run that was resumed has two ids, and a trace of either belongs to its log. One rank has an id, too.
trains 0 --steps 2 --checkpoint "$scratch/run" --log "$scratch/both.jsonl" --trace "$scratch/first.json"
trains 0 --steps 4 --checkpoint "$scratch/run" --resume --log "$scratch/both.jsonl" --trace "$scratch/second.json"
reports 0 "$scratch/both.jsonl" "$scratch/first.json"
reports 0 "$scratch/both.jsonl"
grep -qF "$scratch/second.json</code>" "$scratch/both.html" || complain "not the trace of the last run"
declines 1 "$scratch/both.jsonl is of run" "$scratch/both.jsonl" "$scratch/alone.json"

# The command writes the same page; one step of the trace; a name of its own.
reports 0 "$log" "$scratch/t.json" --step 7
[[ $(cat "$scratch/out") == "$scratch/log.html" ]] || complain "does not say what it wrote"
checks "$scratch/log.html" "$all"'print "step" if $data->{timeline}{step} != 7;'
mv "$scratch/t.json" "$scratch/away.json"
reports 0 "$log" --out "$scratch/plain.html"
mv "$scratch/away.json" "$scratch/t.json"
checks "$scratch/plain.html" "$all"'print "a timeline without a trace" if $data->{timeline} || $page !~ /There is no trace/;'
[[ $(stat -c %a "$scratch/plain.html") == 644 || $(umask) != 0022 ]] || complain "nobody else may read the page"

# Without --log the log is there only until the page is.
trains 0 --steps 3 --report "$scratch/own.html"
[[ -e $scratch/own.html && ! -e $scratch/own.html.jsonl ]] || complain "--report without --log"

# A run that was interrupted and went on: lines that were overtaken are dropped, damaged ones counted.
{
    echo '{"shoal_log":1,"type":"run","after":0,"config":{"steps":6},"hosts":["a"]}'
    for k in 1 2 3 4 5; do echo "{\"step\":$k,\"loss\":$k}"; done
    echo '{"type":"ranks","after":0,"to":5,"step_ms":[1],"exposed_ms":[0],"hidden_ms":[0],"memory_mb":[7]}'
    echo '{"shoal_log":1,"type":"run","after":2,"config":{"steps":6},"hosts":["a"]}'
    for k in 3 4 6; do echo "{\"step\":$k,\"loss\":1$k,\"val_loss\":null}"; done
    echo '{"step":7,"lo'
    echo 'no JSON'
    printf '{"step":8,"loss":1}'
} >"$log"
reports 0 "$log"
checks "$scratch/log.html" '
    print "losses: @{[column(q(loss))]}" if "@{[column(q(loss))]}" ne "1 2 13 14 16";
    my @numbers = unpack "d<*", decode_base64($data->{numbers}{data});
    print "numbers: @numbers" if "@numbers" ne "1 2 3 4 6";
    print "resumed" if "@{$data->{resumed}}" ne "2";
    print "notices" if $page !~ /repeated were left out \(3\)/ || $page !~ /damaged were left out \(3\)/ || $page !~ /after step 6 of 6/;
    print "ranks that were overtaken" if $page !~ /says nothing of single ranks/;'

# Logs of two runs in one file: the page is about the last one, also where that does not begin with step 1.
{
    echo '{"shoal_log":1,"type":"run","after":0,"id":"1","began":"1","config":{"steps":6},"hosts":["a"]}'
    for k in 1 2 3 4 5; do echo "{\"step\":$k,\"loss\":$k}"; done
    echo '{"type":"ranks","after":0,"to":2,"step_ms":[1],"exposed_ms":[0],"hidden_ms":[0],"memory_mb":[7]}'
    echo '{"shoal_log":1,"type":"run","after":2,"id":"3","began":"2","config":{"steps":6},"hosts":["a"]}'
    for k in 3 6; do echo "{\"step\":$k,\"loss\":1$k}"; done
} >"$log"
reports 0 "$log"
checks "$scratch/log.html" '
    print "losses: @{[column(q(loss))]}" if "@{[column(q(loss))]}" ne "13 16";
    print "several runs" if $page !~ /several runs\. .*? were left out \(5\)/ || $page =~ /repeated/;
    print "missing" if $page !~ /Steps of which the log has no line \(2\)/;
    print "ranks of the other run" if $page !~ /says nothing of single ranks/;'

# Losses that are no numbers any more: of a run that has ended, and of one that was killed.
{
    echo '{"shoal_log":1,"type":"run","after":0,"config":{"steps":4}}'
    printf '{"step":%d,"loss":%s}\n' 1 5.5 2 null 3 4.5 4 null
} >"$log"
for end in '' '{"type":"end","step":4,"lost_step":4,"digest":"0"}'; do
    echo "$end" >>"$log"
    reports 0 "$log"
    checks "$scratch/log.html" '
        print "lost" if $page !~ /The loss is not a number since step 4\./;
        print "a loss that is lost" if $page !~ m{<dt>Loss</dt><dd>\xe2\x80\x93</dd>};'
done

# Numbers at the ends of their range, one step, none.
printf '%s\n' '{"shoal_log":1,"type":"run","after":0}' '{"step":1,"loss":1e308,"step_ms":9999999.125,"memory_mb":-1,"norm":null}' >"$log"
reports 0 "$log"
checks "$scratch/log.html" 'print differ($_) for qw(loss step_ms memory_mb norm);'
printf '%s\n' '{"shoal_log":1,"type":"run","after":0}' '{"step":9223372036854775806,"lr":1e308}' '{"step":9223372036854775807,"lr":-1e308}' \
    '{"step":1,"norm":1}' >"$log"
reports 0 "$log"
checks "$scratch/log.html" 'my ($body) = $page =~ m{<body>(.*?)<script}s; print "no numbers on the page" if $body =~ /\b-?(?:nan|inf)\b/;'
echo '{"shoal_log":1,"type":"run","after":0}' >"$log"
reports 0 "$log"
checks "$scratch/log.html" 'print "steps" if $data->{n} != 0 || $page !~ /has no steps yet/;'

# Names are no markup.
evil='</script><script>x</script><!--"'
perl -MJSON::PP -e 'my $evil = shift; print encode_json($_), "\n" for {shoal_log => 1, type => "run", after => 0, version => $evil, time => $evil,
    hosts => [$evil], config => {mode => $evil, data => $evil, $evil => $evil}, fields => {$evil => $evil}}, {step => 1, loss => 1},
    {type => "ranks", after => 0, to => 1, step_ms => [1], exposed_ms => [0], hidden_ms => [0], memory_mb => [1]},
    {type => "memory", step => 1, map { $_ => [1] } qw(parameters gradients optimizer gathered buffers rest)},
    {type => "end", step => 1, digest => $evil}' "$evil" >"$log"
reports 0 "$log"
checks "$scratch/log.html" '
    my $n_scripts = () = $page =~ /<script/g;
    print "scripts: $n_scripts" if $n_scripts != 2;
    print "a comment" if $page =~ /<!--/;
    print "markup in the data" if $json =~ /[<>]/;
    print "not shown" if 8 > (() = $page =~ m{&lt;/script&gt;&lt;script&gt;x&lt;/script&gt;&lt;!--&quot;}g);'

# Hosts are counted once, in whatever order ranks have them.
echo '{"shoal_log":1,"type":"run","after":0,"hosts":["a","b","a","b","c","a"]}' >"$scratch/hosts.jsonl"
reports 0 "$scratch/hosts.jsonl"
grep -qF ' a and 2 other hosts ' "$scratch/hosts.html" || complain "another number of hosts"

# What is no log.
declines 1 "$scratch/none: No such file" "$scratch/none"
declines 1 "$scratch: Is a directory" "$scratch"
declines 1 "$text is no log of shoal train" "$text"
echo '{"shoal_log":2,"type":"run"}' >"$scratch/new.jsonl"
declines 1 "$scratch/new.jsonl has version 2 of the format; this program knows 1" "$scratch/new.jsonl"
declines 1 "$log:2: not valid JSON" "$log" "$log"
declines 1 "$scratch/new.jsonl: not a trace" "$log" "$scratch/new.jsonl"
declines 1 "the trace has no step 99; they go from 0 to 29" "$log" "$scratch/t.json" --step 99
declines 1 '/nowhere/page.html: open its directory: No such file' "$log" -o /nowhere/page.html
declines 1 '--step is about a trace, and the log names none' "$log" --step 3
declines 2 'the log is missing'
cp "$log" "$scratch/kept.jsonl"
declines 2 "--out $scratch/kept.jsonl would write over the log\$" "$scratch/kept.jsonl" -o "$scratch/kept.jsonl"
ln "$scratch/kept.jsonl" "$scratch/linked.jsonl"
declines 2 "--out $scratch/linked.jsonl would write over the log\$" "$scratch/kept.jsonl" -o "$scratch/linked.jsonl"
declines 2 "--out $scratch/t.json would write over the trace\$" "$scratch/kept.jsonl" "$scratch/t.json" -o "$scratch/t.json"
cp "$scratch/t.json" "$scratch/kept.html"
declines 2 "the page $scratch/kept.html would write over the trace\$" "$scratch/kept.jsonl" "$scratch/kept.html"
cmp -s "$log" "$scratch/kept.jsonl" || complain "the log was written over"
cmp -s "$scratch/t.json" "$scratch/kept.html" || complain "the trace was written over"
status=0
"$SHOAL_TEST_TOOL" trace "$scratch/t.json" --svg "$scratch/t.json" >"$scratch/out" 2>"$scratch/err" || status=$?
[[ $status -eq 2 && $(<"$scratch/err") == "shoal trace: --svg $scratch/t.json would write over the trace" ]] || complain "trace over itself"
[[ -z $(find "$scratch" -name '*.html.*' ! -name '*.jsonl') ]] || complain "half a page is left: $(ls "$scratch")"
refuses 1 '^shoal train: --report: /nowhere/page.html: open its directory: No such file or directory' --ranks 2 --steps 2 --report /nowhere/page.html
refuses 1 '^shoal train: --report: /nowhere/page.html: open its directory: No such file' --steps 2 --log "$scratch/other.jsonl" --report /nowhere/page.html
mkdir "$scratch/folder"
refuses 1 "^shoal train: --report: $scratch/folder: is a directory, not a regular file" --steps 2 --report "$scratch/folder"

# A pipe (and with it a device) is refused and stays; a link stays, too, and its target is written.
mkfifo "$scratch/pipe"
echo before >"$scratch/target"
ln -s target "$scratch/link"
refuses 1 "^shoal train: --report: $scratch/pipe: is a device, pipe or socket, not a regular file" --steps 2 --report "$scratch/pipe"
[[ ! -s $scratch/out ]] || complain "trains before it says so"
declines 1 "$scratch/pipe: is a device, pipe or socket, not a regular file" "$log" -o "$scratch/pipe"
[[ -p $scratch/pipe ]] || complain "the pipe was replaced"
trains 0 --steps 2 --report "$scratch/link"
[[ -L $scratch/link && $(head -c 15 "$scratch/target") == '<!DOCTYPE html>' ]] || complain "--report does not follow the link"
echo before >"$scratch/target"
reports 0 "$log" -o "$scratch/link"
[[ -L $scratch/link && $(head -c 15 "$scratch/target") == '<!DOCTYPE html>' ]] || complain "-o does not follow the link"

# A page without room says so, and is not there.
if $may_limit_files; then
    (
        ulimit -f 4
        declines 1 "$scratch/full.html: write: File too large" "$log" -o "$scratch/full.html"
        ! $failed
    ) || failed=true
    [[ -z $(find "$scratch" -name 'full.html*') ]] || complain "half a page is left"
fi

! $failed
