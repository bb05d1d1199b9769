#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal train` and signals: all ranks stop after the same step, it is saved, and --resume ends with the bits of a run that
# nobody interrupted. A second signal ends at once, and half a checkpoint is never loaded.
# shellcheck source-path=SCRIPTDIR source=train_common.sh
. "${BASH_SOURCE[0]%/*}/train_common.sh"
model=(--data "$text" --layers 1 --width 16 --heads 2 --context 16 --batch 1 --dropout 0.1)
tiny=()

pause() {
    read -rt "$1" <> <(:) || true
}

# What the tool finds when it is started: a shell lets what it starts in the background ignore SIGINT.
# shellcheck disable=SC2016 # of Perl
heeds='$SIG{INT} = "DEFAULT"; exec @ARGV'
blocks='use POSIX; sigprocmask(SIG_BLOCK, POSIX::SigSet->new(SIGINT, SIGTERM, SIGUSR1)); exec @ARGV'
# shellcheck disable=SC2016 # of Perl
ignores='$SIG{$_} = "IGNORE" for qw(INT USR1); exec @ARGV'
signals=$heeds

# start COMMAND...: starts the tool. Its number in $job.
start() {
    rm -rf "$scratch/run"
    : >"$scratch/out"
    perl -e "$signals" "$SHOAL_TEST_TOOL" "$@" >"$scratch/out" 2>"$scratch/err" &
    job=$!
}

# begin COMMAND...: and waits for its first step.
begin() {
    start "$@"
    await grep -q 'step 1/' "$scratch/out"
}

# ends STATUS: the job, with that exit status.
ends() {
    local status=0
    wait "$job" || status=$?
    [[ $status -eq $1 ]] || complain "exit status $status, wanted $1"
}

# interrupted: the one line, and the step in $step.
interrupted() {
    step=$(sed -nE "s#^(\[0\] )?shoal train: interrupted at step ([0-9]+), saved in $scratch/run\$#\2#p" "$scratch/err")
    [[ -n $step && -e $(printf '%s/run/step-%09d' "$scratch" "$step") ]] || complain "does not say at which step, or has not saved it"
}

# The bits: interrupted, and continued, on the same ranks and on others. A machine on which so many steps end before anybody could
# interrupt them gets more.
n_steps=400
for number in INT TERM USR1; do
    while true; do
        begin train "${model[@]}" --ranks 3 --steps $n_steps --checkpoint "$scratch/run"
        kill -s "$number" "$job" 2>/dev/null || true
        [[ $n_steps -lt 1000000 && -e $(printf '%s/run/step-%09d' "$scratch" "$n_steps") ]] || break
        wait "$job" || true
        n_steps=$((4 * n_steps))
    done
    ends $((128 + $(kill -l "$number")))
    interrupted
    [[ $(wc -l <"$scratch/err") -eq 1 ]] || complain "SIG$number: says more than one line"
    ! grep -q 'digest' "$scratch/out" || complain "SIG$number: goes on after the end"
done
cp -r "$scratch/run" "$scratch/other"

# timeout(1) sends it to the process and to its group: two at once are one.
begin train "${model[@]}" --ranks 2 --steps 1000000 --checkpoint "$scratch/run"
kill -s INT "$job"
kill -s INT "$job"
ends 130
last=$step
interrupted
step=$last
rm -rf "$scratch/run"
cp -r "$scratch/other" "$scratch/run"
trains 0 --checkpoint "$scratch/run" --resume
grep -qx "goes on after step $step of $scratch/run" "$scratch/out" || complain "does not go on after step $step"
[[ ! -s $scratch/err ]] || complain "says something about the same options"
find_digest
resumed=$digest
wants "${model[@]}" --ranks 3 --steps "$n_steps"
[[ $resumed == "$wanted" ]] || complain "digest $resumed, wanted $wanted"
trains 0 --checkpoint "$scratch/other" --resume --ranks 1
grep -qx "goes on after step $step of $scratch/other" "$scratch/out" || complain "one rank does not go on"

# One process, without a launcher; without --checkpoint there is nothing to save.
for number in INT TERM USR1; do
    begin train "${model[@]}" --steps 1000000 --checkpoint "$scratch/run"
    kill -s "$number" "$job"
    ends $((128 + $(kill -l "$number")))
    interrupted
done
begin train "${model[@]}" --steps 1000000 --ranks 2
kill -s TERM "$job"
ends 143
grep -qxE 'shoal train: interrupted at step [0-9]+, not saved .there is no --checkpoint.' "$scratch/err" || complain "does not say that it is not saved"
begin train "${model[@]}" --steps 1000000 --ranks 2 --mode none
kill -s TERM "$job"
ends 143

# A signal that only one rank gets stops all of them; rank 0 writes its log and page to their ends before anybody exits.
begin train "${model[@]}" --ranks 3 --steps 1000000 --checkpoint "$scratch/run" --log "$scratch/log" --report "$scratch/page"
kill -s USR1 "$(rank_of "$job" 2)"
ends 138
interrupted
[[ $(tail -n 1 "$scratch/log") == *'"type": "end"'* || $(tail -n 1 "$scratch/log") == *'"type":"end"'* ]] || complain "the log has no end"
[[ $(tail -n 1 "$scratch/page") == *'</html>' ]] || complain "the page has no end"
rm -f "$scratch/log"

# Under shoal run, which waits for ranks that save however short its grace is; --log and --trace are whole.
for number in INT TERM USR1; do
    begin run -n 2 --grace 0 "$SHOAL_TEST_TOOL" train "${model[@]}" --steps 1000000 --checkpoint "$scratch/run" --every 1 \
        --log "$scratch/log" --trace "$scratch/trace"
    await compgen -G "$scratch/run/.saving-*" >/dev/null
    kill -s "$number" "$job"
    ends $((128 + $(kill -l "$number")))
    interrupted
    ! grep -q 'exit code\|killed' "$scratch/err" || complain "SIG$number: ranks have failed"
    perl -MJSON::PP -ne 'decode_json($_)' "$scratch/log" || complain "SIG$number: a line of the log is cut"
    "$SHOAL_TEST_TOOL" trace "$scratch/trace" >/dev/null || complain "SIG$number: no trace"
    rm -f "$scratch/log" "$scratch/trace"
done
trains 0 --checkpoint "$scratch/run" --resume --ranks 1 --steps $((step + 2))
grep -qx "goes on after step $step of $scratch/run" "$scratch/out" || complain "does not go on with what shoal run saved"

# A second signal ends at once: here the first one cannot be heeded, as another rank is stopped, in the middle of a save.
begin run -n 2 "$SHOAL_TEST_TOOL" train "${model[@]}" --steps 1000000 --checkpoint "$scratch/run" --every 1
await compgen -G "$scratch/run/step-*" >/dev/null
stopped=$(rank_of "$job" 1)
first=$(rank_of "$job" 0)
kill -s STOP "$stopped"
kill -s TERM "$first"
pause 0.5
[[ -e /proc/$first ]] || complain "the first signal ends the rank"
# What follows at once is the same signal: tell it until it has heard twice.
end=$((SECONDS + limit_s))
while [[ -e /proc/$first && $SECONDS -lt $end ]]; do
    kill -s TERM "$first" 2>/dev/null || true
    pause 0.2
done
ends 143
! grep -q interrupted "$scratch/err" || complain "was saved after all"
newest=$(basename "$(find "$scratch/run" -maxdepth 1 -name 'step-*' | sort | tail -n 1)")
newest=$((10#${newest#step-}))
trains 0 --checkpoint "$scratch/run" --resume --ranks 1 --steps $((newest + 2))
grep -qx "goes on after step $newest of $scratch/run" "$scratch/out" || complain "does not go on after step $newest, the newest whole one"

# What the launcher passes on is not a second signal to ranks that have it already, from the terminal or anybody else, however
# late it is: the run is saved. Here the other rank is stopped in between; the launcher continues it.
begin run -n 2 "$SHOAL_TEST_TOOL" train "${model[@]}" --steps 1000000 --checkpoint "$scratch/run"
stopped=$(rank_of "$job" 1)
first=$(rank_of "$job" 0)
kill -s STOP "$stopped"
kill -s TERM "$first"
pause 1.5
kill -s TERM "$job"
ends 143
interrupted
! grep -q 'exit code\|killed' "$scratch/err" || complain "a signal that was passed on late ends a rank"

# SIGUSR1, too, finds a rank that is stopped.
for command in "train --ranks 2" "run -n 2 $SHOAL_TEST_TOOL train"; do
    # shellcheck disable=SC2086 # words
    begin $command "${model[@]}" --steps 1000000 --checkpoint "$scratch/run"
    kill -s STOP "$(rank_of "$job" 1)"
    kill -s USR1 "$job"
    ends 138
    interrupted
done

# Signals that the parent has blocked are heeded, those that it ignores are not: in one process, ranks, and under shoal run.
for command in "train" "train --ranks 2" "run -n 2 $SHOAL_TEST_TOOL train"; do
    signals=$blocks
    # shellcheck disable=SC2086 # words
    begin $command "${model[@]}" --steps 1000000 --checkpoint "$scratch/run"
    kill -s USR1 "$job"
    ends 138
    interrupted
    signals=$ignores
    # shellcheck disable=SC2086 # words
    begin $command "${model[@]}" --steps 1000000 --checkpoint "$scratch/run"
    read -r -a all < <(echo "$job" "$(children_of "$job")")
    kill -s INT "${all[@]}"
    kill -s USR1 "${all[@]}"
    pause 0.3
    [[ -e /proc/$job && ! -s $scratch/err ]] || complain "$command: heeds signals that are ignored"
    kill -s TERM "$job"
    ends 143
    interrupted
done
signals=$heeds

# Before the first step there is nothing to save, which is said once. Here one rank waits for another.
# shellcheck disable=SC2016 # of sh
first_waits='[ "$SHOAL_RANK" = 1 ] && exec sleep 1000; exec "$0" train "$@"'
is_ready() {
    grep -q '^SigCgt:.*[2367abef]$' "/proc/$(rank_of "$job" 0)/status" 2>/dev/null
}
for number in INT TERM USR1; do
    start run -n 2 --no-label sh -c "$first_waits" "$SHOAL_TEST_TOOL" "${model[@]}" --steps 1000000 --checkpoint "$scratch/run"
    await is_ready
    kill -s "$number" "$job"
    ends $((128 + $(kill -l "$number")))
    [[ $(<"$scratch/err") == 'shoal train: interrupted before the first step' ]] || complain "SIG$number: does not say that nothing was done"
done
# A trace, which heeds signals itself, does not change that, nor do ranks that tell each other nothing.
for option in "--trace $scratch/trace" "--mode none" ""; do
    [[ -n $option ]] || export SHOAL_TRACE=$scratch/trace
    # shellcheck disable=SC2086 # two words
    start run -n 2 --no-label sh -c "$first_waits" "$SHOAL_TEST_TOOL" "${model[@]}" --steps 1000000 $option
    await is_ready
    kill -s INT "$job"
    ends 130
    [[ $(<"$scratch/err") == 'shoal train: interrupted before the first step' ]] || complain "${option:-SHOAL_TRACE}: does not say that nothing was done"
done
unset SHOAL_TRACE
rm -f "$scratch/trace"

# A rank that dies is named, and those that the launcher ends then say nothing.
begin train "${model[@]}" --ranks 3 --steps 1000000 --checkpoint "$scratch/run"
kill -s KILL "$(rank_of "$job" 1)"
ends 137
[[ $(<"$scratch/err") == 'shoal train: rank 1 was killed by signal 9 (Killed)' ]] || complain "not only the rank that died is named"

! $failed
