#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal train` called wrongly, or with files that it cannot use: one line that says what is wrong, and the exit code.
# shellcheck disable=SC2016 # commands of ranks, which their shells expand
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=false
limit_s=$((60 * ${SHOAL_TEST_TIME_SCALE:-1}))
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0
tiny=(--layers 1 --width 16 --heads 2 --context 16 --batch 2 --steps 2)

# refuses STATUS TEXT ARGUMENTS...: one line with the text, a regular expression, and nothing else.
refuses() {
    local wanted=$1 text=$2 status=0
    shift 2
    timeout "$limit_s" "$SHOAL_TEST_TOOL" train "${tiny[@]}" "$@" >"$scratch/out" 2>"$scratch/err" || status=$?
    if [[ $status -ne $wanted || $(wc -l <"$scratch/err") -ne 1 || -s $scratch/out ]] || ! grep -qE -- "$text" "$scratch/err"; then
        echo "train $*: exit status $status, wanted $wanted and: $text"
        cat "$scratch/out" "$scratch/err"
        failed=true
    fi
}

# The command line.
refuses 2 "'--rank' is not an option of train; did you mean '--ranks'" --rank 2
refuses 2 "'my.txt' belongs to no option; did you mean --data my.txt\?" my.txt
refuses 2 "'fsd' is not a mode; did you mean 'fsdp'" --mode fsd
refuses 2 "'f16' is not a dtype; did you mean 'bf16'" --dtype f16
refuses 2 '--steps needs a value' --steps
refuses 2 "--steps: '0' is not a whole number from 1 to" --steps 0
refuses 2 "--lr: 'fast' is not a number from" --lr fast
refuses 2 "--lr: 'nan' is not a number from" --lr nan
refuses 2 '--lr must be more than 0' --lr 0
refuses 2 "--accumulate: '2x' is neither" --accumulate 2x
refuses 2 '--heads 3 does not divide --width 16' --heads 3
refuses 2 '--data and --tokens are two sources' --data a --tokens b
refuses 2 '--resume needs --checkpoint' --resume
refuses 2 '--every needs --checkpoint' --every 2
refuses 2 '--mode single is one process' --mode single --ranks 2
refuses 2 '--replicas 2 does not divide the number of ranks, 3' --mode hsdp --ranks 3
refuses 2 '--accumulate AxB is for --mode single' --ranks 2 --accumulate 2x2
refuses 2 '--verify has nothing to compare' --mode none --verify
refuses 2 '--data needs a value that is not empty' --data ''

# Data, alone and before ranks are started.
: >"$scratch/empty"
printf 'too short' >"$scratch/short"
head -c 200 /dev/zero >"$scratch/zeros"
head -c 33 /dev/zero >"$scratch/odd"
printf '\377\377%.0s' {1..40} >"$scratch/large"
for ranks in 1 2; do
    refuses 1 'nowhere: No such file' --data "$scratch/nowhere" --ranks "$ranks"
    refuses 1 'empty is empty' --data "$scratch/empty" --ranks "$ranks"
    refuses 1 'is not a regular file' --data "$scratch" --ranks "$ranks"
done
refuses 1 'short has 9 tokens; one row of --context 16 needs 17' --data "$scratch/short" --ranks 2
refuses 1 'zeros has 12 rows of 16 tokens, but a step takes 16 ' --data "$scratch/zeros" --ranks 8
refuses 1 'odd has 33 bytes, which is no whole number of u16 tokens' --tokens "$scratch/odd"
refuses 1 'large has token 65535, but --vocabulary is 256' --tokens "$scratch/large" --vocabulary 256

# Prompts are looked at before the training.
refuses 1 'prompt: byte 0 is 104, but the model has 64 tokens' --tokens "$scratch/zeros" --prompt hello

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
differs 'shoal train: --seed is not the same on all ranks' '"$0" "$@" --seed $SHOAL_RANK'
differs 'shoal train: --steps is not the same on all ranks' '"$0" "$@" --steps $((3 + SHOAL_RANK))'
differs 'shoal train: --mode is not the same on all ranks' '"$0" "$@" $([[ $SHOAL_RANK = 1 ]] && echo --mode ddp)'
seq 1 200 >"$scratch/numbers0"
seq 2 201 >"$scratch/numbers1"
differs 'shoal train: the data is not the same on all ranks' '"$0" "$@" --data "$scratch/numbers$SHOAL_RANK"'
# The reason is that of the rank which has it.
differs 'shoal train: rank 1: trace .*: No such file or directory' \
    'mkdir -p "$scratch/on0" && "$0" "$@" --json --trace "$scratch/on$SHOAL_RANK/t.json"'

# Weights and places that are not there.
refuses 1 'nowhere: No such file' --load "$scratch/nowhere"
mkdir "$scratch/weights"
refuses 1 'weights has no model.safetensors' --load "$scratch/weights"
printf 'nonsense' >"$scratch/weights/model.safetensors"
refuses 1 'model.safetensors' --load "$scratch/weights" --ranks 2

# write_weights FOLDER BYTE: a GPT-2 of one block, width 16 and 32 positions. All is 0 but the last byte, of its output head.
write_weights() {
    local header='' at=0 name shape sizes size
    while read -r name sizes; do
        size=4
        for shape in ${sizes//,/ }; do
            size=$((size * shape))
        done
        header+="${header:+,}\"$name\":{\"dtype\":\"F32\",\"shape\":[$sizes],\"data_offsets\":[$at,$((at + size))]}"
        at=$((at + size))
    done <<'END'
wte.weight 256,16
wpe.weight 32,16
h.0.ln_1.weight 16
h.0.ln_1.bias 16
h.0.attn.c_attn.weight 16,48
h.0.attn.c_attn.bias 48
h.0.attn.c_proj.weight 16,16
h.0.attn.c_proj.bias 16
h.0.ln_2.weight 16
h.0.ln_2.bias 16
h.0.mlp.c_fc.weight 16,64
h.0.mlp.c_fc.bias 64
h.0.mlp.c_proj.weight 64,16
h.0.mlp.c_proj.bias 16
ln_f.weight 16
ln_f.bias 16
lm_head.weight 256,16
END
    header="{$header}"
    while [[ $((${#header} % 8)) -ne 0 ]]; do
        header+=' '
    done
    {
        # shellcheck disable=SC2059 # the length, as eight bytes
        printf "$(printf '\\%03o' $((${#header} % 256)) $((${#header} / 256)))\\0\\0\\0\\0\\0\\0%s" "$header"
        head -c $((at - 1)) /dev/zero
        printf '%b' "$2"
    } >"$1/model.safetensors"
}
write_weights "$scratch/weights" '\001'
refuses 1 'lm_head.weight in .* is not the embedding wte.weight' --load "$scratch/weights"
write_weights "$scratch/weights" '\000'
refuses 1 '5 heads do not divide the width 16' --load "$scratch/weights" --heads 5
echo '{"n_head": 4}' >"$scratch/weights/config.json"
refuses 1 '--heads is 2, but the model in .* has 4' --load "$scratch/weights" # --heads is one of those that are tiny

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
