#!/bin/bash
# SPDX-License-Identifier: MIT
# examples/09_train.c with few steps: its lines, in a pipe and for a terminal, and the sentence at
# the end.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=false
limit_s=$((60 * ${SHOAL_TEST_TIME_SCALE:-1}))
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0

complain() {
    echo "$1"
    cat "$scratch/out"
    failed=true
}

# trains RANKS ARGUMENTS...
trains() {
    local n=$1
    shift
    timeout "$limit_s" "$SHOAL_TEST_TOOL" run --no-label -n "$n" "$SHOAL_TEST_BUILD_DIR/examples/09_train" "$@" \
        >"$scratch/out" || complain "$n ranks, $*: failed"
}

# says LINE: a regular expression.
says() {
    grep -qxE "$1" "$scratch/out" || complain "no line: $1"
}

# Sanitizers look at what a step does, which is the same in each.
steps=3 live_steps=10
if [[ ${SHOAL_TEST_TIME_SCALE:-1} -gt 1 ]]; then
    steps=2 live_steps=3
fi
number='[0-9]+\.[0-9]+'
step="step +$steps  loss $number  $number steps/s"
memory='[0-9]+ MB'
for n in 2 3; do
    trains "$n" "$steps"
    says "$n ranks, 3187712 weights; matrix products: .+"
    says "$step  communication [0-9]+% hidden  $memory a rank"
    says 'the same in one process:'
    says "$step  $memory"
    says "$n ranks and one process, $steps steps each, ended in the same bits\."
    ! grep -q $'\033' "$scratch/out" || complain "escape sequences in a pipe"
done
# Alone there is nothing to wait for.
trains 1 "$steps"
says "$step  $memory a rank"
says "1 rank and one process, $steps steps each, ended in the same bits\."
# The loops that there are without a BLAS; sanitizers make them too slow.
if [[ ${SHOAL_TEST_TIME_SCALE:-1} -eq 1 ]]; then
    SHOAL_NN_BLAS=none trains 2 2
    says '2 ranks and one process, 2 steps each, ended in the same bits\.'
fi

# A live line is written over the one before. (The last of a run always is, and one every half second.)
trains 2 --live "$live_steps"
[[ $(grep -c '^step' "$scratch/out") -eq 2 ]] || complain "not one line for each run"
says "2 ranks and one process, $live_steps steps each, ended in the same bits\."

! $failed
