#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal train` called wrongly, or with files that it cannot use: one line that says what is wrong, and the exit code.
# shellcheck disable=SC2016 # commands of ranks, which their shells expand
# shellcheck source-path=SCRIPTDIR source=train_common.sh
. "${BASH_SOURCE[0]%/*}/train_common.sh"
tiny=(--layers 1 --width 16 --heads 2 --context 16 --batch 2 --steps 2)

# refuses_at_once STATUS TEXT ARGUMENTS...: before anything else is printed.
refuses_at_once() {
    refuses "$@"
    [[ ! -s $scratch/out ]] || complain "train ${*:3}: prints more than why not"
}

# The command line.
refuses_at_once 2 "'--rank' is not an option; did you mean '--ranks'" --rank 2
refuses_at_once 2 "'my.txt' belongs to no option; did you mean --data my.txt\?" my.txt
refuses_at_once 2 "'fsd' is not a mode; did you mean 'fsdp'" --mode fsd
refuses_at_once 2 "'f16' is not a dtype; did you mean 'bf16'" --dtype f16
refuses_at_once 2 "'shmm' is not a transport; did you mean 'shm'" --transport shmm
refuses_at_once 2 '--steps needs a value' --steps
refuses_at_once 2 "--steps: '0' is not a whole number from 1 to" --steps 0
refuses_at_once 2 "--lr: 'fast' is not a number from" --lr fast
refuses_at_once 2 "--lr: 'nan' is not a number from" --lr nan
refuses_at_once 2 '--lr must be more than 0' --lr 0
refuses_at_once 2 "--accumulate: '2x' is neither" --accumulate 2x
refuses_at_once 2 '--heads 3 does not divide --width 16' --heads 3
refuses_at_once 2 '--data and --tokens are two sources' --data a --tokens b
refuses_at_once 2 '--resume needs --checkpoint' --resume
refuses_at_once 2 '--graph needs --compile' --graph "$scratch/step.graph"
refuses_at_once 2 '--every needs --checkpoint' --every 2
refuses_at_once 2 '--mode single is one process' --mode single --ranks 2
refuses_at_once 2 '--replicas 2 does not divide the number of ranks, 3: use --replicas 3$' --mode hsdp --ranks 3
refuses_at_once 2 '--replicas 4 does not divide the number of ranks, 6: use --replicas 2 or 3 or 6$' --mode hsdp --ranks 6 --replicas 4
refuses_at_once 2 '--replicas is about --mode hsdp$' --replicas 2 --ranks 4
refuses_at_once 2 '--replicas is about --mode hsdp$' --replicas 2 --mode ddp --ranks 4
refuses_at_once 2 '--accumulate AxB is for --mode single' --ranks 2 --accumulate 2x2
refuses_at_once 2 '--verify has nothing to compare' --mode none --verify
refuses_at_once 2 '--data needs a value that is not empty' --data ''
refuses_at_once 2 "--seed: '-1' is not a whole number from 0 to 9000000000000000" --seed -1

# Data, alone and before ranks are started.
: >"$scratch/empty"
printf 'too short' >"$scratch/short"
head -c 200 /dev/zero >"$scratch/zeros"
head -c 33 /dev/zero >"$scratch/odd"
printf '\377\377%.0s' {1..40} >"$scratch/large"
for ranks in 1 2; do
    refuses_at_once 1 'nowhere: No such file' --data "$scratch/nowhere" --ranks "$ranks"
    refuses_at_once 1 'empty is empty' --data "$scratch/empty" --ranks "$ranks"
    refuses_at_once 1 'is not a regular file' --data "$scratch" --ranks "$ranks"
done
# Files of llm.c are no text: 20240520 and 20240326.
{ printf '\210\330\064\001' && head -c 2000 /dev/zero; } >"$scratch/tokens.bin"
{ printf '\306\327\064\001' && head -c 2000 /dev/zero; } >"$scratch/model.bin"
refuses_at_once 1 'tokens.bin is a file of tokens, not text: --tokens reads it' --data "$scratch/tokens.bin"
refuses_at_once 1 'model.bin is a model of llm.c, not text' --data "$scratch/model.bin" --ranks 2
refuses_at_once 1 '--val: .*/nowhere: No such file' --val "$scratch/nowhere"
refuses_at_once 1 'short has 9 tokens; one row of --context 16 needs 17' --data "$scratch/short" --ranks 2
refuses_at_once 1 'zeros has 12 rows of 16 tokens, but a step takes 16 ' --data "$scratch/zeros" --ranks 8
# Too few rows are found before ranks are started: here they could not be, for lack of files.
(
    ulimit -n 16
    refuses_at_once 1 'zeros has 12 rows of 16 tokens, but a step takes 16 ' --data "$scratch/zeros" --ranks 8
    ! $failed
) || failed=true
refuses_at_once 1 'odd has 33 bytes, which is not a whole number of u16 tokens' --tokens "$scratch/odd"
refuses_at_once 1 'large has token 65535, but --vocabulary is 256' --tokens "$scratch/large" --vocabulary 256

# What would be written over.
cp "$text" "$scratch/text"
for ranks in 1 2; do
    refuses_at_once 2 '--trace .*/text would write over the data' --data "$scratch/text" --trace "$scratch/../${scratch##*/}/text" --ranks "$ranks"
done
cmp -s "$text" "$scratch/text" || complain "wrote over the data"

# Outputs that nobody takes: the ranks are not to blame. Closed ones are no reason to fail, and no file gets their numbers.
for ranks in 1 2; do
    status=0
    "$SHOAL_TEST_TOOL" train "${tiny[@]}" --ranks "$ranks" >/dev/full 2>"$scratch/err" || status=$?
    [[ $status -eq 1 && $(<"$scratch/err") =~ ^[^$'\n']*'standard output: No space left on device'$ ]] ||
        complain "$ranks ranks, a full output: exit status $status"
    "$SHOAL_TEST_TOOL" train "${tiny[@]}" --steps 60 --ranks "$ranks" 2>"$scratch/err" | head -n 1 >"$scratch/out" || true
    [[ ! -s $scratch/err ]] || complain "$ranks ranks, without a reader: says something"
    status=0
    "$SHOAL_TEST_TOOL" train "${tiny[@]}" --ranks "$ranks" --checkpoint "$scratch/closed$ranks" <&- >&- 2>&- || status=$?
    [[ $status -eq 0 ]] || complain "$ranks ranks, closed outputs: exit status $status"
    trains 0 --ranks "$ranks" --checkpoint "$scratch/closed$ranks" --resume
    grep -qx "already at step 2 of $scratch/closed$ranks" "$scratch/out" || complain "$ranks ranks, closed outputs: no checkpoint"
done

# Places of checkpoints that cannot be made are found before the training, and nothing stays there.
ln -s nowhere "$scratch/dangling"
for ranks in 1 2; do
    refuses_at_once 1 '--checkpoint: .*/dangling cannot be created: .*File exists' --checkpoint "$scratch/dangling" --ranks "$ranks"
    refuses_at_once 1 'trace .*No such file' --trace "$scratch/no/trace" --checkpoint "$scratch/new/place" --ranks "$ranks"
    [[ ! -e $scratch/new ]] || complain "made a folder for nothing"
done

# A trace that finds no room: the training is told to its end, and no empty file stays.
! $may_limit_files || (
    trap '' XFSZ
    ulimit -f 4
    refuses 1 'trace .*/full.json: (File too large|No space)' --steps 40 --trace "$scratch/full.json"
    ! $failed
) || failed=true
! $may_limit_files || grep -q '^  digest of parameters' "$scratch/out" || complain "no summary without a trace"
[[ ! -e $scratch/full.json ]] || complain "an empty trace stays"

# Prompts are looked at before the training.
refuses_at_once 1 'prompt: byte 0 is 104, but the model has 64 tokens' --tokens "$scratch/zeros" --prompt hello

# Ranks that a launcher gave different commands, or different places.
# differs TEXT COMMAND: of each rank, run by a shell; the text is a line, once, and all end.
differs() {
    local text=$1 status=0
    shift
    timeout "$limit_s" "$SHOAL_TEST_TOOL" run --no-label -n 2 bash -c "$1" "$SHOAL_TEST_TOOL" train "${tiny[@]}" \
        >"$scratch/out" 2>"$scratch/err" || status=$?
    if [[ $status -ne 1 || -s $scratch/out || $(grep -cxE -- "$text" "$scratch/err") -ne 1 ]]; then
        echo "ranks with $1: exit status $status, wanted 1 and once: $text"
        cat "$scratch/out" "$scratch/err"
        failed=true
    fi
}
export scratch
differs 'shoal train: --seed is not the same on all ranks: 0 on rank 0, 1 on rank 1' '"$0" "$@" --seed $SHOAL_RANK'
differs 'shoal train: --steps is not the same on all ranks: 3 on rank 0, 4 on rank 1' '"$0" "$@" --steps $((3 + SHOAL_RANK))'
differs 'shoal train: --lr is not the same on all ranks: 0.01 on rank 0, 0.011 on rank 1' '"$0" "$@" --lr 0.01$([[ $SHOAL_RANK = 0 ]] || echo 1)'
differs 'shoal train: --mode is not the same on all ranks' '"$0" "$@" $([[ $SHOAL_RANK = 1 ]] && echo --mode ddp)'
seq 1 200 >"$scratch/numbers0"
seq 2 201 >"$scratch/numbers1"
differs 'shoal train: the data is not the same on all ranks' '"$0" "$@" --data "$scratch/numbers$SHOAL_RANK"'
# The reason is that of the rank which has it.
differs 'shoal train: rank 1: trace .*: No such file or directory' \
    'mkdir -p "$scratch/on0" && "$0" "$@" --json --trace "$scratch/on$SHOAL_RANK/t.json"'

# Weights and places that are not there.
refuses_at_once 1 '--load: .*/nowhere: No such file' --load "$scratch/nowhere"
refuses_at_once 1 '--load: .*LICENSE is not a directory' --load "$text"
mkdir "$scratch/weights"
refuses_at_once 1 'weights has no checkpoint, no model.safetensors, and no model.safetensors.index.json' --load "$scratch/weights"
printf 'nonsense' >"$scratch/weights/model.safetensors"
refuses_at_once 1 'model.safetensors' --load "$scratch/weights" --ranks 2

# Several files: all of them must be there, and the output head is compared also if it is in another file than the embedding.
write_weights "$scratch/cut" transformer. 3 other
refuses_at_once 1 'lm_head.weight in .* is not the embedding transformer.wte.weight' --load "$scratch/cut" --ranks 2
rm "$scratch/cut/model-00002-of-00003.safetensors"
refuses_at_once 1 '--load: .*model-00002-of-00003.safetensors: No such file' --load "$scratch/cut"
echo '{"weight_map": 1}' >"$scratch/cut/model.safetensors.index.json"
refuses_at_once 1 '--load: .*model.safetensors.index.json: has no object "weight_map"' --load "$scratch/cut"
rm "$scratch/cut/model.safetensors.index.json"
mkdir "$scratch/cut/model.safetensors.index.json"
refuses_at_once 1 '--load: .*model.safetensors.index.json is not a regular file' --load "$scratch/cut"

write_weights "$scratch/weights" '' 1 other
refuses_at_once 1 'lm_head.weight in .* is not the embedding wte.weight' --load "$scratch/weights"
write_weights "$scratch/weights" '' 1 same
refuses_at_once 1 '5 heads do not divide the width 16' --load "$scratch/weights" --heads 5
echo '{"n_head": 4}' >"$scratch/weights/config.json"
refuses_at_once 1 'the model in .* has --heads 4 \(not 2\)$' --load "$scratch/weights" # --heads is one of those that are tiny

# What began with weights goes on with their shape, here more positions than --context has.
for steps in 2 3; do
    timeout "$limit_s" "$SHOAL_TEST_TOOL" train "${tiny[@]}" --heads 4 --steps $steps --load "$scratch/weights" \
        --checkpoint "$scratch/run" --resume >"$scratch/out" 2>"$scratch/err" || failed=true
done
if ! grep -qx "goes on after step 2 of $scratch/run" "$scratch/out"; then
    echo "a run that began with --load does not go on"
    cat "$scratch/out" "$scratch/err"
    failed=true
fi

! $failed
