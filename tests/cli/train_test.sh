#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal train`: one digest for all modes, what it prints, and --verify.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=false
limit_s=$((60 * ${SHOAL_TEST_TIME_SCALE:-1}))
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0
tiny=(--data "$SHOAL_TEST_SOURCE_DIR/LICENSE" --layers 2 --width 16 --heads 2 --context 16 --batch 1 --dropout 0.1)

complain() {
    echo "$1"
    sed 's/^/  out: /' "$scratch/out"
    sed 's/^/  err: /' "$scratch/err"
    failed=true
}

# trains ARGUMENTS...: leaves what it prints in $scratch/out and $scratch/err.
trains() {
    timeout "$limit_s" "$SHOAL_TEST_TOOL" train "${tiny[@]}" "$@" >"$scratch/out" 2>"$scratch/err" || complain "train $*: failed"
}

# says LINE: a regular expression.
says() {
    grep -qxE -- "$1" "$scratch/out" || complain "no line: $1"
}

# digest ARGUMENTS...
digest() {
    trains --steps 4 --json "$@"
    digest=$(sed -nE 's/.*"digest": "([0-9a-f]{16})"\}$/\1/p' "$scratch/out")
    [[ -n $digest ]] || complain "train $*: no digest"
}

# same_as ARGUMENTS...: the digest is the wanted one.
same_as() {
    digest "$@"
    [[ $digest == "$wanted" ]] || complain "train $*: digest $digest, wanted $wanted"
}

# Ranks and one process, whatever is sharded, compiled or not; also where shards are uneven.
digest --mode single --accumulate 4
wanted=$digest
same_as --mode single --accumulate 4 --compile
for mode in ddp zero1 zero2 fsdp; do
    same_as --mode "$mode" --ranks 4
done
same_as --mode ddp --ranks 4 --compile
same_as --mode fsdp --ranks 4 --compile
digest --mode single --accumulate 2x2
wanted=$digest
same_as --mode hsdp --ranks 4 --replicas 2
digest --mode single --accumulate 3
wanted=$digest
same_as --ranks 3
same_as --mode ddp --ranks 3 --compile
[[ $(wc -l <"$scratch/out") -eq 1 ]] || complain "--json prints more than a line"
for key in mode ranks params steps loss_first loss_last step_ms_median compute_ms_median exposed_comm_ms_median tokens_per_s \
    peak_rss_mb unsharded_bytes_host digest; do
    grep -q "\"$key\": " "$scratch/out" || complain "no $key"
done

# Under a launcher it joins.
timeout "$limit_s" "$SHOAL_TEST_TOOL" run -n 3 --no-label "$SHOAL_TEST_TOOL" train "${tiny[@]}" --steps 4 --json >"$scratch/out" \
    2>"$scratch/err" || complain "under shoal run: failed"
grep -q "\"digest\": \"$wanted\"" "$scratch/out" || complain "under shoal run: another digest"

# Lines for people; several backward passes in a step, and bf16, can be verified as well.
number='[0-9]+(\.[0-9]+)?'
trains --steps 2 --ranks 2 --accumulate 2 --verify --verify-steps 1 --prompt 'The ' --sample 8
says 'fsdp on 2 ranks: a GPT of 0.01 million parameters \(2 layers, width 16, 2 heads\)'
says "step 2/2  loss $number  $number tokens/s  0:00 left  comm $number% hidden  $number MB/rank"
says 'what it writes:'
says 'The .*'
says "  step \(median\) +$number ms: compute $number ms, exposed communication $number ms"
says 'The first 1 of these 2 steps on 2 ranks \(fsdp\) and in one process gave the same bits\.'
! grep -q $'\033' "$scratch/out" || complain "escape sequences in a pipe"
trains --steps 2 --ranks 2 --mode zero1 --dtype bf16 --verify --live 100
says '2 ranks \(zero1\) and one process, 2 steps each, ended in the same bits\.'
says $'\033''\[1A'$'\033''\[2K\[====================\] step 2/2 .*'

# Baseline: ranks that do not talk.
trains --steps 2 --ranks 2 --mode none
says 'none on 2 ranks: .*'

! $failed
