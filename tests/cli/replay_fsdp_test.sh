#!/bin/bash
# SPDX-License-Identifier: MIT
# replay_fsdp: PyTorch's training runs are ours; every way to be wrong is counted and explained.
# shellcheck source-path=SCRIPTDIR source=replay_common.sh
. "${BASH_SOURCE[0]%/*}/replay_common.sh" replay_fsdp

# changed RUN CHANGES...: a recorded run with something changed (change_safetensors.pl), as $scratch/file
changed() {
    perl "$fixtures/change_safetensors.pl" "${@:2}" <"$golden/fsdp_$1.safetensors" >"$scratch/file"
}

# wrong WORDS RUN CHANGES...: a run that is wrong in one thing, which is said, whatever it had to be compared
wrong() {
    changed "${@:2}"
    expect 1 '' "$scratch/file"
    says "$scratch/file: $1"
    if ! grep -q ' checked, 1 wrong, ' "$scratch/out"; then
        complain "expected one wrong:"
    fi
}

expect 0 '916 checked, 0 wrong, worst 0.' "$golden"/fsdp_*.safetensors
if [[ $(grep -c ' 0 wrong, ' "$scratch/out") -ne 18 ]]; then
    complain "expected 17 files and a total:"
fi

# Looking for leaks takes seconds per run on some machines: once is enough.
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0

# Any number of ranks, any mix of options: runs that were computed elsewhere, in doubles.
# Seed 27 has a gradient that is 3e-5 where its terms are 1e-3, by cancellation: there roundings of f32 exceed the bound.
for seed in {1..26} {28..31}; do
    perl "$fixtures/make_fsdp.pl" "$seed" param_dtype=null reduce_dtype=null >"$scratch/seed_$seed"
done
# Halves, where no gradient is small by cancellation.
for mesh in '[1]' '[2]' '[5]' '[1,3]'; do
    for reduce in bfloat16 float16; do
        perl "$fixtures/make_fsdp.pl" 1 "mesh=$mesh" "reduce_dtype=\"$reduce\"" param_dtype=null sizes='[9,9,9,9]' \
            tied=null reshard=null frozen=null shard1=null divide=null clip=5 >"$scratch/seed_$mesh$reduce"
    done
done
expect 0 '' "$scratch"/seed_*
rm "$scratch"/seed_*

# One value changed, of each kind of result.
for name in rank1.loss.2.0 rank0.grad.1.layers.1.weight rank1.grad.0.scale rank1.param.2.layers.0.bias \
    final.layers.2.weight; do
    changed w2_sgd value $name 0 7
    expect 1 '52 checked, 1 wrong, worst ' "$scratch/file"
    if ! grep -q "^$scratch/file: ${name#rank?.}: rank [01], element 0: got .*, expected 7; error .*, .* of its bound$" \
        "$scratch/out"; then
        complain "did not explain $name:"
    fi
done
changed w2_clip value rank0.norm.0 0 1
expect 1 '55 checked, 1 wrong, worst ' "$scratch/file"
changed w2_sgd value rank0.loss.0.0 0 nan
expect 1 '52 checked, 1 wrong, worst inf of its bound' "$scratch/file"
# What the run starts from: nearly everything is wrong then.
changed w2_sgd value init.scale 0 7
expect 1 '52 checked, ' "$scratch/file"
# The total is over all files.
changed w2_sgd value rank1.loss.2.0 0 7
expect 1 '156 checked, 1 wrong, worst ' "$golden/fsdp_w2_sgd.safetensors" "$scratch/file" \
    "$golden/fsdp_w2_noreshard.safetensors"
says "$golden/fsdp_w2_noreshard.safetensors: 52 checked, 0 wrong, $(
    grep -o 'worst 0.*' <(tail -n 2 "$scratch/out") | head -n 1)"

# Every option counts: without it, or with another one, the results are others.
while read -r run key value; do
    changed "$run" option "$key" "$value"
    status=0
    "$replay" "$scratch/file" >"$scratch/out" 2>"$scratch/err" || status=$?
    if [[ $status -ne 1 ]]; then
        complain "$run with $key $value: exit status $status"
    fi
done <<'END'
w2_sgd lr 0.2
w2_sgd opt "adamw"
w3_adamw opt "sgd"
w2_sgd divide 3
w4_fp16reduce reduce_dtype
w2_bf16_fp32reduce param_dtype
w2_clip clip 0.01
w2_clip clip
w2_frozen frozen
w2_sgd frozen ["scale"]
w2_sgd shard1 ["layers.0.weight"]
w2_shard1 shard1
w2_accum_sync micro 1
w2_sgd steps 2
w2_sgd steps 4
w2_tied tied
w4_hsdp mesh [4]
END
# These change what is communicated, not what comes out.
for option in 'reshard false' 'reshard true' 'reshard 1' 'reshard 2' 'accum "no_sync"' 'clip null' 'mesh [1,2]' \
    'divide 2' 'micro 1' 'tied false' 'frozen []' 'shard1 []' 'param_dtype "float32"' 'reduce_dtype "float32"'; do
    changed w2_sgd option "${option% *}" "${option#* }"
    expect 0 '52 checked, 0 wrong, worst 0.' "$scratch/file"
done
for option in 'reshard 2' 'reshard 4' 'reshard false'; do
    changed w4_reshard2 option "${option% *}" "${option#* }"
    expect 0 '52 checked, 0 wrong, worst 0.' "$scratch/file"
done

# Cases that cannot be run.
wrong 'case: is missing in the metadata' w2_sgd no_case
wrong "case: is no JSON object: '[' or '{' expected near 'nothing'" w2_sgd case nothing
wrong 'case: is no JSON object' w2_sgd case '[1]'
wrong 'option "colour": is unknown' w2_sgd option colour 3
wrong 'option "world": is missing' w2_sgd option world ''
wrong 'option "lr": is missing' w2_sgd option lr null
wrong 'option "world": is not an integer from 1 to 4096' w2_sgd option world 0
wrong 'option "world": is not an integer from 1 to 4096' w2_sgd option world '"two"'
wrong 'option "mesh": is not a list of one or two numbers' w2_sgd option mesh '[1,1,2]'
wrong 'option "mesh": has 3 ranks, but the world has 2' w2_sgd option mesh '[3]'
wrong 'option "sizes": is not a list of at least two numbers' w2_sgd option sizes '[6]'
wrong 'option "opt": is not sgd or adamw' w2_sgd option opt '"adam"'
wrong 'option "lr": is not a number' w2_sgd option lr '"high"'
wrong 'option "param_dtype": is not bfloat16, float16 or float32' w2_sgd option param_dtype '"int8"'
wrong 'option "reshard": is not true, false or an integer' w2_sgd option reshard '"yes"'
wrong 'option "accum": is not no_sync or no_all_reduce' w2_sgd option accum true
wrong 'option "divide": is not larger than 0' w2_sgd option divide 0
wrong 'option "tied": layers 1 and 2 cannot have the same weight' w2_sgd option tied true
wrong 'option "tied": is not true or false' w2_sgd option tied 1
wrong 'option "frozen": there is no parameter "layers.3.bias"' w2_sgd option frozen '["layers.3.bias"]'
wrong 'option "frozen": is not a list of names' w2_sgd option frozen '"scale"'
wrong 'option "shard1": there is no parameter ""' w2_sgd option shard1 '[1]'

# Tensors that are missing, do not fit, or mean nothing.
wrong 'init.scale: is missing' w2_sgd remove init.scale
wrong 'rank1.x.2.0: is missing' w2_sgd remove rank1.x.2.0
wrong 'rank1.x.2.0: is f32 [6, 5], the case needs f32 [5, 6]' w2_sgd shape rank1.x.2.0 '[6,5]'
wrong 'grad.1.scale: rank1.grad.1.scale is missing' w2_sgd remove rank1.grad.1.scale
wrong 'final.scale: final.scale is missing' w2_sgd remove final.scale
wrong 'loss.0.0: rank0.loss.0.0 is missing' w2_sgd remove rank0.loss.0.0
wrong 'param.0.layers.2.weight: rank 0: got f32 [2, 9], expected f32 [9, 2]' w2_sgd shape \
    rank0.param.0.layers.2.weight '[9,2]'
wrong 'rank0.more: the case has no such tensor' w2_sgd add rank0.more
wrong 'rank0.grad.0.layers.0.weight: the case has no such tensor' w2_frozen add rank0.grad.0.layers.0.weight
changed w2_sgd rename rank1.param.0.scale rank2.param.0.scale
expect 1 '53 checked, 2 wrong, ' "$scratch/file"
says "$scratch/file: param.0.scale: rank1.param.0.scale is missing"
says "$scratch/file: rank2.param.0.scale: the case has no such tensor"
# A run that the library refuses.
changed w4_reshard2 option reshard 3
expect 1 '1 checked, 1 wrong, ' "$scratch/file"
if ! grep -q '^.*: the run: failed: rank [0-3]: .*reshard_ranks: 3' "$scratch/out"; then
    complain "did not say why the run failed:"
fi

# No file, no reader. The others are replayed all the same.
expect 2 ''
says 'usage: replay_fsdp FILE.safetensors...'
expect 2 '' --help
expect 2 '0 checked, 0 wrong, ' "$scratch/none"
says "replay_fsdp: safetensors_open: $scratch/none: No such file or directory"
head -c -4 "$golden/fsdp_w2_sgd.safetensors" >"$scratch/short"
expect 2 '52 checked, 0 wrong, ' "$scratch/short" "$golden/fsdp_w2_sgd.safetensors"
head -c 100 "$golden/fsdp_w2_sgd.safetensors" >"$scratch/short"
expect 2 '0 checked, ' "$scratch/short"

! $failed
