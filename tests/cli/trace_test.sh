#!/bin/bash
# SPDX-License-Identifier: MIT
# shoal trace: the table and the picture of a trace that two ranks wrote because SHOAL_TRACE said so, and files that are none.
set -euo pipefail

tool=$SHOAL_TEST_TOOL
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() {
    echo "$*"
    exit 1
}

# expect STATUS WORDS COMMAND...: the exit status, and words on standard error.
expect() {
    local status=$1 words=$2 found=0
    shift 2
    "$@" >"$scratch/out" 2>"$scratch/err" || found=$?
    [[ $found -eq $status ]] || fail "$*: exit status $found, $status expected: $(cat "$scratch/err")"
    grep -F -- "$words" "$scratch/err" >/dev/null || fail "$*: '$words' is not in: $(cat "$scratch/err")"
}

# A program that knows nothing of traces. Without the variable there is no file.
program=$SHOAL_TEST_BUILD_DIR/examples/10_modules
(cd "$scratch" && "$tool" run -n 2 "$program" >/dev/null)
[[ -z $(find "$scratch" -type f) ]] || fail "files without SHOAL_TRACE: $(ls "$scratch")"
SHOAL_TRACE=$scratch/t.json "$tool" run -n 2 "$program" >/dev/null
"$tool" trace "$scratch/t.json" --svg "$scratch/t.svg" >"$scratch/table"
grep -F "2 ranks, 1 step" "$scratch/table" >/dev/null
grep -F "no step is marked (shoal_trace_step)" "$scratch/table" >/dev/null
grep -E "^ +1 +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9]+ %$" "$scratch/table" >/dev/null
grep -E "^slowest rank: [01], " "$scratch/table" >/dev/null
grep -E "^block0 +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+$" "$scratch/table" >/dev/null
grep -F "prefers-color-scheme" "$scratch/t.svg" >/dev/null
grep -F "rank 1<" "$scratch/t.svg" >/dev/null
[[ $(tail -n 1 "$scratch/t.svg") == "</svg>" ]]
if command -v xmllint >/dev/null; then
    xmllint --noout "$scratch/t.svg"
fi

# Steps that are marked. Rank 1 computes longer.
cat >"$scratch/steps.json" <<'TRACE'
{"traceEvents":[
{"ph":"i","cat":"step","name":"step","pid":0,"tid":1,"ts":1000,"args":{"step":5}},
{"ph":"X","cat":"op","name":"mul <1>\u0001","pid":0,"tid":1,"ts":1000,"dur":3000,"args":{}},
{"ph":"X","cat":"wait","name":"all_gather a&b","pid":0,"tid":1,"ts":4000,"dur":1000,"args":{"op":"all_gather","unit":"a&b"}},
{"ph":"X","cat":"collective","name":"all_gather a&b","pid":0,"tid":1000001,"ts":2000,"dur":3000,"args":{"op":"all_gather","unit":"a&b","bytes":2048}},
{"ph":"i","cat":"step","name":"step","pid":0,"tid":1,"ts":5000,"args":{"step":6}},
{"ph":"X","cat":"op","name":"mul","pid":0,"tid":1,"ts":5000,"dur":1000,"args":{}},
{"ph":"i","cat":"step","name":"step","pid":1,"tid":1,"ts":1000,"args":{"step":5}},
{"ph":"X","cat":"op","name":"mul","pid":1,"tid":1,"ts":1000,"dur":4000,"args":{}},
{"ph":"i","cat":"step","name":"step","pid":1,"tid":1,"ts":5000,"args":{"step":6}},
{"ph":"M","name":"thread_name","pid":0,"tid":1000001,"args":{"name":"group [0,1]"}},
{"ph":"M","name":"shoal_dropped","pid":0,"tid":1,"args":{"count":3}}
]}
TRACE
"$tool" trace --steps "$scratch/steps.json" >"$scratch/table"
grep -E ": 2 ranks, 1 step$" "$scratch/table" >/dev/null
grep -E "^  mean +4.000 +3.500 +0.500 +1.000 +67 %$" "$scratch/table" >/dev/null
grep -F "Compute and exposed add up to step" "$scratch/table" >/dev/null
grep -E "^ +5 +0 +4.000 +3.000 +1.000 +2.000 +3$" "$scratch/table" >/dev/null
if grep -F "no step is marked" "$scratch/table"; then fail "steps are marked"; fi
grep -F "3 older events were dropped" "$scratch/table" >/dev/null
grep -E "^ +0 +4.000 +3.000 +1.000 +2.000 +67 %$" "$scratch/table" >/dev/null
grep -E "^ +1 +4.000 +4.000 +0.000 +0.000 +0 %$" "$scratch/table" >/dev/null
grep -F "slowest rank: 1, which computes 4.000 ms, the fastest 3.000 ms" "$scratch/table" >/dev/null
grep -E "^a&b +0.500 +0.000 +0.000 +1.500 +1.0$" "$scratch/table" >/dev/null
grep -E "^ +6 +0 +1.000 " "$scratch/table" >/dev/null
"$tool" trace "$scratch/steps.json" --step 6 | grep -F "step 6" >/dev/null
"$tool" trace "$scratch/steps.json" --svg="$scratch/s.svg" >/dev/null
grep -F "all_gather a&amp;b" "$scratch/s.svg" >/dev/null
grep -F "mul &lt;1&gt;?" "$scratch/s.svg" >/dev/null

# A step that says where it ends: what comes before the next one is no part of it, and the last one counts.
cat >"$scratch/ends.json" <<'TRACE'
{"traceEvents":[
{"ph":"i","cat":"step_end","name":"step end","pid":0,"tid":1,"ts":500,"args":{}},
{"ph":"i","cat":"step","name":"step","pid":0,"tid":1,"ts":1000,"args":{"step":0}},
{"ph":"X","cat":"wait","name":"all_gather u","pid":0,"tid":1,"ts":1500,"dur":250,"args":{"op":"all_gather","unit":"u"}},
{"ph":"X","cat":"collective","name":"all_gather u","pid":0,"tid":1000001,"ts":1500,"dur":250,"args":{"op":"all_gather","unit":"u","bytes":1024}},
{"ph":"i","cat":"step_end","name":"step end","pid":0,"tid":1,"ts":2000,"args":{}},
{"ph":"X","cat":"wait","name":"all_gather u","pid":0,"tid":1,"ts":3000,"dur":5000,"args":{"op":"all_gather","unit":"u"}},
{"ph":"X","cat":"collective","name":"all_gather u","pid":0,"tid":1000001,"ts":3000,"dur":5000,"args":{"op":"all_gather","unit":"u","bytes":9999}},
{"ph":"i","cat":"step","name":"step","pid":0,"tid":1,"ts":9000,"args":{"step":1}},
{"ph":"X","cat":"wait","name":"all_gather u","pid":0,"tid":1,"ts":9500,"dur":250,"args":{"op":"all_gather","unit":"u"}},
{"ph":"X","cat":"collective","name":"all_gather u","pid":0,"tid":1000001,"ts":9500,"dur":250,"args":{"op":"all_gather","unit":"u","bytes":1024}},
{"ph":"i","cat":"step_end","name":"step end","pid":0,"tid":1,"ts":10000,"args":{}},
{"ph":"X","cat":"op","name":"mul","pid":0,"tid":1,"ts":10000,"dur":90000,"args":{}}
]}
TRACE
"$tool" trace "$scratch/ends.json" >"$scratch/table"
grep -E ': 1 rank, 2 steps$' "$scratch/table" >/dev/null || fail "not two steps: $(cat "$scratch/table")"
grep -E '^  mean +1\.000 +0\.750 +0\.250 ' "$scratch/table" >/dev/null || fail "other times: $(cat "$scratch/table")"
grep -E '^u +0\.250 +0\.000 +0\.000 +0\.250 +1\.0$' "$scratch/table" >/dev/null || fail "another unit: $(cat "$scratch/table")"

# Operations: the time of a span is its own, without that of spans inside; backward is what is inside of a backward pass.
# Other threads, collectives of lanes, and what is in no step do not count.
cat >"$scratch/ops.json" <<'TRACE'
[{"ph":"X","cat":"op","name":"before","pid":0,"tid":1,"ts":0,"dur":500,"args":{}},
{"ph":"i","cat":"step","name":"step","pid":0,"tid":1,"ts":1000,"args":{"step":0}},
{"ph":"X","cat":"module","name":"h.0 (block)","pid":0,"tid":1,"ts":1000,"dur":2000,"args":{}},
{"ph":"X","cat":"module","name":"h.0.mlp (mlp)","pid":0,"tid":1,"ts":1100,"dur":1500,"args":{}},
{"ph":"X","cat":"op","name":"mul","pid":0,"tid":1,"ts":1200,"dur":1000,"args":{}},
{"ph":"X","cat":"op","name":"other","pid":0,"tid":2,"ts":1200,"dur":1000,"args":{}},
{"ph":"X","cat":"backward","name":"backward","pid":0,"tid":1,"ts":3000,"dur":4000,"args":{}},
{"ph":"X","cat":"op","name":"mul","pid":0,"tid":1,"ts":3500,"dur":2000,"args":{}},
{"ph":"X","cat":"wait","name":"mul u","pid":0,"tid":1,"ts":5500,"dur":500,"args":{"op":"mul","unit":"u"}},
{"ph":"X","cat":"collective","name":"mul u","pid":0,"tid":1000001,"ts":5500,"dur":500,"args":{"op":"mul","unit":"u"}},
{"ph":"X","cat":"range","name":"optimizer","pid":0,"tid":1,"ts":7000,"dur":1500,"args":{}},
{"ph":"i","cat":"step_end","name":"step end","pid":0,"tid":1,"ts":9000,"args":{}}]
TRACE
"$tool" trace --ops "$scratch/ops.json" | sed -n '/^operation  /,$p' | tr -s ' ' >"$scratch/table"
diff "$scratch/table" - <<'TABLE' || fail "other operations"
operation ms backward calls share
mul 3.000 2.000 2.0 37.5 %
(backward) 1.500 0.000 1.0 18.8 %
optimizer 1.500 0.000 1.0 18.8 %
(modules) 1.000 0.000 2.0 12.5 %
(outside) 0.500 0.000 0.0 6.2 %
wait: mul 0.500 0.500 1.0 6.2 %
TABLE
"$tool" trace "$scratch/ops.json" --step 0 --ops | grep -E '^mul +3.000 ' >/dev/null || fail "no operations of one step"

# A posted collective is hollow while no thread is busy with it, and full at its end. 4000 us are 1100 pixels.
cat >"$scratch/posted.json" <<'TRACE'
[{"ph":"i","cat":"step","name":"step","pid":0,"tid":1,"ts":1000,"args":{"step":5}},
{"ph":"X","cat":"collective","name":"all_reduce","pid":0,"tid":9,"ts":2000,"dur":2000,"args":{"op":"all_reduce","carried":400}},
{"ph":"X","cat":"collective","name":"all_gather","pid":0,"tid":9,"ts":4000,"dur":400,"args":{"op":"all_gather","carried":400}},
{"ph":"X","cat":"collective","name":"barrier","pid":0,"tid":9,"ts":4400,"dur":1600,"args":{"op":"barrier","carried":10}},
{"ph":"i","cat":"step","name":"step","pid":0,"tid":1,"ts":5000,"args":{"step":6}},
{"ph":"M","name":"thread_name","pid":0,"tid":9,"args":{"name":"group [0,1]"}}]
TRACE
"$tool" trace "$scratch/posted.json" --step 5 --svg="$scratch/posted.svg" >/dev/null
grep -oE 'class="[a-z ]+" x="[0-9.]+" y="[0-9]+" width="[0-9.]+" height="18"' "$scratch/posted.svg" |
    sed 's/ y="[0-9]*"//; s/ height.*//' >"$scratch/boxes"
diff "$scratch/boxes" - <<'BOXES' || fail "a posted collective is drawn otherwise"
class="reduce hollow" x="465.00" width="550.00"
class="reduce" x="905.00" width="110.00"
class="gather" x="1015.00" width="110.00"
class="other hollow" x="1125.00" width="165.00"
BOXES

# Times whose difference is no number have an axis that ends.
cat >"$scratch/endless.json" <<'TRACE'
[{"ph":"i","cat":"step","name":"step","pid":0,"tid":1,"ts":-1.7e308,"args":{"step":5}},
{"ph":"X","cat":"op","name":"mul","pid":0,"tid":1,"ts":1000,"dur":1,"args":{}},
{"ph":"i","cat":"step","name":"step","pid":0,"tid":1,"ts":1.7e308,"args":{"step":6}}]
TRACE
(
    ulimit -f 1000
    "$tool" trace "$scratch/endless.json" --svg "$scratch/endless.svg" >/dev/null
)

expect 2 "usage: shoal trace" "$tool" trace
{ echo '{"otherData":{"program":"shoal","version":9},"traceEvents":' && cat "$scratch/steps.json" && echo '}'; } >"$scratch/new.json"
expect 1 "new.json has another version of the format than 1, which this program knows" "$tool" trace "$scratch/new.json"
expect 2 "'x' is not a whole number" "$tool" trace --step x "$scratch/steps.json"
expect 2 "--svg needs a value" "$tool" trace "$scratch/steps.json" --svg
expect 2 "--step" "$tool" trace --stp 3 "$scratch/steps.json"
expect 2 "one file" "$tool" trace a b
expect 1 "no/such/file: No such file" "$tool" trace no/such/file
expect 1 "there is no step 9; they go from 5 to 6" "$tool" trace "$scratch/steps.json" --step 9
expect 1 "no/such/place.svg: open its directory: No such file" "$tool" trace "$scratch/steps.json" --svg no/such/place.svg
mkfifo "$scratch/pipe"
expect 1 "$scratch/pipe: is a device, pipe or socket" timeout 60 "$tool" trace "$scratch/steps.json" --svg "$scratch/pipe"
: >"$scratch/empty"
expect 1 "is empty: no rank has written to it" "$tool" trace "$scratch/empty"
expect 1 "Is a directory" "$tool" trace "$scratch"
head -c 300 "$scratch/steps.json" >"$scratch/cut"
expect 1 "cut:4: not valid JSON" "$tool" trace "$scratch/cut"
echo '{"other": 1}' >"$scratch/other"
expect 1 "it has no traceEvents" "$tool" trace "$scratch/other"
echo '[1, "x", {"ph": 3}, {"ph":"X","cat":"foreign","name":"y"}]' >"$scratch/foreign"
expect 1 "no events of shoal" "$tool" trace "$scratch/foreign"

# A file of shoal without its end: what is there is shown.
head -c $(($(wc -c <"$scratch/t.json") - 100)) "$scratch/t.json" >"$scratch/killed.json"
"$tool" trace "$scratch/killed.json" | grep -F "the file has no end" >/dev/null

# Events that make no sense are left out, and counted. Of a posted collective the part counts in which it was carried.
cat >"$scratch/damaged.json" <<'TRACE'
[{"ph":"i","cat":"step","name":"step","pid":0,"tid":1,"ts":1000,"args":{"step":"x"}},
{"ph":"X","cat":"op","name":"mul","pid":-1,"tid":1,"ts":1000,"dur":1,"args":{}},
{"ph":"X","cat":"op","name":"mul","pid":0,"tid":1,"ts":"now","dur":1,"args":{}},
{"ph":"X","cat":"op","name":"mul","pid":0,"tid":1,"ts":1000,"dur":-1,"args":{}},
{"ph":"X","cat":"op","name":"mul","pid":99999999999,"tid":1,"ts":1000,"dur":1,"args":{}},
{"ph":"X","cat":"op","name":"mul","pid":0,"tid":1,"ts":1e300,"dur":1,"args":{}},
{"ph":"X","cat":"op","name":"mul","pid":2,"tid":1,"ts":1000,"dur":5000,"args":{}},
{"ph":"X","cat":"collective","name":"all_gather","pid":2,"tid":9,"ts":1000,"dur":4000,
 "args":{"op":"all_gather","carried":500,"bytes":-5,"unit":"evil\u001b[2J"}},
{"ph":"M","name":"shoal_ranks","pid":2,"tid":1,"args":{"count":7}},
{"ph":"M","name":"shoal_ranks","pid":4,"tid":1,"args":{"count":7}}]
TRACE
"$tool" trace "$scratch/damaged.json" >"$scratch/table"
grep -F "6 events are damaged, and left out" "$scratch/table" >/dev/null
grep -F "missing: ranks 0-1, 3, 5-6 of 7: killed before they could write" "$scratch/table" >/dev/null
grep -E "^ +2 +5.000 +5.000 +0.000 +0.500 +100 %$" "$scratch/table" >/dev/null
grep -E "^evil\?\[2J +0.000 +0.000 +0.000 +0.500 +0.0$" "$scratch/table" >/dev/null

# As many ranks as the largest job has: each has a line, and takes its time in proportion.
perl -e 'print "["; for $r (0 .. 9999) { for $t (1 .. 3) {
    printf qq({"ph":"X","cat":"op","name":"mul","pid":%d,"tid":%d,"ts":%d,"dur":5,"args":{}},\n), $r, $t, $t;
    printf qq({"ph":"M","name":"thread_name","pid":%d,"tid":%d,"args":{"name":"t"}},\n), $r, $t; } }
    print qq({"ph":"M","name":"shoal_ranks","pid":0,"tid":0,"args":{"count":10000}}]\n)' >"$scratch/many.json"
"$tool" trace "$scratch/many.json" --svg "$scratch/many.svg" >"$scratch/table"
grep -F "10000 ranks, 1 step" "$scratch/table" >/dev/null
grep -F "missing: ranks 1-9999 of 10000" "$scratch/table" >/dev/null
[[ $(tail -n 1 "$scratch/many.svg") == "</svg>" ]]

# Bytes of a trace changed, taken out or doubled at random: a table or a clear error, and no other end.
perl - "$scratch/t.json" "$scratch/fuzz" <<'END'
use strict;
use warnings;
my ($from, $to) = @ARGV;
open my $in, '<:raw', $from or die "$from: $!";
my $text = do { local $/; <$in> };
srand 1;
for my $i (0 .. 24) {
    my $damaged = substr $text, 0, 20000;
    $damaged =~ s/,?\n[^\n]*\z/\n]}\n/;
    for (0 .. int rand 4) {
        my ($at, $n) = (int rand length $damaged, int rand 40);
        my @changes = ('', substr($damaged, int rand length $damaged, $n), chr int rand 256, '-', '9' x $n, '"', 'null', '{', '1e999');
        substr($damaged, $at, int rand $n + 1) = $changes[rand @changes];
    }
    open my $out, '>:raw', "$to.$i" or die "$to.$i: $!";
    print $out $damaged;
}
END
for i in {0..24}; do
    status=0
    "$tool" trace --steps "$scratch/fuzz.$i" --svg "$scratch/fuzz.svg" >/dev/null 2>"$scratch/err" || status=$?
    [[ $status -eq 0 || ($status -eq 1 && $(head -c 13 "$scratch/err") == "shoal trace: ") ]] ||
        fail "damaged trace $i: exit status $status: $(cat "$scratch/err")"
done

# A killed rank, and Ctrl-C: what the others did is there, and who is missing.
# train_until_step FILE: ranks that train until they are stopped; leaves the launcher in $launcher.
train_until_step() {
    rm -f "$scratch/lines"
    # Of what a shell starts in the background SIGINT is ignored.
    perl -e '$SIG{INT} = "DEFAULT"; exec @ARGV' "$tool" train --data "$SHOAL_TEST_SOURCE_DIR/LICENSE" --layers 1 --width 16 --heads 2 \
        --context 16 --batch 1 --ranks 3 --steps 1000000 --trace "$1" >"$scratch/lines" 2>&1 &
    launcher=$!
    until grep -q "^step 1/" "$scratch/lines" 2>/dev/null; do
        kill -0 "$launcher" 2>/dev/null || fail "it does not train: $(cat "$scratch/lines")"
        sleep 0.05
    done
}
train_until_step "$scratch/kill.json"
read -r -a ranks <"/proc/$launcher/task/$launcher/children" || true
for rank in "${ranks[@]}"; do
    if tr '\0' '\n' <"/proc/$rank/environ" | grep -x "SHOAL_RANK=1" >/dev/null; then kill -KILL "$rank"; fi
done
wait "$launcher" && fail "a killed rank was not noticed"
"$tool" trace "$scratch/kill.json" >"$scratch/table"
grep -F "2 ranks, " "$scratch/table" >/dev/null
grep -F "missing: rank 1 of 3: killed before it could write" "$scratch/table" >/dev/null
train_until_step "$scratch/interrupt.json"
kill -INT "$launcher"
wait "$launcher" && fail "Ctrl-C was not noticed"
"$tool" trace "$scratch/interrupt.json" >"$scratch/table"
grep -F "3 ranks, " "$scratch/table" >/dev/null
! grep -F "missing" "$scratch/table" || fail "nobody is missing"

# A file that cannot be written is told once, without SHOAL_LOG too, and the program goes on.
env -u SHOAL_LOG SHOAL_TRACE="$scratch/no/t.json" "$program" >/dev/null 2>"$scratch/err" || fail "it did not go on"
[[ $(grep -cF "SHOAL_TRACE: trace $scratch/no/t.json: No such file" "$scratch/err") -eq 1 ]] || fail "not told: $(cat "$scratch/err")"
SHOAL_LOG=off SHOAL_TRACE=$scratch/no/t.json "$program" >/dev/null 2>"$scratch/err"
[[ ! -s $scratch/err ]] || fail "SHOAL_LOG=off is not silent: $(cat "$scratch/err")"
