#!/bin/bash
# SPDX-License-Identifier: MIT
# The command line of the tool: exit status, and which of its two outputs says what.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=false

# expect STATUS ARGS...: runs the tool; its outputs are left in $scratch/out and $scratch/err.
expect() {
    local wanted=$1 status=0
    shift
    "$SHOAL_TEST_TOOL" "$@" >"$scratch/out" 2>"$scratch/err" || status=$?
    if [[ $status -ne $wanted ]]; then
        echo "shoal $*: exit status $status, expected $wanted"
        cat "$scratch/err"
        failed=true
    fi
    if [[ $wanted -eq 2 && ! -s $scratch/err ]]; then
        echo "shoal $*: was refused without a word"
        failed=true
    fi
}

# says FILE WORDS
says() {
    if ! grep -qF -- "$2" "$scratch/$1"; then
        echo "standard $1 does not say '$2':"
        cat "$scratch/$1"
        failed=true
    fi
}

version=$(sed -nE 's/^#define SHOAL_VERSION_(MAJOR|MINOR|PATCH) ([0-9]+)$/\2/p' \
    "$SHOAL_TEST_SOURCE_DIR/include/shoal/version.h" | paste -sd.)
expect 0 --version
says out "shoal $version"

# Looking for leaks takes seconds per run on some machines: later, where the tool does something.
asan_options=${ASAN_OPTIONS:-}
export ASAN_OPTIONS=$asan_options:detect_leaks=0

expect 0 help
for command in bench help info run; do
    says out "  $command "
done
expect 0 --help
expect 2
expect 2 inof
says err "'inof' is not a command; did you mean 'info'?"
expect 2 --verison
says err "did you mean '--version'?"
expect 0 -h
expect 2 xyzzy
if grep -q 'did you mean' "$scratch/err"; then
    echo "a suggestion for 'xyzzy':"
    cat "$scratch/err"
    failed=true
fi
expect 0 info --help
says out "--ops "
expect 2 info --opps
says err "is not an option of info; did you mean '--ops'?"
expect 2 help me
says err "'me'"

ASAN_OPTIONS=$asan_options expect 0 info
says out "version   $version"
says out " bf16 "
says out " meta"
says out "SHOAL_TIMEOUT"
says out "transport shm fake"
says out "launcher "
SHOAL_RANK=1 SHOAL_RANKS=3 SHOAL_KEY=x expect 0 info
says out "launcher  SHOAL: rank 1 of 3"
SHOAL_RANK=1 SHOAL_RANKS="" SHOAL_KEY=x expect 0 info
says out "SHOAL_RANKS is not set"
SHOAL_TIMEOUT=7.5 expect 0 info
grep -A1 SHOAL_TIMEOUT "$scratch/out" | grep -q 'environment' || {
    echo "info does not say that SHOAL_TIMEOUT came from the environment"
    failed=true
}
grep -E 'SHOAL_TIMEOUT +7\.5' "$scratch/out" || {
    echo "info does not show the value of SHOAL_TIMEOUT"
    failed=true
}
expect 2 info --op
says err "did you mean '--ops'?"
expect 2 info --ops x
ASAN_OPTIONS=$asan_options expect 0 info --ops
says out "narrow(tensor self, "
says out ") -> tensor"
expect 0 info --options-md
says out "| \`SHOAL_LOG\` |"

expect 2 bench
says err "usage: shoal bench"
expect 0 bench --help
says out "  kernels "
expect 2 bench kernles
says err "did you mean 'kernels'?"

# A tool whose output went nowhere has not done its work.
if [[ -e /dev/full ]] && "$SHOAL_TEST_TOOL" info >/dev/full 2>/dev/null; then
    echo "shoal info succeeded although nothing could be written"
    failed=true
fi

! $failed
