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
for command in bench export generate help info opt report run tokens trace train; do
    says out "  $command "
done
expect 0 --help
says out "--completion bash|zsh|fish"
expect 2 --completions
says err "did you mean '--completion'?"
expect 2
expect 2 bench fdsp
says err "shoal bench: 'fdsp' is not a benchmark; did you mean 'fsdp'?"
expect 2 inof
says err "'inof' is not a command; did you mean 'info'?"
expect 2 --verison
says err "did you mean '--version'?"
expect 0 -h
expect 2 xyzzy
says err "'xyzzy' is not a command; there are: bench export generate help info opt report run "
if grep -q 'did you mean' "$scratch/err"; then
    echo "a suggestion for 'xyzzy':"
    cat "$scratch/err"
    failed=true
fi
expect 0 info --help
says out "--ops "
expect 2 info --opps
says err "is not an option; did you mean '--ops'?"
expect 0 help train
says out "usage: shoal train "
expect 0 help help
expect 2 help info run
says err "'run'"
expect 2 help me
says err "'me'"

ASAN_OPTIONS=$asan_options expect 0 info
says out "version   $version"
says out " bf16 "
says out " meta"
says out "SHOAL_TIMEOUT"
says out "transport shm "
grep -qE '^ +fake +.*moves nothing' "$scratch/out" || {
    echo "info does not say that fake moves nothing"
    failed=true
}
says out "launcher "
# Modules: what they are, and why one cannot be used. Copies of a file are as many modules; 16 transports are the limit.
modules=$(dirname "$SHOAL_TEST_TOOL")/../tests/modules
mkdir "$scratch/modules"
cp "$modules"/libshoal_transport_test_{post,interface}-1.so "$scratch/modules"
cp "$modules/libshoal_transport_test_post-1.so" "$scratch/modules/libshoal_transport_shm-1.so"
cp "$modules/libshoal_transport_test_post-1.so" "$scratch/modules/libshoal_transport_not-a-name-1.so"
echo "no library" >"$scratch/modules/libshoal_transport_text-1.so"
SHOAL_MODULE_PATH="$scratch/modules" expect 0 info
grep -qE '^(module|  +) +test_post +barriers by control messages' "$scratch/out" || {
    echo "info does not list module test_post"
    failed=true
}
says out "interface 1, $scratch/modules/libshoal_transport_test_post-1.so"
grep -qE '^ +test_interface +cannot be used: .*its table has interface 2 ' "$scratch/out" || {
    echo "info does not say why test_interface cannot be used"
    failed=true
}
grep -qE '^ +text +cannot be used: ' "$scratch/out" || {
    echo "info does not say that a text is no module"
    failed=true
}
grep -qE '^(module|  +) +shm +cannot be used: a transport of this name is built in' "$scratch/out" || {
    echo "info does not say that shm is built in"
    failed=true
}
if grep -q 'not-a-name' "$scratch/out"; then
    echo "info lists what cannot be the name of a module"
    failed=true
fi
SHOAL_MODULE_PATH="$modules/many" expect 0 info
says out "many_10"
says out 'transport "many_29" is one too many: a process can have 16'
SHOAL_MODULE_PATH="$scratch/modules" expect 0 info --json
[[ $(wc -l <"$scratch/out") -eq 1 ]] || { echo "info --json has not one line" && failed=true; }
says out "\"version\": \"$version\""
says out "\"interface\": 1, \"module\": null}"
says out "\"interface\": 1, \"module\": \"$scratch/modules/libshoal_transport_test_post-1.so\"}"
says out "{\"name\": \"test_interface\", \"error\": \""
says out "{\"name\": \"SHOAL_MODULE_PATH\", \"value\": \"$scratch/modules\", \"source\": \"environment\""
perl -MJSON::PP -e 'local $/; decode_json(<STDIN>)' <"$scratch/out" || { echo "info --json is no JSON" && failed=true; }
SHOAL_RANK=0 SHOAL_RANKS=3 SHOAL_KEY=x expect 0 info
says out "launcher  SHOAL: rank 0 of 3"
SHOAL_RANK=1 SHOAL_RANKS="" SHOAL_KEY=x expect 0 info
says out "but SHOAL_RANKS is not"
SHOAL_TIMEOUT=7.5 expect 0 info
grep -A1 SHOAL_TIMEOUT "$scratch/out" | grep 'environment' >/dev/null || {
    echo "info does not say that SHOAL_TIMEOUT came from the environment"
    failed=true
}
grep -E 'SHOAL_TIMEOUT +7\.5' "$scratch/out" || {
    echo "info does not show the value of SHOAL_TIMEOUT"
    failed=true
}
# The library is silent by default; the tool tells what is wrong with the environment.
SHOAL_TIMEOTU=7 SHOAL_STREAM_BYTES=lots expect 0 info
says err "SHOAL_TIMEOTU"
says err "SHOAL_STREAM_BYTES"
expect 2 info --op
says err "did you mean '--ops', '--ops-md' or '--options-md'?"
expect 2 info --ops x
ASAN_OPTIONS=$asan_options expect 0 info --ops
says out "narrow(tensor self, "
says out ") -> tensor"
says out "view_dtype(tensor self, dtype dtype) -> tensor"
# Every row of the table is there, as text and in the page.
mapfile -t rows < <(sed -nE 's/^OP(_OF_RANKS)?\(([a-z0-9_]+), .*/\2/p' "$SHOAL_TEST_SOURCE_DIR/src/op/ops.def")
[[ ${#rows[@]} -gt 80 && $(grep -cE '^[a-z0-9_]+\(' "$scratch/out") -eq ${#rows[@]} ]]
for row in "${rows[@]}"; do
    grep -qE "^$row\(" "$scratch/out" || { echo "info --ops does not list $row"; failed=true; }
done
ASAN_OPTIONS=$asan_options expect 0 info --ops-md
for row in "${rows[@]}"; do
    says out "| \`$row("
done
expect 0 info --options-md
says out "| \`SHOAL_LOG\` |"

expect 0 info --help
says out "OP --ranks N --bytes B"
expect 0 info --explain --help
expect 0 info --explain all_reduce --ranks 4 --bytes 1M
says out "all_reduce, 4 ranks, 1048576 bytes: staged"
says out "local    cannot:       only for a world of one"
says out "oneshot  cannot:       needs what a rank gives to fit its slot"
says out "direct   cannot:       needs buffers in symmetric memory"
says out "staged   is taken:     "
expect 0 info --explain all_reduce --ranks 4 --bytes 1M --symmetric
says out "1048576 bytes: direct"
says out "staged   could:        "
expect 0 info --explain all_reduce --ranks 1 --bytes 1K
says out "all_reduce, 1 rank, 1024 bytes: local"
says out "staged   cannot:       needs more ranks than one"
SHOAL_ALGO=single expect 0 info --explain all_to_all --ranks 8 --bytes 1M
says out "all_to_all, 8 ranks, 1048576 bytes: single"
says out "single   is taken:     copies once"
SHOAL_ALGO=single SHOAL_SINGLE_COPY=off expect 0 info --explain all_to_all --ranks 8 --bytes 1M
says out "all_to_all, 8 ranks, 1048576 bytes: staged"
says out "single   cannot:       needs ranks that may read each other's memory"
expect 0 info --explain barrier --ranks 2
says out "barrier, 2 ranks, 0 bytes: oneshot"
SHOAL_INTERFACE=lo expect 0 info --explain all_reduce --ranks 2 --bytes 1M --transport two_level
says out "between hosts: reached at 127.0.0.1 (interface lo)"
SHOAL_ALGO=oneshot expect 0 info --explain all_reduce --ranks 2 --bytes 1M
says out "SHOAL_ALGO asks for oneshot, which cannot carry it: needs "
SHOAL_ALGO=staged expect 0 info --explain all_reduce --ranks 2 --bytes 1K
says out "SHOAL_ALGO asks for it"
SHOAL_ALGO=pigeon expect 0 info --explain all_reduce --ranks 2 --bytes 1K
says out 'SHOAL_ALGO=pigeon is ignored: there is no algorithm "pigeon"'
expect 2 info --explain
expect 2 info --explain sum --ranks 2 --bytes 1K
says err "'sum' is not a collective; there are: barrier broadcast all_reduce"
expect 2 info --explain all_reduce --ranks 0 --bytes 1K
says err "--ranks: '0' is not a whole number from 1 to "
expect 2 info --explain all_reduce --bytes
says err "--bytes needs a value"
expect 2 info --explain all_reduce --ranks 2
says err "--bytes is missing"
expect 2 info --explain all_reduce --bytes 1K
says err "--ranks is missing"
expect 2 info --explain all_reduce --ranks 2 --what

expect 2 bench
says err "usage: shoal bench"
expect 0 bench --help
says out "  kernels "
expect 2 bench kernles
says err "did you mean 'kernels'?"
expect 2 bench pigeons
says err "there are: all_reduce all_gather"

# A tool whose output went nowhere has not done its work.
if [[ -e /dev/full ]] && "$SHOAL_TEST_TOOL" info >/dev/full 2>/dev/null; then
    echo "shoal info succeeded although nothing could be written"
    failed=true
fi

! $failed
