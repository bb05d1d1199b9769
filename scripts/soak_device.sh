#!/bin/bash
# SPDX-License-Identifier: MIT
# All tests that run on the device for tests (label `apart`, tests/CMakeLists.txt), and again on `cuda` with the driver for tests
# (label `fakecuda`) in both of its modes, under the address sanitizer: each seed draws other delays of the device's streams and
# other random numbers. It stops after the first seed with a failure, and
# says which tests failed and how to repeat each. Some tests have deadlines of half a second, so the machine should have nothing
# else to do.
#
#   scripts/soak_device.sh [SEEDS [FIRST [TESTS]]]      default: 200 seeds, from 1 on; TESTS: only names that match
#   JOBS=2 scripts/soak_device.sh                       as many jobs for ctest, as -j; default: 6
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/progress.sh

number=${1:-200} first=${2:-1} tests=${3:-.}
cmake --preset asan >/dev/null
cmake --build --preset asan -j "$(nproc)" --target apart_programs >/dev/null
log=build/asan/soak_device.log
begin=$SECONDS n_runs=0 last=$((first + number - 1))

# Without the preset of ctest, which leaves out tests that take long. What each mode says is added to the log.
run_tests() {
    local mode
    run_label apart || return
    for mode in threads lazy; do
        FAKECUDA_MODE=$mode run_label fakecuda || return
    done
}

run_label() {
    ctest --test-dir build/asan --output-on-failure -j "${JOBS:-6}" -L "^$1\$" -R "$tests"
}

for ((seed = first; seed <= last; seed++)); do
    progress_say "soak-device: seed" $((seed - first + 1)) "$number"
    if TEST_APART_SEED=$seed SHOAL_TEST_SEED=$seed run_tests >"$log" 2>&1; then
        n_runs=$((n_runs + $(sed -nE 's/^100% tests passed, 0 tests failed out of ([0-9]+)$/\1/p' "$log" | paste -sd+)))
        continue
    fi
    progress_end
    grep -q '% tests passed' "$log" || { cat "$log" && exit 1; }
    # The lines in which tests say what was wrong; all that they printed is in the log.
    grep -E '^(\[rank [0-9]+\] )?([^ ]+\.[ch]:[0-9]+: |FAIL |.*(ERROR|SUMMARY): )|: rank [0-9]+ (ended|was still)' "$log" | head -n 60 || true
    n_failed=$(sed -nE 's/^[0-9]+% tests passed, ([0-9]+) tests? failed out of [0-9]+$/\1/p' "$log" | tail -n 1)
    echo "soak-device: FAILED: $n_failed tests with seed $seed; $((seed - first)) seeds and $n_runs tests before it had no failure"
    echo "  what they printed: $log"
    sed -nE 's/^[[:space:]]+[0-9]+ - ([^ ]+) \(.*$/\1/p' "$log" | while read -r name; do
        echo "  again: TEST_APART_SEED=$seed SHOAL_TEST_SEED=$seed ctest --test-dir build/asan --output-on-failure -R '^$name\$'"
    done
    exit 1
done
progress_end
[[ $n_runs -gt 0 ]] || { echo "soak-device: no test matches '$tests'" && exit 2; }
echo "soak-device: ok: $number seeds from $first, $n_runs tests, no failure ($(progress_time $((SECONDS - begin))))"
