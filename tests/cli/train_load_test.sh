#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal train --load`: models of Hugging Face and checkpoints of Shoal, whose shape is taken, and options and files that
# contradict it, which are refused before anything is computed.
# shellcheck source-path=SCRIPTDIR source=train_common.sh
. "${BASH_SOURCE[0]%/*}/train_common.sh"
tiny=(--data "$text" --batch 2 --steps 2)

# refuses_load TEXT ARGUMENTS...: on one rank and on two, before anything is printed.
refuses_load() {
    local text=$1
    shift
    for ranks in 1 2; do
        refuses 1 "^shoal train: --load: $text" "$@" --ranks $ranks
        [[ ! -s $scratch/out ]] || complain "train $*: prints more than why not"
    done
}

# A run of Shoal: the checkpoint says its shape, and gives its values in any form.
run=$scratch/run
shape=(--layers 2 --width 16 --heads 2 --context 16)
trains 0 "${shape[@]}" --checkpoint "$run"
wants --load "$run" --mode single --accumulate 2
[[ $(sed -nE 's/.*"params": ([0-9]+).*/\1/p' "$scratch/out") -eq 10944 ]] || complain "not the model that was loaded"
same_as --load "$run" --ranks 2
same_as --load "$run/step-000000002" --ranks 2 --mode ddp "${shape[@]}"
"$SHOAL_TEST_TOOL" export "$run" "$scratch/hf" >"$scratch/exported"
same_as --load "$scratch/hf" --ranks 2
trains 0 --json "${shape[@]}" --ranks 2
find_digest
[[ $digest != "$wanted" ]] || complain "a run without --load is the same"

# The default of --context, 128, is too long for 16 positions, and is not what the user has said.
trains 0 --load "$run"
grep -qE 'of 16 tokens' "$scratch/out" || complain "rows are not as long as the model allows"
trains 0 --load "$run" --context 8
grep -qE 'of 8 tokens' "$scratch/out" || complain "rows are not as long as they should be"
refuses_load 'the model in .*/run has at most --context 16 \(not 17\)' --load "$run" --context 17

# A directory for checkpoints that has such a model is named for what it is, with --resume and without.
for more in "" --resume; do
    # shellcheck disable=SC2086 # perhaps no word
    refuses 1 "^shoal train: --checkpoint: $scratch/hf is a model of Hugging Face, with model.safetensors, .*: --load $scratch/hf begins" \
        --checkpoint "$scratch/hf" $more
done

# Contradictions, all of them at once.
refuses_load 'the model in .*/run has --width 16 \(not 128\)$' --load "$run" --width 128
refuses_load 'the model in .*/hf has --layers 2 \(not 3\), --width 16 \(not 64\), --heads 2 \(not 4\), at most --context 16 \(not 64\)$' \
    --load "$scratch/hf" --width 64 --layers 3 --heads 4 --context 64
head -c 400 /dev/zero >"$scratch/zeros"
tiny=(--batch 2 --steps 2)
refuses_load 'the model in .*/run has --vocabulary 256 \(not 300\)$' --load "$run" --tokens "$scratch/zeros" --vocabulary 300
trains 0 --load "$run" --tokens "$scratch/zeros"
perl -e 'print pack("S<*", (0) x 200, 256)' >"$scratch/large"
refuses 1 'large has token 256, but the vocabulary of the model is 256' --load "$run" --tokens "$scratch/large"
trains 0 "${shape[@]}" --tokens "$scratch/zeros" --vocabulary 64 --checkpoint "$scratch/small"
tiny=(--data "$text" --batch 2 --steps 2)
refuses_load 'the model has 64 tokens, the data 256' --load "$scratch/small"

# Nothing says how many heads there are: no config.json, or a checkpoint of another program.
cp -r "$scratch/hf" "$scratch/headless"
rm "$scratch/headless/config.json"
refuses_load '.*/headless does not say how many heads the model has: .*config.json; give --heads N' --load "$scratch/headless"
same_as --load "$scratch/headless" --heads 2 --ranks 2
refuses_load '3 heads do not divide the width 16 ' --load "$scratch/headless" --heads 3

# with CHANGE TEXT: a config.json that is changed so is refused.
with() {
    perl -pe "$1" "$scratch/hf/config.json" >"$scratch/headless/config.json"
    refuses_load "$2" --load "$scratch/headless"
}
with 's/gelu_new/relu/' '.*/config.json: activation_function is "relu"; the GPT of Shoal has gelu_new'
with 's/"model_type": "gpt2"/"model_type": "llama"/' '.*/config.json: model_type is "llama"; the GPT of Shoal has gpt2'
with 's/"scale_attn_weights": true/"scale_attn_weights": false/' '.*/config.json: scale_attn_weights is false; the GPT of Shoal has true'
with 's/idx": false/idx": true/' '.*/config.json: scale_attn_by_inverse_layer_idx is true; the GPT of Shoal has false'
with 's/"tie_word_embeddings": true/"tie_word_embeddings": false/' '.*/config.json says tie_word_embeddings false, and there is no lm_head.weight$'
with 's/"n_inner": null/"n_inner": 32/' '.*/config.json: n_inner is 32; the GPT of Shoal has four times n_embd'
with 's/"n_layer": 2/"n_layer": 3/; s/"vocab_size": 256/"vocab_size": 300/' \
    '.*/config.json says n_layer 3 \(the weights have 2\), vocab_size 300 \(the weights have 256\)$'
with 's/"n_positions": 16/"n_positions": 1024/; s/"n_embd": 16/"n_embd": 8/' \
    '.*/config.json says n_embd 8 \(the weights have 16\), n_positions 1024 \(the weights have 16\)$'
with 's/"n_head": 2/"n_head": 0/' '.*/config.json: n_head is 0; '
with 's/"n_head": 2/"n_head": "2"/' '.*/config.json: n_head is "2"; '
with 's/"n_head": 2,//' '.*/headless does not say how many heads '
with 's/1e-05/0/' '.*/config.json: layer_norm_epsilon is 0; '
with 's/^}//' '.*/config.json:[0-9]+: '
with 's/^\{.*//s' '.*/config.json:[0-9]+: '
with 's/"n_head": 2/"n_head": 5/' '5 heads do not divide the width 16 '

# Another epsilon is another model, also for --verify, which loads it again.
perl -pe 's/1e-05/0.01/' "$scratch/hf/config.json" >"$scratch/headless/config.json"
trains 0 --json --load "$scratch/headless" --ranks 2 --verify
find_digest
[[ $digest != "$wanted" ]] || complain "layer_norm_epsilon is not taken"
# It stays that of the run, of what --resume does, and of an export.
wants --load "$scratch/headless" --mode single --steps 4 --warmup 1
trains 0 --load "$scratch/headless" --mode single --steps 4 --warmup 1 --every 2 --checkpoint "$scratch/eps"
rm -r "$scratch/eps/step-000000004"
mv "$scratch/headless" "$scratch/gone" # a run that goes on does not need it
trains 0 --json --checkpoint "$scratch/eps" --resume --steps 4
find_digest
[[ $digest == "$wanted" ]] || complain "--resume forgets layer_norm_epsilon"
"$SHOAL_TEST_TOOL" export "$scratch/eps" "$scratch/hf_eps" >"$scratch/exported"
grep -q '"layer_norm_epsilon": 0.01,' "$scratch/hf_eps/config.json" || complain "export forgets layer_norm_epsilon"
"$SHOAL_TEST_TOOL" generate "$scratch/eps" --prompt epsilon --length 0 --logits "$scratch/logits" >"$scratch/exported"
"$SHOAL_TEST_SOURCE_DIR/tests/fixtures/gpt2_forward.pl" "$scratch/hf_eps" "$scratch/logits" >"$scratch/out" || complain "logits with another epsilon"
mv "$scratch/gone" "$scratch/headless"

# A model of more positions than rows have keeps them in its checkpoints.
trains 0 --load "$run" --context 8 --checkpoint "$scratch/short"
"$SHOAL_TEST_TOOL" export "$scratch/short" "$scratch/hf_short" >"$scratch/exported"
grep -q '16 positions' "$scratch/exported" || complain "positions are lost: $(<"$scratch/exported")"

# Tokens of llm.c's files, with a header, are those of the same file without.
perl -e 'srand 3; @t = map { int rand 50 } 1 .. 600; print pack("S<*", @t)' >"$scratch/plain"
{ perl -e 'print pack("L<256", 20240520, 1, 600, (0) x 253)'; cat "$scratch/plain"; } >"$scratch/u16"
perl -e 'local $/; $t = <>; print pack("L<256", 20240801, 7, 600, (0) x 253), pack("L<*", unpack "S<*", $t)' "$scratch/plain" >"$scratch/u32"
tiny=("${shape[@]}" --batch 2 --steps 2)
wants --tokens "$scratch/plain"
same_as --tokens "$scratch/u16"
same_as --tokens "$scratch/u32" --vocabulary 64
head -c 1024 "$scratch/u16" >"$scratch/none"
refuses 1 'none has 1024 bytes; its header says 600 tokens of 2 bytes behind 1024 bytes' --tokens "$scratch/none"
perl -e 'print pack("L<256", 20240520, 1, 0, (0) x 253)' >"$scratch/none"
refuses 1 'none has no tokens' --tokens "$scratch/none"
head -c 900 "$scratch/u16" >"$scratch/cut"
refuses 1 'cut begins as tokens of llm.c, and has 900 bytes: it was cut, as the header has 1024' --tokens "$scratch/cut"
{ perl -e 'print pack("L<256", 20240522, 1, 600, (0) x 253)'; cat "$scratch/plain"; } >"$scratch/evaluation"
refuses 1 'evaluation is an evaluation of llm.c, not a file of tokens' --tokens "$scratch/evaluation"
perl -e 'print pack("L<256", 20240801, 7, 100, (0) x 253), pack("L<*", (1) x 99, 4000000000)' >"$scratch/wild"
refuses 1 'wild has token 4000000000; a vocabulary has at most 4194304' --tokens "$scratch/wild"

! $failed
