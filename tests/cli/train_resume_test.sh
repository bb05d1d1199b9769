#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal train` with checkpoints: a rank that is killed, going on with the bits of an undisturbed run, and checkpoints that
# cannot be used or written.
# shellcheck source-path=SCRIPTDIR source=train_common.sh
. "${BASH_SOURCE[0]%/*}/train_common.sh"
tiny=(--data "$text" --layers 1 --width 16 --heads 2 --context 16 --batch 1 --dropout 0.1)

# kill_run STEPS: one rank of a run is killed once there is a checkpoint. False: the run had ended before.
kill_run() {
    local job status=0
    rm -rf "$scratch/run"
    "$SHOAL_TEST_TOOL" train "${tiny[@]}" --ranks 3 --steps "$1" --checkpoint "$scratch/run" --every 5 >"$scratch/out" 2>"$scratch/err" &
    job=$!
    await compgen -G "$scratch/run/step-*" >/dev/null
    kill -KILL "$(rank_of $job 1)" 2>/dev/null || true
    wait $job || status=$?
    [[ $status -ne 0 && ! -e $(printf '%s/step-%09d' "$scratch/run" "$1") ]] || return 1
    [[ $status -eq 137 ]] || complain "a rank was killed: exit status $status, wanted 137"
    grep -qx 'shoal train: rank 1 was killed by signal 9 (Killed)' "$scratch/err" || complain "the rank is not named"
}

# A machine on which so many steps end before anybody could kill a rank gets more of them.
steps=100
until kill_run $steps || [[ $steps -gt 1000000 ]]; do
    steps=$((4 * steps))
done

# A run that begins takes no folder of another one, and leaves it as it is.
list_before=$(ls "$scratch/run")
for ranks in 1 3; do
    refuses 1 "^shoal train: --checkpoint: $scratch/run has a run up to step [0-9]+: --resume goes on with it, or name another" \
        --ranks "$ranks" --steps 2 --checkpoint "$scratch/run"
done
[[ ! -s $scratch/out && $(ls "$scratch/run") == "$list_before" ]] || complain "trained into the folder of another run"

# Others cannot go on with it.
refuses 1 'cannot go on with --layers 1 -> 2$' --ranks 3 --layers 2 --checkpoint "$scratch/run" --resume

# The killed run goes on, and ends with the bits of one that nobody disturbed.
trains 0 --checkpoint "$scratch/run" --resume
grep -qxE "goes on after step [1-9][0-9]* of $scratch/run" "$scratch/out" || complain "does not go on with the killed run"
[[ ! -s $scratch/err ]] || complain "says something about the same options"
find_digest
resumed=$digest
wants --ranks 3 --steps $steps
[[ $resumed == "$wanted" ]] || complain "the killed run ended with digest $resumed, an undisturbed one with $wanted"

# A run ends with the bits of one process also if it goes on in another mode.
wants --mode single --accumulate 4 --steps 8
trains 0 --mode zero2 --ranks 4 --steps 8 --checkpoint "$scratch/whole" --every 3
find_digest
[[ $digest == "$wanted" ]] || complain "another digest with checkpoints"
rm -r "$scratch/whole/step-000000008"
trains 0 --ranks 4 --steps 8 --checkpoint "$scratch/whole" --resume
grep -qx "goes on after step 6 of $scratch/whole" "$scratch/out" || complain "does not go on after step 6"
find_digest
[[ $digest == "$wanted" ]] || complain "another digest after --resume"
[[ ! -s $scratch/err ]] || complain "says something about the same options"
grep -qxE " +checkpoint +$scratch/whole/step-000000008" "$scratch/out" || complain "does not say what it wrote"

# Nothing is left to do: a text can still be asked for.
trains 0 --ranks 4 --steps 8 --checkpoint "$scratch/whole" --resume --prompt 'The ' --sample 4
grep -qx "already at step 8 of $scratch/whole" "$scratch/out" || complain "does not say that it is done"
grep -q '^The ' "$scratch/out" || complain "writes nothing"
! grep -qE 'median|checkpoint' "$scratch/out" || complain "numbers of steps that were none"
find_digest
[[ $digest == "$wanted" ]] || complain "another digest of what was there"
trains 0 --mode single --steps 8 --checkpoint "$scratch/none" --resume
grep -q 'no checkpoint in .*none yet: begins with step 1' "$scratch/err" || complain "does not say that there is none"

trains 0 --mode single --steps 9 --lr 0.1 --checkpoint "$scratch/none" --resume
[[ $(<"$scratch/err") == "shoal train: the run in $scratch/none goes on with --steps 8 -> 9, --lr 0.001 -> 0.1" ]] ||
    complain "does not say what is another one"
refuses 1 'cannot go on with --steps 9 -> 7 .9 are done.$' --mode single --steps 7 --checkpoint "$scratch/none" --resume

# A checkpoint under the name of another step is not taken for that step.
cp -r "$scratch/none" "$scratch/renamed"
mv "$scratch/renamed/step-000000009" "$scratch/renamed/step-000000030"
refuses 1 "^shoal train: --resume: $scratch/renamed/step-000000030: is of step 9, not 30" --mode single --checkpoint "$scratch/renamed" --resume --steps 40

# One without an index, which is written last, is not used, and not passed over in silence.
cp -r "$scratch/whole" "$scratch/half"
rm "$scratch/half/step-000000008/shoal.index.json"
trains 0 --ranks 2 --steps 9 --checkpoint "$scratch/half" --resume
grep -qx "goes on after step 6 of $scratch/half" "$scratch/out" || complain "does not go on with the newest whole one"
grep -qx "shoal train: warning: $scratch/half/step-000000008 is not a whole checkpoint, and is not used: it has no shoal.index.json" \
    "$scratch/err" || complain "does not say what it leaves out"

# Places that cannot be made are told before the first step. (Root may write everywhere.)
if [[ $(id -u) -ne 0 ]]; then
    refuses 1 "cannot be created in /usr/: Permission denied" --mode single --steps 1 --checkpoint /usr/no/such/place
    [[ ! -s $scratch/out ]] || complain "trained first"
fi

# Two runs do not save in one directory at a time; readers are not held up. A run that was killed can be resumed at once.
"$SHOAL_TEST_TOOL" train "${tiny[@]}" --ranks 2 --steps 1000000 --every 20 --checkpoint "$scratch/two" >"$scratch/out1" 2>"$scratch/err1" &
job=$!
end=$((SECONDS + limit_s))
until compgen -G "$scratch/two/step-*" >/dev/null || [[ $SECONDS -ge $end ]]; do
    read -rt 0.02 <> <(:) || true
done
holder=$(<"$scratch/two/.run")
[[ $holder == "process "*" on "* && -d /proc/$(cut -d ' ' -f 2 <<<"$holder") ]] || complain "'$holder' does not name a process"
refuses 1 "^shoal train: --checkpoint: another run saves in $scratch/two \\($holder\\): wait for its end, or name another" \
    --steps 2 --checkpoint "$scratch/two"
"$SHOAL_TEST_TOOL" generate "$scratch/two" --prompt a --length 1 >"$scratch/out" 2>"$scratch/err" || complain "generate: has to wait for the run"
kill -KILL $job
wait $job 2>/dev/null || true
newest=$(find "$scratch/two" -name 'step-*' | sort | tail -n 1 | grep -oE '[0-9]+$' | sed 's/^0*//')
trains 0 --checkpoint "$scratch/two" --resume --every 1000000 --steps $((newest + 100))
[[ ! -e $scratch/two/.run ]] || complain "a run that has ended leaves its lock"
# One that fails leaves no directory that it has made.
refuses 1 'one row of --context 2000 needs 2001' --context 2000 --steps 1 --checkpoint "$scratch/made/deep"
refuses 1 '/nothing: No such file' --val "$scratch/nothing" --steps 1 --checkpoint "$scratch/made/deep"
[[ ! -e $scratch/made ]] || complain "a directory of a run that did not begin is left"

# A text that is cut while ranks learn it is an error, and they end.
seq 1 20000 >"$scratch/text"
"$SHOAL_TEST_TOOL" train "${tiny[@]}" --data "$scratch/text" --ranks 2 --steps 1000000 >"$scratch/out" 2>"$scratch/err" &
job=$!
await grep -q '^step 1/' "$scratch/out"
: >"$scratch/text"
status=0
wait $job || status=$?
[[ $status -eq 1 ]] || complain "the text was cut: exit status $status, wanted 1"
grep -qxE "shoal train: rank [01]: $scratch/text has become shorter: it had 108894 bytes when this run began, now 0" "$scratch/err" ||
    complain "does not say that the text was cut"

# Other data is told wherever it is another one: here one byte in the middle of a large text.
head -c 1000000 /dev/zero | tr '\0' a >"$scratch/text"
trains 0 --mode single --data "$scratch/text" --steps 2 --checkpoint "$scratch/data"
printf b | dd of="$scratch/text" bs=1 seek=500000 conv=notrunc status=none
trains 0 --mode single --data "$scratch/text" --steps 2 --checkpoint "$scratch/data" --resume
grep -q "the run in $scratch/data learnt from $scratch/text (1000000 bytes) so far, now from $scratch/text (1000000 bytes)" "$scratch/err" ||
    complain "does not say that the data is another one"

# Damage, and no room: what was there stays, and nothing half-written.
file=$(find "$scratch/whole/step-000000008" -name '*.safetensors' | sort | head -n 1)
printf 'x' | dd of="$file" bs=1 seek=$(($(stat -c %s "$file") - 9)) conv=notrunc status=none
refuses 1 '^shoal train: --resume: .*safetensors.*; remove step-000000008 to go on from step 6$' --ranks 4 --steps 9 --checkpoint "$scratch/whole" --resume
printf 'x' >"$scratch/whole/step-000000006/shoal.index.json"
refuses 1 '^shoal train: --resume: [^;]*safetensors[^;]*$' --ranks 4 --steps 9 --checkpoint "$scratch/whole" --resume
rm -r "$scratch/whole/step-000000008"
refuses 1 '^shoal train: --resume: [^;]*shoal.index.json[^;]*$' --ranks 4 --steps 9 --checkpoint "$scratch/whole" --resume
refuses 1 'Not a directory' --steps 1 --checkpoint /dev/null/place
refuses 1 'README.md is not a directory' --steps 1 --checkpoint "$SHOAL_TEST_SOURCE_DIR/README.md"
! $may_limit_files || (
    trap '' XFSZ
    ulimit -f 4
    refuses 1 '--checkpoint: .*(File too large|No space)' --mode single --steps 2 --checkpoint "$scratch/full"
    ! $failed
) || failed=true
[[ -z $(find "$scratch/full" -name 'step-*' 2>/dev/null) ]] || complain "a checkpoint that could not be written is there"

! $failed
