#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal generate`: the same tokens on any number of ranks, greedy where that is asked for, text by bytes and by tokenizers, and
# one line for what is wrong.
# shellcheck disable=SC2016 # commands of ranks, which their shells expand
# shellcheck source-path=SCRIPTDIR source=generate_common.sh
. "${BASH_SOURCE[0]%/*}/generate_common.sh"

sed -n '/^what it writes:$/,/^  run /p' "$scratch/out" | sed '1d;$d' | sed '$d' >"$scratch/sample"
trains 0 --checkpoint "$scratch/run2" --ranks 2

# The sample of the training, and the same on one rank, on several, with their own launcher or another one.
tool 0 generate "$run" --prompt The --length 30
cp "$scratch/out" "$scratch/wanted"
cmp -s "$scratch/wanted" "$scratch/sample" || complain "not the sample of the training"
writes "$run" --prompt The --length 30 --ranks 2
writes "$scratch/run2" --prompt The --length 30 --ranks 3 --transport shm
writes "$run/step-000000006" --prompt The --length 30
timeout "$limit_s" "$SHOAL_TEST_TOOL" run --no-label -n 2 "$SHOAL_TEST_TOOL" generate "$run" --prompt The --length 30 >"$scratch/out" 2>"$scratch/err" ||
    complain "generate under shoal run fails"
cmp -s "$scratch/wanted" "$scratch/out" || complain "generate under shoal run: writes something else"
writes "$run" --prompt-tokens 84,104,101 --length 30
writes "$run" --prompt The --length 30 --seed 1 --temperature 0.7 --top-k 40
tool 0 generate "$run" --prompt The --length 30 --seed 2
! cmp -s "$scratch/wanted" "$scratch/out" || complain "another seed draws the same tokens"

# Greedy in two ways; 0 of the likeliest are all of them, and so are as many as there are.
tool 0 generate "$run" --prompt The --length 30 --temperature 0
cp "$scratch/out" "$scratch/wanted"
writes "$run" --prompt The --length 30 --top-k 1 --seed 77
writes "$run" --prompt The --length 30 --temperature 0 --seed 5 --ranks 2
tool 0 generate "$run" --prompt The --length 30 --top-k 0 --temperature 1.5
cp "$scratch/out" "$scratch/wanted"
writes "$run" --prompt The --length 30 --top-k 256 --temperature 1.5
writes "$run" --prompt The --length 30 --top-k 100000 --temperature 1.5 --ranks 2

# A prompt that is longer than the context: the model sees its end.
tool 0 generate "$run" --prompt 'xxxxxxxx0123456789abcdef' --length 5 --temperature 0
[[ $(<"$scratch/err") == 'shoal generate: the prompt has 24 tokens; the model sees the last 16' ]] || complain "does not say what is cut"
grep -q '^xxxxxxxx0123456789abcdef' "$scratch/out" || complain "the prompt is cut"
sed 's/^xxxxxxxx/yyyyyyyy/' "$scratch/out" >"$scratch/wanted"
writes "$run" --prompt 'yyyyyyyy0123456789abcdef' --length 5 --temperature 0 --ranks 2
printf 'é\\x01\\xff\n' >"$scratch/wanted"
writes "$run" --prompt $'é\x01\xff' --length 0
printf '\n' >"$scratch/wanted"
writes "$run" --length 0 # texts begin with a new line

# A model of tokens: text needs a tokenizer, of which there are two forms; it may lie beside the model.
pairs=$SHOAL_TEST_SOURCE_DIR/tests/fixtures/byte_pairs.pl
mkdir "$scratch/tokenizer"
"$pairs" train 60 "$scratch/tokenizer" <"$text"
"$pairs" bin 2 "$scratch/tokenizer"
tool 0 tokens "$text" --tokenizer "$scratch/tokenizer" -o "$scratch/tokens"
tiny=(--layers 1 --width 16 --heads 2 --context 16 --batch 2 --steps 2)
trains 0 --tokens "$scratch/tokens" --checkpoint "$scratch/words"
fails 1 '--prompt: the tokens of this model are not bytes' generate "$scratch/words" --prompt The
fails 1 'shoal generate: the tokens of this model are not bytes: give --tokenizer' generate "$scratch/words"
# Also if there are 256 of them. A model of bytes may have more: it was loaded so.
trains 0 --tokens "$scratch/tokens" --vocabulary 320 --checkpoint "$scratch/more"
perl -e 'print pack("S<*", map { $_ % 256 } 1 .. 400)' >"$scratch/all"
trains 0 --tokens "$scratch/all" --vocabulary 256 --checkpoint "$scratch/all_words"
fails 1 '--prompt: the tokens of this model are not bytes' generate "$scratch/all_words" --prompt The
tiny=(--batch 2 --steps 1)
trains 0 --data "$text" --load "$scratch/more" --checkpoint "$scratch/more_bytes"
tool 0 generate "$scratch/more_bytes" --prompt 'The ' --length 0
[[ $(<"$scratch/out") == 'The ' ]] || complain "bytes of a larger vocabulary"
printf '<300>\n' >"$scratch/wanted"
writes "$scratch/more_bytes" --prompt-tokens 300 --length 0
tool 0 generate "$scratch/words" --prompt-tokens 1,2 --length 3
grep -qE '^1,2,[0-9]+,[0-9]+,[0-9]+$' "$scratch/out" || complain "tokens are not printed as numbers"
tool 0 generate "$scratch/words" --prompt 'The software' --length 8 --temperature 0 --tokenizer "$scratch/tokenizer"
grep -q '^The software' "$scratch/out" || complain "no text by a tokenizer"
cp "$scratch/out" "$scratch/wanted"
writes "$scratch/words" --prompt 'The software' --length 8 --temperature 0 --tokenizer "$scratch/tokenizer/tokenizer.bin" --ranks 2
fails 1 '--tokenizer: .*nowhere: No such file' generate "$run" --tokenizer "$scratch/nowhere"

# What is wrong.
for ranks in 1 2; do
    fails 1 'nowhere: No such file' generate "$scratch/nowhere" --ranks "$ranks"
    fails 1 'LICENSE is not a directory' generate "$text" --ranks "$ranks"
    fails 1 'tokenizer has no checkpoint, no model.safetensors' generate "$scratch/tokenizer" --ranks "$ranks"
    fails 1 '--logits: .*No such file' generate "$run" --logits "$scratch/no/where" --ranks "$ranks" --length 0
done
fails 1 "--prompt-tokens: '1x' is not a token" generate "$run" --prompt-tokens 1,1x
fails 1 "--prompt-tokens: '' is not a token" generate "$run" --prompt-tokens 1,
fails 1 "--prompt-tokens: '-1' is not a token" generate "$run" --prompt-tokens=-1
fails 1 '--prompt-tokens: token 1 of the prompt is 256, but the model has 256 tokens' generate "$run" --prompt-tokens 1,256
fails 1 '--heads is 3, but the model in .* has 2' generate "$run" --heads 3
fails 2 'two prompts: give one' generate "$run" --prompt a --prompt-tokens 1
fails 2 "--temperature: '-1' is not a number from 0 to 1000" generate "$run" --temperature -1
fails 2 "--top-k: '-1' is not a whole number from 0" generate "$run" --top-k -1
fails 2 'needs the directory of a model' generate
fails 2 "'shmm' is not a transport; did you mean 'shm'" generate "$run" --transport shmm

# Ranks that a launcher gave different commands: differs TEXT COMMAND; the text is a line, once, and all ranks end.
differs() {
    local status=0
    timeout "$limit_s" "$SHOAL_TEST_TOOL" run --no-label -n 2 bash -c "$2" "$SHOAL_TEST_TOOL" generate "$run" >"$scratch/out" 2>"$scratch/err" || status=$?
    [[ $status -eq 1 && ! -s $scratch/out && $(grep -cxE -- "$1" "$scratch/err") -eq 1 ]] || complain "ranks with $2: status $status"
}
differs 'shoal generate: the prompt is not the same on all ranks' '"$0" "$@" --prompt $SHOAL_RANK'
differs 'shoal generate: --length is not the same on all ranks: 3 on rank 0, 4 on rank 1' '"$0" "$@" --length $((3 + SHOAL_RANK))'
differs 'shoal generate: rank 1: /nowhere: No such file or directory' 'if [[ $SHOAL_RANK = 1 ]]; then "$0" generate /nowhere; else "$0" "$@"; fi'
# Also without a launcher that ends the others: they end with the reason, and do not wait for their deadline.
export SHOAL_KEY="generate-$$" SHOAL_RANKS=2 SHOAL_TIMEOUT=600
SHOAL_RANK=1 timeout "$limit_s" "$SHOAL_TEST_TOOL" generate "$scratch/nowhere" >"$scratch/out1" 2>"$scratch/err1" &
status=0
SHOAL_RANK=0 timeout "$limit_s" "$SHOAL_TEST_TOOL" generate "$run" >"$scratch/out" 2>"$scratch/err" || status=$?
other=0
wait $! || other=$?
unset SHOAL_KEY SHOAL_RANKS SHOAL_TIMEOUT
[[ $status -eq 1 && $other -eq 1 && ! -s $scratch/out && ! -s $scratch/err ]] || complain "rank 0 beside one without a model: status $status, $other"
grep -qx "shoal generate: rank 1: $scratch/nowhere: No such file or directory" "$scratch/err1" || complain "$(<"$scratch/err1")"
fails 1 "--logits $scratch/tokenizer/tokenizer.bin would write over the tokenizer" generate "$scratch/words" --prompt x \
    --tokenizer "$scratch/tokenizer/tokenizer.bin" --logits "$scratch/tokenizer/tokenizer.bin"
tool 2 run --no-label -n 2 "$SHOAL_TEST_TOOL" generate "$run" --ranks 3
grep -qx 'shoal generate: --ranks is about ranks that the command starts itself, but shoal run has started 2: leave it out' "$scratch/err" ||
    complain "--ranks is not compared"

# Logits are a safetensors file, of the tokens that the model sees.
tool 0 generate "$run" --prompt 0123456789abcdefghij --length 0 --logits "$scratch/logits"
header=$(tail -c +9 "$scratch/logits" | head -c "$(od -An -tu8 -N8 "$scratch/logits" | tr -d ' ')")
[[ $header == *'"shape":[16,256]'* ]] || complain "logits of a long prompt: $header"

# Weights that changed since they were saved are noticed, once, by all ranks.
cp -r "$run" "$scratch/damaged"
printf x | dd of="$scratch/damaged/step-000000006/pieces-00001-of-00001.safetensors" bs=1 seek=4000 conv=notrunc 2>"$scratch/dd"
for ranks in 1 2; do
    fails 1 'pieces-00001-of-00001.safetensors' generate "$scratch/damaged" --ranks "$ranks"
done
! $failed
