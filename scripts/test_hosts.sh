#!/bin/bash
# SPDX-License-Identifier: MIT
# Several hosts, made of namespaces: every tests/hosts/*_test.sh, or those that are named (`scripts/test_hosts.sh fixture`).
# Needs root; says so otherwise, and skips. Nothing stays however it ends (tests/hosts/fixture.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/progress.sh

if [[ $(id -u) -ne 0 ]]; then
    echo "test-hosts: skipped: namespaces of networks need root"
    exit 0
fi
if [[ $# -gt 0 ]]; then
    tests=("${@/%/_test.sh}")
    tests=("${tests[@]/#/tests/hosts/}")
else
    tests=(tests/hosts/*_test.sh)
fi

echo "test-hosts: building"
cmake --preset dev >/dev/null
progress_run "test-hosts: building" cmake --build --preset dev -j "${JOBS:-$(nproc)}" --target hosts_programs >/dev/null
export SHOAL_TEST_SOURCE_DIR=$PWD SHOAL_TEST_BUILD_DIR=$PWD/build/dev SHOAL_TEST_TOOL=$PWD/build/dev/bin/shoal

log=$(mktemp)
trap 'rm -f "$log"' EXIT
# shellcheck disable=SC2317 # progress_run calls it
logged() { bash "$@" >"$log" 2>&1; }
n_failed=0 n_skipped=0 number=0
for test in "${tests[@]}"; do
    number=$((number + 1)) begin=$SECONDS status=0 verdict=ok
    name=hosts/$(basename "$test" _test.sh)
    progress_run "test-hosts: $number of ${#tests[@]}: $name" logged "$test" || status=$?
    if [[ $status -eq 77 ]]; then
        verdict=skipped n_skipped=$((n_skipped + 1))
    elif [[ $status -ne 0 ]]; then
        verdict=FAILED n_failed=$((n_failed + 1))
    fi
    echo "$number of ${#tests[@]}: $name: $verdict ($((SECONDS - begin)) s)"
    cat "$log"
done
echo "test-hosts: ${#tests[@]} tests, $n_failed failed, $n_skipped skipped"
[[ $n_failed -eq 0 ]]
