# shellcheck shell=bash disable=SC2034
# SPDX-License-Identifier: MIT
# What the tests of the replay programs share; they read it first, with the program's name:
#
#   . "${BASH_SOURCE[0]%/*}/replay_common.sh" replay_fsdp
#
# A test ends with ! $failed.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
replay=$SHOAL_TEST_BUILD_DIR/bin/$1
fixtures=$SHOAL_TEST_SOURCE_DIR/tests/fixtures
golden=$SHOAL_TEST_SOURCE_DIR/tests/golden
failed=false

complain() {
    echo "$1"
    cat "$scratch/out" "$scratch/err"
    failed=true
}

# expect STATUS LAST ARGUMENTS...: exit status, and how the last line of the output begins
expect() {
    local status=0 wanted=$1 last=$2
    shift 2
    "$replay" "$@" >"$scratch/out" 2>"$scratch/err" || status=$?
    if [[ $status -ne $wanted || $(tail -n 1 "$scratch/out") != "$last"* ]]; then
        complain "${replay##*/} $*: exit status $status, expected $wanted and '$last'; printed:"
    fi
}

# says WORDS: the whole of one line of the output, or of the errors
says() {
    grep -qxF -- "$1" "$scratch/out" "$scratch/err" || complain "did not say '$1':"
}

# says_part WORDS: a part of one
says_part() {
    grep -qF -- "$1" "$scratch/out" "$scratch/err" || complain "did not say '$1':"
}
