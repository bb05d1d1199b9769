#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal train`: what it prints, --verify, and weights of another tool. (train_digest: that modes end with the same bits.)
# shellcheck source-path=SCRIPTDIR source=train_common.sh
. "${BASH_SOURCE[0]%/*}/train_common.sh"
tiny=(--data "$text" --layers 2 --width 16 --heads 2 --context 16 --batch 1 --dropout 0.1)

# says LINE: a regular expression.
says() {
    grep -qxE -- "$1" "$scratch/out" || complain "no line: $1"
}

# One line of JSON.
trains 0 --steps 4 --lr 1e6 --clip 0 --json
grep -q '"loss_last": null,' "$scratch/out" || complain "a loss that is no number is not null"
for key in mode ranks params steps loss_first loss_last step_ms_median compute_ms_median exposed_comm_ms_median step_ms compute_ms exposed_comm_ms hidden_comm_share tokens_per_s \
    peak_rss_mb unsharded_bytes_host digest; do
    grep -q "\"$key\": " "$scratch/out" || complain "no $key"
done
[[ $(wc -l <"$scratch/out") -eq 1 ]] || complain "--json prints more than a line"

# So it is if --verify finds other bits; here because the trace was written over the text in between.
cp "$text" "$scratch/text"
SHOAL_TRACE=$scratch/text trains 1 --data "$scratch/text" --steps 2 --ranks 2 --verify --json
[[ $(wc -l <"$scratch/out") -eq 1 ]] || complain "--json prints more than a line"
grep -q '^{.*"digest": "[0-9a-f]*"}$' "$scratch/out" || complain "no line of JSON"
grep -qx '2 ranks (fsdp) and one process, 2 steps each, ended in DIFFERENT bits\.' "$scratch/err" || complain "does not say that bits differ"

# Under a launcher it joins.
wants --steps 4 --mode single --accumulate 3
timeout "$limit_s" "$SHOAL_TEST_TOOL" run -n 3 --no-label "$SHOAL_TEST_TOOL" train "${tiny[@]}" --steps 4 --json >"$scratch/out" \
    2>"$scratch/err" || complain "under shoal run: failed"
grep -q "\"digest\": \"$wanted\"" "$scratch/out" || complain "under shoal run: another digest"
# --transport counts for ranks that are there already; MPI needs its own.
SHOAL_LOG=info timeout "$limit_s" "$SHOAL_TEST_TOOL" run -n 2 --no-label "$SHOAL_TEST_TOOL" train "${tiny[@]}" --steps 1 --transport socket \
    >"$scratch/out" 2>"$scratch/err" || complain "--transport socket under shoal run: failed"
[[ $(grep -c 'transport socket loaded' "$scratch/err") -eq 2 ]] || complain "under shoal run: another transport"
mpi='shoal train: --transport mpi needs ranks that an mpirun has started, as mpirun -n 2 shoal train ...; '
trains 2 --steps 1 --ranks 2 --transport mpi
[[ $(<"$scratch/err") == "${mpi}this command was started without one" ]] || complain "does not refuse MPI without mpirun"
status=0
timeout "$limit_s" "$SHOAL_TEST_TOOL" run -n 2 --no-label "$SHOAL_TEST_TOOL" train "${tiny[@]}" --transport mpi >"$scratch/out" 2>"$scratch/err" || status=$?
[[ $status -eq 2 && $(head -n 1 "$scratch/err") == "${mpi}these were started by another launcher" ]] || complain "does not refuse MPI under shoal run"
[[ $(grep -c mpirun "$scratch/err") -eq 1 ]] || complain "every rank refuses MPI"

# Lists of processes tell ranks apart. Other tests train on the same text at the same time.
cp "$text" "$scratch/listed"
timeout "$limit_s" "$SHOAL_TEST_TOOL" train "${tiny[@]/#$text/$scratch/listed}" --ranks 2 --steps 1000000 >"$scratch/out" 2>"$scratch/err" &
launcher=$!
for rank in 0 1; do
    until grep -qsaE "^shoal train: rank ${rank}.train.*$scratch/listed" /proc/[0-9]*/cmdline; do
        kill -0 "$launcher" 2>/dev/null || { complain "no process is called shoal train: rank $rank"; break; }
        sleep 0.05
    done
done
grep -qsx shoal /proc/[0-9]*/comm || complain "no process has the command shoal"
# So do they the process that looks after ranks whose launcher is gone, which would look like a second launcher.
tool=$(pgrep -o -P "$launcher")
until grep -qsaE "^shoal train: watchdog of $tool(.|\$)" /proc/[0-9]*/cmdline; do
    kill -0 "$launcher" 2>/dev/null || { complain "no watchdog has its name"; break; }
    sleep 0.05
done
kill "$launcher"
wait "$launcher" || true

# Lines for people; several backward passes in a step, and bf16, can be verified as well.
number='[0-9]+(\.[0-9]+)?'
trains 0 --steps 2 --ranks 2 --accumulate 2 --verify --verify-steps 1 --prompt 'The ' --sample 8
says 'fsdp on 2 ranks: a GPT of 0.01 million parameters \(2 layers, width 16, 2 heads\)'
says "step 2/2  loss $number  $number tokens/s  0:00 left  comm $number% hidden  $number MB/rank"
says 'what it writes:'
says 'The .*'
says "  step \(middle half\) +$number ms = compute $number ms \+ exposed communication $number ms"
sed -nE 's/.*half\) +([0-9.]+) ms = compute ([0-9.]+) ms \+ exposed communication ([0-9.]+) ms/\1 \2 \3/p' "$scratch/out" |
    awk '{ if ($1 * 100 - $2 * 100 - $3 * 100 > 0.01 || $2 * 100 + $3 * 100 - $1 * 100 > 0.01) exit 1 }' || complain "does not add up"
says "  memory +$number MB a rank at most"
says "  gathered parameters +$number MB on this machine at most, shared by its ranks"
says 'The first 1 of these 2 steps on 2 ranks \(fsdp\) and in one process gave the same bits\.'
! grep -q $'\033' "$scratch/out" || complain "escape sequences in a pipe"
trains 0 --steps 2 --ranks 2 --mode zero1 --dtype bf16 --verify --live 80
says '2 ranks \(zero1\) and one process, 2 steps each, ended in the same bits\.'
says $'\033''\[1A'$'\033''\[2K\[={4,}\] 2/2 loss .* MB/rank'

# Every live line has the loss of the step that it names: the one that a plain line has.
trains 0 --steps 20 --ranks 2
sed -nE 's!^step ([0-9]+/20)  loss ([0-9.]+) .*!\1 loss \2!p' "$scratch/out" >"$scratch/plain"
sed -nE 's/^step .* ([0-9]+) MB\/rank$/\1/p' "$scratch/out" | sort -nc || complain "memory goes up and down"
trains 0 --steps 20 --ranks 2 --live 80
sed -nE 's!.*\] ([0-9]+/20 loss [0-9.]+) .*!\1!p' "$scratch/out" >"$scratch/live"
[[ $(wc -l <"$scratch/plain") -eq 20 && $(tail -n 1 "$scratch/live") == "$(tail -n 1 "$scratch/plain")" ]] ||
    complain "the last loss is not said"
! grep -vxFf "$scratch/plain" "$scratch/live" || complain "a loss of another step"

# Weights of another tool, under the names of Hugging Face with and without the prefix, in one file or in several; they tell the
# shape of the model.
write_weights "$scratch/written" transformer. 1 none
write_weights "$scratch/hub" '' 1 none
write_weights "$scratch/cut" transformer. 5 same
small=("${tiny[@]}")
tiny=(--heads 2 --batch 2)
wants --steps 4 --load "$scratch/written" --mode single --accumulate 2
[[ $(sed -nE 's/.*"params": ([0-9]+).*/\1/p' "$scratch/out") -eq 7920 ]] || complain "not the model that was loaded"
same_as --steps 4 --load "$scratch/hub" --ranks 2
same_as --steps 4 --load "$scratch/cut" --ranks 2
tiny=("${small[@]}")

# Baseline: ranks that do not talk.
trains 0 --steps 2 --ranks 2 --mode none --trace "$scratch/t.json"
says " +trace +$scratch/t.json \(shoal trace $scratch/t.json\)"
says 'none on 2 ranks: .*'

# A trace that has no room does not take the result with it: the table first, then the error.
status=0
(
    ulimit -f 1000
    timeout "$limit_s" "$SHOAL_TEST_TOOL" train "${tiny[@]}" --steps 60 --ranks 2 --trace "$scratch/full.json" >"$scratch/out" 2>"$scratch/err"
) || status=$?
[[ $status -eq 1 ]] || complain "a trace without room: exit status $status"
says "  digest of parameters +[0-9a-f]{16}"
grep -qE "^shoal train: rank [01]: trace $scratch/full.json: File too large" "$scratch/err" || complain "no reason"

# The picture names blocks by their place.
trains 0 --steps 3 --ranks 2 --trace "$scratch/named.json"
"$SHOAL_TEST_TOOL" trace "$scratch/named.json" --svg "$scratch/named.svg" >/dev/null || complain "no picture"
for block in h.0 h.1; do
    grep -qF "<title>$block (block), " "$scratch/named.svg" || complain "no $block in the picture"
done

! $failed
