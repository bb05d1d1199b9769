#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal train --log` and `--val`: a whole line for each step, numbers that add up, validation that changes nothing and does not
# depend on ranks, runs that are killed and go on, and what is refused.
# shellcheck disable=SC2016 # perl expands
# shellcheck source-path=SCRIPTDIR source=train_common.sh
. "${BASH_SOURCE[0]%/*}/train_common.sh"
tiny=(--data "$text" --layers 2 --width 16 --heads 2 --context 16 --batch 1 --dropout 0.1)
log=$scratch/log.jsonl
held_out=$SHOAL_TEST_SOURCE_DIR/CONTRIBUTING.md

# checks SCRIPT: perl that sees the lines of the log, decoded, as @lines, and those of steps as @steps. It prints what is wrong.
checks() {
    local wrong
    wrong=$(perl -MJSON::PP -e '
        open my $file, "<", $ARGV[0] or die "$ARGV[0]: $!\n";
        our @lines = map { /\n\z/ ? eval { decode_json($_) } // die "no JSON: $_" : die "half a line: $_" } <$file>;
        our @steps = grep { !exists $_->{type} } @lines;
        eval $ARGV[1];
        print $@ if $@' "$log" "$1" 2>&1) || true
    [[ -z $wrong ]] || complain "log: $wrong"
}

# losses: what the log says of validation.
losses() {
    grep -o '"val_loss":[^,]*' "$log" | tr '\n' ' '
}

# A line for each step, in order, behind one about the run. Numbers are those that the command prints.
trains 0 --ranks 2 --steps 7 --log "$log" --json
last=$(sed -nE 's/.*"loss_last": ([0-9.e+-]+).*/\1/p' "$scratch/out")
find_digest
LAST=$last DIGEST=$digest checks '
    my ($run, $end) = ($lines[0], $lines[-1]);
    print "no version" if $run->{shoal_log} != 1 || $run->{type} ne "run" || $run->{after} != 0;
    print "configuration" if $run->{config}{width} != 16 || $run->{config}{mode} ne "fsdp" || @{$run->{hosts}} != 2;
    print "steps" if join(" ", map { $_->{step} } @steps) ne "1 2 3 4 5 6 7";
    for my $step (@steps) {
        for (grep { !exists $run->{fields}{$_} } grep { $_ ne "step" } keys %$step) { print "no word about $_" }
        print "does not add up" if abs($step->{step_ms} - $step->{compute_ms} - $step->{exposed_ms}) > 1e-6;
        print "maximum" if $step->{compute_ms_max} < $step->{compute_ms} || $step->{slowest} !~ /^[01]$/;
        print "numbers" if $step->{memory_mb} <= 0 || $step->{norm} <= 0 || $step->{lr} <= 0 || exists $step->{val_loss};
    }
    my ($ranks) = grep { ($_->{type} // "") eq "ranks" } @lines;
    print "ranks" if !$ranks || @{$ranks->{step_ms}} != 2;
    my @memory = grep { ($_->{type} // "") eq "memory" } @lines;
    print "memory" if @memory != 2 || @{$memory[1]{rest}} != 2;
    print "the last loss" if $steps[-1]{loss} != $ENV{LAST} || $end->{loss_last} != $ENV{LAST};
    print "the end" if $end->{type} ne "end" || $end->{digest} ne $ENV{DIGEST};'

# Without clipping there is no norm; a loss that is no number is null; one rank, and ranks that do not talk.
trains 0 --steps 3 --lr 1e6 --clip 0 --log "$log"
checks 'print "norm" if grep { defined $_->{norm} } @steps; print "loss" if @steps != 3 || defined $steps[-1]{loss};
    print "lost" if $lines[-1]{lost_step} != ((grep { !defined $_->{loss} } @steps)[0]{step});'
grep -qE '^shoal train: warning: the loss is no finite number since step [23]:' "$scratch/err" || complain "no word about a loss that is none"
trains 0 --ranks 2 --mode none --steps 3 --log "$log"
checks 'print "none" if @steps != 3 || @{$lines[0]{hosts}} != 1;'

# Validation changes no bit, and has the same bits on any number of ranks.
wants --steps 6 --ranks 2
same_as --steps 6 --ranks 2 --val "$held_out" --val-every 2 --log "$log"
checks 'print "steps" if join(" ", map { $_->{step} } grep { exists $_->{val_loss} } @steps) ne "2 4 6";'
validated=$(losses)
for how in '--mode single --accumulate 2' '--ranks 2 --mode zero1' '--ranks 2 --mode ddp --compile' '--ranks 1 --accumulate 2'; do
    # shellcheck disable=SC2086 # several words
    same_as --steps 6 $how --val "$held_out" --val-every 2 --log "$log"
    [[ $(losses) == "$validated" ]] || complain "train $how: other validation losses"
done
# What is held out is not learnt: the run is that on the rest of the file. 0.2 of 1074 bytes are 214.
size=$(wc -c <"$text")
head -c $((size - size * 2 / 10)) "$text" >"$scratch/rest"
wants --steps 4 --ranks 3 --data "$scratch/rest"
same_as --steps 4 --ranks 3 --val 0.2 --log "$log"
validated=$(losses)
tail -c $((size * 2 / 10)) "$text" >"$scratch/end"
same_as --steps 4 --ranks 3 --data "$scratch/rest" --val "$scratch/end" --log "$log"
[[ $(losses) == "$validated" ]] || complain "the end of the data and the same in a file: other losses"

# A killed run leaves whole lines. One that goes on says so, and repeats steps that no checkpoint had.
rm -rf "$scratch/c"
timeout "$limit_s" "$SHOAL_TEST_TOOL" train "${tiny[@]}" --ranks 2 --steps 100000 --checkpoint "$scratch/c" --every 50 --log "$log" \
    >"$scratch/out" 2>"$scratch/err" &
launcher=$!
until [[ -e $log && $(grep -c '"step"' "$log") -gt 120 && -n $(compgen -G "$scratch/c/step-*") ]]; do
    kill -0 "$launcher" 2>/dev/null || { complain "it ended too early" && break; }
    sleep 0.05
done
pkill -KILL -P "$launcher" || true
wait "$launcher" || true
checks 'print "gaps" if grep { $steps[$_]{step} != $_ + 1 } 0 .. $#steps;'
before=$(grep -c '' "$log")
newest=$(find "$scratch/c" -name 'step-*' | sort | tail -n 1 | grep -oE '[0-9]+$' | sed 's/^0*//')
trains 0 --ranks 2 --steps $((newest + 3)) --checkpoint "$scratch/c" --resume --log "$log"
NEWEST=$newest BEFORE=$before checks '
    my $run = $lines[$ENV{BEFORE}];
    print "no marker" if $run->{type} ne "run" || $run->{after} != $ENV{NEWEST};
    print "steps" if $steps[-3]{step} != $ENV{NEWEST} + 1 || $steps[-1]{step} != $ENV{NEWEST} + 3;'
# Half a line, as of a full disk, does not spoil the next one.
printf '{"step":9' >>"$log"
trains 0 --ranks 2 --steps $((newest + 4)) --checkpoint "$scratch/c" --resume --log "$log"
[[ $(tail -n 1 "$log") == '{"type":"end"'* ]] || complain "no end"
[[ $(grep -c '^{"shoal_log":1,"type":"run"' "$log") -eq 3 ]] || complain "a marker is not at the beginning of its line"
# The log of another run is left alone; one that says nothing of its run is taken.
trains 0 --steps 2 --log "$scratch/other.jsonl" --checkpoint "$scratch/other"
cp "$scratch/other.jsonl" "$scratch/before.jsonl"
refuses 1 "^shoal train: --log: $scratch/other.jsonl is of another run than the one in $scratch/c: name the log of that" \
    --ranks 2 --checkpoint "$scratch/c" --resume --log "$scratch/other.jsonl"
cmp -s "$scratch/other.jsonl" "$scratch/before.jsonl" || complain "the log of another run was written to"
trains 0 --steps 3 --checkpoint "$scratch/other" --resume
sed -i 's/"began":"[0-9a-f]*",//' "$scratch/before.jsonl"
trains 0 --steps 4 --checkpoint "$scratch/other" --resume --log "$scratch/before.jsonl"
trains 0 --steps 5 --checkpoint "$scratch/other" --resume --log "$scratch/other.jsonl"
# A new run replaces the log.
trains 0 --steps 2 --log "$log"
checks 'print "not replaced" if @steps != 2;'

# A run that a signal ends has an end without a digest, and a page that says so.
rm "$log"
"$SHOAL_TEST_TOOL" train "${tiny[@]}" --ranks 2 --steps 1000000 --log "$log" --report "$scratch/page.html" >"$scratch/out" \
    2>"$scratch/err" &
launcher=$!
until [[ -e $log && $(grep -c '"step"' "$log") -gt 3 ]]; do
    kill -0 "$launcher" 2>/dev/null || { complain "it ended too early" && break; }
    sleep 0.05
done
kill -USR1 "$launcher"
status=0
wait "$launcher" || status=$?
[[ $status -eq 138 ]] || complain "a signal: exit status $status"
checks 'my $end = $lines[-1]; print "end" if $end->{type} ne "end" || $end->{signal} != 10 || exists $end->{digest} || $end->{step} != $steps[-1]{step};'
grep -q 'Signal 10 ended the run after step [0-9]* of 1000000' "$scratch/page.html" || complain "the page says nothing of the signal"

# What is not a terminal gets a line now and then, however many steps there are.
"$SHOAL_TEST_TOOL" train "${tiny[@]}" --steps 1000000000 >"$scratch/out" 2>"$scratch/err" &
job=$!
await grep -q '^step [1-9][0-9]' "$scratch/out"
kill "$job"
wait "$job" || true
grep -qE '^step 1/.* [0-9]+:[0-5][0-9]:[0-5][0-9] left' "$scratch/out" || complain "hours are not told from minutes"

# A log without room does not take the result with it.
status=0
(
    ulimit -f 4
    trains 1 --steps 60 --report "$scratch/full.html"
    grep -q -- "--report: $scratch/full.html.jsonl: a line could not be written: File too large" "$scratch/err" || complain "no reason"
    ! $failed
) || ! $may_limit_files || failed=true
(
    ulimit -f 4
    timeout "$limit_s" "$SHOAL_TEST_TOOL" train "${tiny[@]}" --steps 60 --log "$log" >"$scratch/out" 2>"$scratch/err"
) || status=$?
if $may_limit_files; then
    [[ $status -eq 1 ]] || complain "a log without room: exit status $status"
    grep -q 'digest of parameters' "$scratch/out" || complain "no summary"
    grep -q -- "--log: $log: a line could not be written: File too large" "$scratch/err" || complain "no reason"
fi

# `shoal train` and `shoal trace` say the same of one run: both of the middle of its steps.
trains 0 --ranks 2 --steps 60 --width 64 --trace "$scratch/t.json" --json
share=$(sed -nE 's/.*"hidden_comm_share": ([0-9.]+),.*/\1/p' "$scratch/out")
"$SHOAL_TEST_TOOL" trace "$scratch/t.json" >"$scratch/table"
traced=$(sed -nE 's/^  mean .* ([0-9]+) %$/\1/p' "$scratch/table")
awk -v a="$share" -v b="$traced" 'BEGIN { d = 100 * a - b; exit !(a != "" && b != "" && d < 25 && d > -25) }' ||
    complain "train: $share of communication is hidden, trace: $traced %"

# Contradictions.
refuses 2 '--val-every needs --val FILE or --val FRACTION' --val-every 3
refuses 2 '--val: 1\.5 is not a fraction of the data' --val 1.5
refuses 2 '--val: 0 is not a fraction of the data' --val 0
refuses 2 '--val is about one model: not in --mode none' --ranks 2 --mode none --val 0.1
refuses 1 "/none: No such file" --ranks 2 --val "$scratch/none"
refuses 1 '--val: .* has 5 tokens to validate with; one window of --context 16 needs 17' --val 0.005
refuses 1 'has 22 tokens besides those of --val; one row of --context 32 needs 33' --ranks 2 --context 32 --val 0.98
refuses 1 '--log: .*/rest is there and is no log of shoal train: it is left alone' --ranks 2 --log "$scratch/rest"
refuses 1 "--log: $scratch: Is a directory" --log "$scratch"
refuses 1 '--log: /nowhere/log: No such file or directory' --ranks 2 --log /nowhere/log
refuses 2 "--log $scratch/end would write over the data$" --data "$scratch/end" --log "$scratch/end"

# No two files of a run are one, whether they exist or not, and whatever leads to them; nothing is written then.
mkdir "$scratch/files"
cd "$scratch/files"
cp "$held_out" held
ln held linked
ln -s nothing dangling
refuses 2 '^shoal train: --trace and --log name the same file, same$' --log same --trace same
refuses 2 '^shoal train: --trace \./same and --report ../files/same are the same file$' --report ../files/same --trace ./same
refuses 2 '^shoal train: --log dangling and --report nothing are the same file$' --log dangling --report nothing
refuses 2 '^shoal train: --log and --graph name the same file, g.after$' --log g.after --compile --graph g
refuses 2 '^shoal train: --trace and the log of --report name the same file, page.html.jsonl$' --report page.html --trace page.html.jsonl
refuses 2 '^shoal train: --log and --checkpoint name the same file, same$' --log same --checkpoint same
refuses 2 '^shoal train: --report linked would write over the data of --val$' --val held --report linked
refuses 2 '^shoal train: --graph linked would write over the data$' --data held --compile --graph linked --ranks 2
status=0
timeout "$limit_s" "$SHOAL_TEST_TOOL" run --no-label -n 2 "$SHOAL_TEST_TOOL" train "${tiny[@]}" --steps 2 --log same --trace same \
    >"$scratch/out" 2>"$scratch/err" || status=$?
[[ $status -eq 1 && $(grep -c '^shoal train: --trace and --log name the same file, same$' "$scratch/err") -eq 1 ]] ||
    complain "one file for two under a launcher: exit status $status, or not one line"
cmp held "$held_out" || complain "the data was written over"
[[ $(ls) == $'dangling\nheld\nlinked' ]] || complain "something was written: $(ls)"
cd - >/dev/null

! $failed
