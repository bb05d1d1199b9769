#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal train` with checkpoints: a rank that is killed, going on with the bits of an undisturbed run, and checkpoints that
# cannot be used or written.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=false
limit_s=$((60 * ${SHOAL_TEST_TIME_SCALE:-1}))
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0
tiny=(--data "$SHOAL_TEST_SOURCE_DIR/LICENSE" --layers 1 --width 16 --heads 2 --context 16 --batch 1 --dropout 0.1)

complain() {
    echo "$1"
    sed 's/^/  out: /' "$scratch/out"
    sed 's/^/  err: /' "$scratch/err"
    failed=true
}

# trains STATUS ARGUMENTS...
trains() {
    local wanted=$1 status=0
    shift
    timeout "$limit_s" "$SHOAL_TEST_TOOL" train "${tiny[@]}" "$@" >"$scratch/out" 2>"$scratch/err" || status=$?
    [[ $status -eq $wanted ]] || complain "train $*: exit status $status, wanted $wanted"
}

digest() {
    sed -nE 's/.*digest(": "| of parameters +)([0-9a-f]{16}).*/\2/p' "$scratch/out"
}

# refuses TEXT ARGUMENTS...: fails with one line that has the text.
refuses() {
    local text=$1
    shift
    trains 1 "$@"
    [[ $(wc -l <"$scratch/err") -eq 1 ]] || complain "train $*: not one line"
    grep -qE -- "$text" "$scratch/err" || complain "train $*: does not say: $text"
}

# The processes that a process started.
children_of() {
    cat "/proc/$1/task/$1/children" 2>/dev/null || true
}

# rank_of JOB: the process of its rank 1.
rank_of() {
    local pid
    for pid in $(children_of "$1"); do
        if tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -x 'SHOAL_RANK=1' >/dev/null; then
            echo "$pid"
        fi
    done
}

# Steps are endless for the one who is to be killed: nothing here depends on how fast they are.
run=(--ranks 3 --steps 1000000 --checkpoint "$scratch/run" --every 5)
"$SHOAL_TEST_TOOL" train "${tiny[@]}" "${run[@]}" >"$scratch/out" 2>"$scratch/err" &
job=$!
end=$((SECONDS + limit_s))
until compgen -G "$scratch/run/step-*" >/dev/null || [[ $SECONDS -ge $end ]]; do
    read -rt 0.02 <> <(:) || true
done
kill -KILL "$(rank_of $job)"
status=0
wait $job || status=$?
[[ $status -eq 137 ]] || complain "a rank was killed: exit status $status, wanted 137"
grep -qx 'shoal train: rank 1 was killed by signal 9 (Killed)' "$scratch/err" || complain "the rank is not named"

# A run that begins takes no folder of another one, and leaves it as it is.
list_before=$(ls "$scratch/run")
for ranks in 1 3; do
    refuses "^shoal train: --checkpoint: $scratch/run has a run up to step [0-9]+: --resume goes on with it, or name another" \
        --ranks "$ranks" --steps 2 --checkpoint "$scratch/run"
done
[[ ! -s $scratch/out && $(ls "$scratch/run") == "$list_before" ]] || complain "trained into the folder of another run"

# What is left goes on for some steps more. The rate does not depend on the end of so long a run.
last=$(find "$scratch/run" -name 'step-*' | sort | tail -n 1)
last=$((10#${last##*step-}))
end_step=$((last + 3))
refuses 'has 3 samples in a step, not 2: --ranks x --batch x --accumulate must be 3' --ranks 2 --steps $end_step --checkpoint "$scratch/run" --resume
refuses 'has 3 samples in a step, not 6: use --batch 1' --ranks 3 --batch 2 --steps $end_step --checkpoint "$scratch/run" --resume
refuses 'the run in .*/run has --layers 1, not 2$' --ranks 3 --layers 2 --steps $end_step --checkpoint "$scratch/run" --resume
refuses 'the run in .*/run has --width 16, not 32$' --ranks 3 --width 32 --steps $end_step --checkpoint "$scratch/run" --resume
refuses 'has --seed 1, not 2' --ranks 3 --seed 2 --steps $end_step --checkpoint "$scratch/run" --resume
refuses 'has --heads 2, not 4' --ranks 3 --heads 4 --steps $end_step --checkpoint "$scratch/run" --resume

# Killed after a save and resumed, the run ends with the bits of one that was not, also on another number of ranks.
trains 0 --mode single --accumulate 4 --steps 8 --json
wanted=$(digest)
trains 0 --mode zero2 --ranks 4 --steps 8 --checkpoint "$scratch/whole" --every 3
[[ $(digest) == "$wanted" ]] || complain "another digest with checkpoints"
rm -r "$scratch/whole/step-000000008"
trains 0 --ranks 4 --steps 8 --checkpoint "$scratch/whole" --resume
grep -qx "goes on after step 6 of $scratch/whole" "$scratch/out" || complain "does not go on after step 6"
[[ $(digest) == "$wanted" ]] || complain "another digest after --resume"
[[ ! -s $scratch/err ]] || complain "says something about the same options"
grep -qxE " +checkpoint +$scratch/whole/step-000000008" "$scratch/out" || complain "does not say what it wrote"

# Nothing is left to do: a text can still be asked for.
trains 0 --ranks 4 --steps 8 --checkpoint "$scratch/whole" --resume --prompt 'The ' --sample 4
grep -qx "already at step 8 of $scratch/whole" "$scratch/out" || complain "does not say that it is done"
grep -q '^The ' "$scratch/out" || complain "writes nothing"
! grep -qE 'median|checkpoint' "$scratch/out" || complain "numbers of steps that were none"
[[ $(digest) == "$wanted" ]] || complain "another digest of what was there"
trains 0 --mode single --steps 8 --checkpoint "$scratch/none" --resume
grep -q 'no checkpoint in .*none yet: begins with step 0' "$scratch/err" || complain "does not say that there is none"

trains 0 --mode single --steps 9 --lr 0.1 --checkpoint "$scratch/none" --resume
for option in lr steps; do
    grep -qx "shoal train: the run in $scratch/none had another --$option so far" "$scratch/err" ||
        complain "--$option: not said"
done
[[ $(wc -l <"$scratch/err") -eq 2 ]] || complain "says more than the two options"
refuses 'has done 9 steps, more than --steps 7' --mode single --steps 7 --checkpoint "$scratch/none" --resume

# Places that cannot be made are told before the first step. (Root may write everywhere.)
if [[ $(id -u) -ne 0 ]]; then
    refuses "cannot be made in /usr/: Permission denied" --mode single --steps 1 --checkpoint /usr/no/such/place
    [[ ! -s $scratch/out ]] || complain "trained first"
fi

# Damage, and no room: what was there stays, and nothing half-written.
file=$(find "$scratch/whole/step-000000008" -name '*.safetensors' | sort | head -n 1)
printf 'x' | dd of="$file" bs=1 seek=$(($(stat -c %s "$file") - 9)) conv=notrunc status=none
refuses '^shoal train: --resume: .*safetensors.*; remove step-000000008 to go on from step 6$' --ranks 4 --steps 9 --checkpoint "$scratch/whole" --resume
refuses 'Not a directory' --steps 1 --checkpoint /dev/null/place
refuses 'LICENSE is no directory' --steps 1 --checkpoint "$SHOAL_TEST_SOURCE_DIR/LICENSE"
(
    trap '' XFSZ
    ulimit -f 4
    refuses '--checkpoint: .*(File too large|No space)' --mode single --steps 2 --checkpoint "$scratch/full"
    ! $failed
) || failed=true
[[ -z $(find "$scratch/full" -name 'step-*' 2>/dev/null) ]] || complain "a checkpoint that could not be written is there"

! $failed
