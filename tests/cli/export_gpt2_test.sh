#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal export`: a GPT-2 of Hugging Face whose files say what the model is, with the same bytes for the same parameters,
# and the logits of the checkpoint; nothing is written over.
# shellcheck source-path=SCRIPTDIR source=generate_common.sh
. "${BASH_SOURCE[0]%/*}/generate_common.sh"

trains 0 --checkpoint "$scratch/run2" --ranks 2

# Exports: the same bytes from checkpoints of one rank and of two, and from an export; the bits of the logits stay.
hf=$scratch/hf
tool 0 export "$run" "$hf"
grep -qE 'hf: a GPT-2 of 0.01 million parameters \(2 layers, width 16, 2 heads, 16 positions, 256 tokens\), from step 6 of' "$scratch/out" ||
    complain "export says something else"
tool 0 export "$scratch/run2" "$scratch/hf2"
tool 0 export "$hf" "$scratch/hf3"
for other in hf2 hf3; do
    diff -r "$hf" "$scratch/$other" >/dev/null || complain "$other differs"
done
[[ $(cd "$hf" && echo *) == 'config.json merges.txt model.safetensors vocab.json' ]] || complain "export: $(ls "$hf")"
tool 0 generate "$run" --prompt 'The bits' --length 0 --logits "$scratch/wanted.safetensors"
for from in "$run --ranks 2" "$hf" "$hf --ranks 2" "$scratch/run2"; do
    # shellcheck disable=SC2086 # two words on purpose
    tool 0 generate $from --prompt 'The bits' --length 0 --logits "$scratch/logits"
    cmp -s "$scratch/wanted.safetensors" "$scratch/logits" || complain "$from: other logits"
done
# They are what config.json and the weights say, by another implementation.
forward=$SHOAL_TEST_SOURCE_DIR/tests/fixtures/gpt2_forward.pl
"$forward" "$hf" "$scratch/logits" >"$scratch/out" || complain "logits are not those of a GPT2LMHeadModel"
header=$(tail -c +9 "$scratch/logits" | head -c "$(od -An -tu8 -N8 "$scratch/logits" | tr -d ' ')")
[[ $header == *'"logits":{"dtype":"F32","shape":[8,256]'* && $header == *'"tokens":{"dtype":"I32","shape":[8]'* ]] || complain "logits: $header"
for words in '"model_type": "gpt2"' '"n_layer": 2' '"n_head": 2' '"n_embd": 16' '"n_positions": 16' '"vocab_size": 256' \
    '"activation_function": "gelu_new"' '"layer_norm_epsilon": 1e-05' '"tie_word_embeddings": true' '"architectures": \["GPT2LMHeadModel"\]' \
    '"resid_pdrop": 0.0' '"attn_pdrop": 0.0' '"embd_pdrop": 0.0' '"bos_token_id": null' '"eos_token_id": null'; do
    grep -q "^  $words,\$" "$hf/config.json" || complain "config.json does not say $words"
done
trains 0 --checkpoint "$scratch/dropped" --dropout 0.25 --steps 1
tool 0 export "$scratch/dropped" "$scratch/hf_dropped"
grep -q '"resid_pdrop": 0.25,' "$scratch/hf_dropped/config.json" || complain "dropout is lost"

# An export never mixes with what is there.
fails 1 'hf has a model.safetensors already: --replace writes over it' export "$run" "$hf"
tool 0 export "$scratch/dropped" "$scratch/hf3" --replace
diff -r "$scratch/hf_dropped" "$scratch/hf3" >/dev/null || complain "--replace leaves something"
fails 1 'run2 has checkpoints up to step 6: name another' export "$run" "$scratch/run2" --replace
fails 1 'step-000000006 is a checkpoint: name another' export "$run" "$run/step-000000006" --replace
fails 1 'hf is where the model comes from: name another' export "$hf" "$run/../hf" --replace
fails 1 'no/where: .*No such file' export "$run" "$scratch/no/where"
fails 2 'needs a directory to write to' export "$run"
fails 2 "'x' " export "$run" "$hf" x

# Models of tokens take their tokenizer along.
pairs=$SHOAL_TEST_SOURCE_DIR/tests/fixtures/byte_pairs.pl
mkdir "$scratch/tokenizer"
"$pairs" train 60 "$scratch/tokenizer" <"$text"
tool 0 tokens "$text" --tokenizer "$scratch/tokenizer" -o "$scratch/tokens"
tiny=(--layers 1 --width 16 --heads 2 --context 16 --batch 2 --steps 2)
trains 0 --tokens "$scratch/tokens" --checkpoint "$scratch/words"
tool 0 generate "$scratch/words" --prompt 'The software' --length 8 --temperature 0 --tokenizer "$scratch/tokenizer"
cp "$scratch/out" "$scratch/wanted"
tool 0 export "$scratch/words" "$scratch/hf_words" --tokenizer "$scratch/tokenizer"
cmp -s "$scratch/tokenizer/vocab.json" "$scratch/hf_words/vocab.json" || complain "another vocabulary"
writes "$scratch/hf_words" --prompt 'The software' --length 8 --temperature 0
tool 0 generate "$scratch/words" --prompt-tokens 3,300,5,7 --length 0 --logits "$scratch/logits"
"$forward" "$scratch/hf_words" "$scratch/logits" >"$scratch/out" || complain "logits of tokens are not those of a GPT2LMHeadModel"
printf '<|endoftext|>\n' >"$scratch/wanted"
writes "$scratch/hf_words" --length 0
tool 0 export "$scratch/words" "$scratch/hf_words" --replace
[[ $(cd "$scratch/hf_words" && echo *) == 'config.json model.safetensors' ]] || complain "--replace leaves an old tokenizer"
fails 1 '--tokenizer: .* has 317 tokens, but the model has 256' export "$run" "$scratch/new" --tokenizer "$scratch/tokenizer"
fails 1 '--tokenizer: .* has no vocab.json' export "$run" "$scratch/new" --tokenizer "$run"
[[ ! -e $scratch/new ]] || complain "a failed export leaves a directory"

# An export is made by one process of a launcher.
tool 0 run --no-label -n 3 "$SHOAL_TEST_TOOL" export "$run" "$scratch/hf_ranks"
[[ $(wc -l <"$scratch/out") -eq 1 ]] || complain "several ranks export"
diff -r "$hf" "$scratch/hf_ranks" >/dev/null || complain "an export under shoal run differs"

# Weights that changed since they were saved are noticed before anything is written.
cp -r "$run" "$scratch/damaged"
printf x | dd of="$scratch/damaged/step-000000006/pieces-00001-of-00001.safetensors" bs=1 seek=4000 conv=notrunc 2>"$scratch/dd"
fails 1 'pieces-00001-of-00001.safetensors' export "$scratch/damaged" "$scratch/new"
[[ ! -e $scratch/new ]] || complain "a failed export leaves a directory"

# A model that training has ruined is exported with a warning, and writes nothing.
trains 0 --lr 1e6 --clip 0 --steps 4 --mode single --checkpoint "$scratch/ruined"
tool 0 export "$scratch/ruined" "$scratch/ruined.hf"
grep -qE '^shoal export: warning: [1-9][0-9]* of [1-9][0-9]* parameters are infinite or no numbers$' "$scratch/err" || complain "no warning"
tool 1 generate "$scratch/ruined.hf" --length 2 --prompt a
grep -qE '^shoal generate: the model gives token [0-9]+ the logit -?(nan|inf): nothing can be drawn$' "$scratch/err" || complain "draws a token"

! $failed
