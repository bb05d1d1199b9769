#!/bin/bash
# SPDX-License-Identifier: MIT
# replay_lowering: what Inductor decides about collectives, plans decide too, but for three differences that docs/graph.md
# explains; other decisions are found, and what is not known is refused by name.
# shellcheck source-path=SCRIPTDIR source=replay_common.sh
. "${BASH_SOURCE[0]%/*}/replay_common.sh" replay_lowering
golden+=/more_graphs.json

expect 0 '30 checked, 3 differ, 3 were refused by Inductor' "$golden"
says "$golden: ar_late_wait (overlap): Inductor: all_reduce in place, of a temporary; S0 W0"
says "$golden: ar_late_wait (overlap): here: all_reduce in place, of a temporary; S0 W0; a kernel runs during 0"
says "$golden: ag_late_wait (overlap): Inductor: all_gather_into_tensor new, of an input; S0 W0"
says "$golden: ag_late_wait (overlap): here: all_gather_into_tensor new, of an input; S0 W0; a kernel runs during 0"
says "$golden: dim_a2a: Inductor: shard_dim_alltoall new, of a temporary; S0 W0"
says "$golden: dim_a2a: here: shard_dim_alltoall new, of a copy; S0 W0"

# Looking for leaks takes seconds per run on some machines: once is enough.
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0

# call NAME TARGET ARGS: a node; lowered STEPS [NODES [MORE]]: a file with one function, an all-reduce of x + 1 unless told
call() {
    echo "{\"name\":\"$1\",\"op\":\"call_function\",\"target\":\"$2\",\"args\":$3,\"kwargs\":{},\"meta\":[[8,4],\"float32\"]}"
}
x='{"name":"x","op":"placeholder","target":"x","args":[],"kwargs":{},"meta":[[8,4],"float32"]}'
add=$(call a aten.add.Tensor '[{"node":"x"},1]')
reduce=$(call r _c10d_functional.all_reduce.default '[{"node":"a"},"sum","0"]')
wait=$(call w _c10d_functional.wait_tensor.default '[{"node":"r"}]')
output='{"name":"output","op":"output","target":"output","args":[[{"node":"w"}]],"kwargs":{},"meta":null}'
nodes="$x,$add,$reduce,$wait,$output"
lowered() {
    echo "{\"lowering\":[{\"name\":\"f\",\"world\":4,\"overlap\":false,\"before\":[${2:-$nodes}],\"steps\":[$1]${3:-}}]}" \
        >"$scratch/file"
}
# differs WORDS STEPS...: another decision of theirs is found
differs() {
    lowered "$2"
    expect 0 '1 checked, 1 differ, 0 were refused by Inductor' "$scratch/file"
    says "$scratch/file: f: Inductor: $1"
    says "$scratch/file: f: here: all_reduce in place, of a temporary; S0 W0"
}
# bad WORDS STEPS [NODES [MORE]]: no function that can be read
bad() {
    lowered "${@:2}"
    expect 2 '0 checked, 0 differ' "$scratch/file"
    says_part "$1"
}
kernel='["kernel k",["x","b0"],null]'
start='["all_reduce_",["b0"],null]'
end='["wait_tensor",["b0"],null]'
lowered "$kernel,$start,$end"
expect 0 '1 checked, 0 differ, 0 were refused by Inductor' "$scratch/file"
differs 'all_reduce new, of a temporary; S0 W0' "$kernel,[\"all_reduce\",[\"b0\"],\"b1\"],[\"wait_tensor\",[\"b1\"],null]"
differs 'all_reduce in place, of a temporary; S0 W0; a kernel runs during 0' "$kernel,$start,[\"kernel l\",[\"x\"],null],$end"
differs 'all_reduce in place, of a temporary; S0' "$kernel,$start"
bad 'in place on x, which is an input or was not written' '["all_reduce_",["x"],null]'
bad 'in place on b0, which is an input or was not written' "[\"alloc\",[\"b0\"],null],$start"
bad 'a collective reads b7, which nothing has written' "$kernel,[\"all_reduce\",[\"b7\"],\"b1\"]"
bad 'a collective of 1 tensors names 2 buffers' "$kernel,[\"all_reduce\",[\"b0\",\"x\"],\"b1\"]"
bad 'a wait for b1, which nothing started' "$kernel,$start,[\"wait_tensor\",[\"b1\"],null]"
bad 'step all_mix is not in the graph' "$kernel,[\"all_mix\",[\"b0\"],\"b1\"]"
bad 'step all_reduce_ is not in the graph' "$kernel,$start,$start"
bad 'step 0 is not [what, [buffers], result]' '["alloc"]'
bad 'node a (call_function aten.cos.default) has no text here' "$kernel" "$x,${add/aten.add.Tensor/aten.cos.default},$output"
bad 'a node without a name, op, target or args' "$kernel" '{}'
echo '{"lowering":[{"name":"f","world":4,"before":3,"steps":[]}]}' >"$scratch/file"
expect 2 '0 checked, 0 differ' "$scratch/file"
says_part '"before" or "steps" is not a list'
bad 'is not an object with a name and a world and known keys and values alone' "$kernel" "$nodes" ',"colour":3'
# refuses_value MORE: known keys with values that they cannot have
refuses_value() {
    bad 'is not an object with a name and a world and known keys and values alone' "$kernel" "$nodes" "$1"
}
refuses_value ',"error":3'
refuses_value ',"error":"PyTorch raised it, and the steps are there too"'
lowered "$kernel" "$nodes"
sed -i 's/"overlap":false/"overlap":"no"/' "$scratch/file"
expect 2 '0 checked, 0 differ' "$scratch/file"
says_part 'known keys and values alone'
lowered "$kernel" "$nodes" ',"error":"no"'
sed -i 's/"steps":[^"]*\[.*\],"error"/"steps":null,"error"/' "$scratch/file"
expect 0 '0 checked, 0 differ, 1 were refused by Inductor' "$scratch/file"
# Arguments that ours would not have: a keyword, one too many, another group, another number of ranks.
unknown='its arguments or its group are not known here'
bad "node a (aten.add.Tensor): $unknown" "$kernel" "$x,${add/\"kwargs\":{\}/\"kwargs\":{\"alpha\":2\}},$output"
bad "node a (aten.add.Tensor): $unknown" "$kernel" "$x,${add/,1\]/,1,2]},$output"
other=$(call s _c10d_functional.all_reduce.default '[{"node":"w"},"sum","1"]')
bad "node s (_c10d_functional.all_reduce.default): $unknown" "$kernel" "$x,$add,$reduce,$wait,$other,$output"
gather=$(call r _c10d_functional.all_gather_into_tensor.default '[{"node":"x"},8,"0"]')
bad "node r (_c10d_functional.all_gather_into_tensor.default): $unknown" "$kernel" "$x,$gather,$wait,$output"

# An input is gathered where it is. A copy of it before that is another decision, as is the input in the place of x + 1.
gather=${gather/,8,/,4,}
lowered '["all_gather_into_tensor",["x"],"b1"],["wait_tensor",["b1"],null]' "$x,$gather,$wait,$output"
expect 0 '1 checked, 0 differ, 0 were refused by Inductor' "$scratch/file"
lowered "$kernel,[\"all_gather_into_tensor\",[\"b0\"],\"b1\"],[\"wait_tensor\",[\"b1\"],null]" "$x,$gather,$wait,$output"
expect 0 '1 checked, 1 differ, 0 were refused by Inductor' "$scratch/file"
says "$scratch/file: f: Inductor: all_gather_into_tensor new, of a copy; S0 W0"
says "$scratch/file: f: here: all_gather_into_tensor new, of an input; S0 W0"
differs 'all_reduce new, of an input; S0 W0' "$kernel,[\"all_reduce\",[\"x\"],\"b1\"],[\"wait_tensor\",[\"b1\"],null]"

# A graph that cannot be lowered here.
lowered "$kernel,$start,$end" "$x,$add,${reduce/sum/total},$wait,$output"
expect 1 '0 checked, 0 differ' "$scratch/file"
says_part 'total'

expect 2 ''
says_part 'usage: replay_lowering FILE.json...'
expect 2 '0 checked, 0 differ' "$scratch/none"
echo '{}' >"$scratch/file"
expect 2 '0 checked, 0 differ' "$scratch/file"
says_part 'lowering: is not there, or not a list'
echo '{"lowering":[],"colour":1}' >"$scratch/file"
expect 2 '0 checked, 0 differ' "$scratch/file"
says_part 'has an unknown member beside'

! $failed
