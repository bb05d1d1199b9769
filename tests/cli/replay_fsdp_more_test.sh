#!/bin/bash
# SPDX-License-Identifier: MIT
# replay_fsdp on files with several cases: PyTorch's second recording is ours, every option of it counts, and what is not
# known is refused by name.
# shellcheck source-path=SCRIPTDIR source=replay_common.sh
. "${BASH_SOURCE[0]%/*}/replay_common.sh" replay_fsdp

expect 0 '648 checked, 0 wrong, worst 0.' "$golden"/more_fsdp{a,b}.safetensors
says "$golden/more_fsdpa.safetensors: 19 cases, 1 refused by PyTorch, 0 not run"
says "$golden/more_fsdpb.safetensors: 19 cases, 2 refused by PyTorch, 0 not run"

# Looking for leaks takes seconds per run on some machines: once is enough.
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0

# edit FILE CHANGES...: a recording with something changed, as $scratch/file, and what the replay says of it
edit() {
    perl "$fixtures/change_safetensors.pl" "${@:2}" <"$1" >"$scratch/file"
    "$replay" "$scratch/file" >"$scratch/out" 2>"$scratch/err" || true
}

# results WRONG FILE [CASE KEY JSON]...: with another option these cases are wrong, or not
results() {
    local pattern=$1 file=$2 changes=() cases=()
    shift 2
    while [[ $# -gt 0 ]]; do
        changes+=(option "$1/$2" "$3")
        cases+=("$1")
        shift 3
    done
    edit "$golden/more_fsdp$file.safetensors" "${changes[@]}"
    for run in "${cases[@]}"; do
        grep -q ": $run: [0-9]* checked, $pattern wrong, " "$scratch/out" || complain "$run is not $pattern wrong:"
    done
}

# Every option counts: without it, or with another one, the results are others.
results '[1-9][0-9]*' a divide3_sum divide 2 divide3_premul divide '' hook_fsdp hook '' hook_hsdp hook '"all_reduce"' \
    hook_all_reduce hook '"half"' f16_divide2.5 divide ''
results '[1-9][0-9]*' a hook_all_reduce hook '' gather_bf16 gather '"int8"'
results '[1-9][0-9]*' b gather_int8 gather '"bf16"' dims cube '{"0":2}' dims_hsdp shard '{"layers.0.weight":1}' one_unit_no_sync micro 2
results '[1-9][0-9]*' b experts meshes '{"layers.0":[4,2]}' experts_divide divides '' experts_hsdp meshes '{"layers.1":[4,2]}'
# These change what is communicated, not what comes out.
results 0 a force_sum force_sum '' divide_is_world divides '{"layers.0":2}' divide3_premul custom '' custom custom '"premul"' \
    divide1_premul custom '"plain"'
results 0 b keep_no_sync keep '' last_backward is_last '' keep_after_backward is_last true \
    one_unit_no_sync no_sync_units '["","layers.0"]'

# Small files from here on: one case, and one that PyTorch refused.
perl "$fixtures/change_safetensors.pl" only custom <"$golden/more_fsdpa.safetensors" >"$scratch/custom"
perl "$fixtures/change_safetensors.pl" only divide3_refused <"$golden/more_fsdpa.safetensors" >"$scratch/refused"
expect 0 '0 checked, 0 wrong, ' "$scratch/refused"
says "$scratch/refused: 1 cases, 1 refused by PyTorch, 0 not run"
edit "$scratch/refused" add divide3_refused/init.scale
says "$scratch/file: divide3_refused: init.scale: the case has no such tensor"

# Options that mean nothing, a case for each: none is run.
read -r -d '' options <<'END' || true
"colour":1|option "colour": is unknown
"custom":"none"|option "custom": is not plain or premul
"custom":true|option "custom": is not plain or premul
"hook":"double"|option "hook": is not half or all_reduce
"gather":"int4"|option "gather": is not bf16 or int8
"force_sum":1|option "force_sum": is not true or false
"error":1|option "error": is not a text
"calls":[]|option "calls": is not an object
"divides":3|option "divides": is not an object
"divides":{"layers.9":3}|option "divides": there is no unit "layers.9"
"divides":{"layers.1":0}|option "divides": "layers.1" is not larger than 0
"meshes":{"layers.9":[2]}|option "meshes": there is no unit "layers.9"
"meshes":{"layers.1":[3,2]}|option "meshes": "layers.1": [3, 2] is neither replicas of shards of 2 ranks nor groups of them
"meshes":{"":2}|option "meshes": "": is not a list of one or two numbers
"by_parameter":2|option "by_parameter": is not an object
"cube":{"0":4}|option "cube": layers.0.weight has 6 rows, which 4 does not divide
"cube":{"0":9}|option "cube": 0: is not an integer from 1 to 6
"cube":{"3":1}|option "cube": there is no parameter "layers.3.weight"
"shard":{"layers.0.bias":1}|option "shard": layers.0.bias: is not an integer from 0 to 0
"shard":{"bias":0}|option "shard": there is no parameter "bias"
"error":"no","shard":{"layers.0.weight":2}|option "shard": layers.0.weight: is not an integer from 0 to 1
"accum":"no_sync","no_sync_units":["layers.9"]|option "no_sync_units": there is no unit "layers.9"
"no_sync_units":"layers.1"|option "no_sync_units": is not a list of names
"no_sync_units":["layers.1"]|option "no_sync_units": needs accum no_sync
"keep":"yes"|option "keep": is not true or false
"is_last":"yes"|option "is_last": is not true or false
"by_parameter":{"layers.1.weight":2}|not run: the library has no mesh for each parameter
END
json=
number=0
while IFS='|' read -r option _; do
    json+="${json:+,}\"c$((++number))\":{\"world\":2,\"mesh\":[2],\"sizes\":[4,6,5,3],\"batch\":3,\"steps\":1,\"lr\":0.1"
    json+=",\"opt\":\"sgd\",$option}"
done <<<"$options"
echo "__metadata__ cases {$json}" | perl "$fixtures/write_safetensors.pl" >"$scratch/options"
expect 1 "$((number - 1)) checked, $((number - 1)) wrong, " "$scratch/options"
number=0
while IFS='|' read -r _ words; do
    says "$scratch/options: c$((++number)): $words"
done <<<"$options"

# Values, tensors and keys of the file.
edit "$scratch/custom" value custom/rank1.grad.1.scale 0 7
says_part '16 checked, 1 wrong, '
edit "$scratch/custom" add custom/rank0.param.1.scale add other/init.scale add init.scale metadata colour red
says "$scratch/file: custom: rank0.param.1.scale: the case has no such tensor"
says "$scratch/file: other/init.scale: there is no such case"
says "$scratch/file: init.scale: there is no such case"
says "$scratch/file: colour: unknown key of the metadata"
says_part '20 checked, 4 wrong, '
edit "$scratch/custom" metadata cases '{"custom": 3}' metadata case '{}'
says "$scratch/file: custom: is no case"
says "$scratch/file: cases: is there beside case"

! $failed
