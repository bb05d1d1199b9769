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
grep -F "2 ranks, 1 step, medians" "$scratch/table" >/dev/null
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
expect 2 "'x' is not a number" "$tool" trace --step x "$scratch/steps.json"
expect 2 "--svg needs a value" "$tool" trace "$scratch/steps.json" --svg
expect 2 "--step" "$tool" trace --stp 3 "$scratch/steps.json"
expect 2 "one file" "$tool" trace a b
expect 1 "no/such/file: No such file" "$tool" trace no/such/file
expect 1 "there is no step 9; they go from 5 to 6" "$tool" trace "$scratch/steps.json" --step 9
expect 1 "no/such/place.svg: No such file" "$tool" trace "$scratch/steps.json" --svg no/such/place.svg
: >"$scratch/empty"
expect 1 "no JSON" "$tool" trace "$scratch/empty"
head -c 300 "$scratch/steps.json" >"$scratch/cut"
expect 1 "cut:4: no JSON" "$tool" trace "$scratch/cut"
echo '{"other": 1}' >"$scratch/other"
expect 1 "it has no traceEvents" "$tool" trace "$scratch/other"
echo '[1, "x", {"ph": 3}, {"ph":"X","cat":"foreign","name":"y"}]' >"$scratch/foreign"
expect 1 "no events of shoal" "$tool" trace "$scratch/foreign"

# A file that cannot be written is told, and the program goes on.
SHOAL_LOG=error SHOAL_TRACE=$scratch/no/t.json "$program" >/dev/null 2>"$scratch/err" || fail "it did not go on"
grep -F "SHOAL_TRACE: trace $scratch/no/t.json: No such file" "$scratch/err" >/dev/null
