#!/bin/bash
# SPDX-License-Identifier: MIT
# Random changes of good inputs into everything that reads files or what peers send (tests/fuzz), under the address sanitizer:
# by libFuzzer (preset fuzz, clang-14); where that is not installed by the loop of tests/fuzz/fuzz.c (preset asan), which is not
# led by coverage.
#
#   scripts/fuzz.sh [SECONDS [NAME...]]      default: 60 seconds for each of tests/fuzz/*_fuzz.c
#
# JOBS targets run at a time (default: one for each processor). What libFuzzer finds interesting is kept in build/fuzz/corpus,
# and a later run begins with it; logs are build/fuzz/logs/NAME. An input that fails stays in build/fuzz/found, or, without
# libFuzzer, in the working directory as NAME.crash.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/scripts/progress.sh"

seconds=${1:-60}
jobs=${JOBS:-$(nproc)}
names=("${@:2}")
if [[ ${#names[@]} -eq 0 ]]; then
    for source in "$root"/tests/fuzz/*_fuzz.c; do
        names+=("$(basename "$source" _fuzz.c)")
    done
fi
export SHOAL_TEST_SOURCE_DIR=$root UBSAN_OPTIONS=print_stacktrace=1
# Addresses that an input asks for may be any: an allocation that fails is an error like others.
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1

has_libfuzzer() {
    clang-14 -x c - -fsanitize=fuzzer,address -o /dev/null >/dev/null 2>&1 <<'END'
#include <stddef.h>
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size) { return data && size > 1000; }
END
}

preset=asan
if has_libfuzzer; then
    preset=fuzz
else
    echo "fuzz: clang-14 with libFuzzer is not here: changes are not led by coverage" >&2
fi
build=$root/build/$preset
(cd "$root" && cmake --preset "$preset" >/dev/null && cmake --build --preset "$preset" -j "$(nproc)" \
    --target "${names[@]/#/fuzz_}" >/dev/null)
logs=$build/logs
mkdir -p "$logs" "$build/found"

# fuzz_one NAME: its log says how it went; the last lines are printed.
fuzz_one() {
    local name=$1 status=0
    local program=$build/tests/fuzz/${name}_fuzz seeds=$root/tests/fuzz/seeds/$name corpus=$build/corpus/$name
    if [[ $preset == fuzz ]]; then
        mkdir -p "$corpus"
        local folders=("$corpus")
        [[ -d $seeds ]] && folders+=("$seeds")
        "$program" -max_total_time="$seconds" -max_len=32768 -timeout=30 -rss_limit_mb=4096 -detect_leaks=0 \
            -print_final_stats=1 -artifact_prefix="$build/found/$name-" "${folders[@]}" >"$logs/$name" 2>&1 </dev/null || status=$?
        echo "fuzz: $name: $(sed -nE 's/^stat::number_of_executed_units: *//p' "$logs/$name") inputs in $seconds s," \
            "$(grep -oE 'cov: [0-9]+' "$logs/$name" | tail -1 | sed 's/cov: //') edges: exit status $status"
    else
        SHOAL_FUZZ_SECONDS=$seconds "$program" inputs >"$logs/$name" 2>&1 </dev/null || status=$?
        echo "fuzz: $(grep -E 'inputs tried$' "$logs/$name" || echo "$name") in $seconds s: exit status $status"
    fi
    if [[ $status -ne 0 ]]; then
        tail -n 40 "$logs/$name" | sed "s/^/  $name: /"
        : >"$logs/failed.$name"
    fi
}

fuzz_all() {
    local name
    # shellcheck disable=SC2046 # process numbers
    trap 'kill $(jobs -p) 2>/dev/null; exit 143' TERM
    for name in "${names[@]}"; do
        while [[ $(jobs -pr | wc -l) -ge $jobs ]]; do
            wait -n || true
        done
        fuzz_one "$name" &
    done
    wait
}

rm -f "$logs"/failed.*
progress_run "fuzz: ${#names[@]} targets, $jobs at a time, $seconds s each" fuzz_all
failed=("$logs"/failed.*)
[[ ! -e ${failed[0]} ]]
