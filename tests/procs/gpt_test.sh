#!/bin/bash
# SPDX-License-Identifier: MIT
# examples/11_gpt.c: a GPT with a tied embedding learns, and ends with the bits of one process on any number of ranks;
# a checkpoint of two ranks is gone on from by three.
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

# trains RANKS STEPS ARGUMENTS...
trains() {
    local n=$1
    shift
    timeout "$limit_s" "$SHOAL_TEST_TOOL" run --no-label -n "$n" "$SHOAL_TEST_BUILD_DIR/examples/11_gpt" "$@" \
        >"$scratch/out" || complain "$n ranks, $*: failed"
}

# says LINE: a regular expression.
says() {
    grep -qxE "$1" "$scratch/out" || complain "no line: $1"
}

# Sanitizers look at what a step does, which is the same in each: fewer, and not so many numbers of ranks.
all_ranks=(1 2 3 4) steps=3 half=4
if [[ ${SHOAL_TEST_TIME_SCALE:-1} -gt 1 ]]; then
    all_ranks=(1 4) steps=2 half=1
fi

number='[0-9]+\.[0-9]+'
for n in "${all_ranks[@]}"; do
    trains "$n" "$steps"
    says "step +1  loss 4\.[67][0-9]+  $number steps/s"
    says "step +$steps  loss $number  $number steps/s"
    says "other sequences: loss $number"
    says "$n ranks? and one process, steps 1 to $steps, ended in the same bits\."
done

# Some steps, and as many more, are as all of them. It learns: 4.56 is what guessing gives.
trains 2 $((2 * half)) - "$scratch/whole"
if [[ $half -eq 4 ]]; then
    awk '$1 == "step" { loss = $4 } END { exit !(loss < 3.5) }' "$scratch/out" || complain "does not learn"
fi
trains 2 "$half" - "$scratch/half"
trains 2 "$half" "$scratch/half" "$scratch/both"
says "2 ranks and one process, steps $((half + 1)) to $((2 * half)), ended in the same bits\."
cmp "$scratch/whole" "$scratch/both" || complain "a checkpoint is not gone on from"
trains 3 2 "$scratch/half"
says "3 ranks and one process, steps $((half + 1)) to $((half + 2)), ended in the same bits\."

# Files that are not there are an error of rank 0, which ends the others.
if timeout "$limit_s" "$SHOAL_TEST_TOOL" run --no-label -n 2 "$SHOAL_TEST_BUILD_DIR/examples/11_gpt" 1 \
    "$scratch/missing" >"$scratch/out" 2>&1; then
    complain "a missing checkpoint is no error"
fi

! $failed
