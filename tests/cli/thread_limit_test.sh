#!/bin/bash
# SPDX-License-Identifier: MIT
# The tool where processes and threads are limited (ulimit -u): with every limit it either succeeds, or ends by itself with a text
# and without a signal, and leaves no process behind.
set -euo pipefail

if [[ $(id -u) -ne 0 ]]; then
    echo "skipped: the limit counts all processes of a user, and only root can become one that has no others"
    exit 77
fi
example=$SHOAL_TEST_BUILD_DIR/examples/01_all_reduce
user=$((2000000 + $$ % 1000000))
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
chown "$user" "$scratch"
as_user=(setpriv --reuid "$user" --regid "$user" --clear-groups)
if ! "${as_user[@]}" test -x "$example" || ! "${as_user[@]}" test -r "$SHOAL_TEST_BUILD_DIR/lib/libshoal.so"; then
    echo "skipped: another user cannot read $SHOAL_TEST_BUILD_DIR"
    exit 77
fi
failed=false
limit_s=$((60 * ${SHOAL_TEST_TIME_SCALE:-1}))
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 HOME=$scratch

complain() {
    echo "$1"
    sed 's/^/  out: /' "$scratch/out"
    failed=true
}

# limited N COMMAND...: its exit status in `status`
limited() {
    status=0
    timeout "$limit_s" prlimit --nproc="$1" "${as_user[@]}" "${@:2}" >"$scratch/out" 2>&1 </dev/null || status=$?
    if [[ $status -eq 124 || $status -ge 126 ]]; then
        complain "with $1 threads: exit status $status"
    fi
    if [[ $status -ne 0 && ! -s $scratch/out ]]; then
        complain "with $1 threads: exit status $status, and not a word"
    fi
    if pgrep -u "$user" >"$scratch/left"; then
        complain "with $1 threads: left behind: $(tr '\n' ' ' <"$scratch/left")"
    fi
}

# tried NAME COMMAND...: with 1, 2, ... threads, until they are enough
tried() {
    local n_refused=0
    for ((n = 1; n < 40; n++)); do
        limited "$n" "${@:2}"
        [[ $status -eq 0 ]] && break
        n_refused=$((n_refused + 1))
    done
    echo "$1: $n_refused limits are too low, $n threads are enough"
    [[ $status -eq 0 && $n_refused -gt 0 ]] || complain "$1: $n_refused limits refused, exit status $status"
}

tried "shoal run" "$SHOAL_TEST_TOOL" run -n 2 "$example"
# OpenBLAS ends a process whose threads it cannot create, by SIGINT (docs/support.md).
tried "shoal train" env SHOAL_NN_BLAS=none "$SHOAL_TEST_TOOL" train --ranks 2 --steps 2 --layers 1 --width 16 --heads 2 --context 8 --batch 1 \
    --threads 2 --data "$SHOAL_TEST_SOURCE_DIR/README.md"
! $failed
