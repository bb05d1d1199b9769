#!/bin/bash
# SPDX-License-Identifier: MIT
# replay_gpt2: trainings of transformers' GPT-2 are ours, by one process and sharded; every way to be wrong is counted.
# shellcheck source-path=SCRIPTDIR source=replay_common.sh
. "${BASH_SOURCE[0]%/*}/replay_common.sh" replay_gpt2

# changed CHANGES...: the smaller file with something changed (change_safetensors.pl), as $scratch/file
changed() {
    perl "$fixtures/change_safetensors.pl" "$@" <"$golden/gpt2_a.safetensors" >"$scratch/file"
}

expect 0 '666 checked, 0 wrong, worst 0.' "$golden"/gpt2_*.safetensors
for who in 'one process' '2 ranks' '3 ranks'; do
    says_part "$golden/gpt2_b.safetensors, $who: 129 checked, 0 wrong, worst 0."
done

# Looking for leaks takes seconds per run on some machines: once is enough.
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0

# One number changed, of each kind of result: wrong for one process and for both numbers of ranks.
for name in step1.logits step2.loss step2.grad.transformer.h.1.mlp.c_fc.bias; do
    changed value $name 0 7
    expect 1 '279 checked, 3 wrong, worst ' "$scratch/file"
    says_part "$scratch/file, 3 ranks: $name: "
done
# A final number that is far off is off in the mean, too.
changed value final.transformer.h.1.attn.c_proj.weight 5 7
expect 1 '279 checked, 6 wrong, worst ' "$scratch/file"
says_part 'one process: final, largest: transformer.h.1.attn.c_proj.weight, element 5: got '
changed value final.transformer.wpe.weight 0 nan
expect 1 '279 checked, 6 wrong, worst inf of its bound' "$scratch/file"
# What the training starts from, and how: nearly everything is wrong then.
changed value init.transformer.h.0.ln_1.weight 3 2
expect 1 '279 checked, ' "$scratch/file"
for option in 'lr 0.002' 'decay 0.5' 'beta2 0.9' 'heads 2'; do
    changed option "${option% *}" "${option#* }"
    expect 1 '279 checked, ' "$scratch/file"
done

# These change nothing.
changed option colour 3 shape step1.loss '[]'
expect 0 '279 checked, 0 wrong, worst 0.' "$scratch/file"

# Files that cannot be run.
while IFS='|' read -r words changes; do
    # shellcheck disable=SC2086 # several words
    changed $changes
    expect 1 '1 checked, 1 wrong, ' "$scratch/file"
    says_part "$scratch/file: $words"
done <<'END'
case: is missing in the metadata|no_case
case: is no JSON object|case nothing
option "lr": is missing|option lr null
option "width": is not an integer from 1 to 2^20|option width 0
case: nn_gpt_create: n_heads: 5 does not divide the width 32|option heads 5
init.transformer.ln_f.bias: is missing|remove init.transformer.ln_f.bias
step2.tokens: is missing|remove step2.tokens
init.transformer.ln_f.bias: has another shape or dtype than the case says|shape init.transformer.ln_f.bias [2,16]
END
# Without a result, and with one too many, the others are compared all the same.
changed remove step1.grad.transformer.ln_f.bias
expect 1 '277 checked, 1 wrong, ' "$scratch/file"
says_part "$scratch/file: step1.grad.transformer.ln_f.bias: is missing"
changed add more
expect 1 '280 checked, 1 wrong, ' "$scratch/file"
says_part "$scratch/file: more: the case has no such tensor"

# No file, no reader. The others are replayed all the same.
expect 2 ''
says_part 'usage: replay_gpt2 FILE.safetensors...'
expect 2 '' --help
head -c 100 "$golden/gpt2_a.safetensors" >"$scratch/short"
expect 2 '279 checked, 0 wrong, ' "$scratch/none" "$scratch/short" "$golden/gpt2_a.safetensors"
says_part 'replay_gpt2: safetensors_open: '

! $failed
