#!/bin/bash
# SPDX-License-Identifier: MIT
# replay_ddp_fusion: what PyTorch's passes make of a graph, ours make too; every way to be wrong is counted and explained.
# shellcheck source-path=SCRIPTDIR source=replay_common.sh
. "${BASH_SOURCE[0]%/*}/replay_common.sh" replay_ddp_fusion
golden+=/ddp_fusion.json

# changed CASE CHANGES...: the recorded case with something changed (change_graphs.pl), as $scratch/file
changed() {
    perl "$fixtures/change_graphs.pl" 0 only "${@:2}" <"$scratch/case_$1" >"$scratch/file"
}

# changed_in_all CASE CHANGES...: the same among the other cases. Perl is slow at reading all of them.
changed_in_all() {
    local i separator='['
    changed "$@"
    mv "$scratch/file" "$scratch/changed"
    for ((i = 0; i < 36; i++)); do
        printf %s "$separator"
        sed 's/^\[//; s/\]$//' "$([[ $i -eq $1 ]] && echo "$scratch/changed" || echo "$scratch/case_$i")"
        separator=,
    done >"$scratch/file"
    echo ']' >>"$scratch/file"
}

# right CASE CHANGES...: the change does not matter
right() {
    changed "$@"
    expect 0 '1 checked, 0 wrong' "$scratch/file"
}

# wrong WORDS CASE CHANGES...: it is found, and said
wrong() {
    changed "${@:2}"
    expect 1 '1 checked, 1 wrong' "$scratch/file"
    says_part "$1"
}

# bad WORDS CASE CHANGES...: not a file of the format
bad() {
    changed "${@:2}"
    expect 2 '0 checked, 0 wrong' "$scratch/file"
    says_part "replay_ddp_fusion: $scratch/file: case 0: $1"
}

perl "$fixtures/change_graphs.pl" each "$scratch" <"$golden"

expect 0 '36 checked, 0 wrong' "$golden"
expect 0 '72 checked, 0 wrong' "$golden" "$golden"

# Looking for leaks takes seconds per run on some machines: once is enough.
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0

# Other graphs, and passes one after the other: what PyTorch would make of them. The maker is right about the recorded ones.
perl "$fixtures/make_ddp_fusion.pl" again <"$golden" >"$scratch/again"
if ! perl -MJSON::PP -e 'local $/; my $json = JSON::PP->new->canonical;
    my ($one, $other) = map { open my $file, "<", $_ or die; $json->encode($json->decode(<$file>)) } @ARGV;
    exit($one ne $other)' "$golden" "$scratch/again"; then
    echo 'make_ddp_fusion.pl makes other graphs than PyTorch'
    failed=true
fi
n_seeds=4
[[ ${SHOAL_TEST_SWEEP:-} != whole ]] || n_seeds=40
for ((seed = 1; seed <= n_seeds; seed++)); do
    perl "$fixtures/make_ddp_fusion.pl" "$seed" 40 >"$scratch/seed"
    expect 0 '40 checked, 0 wrong' "$scratch/seed"
done

# Without the passes nothing is fused or moved: every case is wrong, and those of one pass without it.
all=(--disable fuse_ddp_with_concat_op --disable fuse_ddp_with_coalesced_op --disable schedule_comm_wait)
expect 1 '36 checked, 36 wrong' "${all[@]}" "$golden"
for pass in fuse_ddp_with_concat_op fuse_ddp_with_coalesced_op schedule_comm_wait; do
    expect 1 '36 checked, 12 wrong' --disable $pass "$golden"
done

# One thing of one case spoiled. The whole file: one wrong of 36.
changed_in_all 13 rebucket
expect 1 '36 checked, 1 wrong' "$scratch/file"
says_part "$scratch/file: case 13 (plain, fuse_ddp_with_coalesced_op): our node"
wrong 'foreach_div' 13 rebucket
wrong 'is not in the file' 30 set bucket_size_mb 0
wrong 'flatten' 9 set after/flatten_using_ints_1/args/0 '{"node": "sub"}' set after/flatten_using_ints_1/meta '[[64], "float32"]' \
    set after/cat/meta '[[128], "float32"]' set after/div_tensor/meta '[[128], "float32"]' \
    set after/all_reduce_default/meta '[[128], "float32"]' set after/wait_tensor_default/meta '[[128], "float32"]' \
    set after/split/args/1 '[64, 64]' set after/split/meta '[[[64], "float32"], [[64], "float32"]]' \
    set after/getitem_1/meta '[[64], "float32"]' set after/reshape_1/meta '[[8, 8], "float32"]' \
    set after/reshape_1/args/1 '[8, 8]'
wrong 'cat' 24 set after/cat/args/0 '[{"node": "flatten_using_ints_1"}, {"node": "flatten_using_ints"},
    {"node": "flatten_using_ints_2"}, {"node": "flatten_using_ints_3"}]'
wrong 'all_reduce' 9 set after/all_reduce_default/args/2 '"1"'
wrong 'all_reduce' 9 set after/all_reduce_default/args/1 '"max"'
wrong 'div_scalar' 9 set after/div_tensor/args/1 '4.0'
wrong 'after, node split: split_with_sizes' 9 set after/split/args/1 '[63, 10]'
wrong 'after, node split: ' 9 set after/split/args/1 '[63, 9]'
wrong 'split_with_sizes' 9 set after/split/args/1 '[1, 72]' set after/split/meta '[[[1], "float32"], [[72], "float32"]]' \
    set after/getitem/meta '[[1], "float32"]' set after/getitem_1/meta '[[72], "float32"]' \
    set after/reshape/args/1 '[1, 1]' set after/reshape/meta '[[1, 1], "float32"]' \
    set after/reshape_1/args/1 '[8, 9]' set after/reshape_1/meta '[[8, 9], "float32"]'
wrong 'getitem' 9 set after/getitem/args/1 1 set after/getitem/meta '[[9], "float32"]' \
    set after/reshape/args/1 '[9, 1]' set after/reshape/meta '[[9, 1], "float32"]'
wrong 'aten.mul.Tensor' 9 set after/mul/args/1 3
wrong 'aten.mul.Tensor' 9 set after/mul/args/1 2.0
wrong 'aten.add.Tensor' 9 set after/add/target '"aten.sub.Tensor"'
wrong 'aten.sub.Tensor' 9 set after/sub/kwargs/alpha 2
wrong 'output' 9 set after/output/args/0 '[{"node": "reshape_1"}, {"node": "reshape"}, {"node": "add"}]'
wrong 'output' 9 set after/output/args/0 '[{"node": "reshape"}, {"node": "reshape_1"}]'
# An op less, or more: a copy, a wait, something that nobody uses.
wrong 'copy_' 6 remove after/copy_ set after/output/args/0/1 '{"node": "arg1_1"}'
wrong 'copy_' 6 set after/copy_/args/0 '{"node": "reshape_1"}' set after/copy_/args/1 '{"node": "arg1_1"}'
wrong 'copy_' 6 set after/copy__2/args/1 '{"node": "reshape_6"}'
wrong 'wait_tensor' 9 remove after/wait_tensor_2 set after/add/args/0 '{"node": "all_reduce_2"}'
wrong 'wait_tensor' 11 remove after/wait_tensor set after/output/args/0/0 '{"node": "all_reduce"}'
wrong 'aten.mul.Tensor' 9 set after/output/op '"call_function"' \
    set after/output/target '"aten.mul.Tensor"' set after/output/args '[{"node": "arg2_1"}, 2]' \
    set after/output/meta '[[1], "float32"]' set after/output/name '"unused"' \
    set after/end '{"name": "output", "op": "output", "target": "output", "kwargs": {}, "meta": null,
        "args": [[{"node": "reshape"}, {"node": "reshape_1"}, {"node": "add"}]]}'
wrong 'arg0_1' 9 set before/arg0_1/name '"other"' set before/sub/args/0 '{"node": "other"}'

# Order: what stands between a start and its wait, and before a start.
wrong 'between its start and it' 26 move after wait_tensor mul_3
wrong 'between its start and it' 26 move after wait_tensor_2 all_reduce_3
wrong 'between its start and it' 9 move after mul wait_tensor_default
wrong 'before it' 9 move after mul flatten_using_ints
wrong 'before it' 31 move after copy_ getitem_8
wrong 'uses all_reduce, which stands behind it' 26 move after wait_tensor all_reduce
wrong 'uses split, which stands behind it' 9 move after getitem_1 split
# Not waits among each other, views, or placeholders; nor names.
right 26 move after wait_tensor_2 wait_tensor
right 25 move after wait_tensor_default_2 wait_tensor_default
right 9 move after getitem getitem_1
right 9 move after reshape output
right 11 move after arg2_1 mul
right 9 set after/cat/name '"heap"' set after/div_tensor/args/0/node '"heap"'
# Where a write stands between two reads, they do not read the same.
late='{"name": "late", "op": "call_function", "target": "aten.mul.Tensor", "args": [{"node": "arg1_1"}, 7], "kwargs": {},
    "meta": [[700, 300], "float32"]}'
reader=(set before/end "$late" move before late output set before/output/args/0/end '{"node": "late"}'
    set after/end "$late" set after/output/args/0/end '{"node": "late"}')
right 32 "${reader[@]}" move after late wait_tensor
wrong 'our node late (aten.mul.Tensor) is not in the file' 32 "${reader[@]}" move after late copy_

# PyTorch reverses a block that it moves. Nothing else may stand before its input.
right 9 set passes/end '"schedule_comm_wait"' move after mul wait_tensor_default move after all_reduce_2 wait_tensor_default \
    move after wait_tensor_2 wait_tensor_default move after add wait_tensor_default reverse after wait_tensor_default reshape
wrong 'uses all_reduce_default, which stands behind it' 9 set passes/end '"schedule_comm_wait"' \
    move after wait_tensor_default all_reduce_default

# Groups of any name, and results that are not there.
groups=(set before/all_reduce/args/2 '"a-b"' set before/all_reduce_1/args/2 '"a-b"')
right 9 "${groups[@]}" set after/all_reduce_default/args/2 '"a-b"'
wrong 'all_reduce' 9 "${groups[@]}" set after/all_reduce_default/args/2 '"a_2db"'
right 9 set before/output/args/0/end null set after/output/args/0/end null
wrong 'output' 9 set before/output/args/0/end '[]' set after/output/args/0/end '[[]]'
wrong 'our node output (output) is not in the file' 9 set after/output/args/0/end null

# Keyword arguments and other spellings are the same calls.
right 9 set after/cat/args '[[{"node": "flatten_using_ints"}, {"node": "flatten_using_ints_1"}]]' set after/cat/kwargs '{"dim": 0}' \
    set after/cat/target '"aten.cat.default"' set after/split/target '"aten.split_with_sizes.default"' \
    set after/getitem/target '"_operator.getitem"' set after/reshape/target '"aten.reshape.default"'
# A copy that need not block.
right 6 set before/copy_/args/end true set after/copy_/kwargs '{"non_blocking": true}'

# Files that are not of the format.
bad 'is not an object' 9 set '' 7
bad '"kind" is missing or not a string' 9 remove kind
bad '"passes" is missing' 9 remove passes
bad '"passes" is not a list' 9 set passes '"schedule_comm_wait"'
bad '"passes": one is not a string' 9 set passes/0 7
bad '"passes": there is no pass fuse' 9 set passes/0 '"fuse"'
bad '"bucket_size_mb" is missing or not a number' 9 set bucket_size_mb '"1"'
bad '"after" is missing' 9 remove after
bad '"before" is not a list' 9 set before '{}'
bad '"before" has no nodes' 9 set before '[]'
bad 'before, node 4: is not an object' 9 set before/4 '[]'
for field in op target args kwargs meta; do
    bad "after, node 7 (cat): \"$field\" is missing" 9 remove after/cat/$field
done
bad 'after, node 7 (without a name): "name" is missing' 9 remove after/cat/name
bad 'after, node 7 (cat): "args" is not a list' 9 set after/cat/args '{}'
bad 'after, node 7 (cat): "kwargs" is not an object' 9 set after/cat/kwargs '[]'
bad 'after, node 7 (cat): unknown op "call"' 9 set after/cat/op '"call"'
bad 'after, node 4 (sub): another one has its name' 9 set after/4/name '"sub"'
bad 'after, node cat: there is no node "heap"' 9 set after/cat/args/0/1/node '"heap"'
bad 'after, node sub: an argument is an object, but not a node' 9 set after/sub/args/1 '{"a": 1}'
bad 'before, node sub: uses div, which stands behind it' 9 set before/sub/args/0/node '"div"'
bad 'before, node sub: uses sub, which stands behind it' 9 set before/sub/args/0/node '"sub"'
bad 'after, node add: the last node is not the output' 9 remove after/output
bad 'before, node output: an output that is not the last node' 9 move before output add
bad 'before, node output: an output has one argument' 9 set before/output/args '[]'
bad 'before, node sub: "meta" is neither [shape, dtype] nor a list of them' 9 set before/sub/meta '"float32"'
bad 'before, node sub: "meta" is neither [shape, dtype] nor a list of them' 9 set before/sub/meta '[[1, 64]]'
bad 'before, node sub: "meta" has an unknown dtype' 9 set before/sub/meta/1 '"float33"'
bad 'before, node sub: "meta" has a shape with something that is not a size' 9 set before/sub/meta/0/0 -1
bad 'before, node sub: "meta" has too many dimensions' 9 set before/sub/meta/0 '[1, 1, 1, 1, 1, 1, 1, 1, 1]'
bad 'before, node sub: "meta" says nothing, and so its shape is not known' 9 set before/sub/meta null
bad 'before, node arg0_1: "meta" of a placeholder is not [shape, dtype]' 9 set before/arg0_1/meta '[]'
bad 'before, node arg0_1: a placeholder with arguments' 9 set before/arg0_1/args '[1]'
bad 'before, node div: div_scalar gives another shape than the file says' 9 set before/div/meta/0 '[64, 1]'
bad 'before, node wait_tensor: its arguments do not fit its target' 9 set before/wait_tensor/args/1 1
bad 'before, node wait_tensor: its arguments do not fit its target' 9 set before/wait_tensor/kwargs/what 1
bad 'before, node all_reduce: ' 9 set before/all_reduce/args/1 '"total"'
bad 'before, node all_reduce: ' 9 set before/all_reduce/args/2 7
# The other cases, and files, are replayed all the same.
changed_in_all 3 remove kind
expect 2 '71 checked, 0 wrong' "$scratch/file" "$golden"

# No file, no reader.
usage='usage: replay_ddp_fusion [--disable PASS]... FILE.json...'
expect 2 ''
says_part "$usage"
expect 2 '' --help
says_part "$usage"
expect 2 '' --disable schedule_comm_wait
says_part "$usage"
expect 2 '' --disable fuse "$golden"
says_part 'replay_ddp_fusion: --disable: there is no pass fuse'
expect 2 '0 checked, 0 wrong' "$scratch/none"
says_part "replay_ddp_fusion: $scratch/none: "
head -c 1000 "$golden" >"$scratch/short"
expect 2 '36 checked, 0 wrong' "$scratch/short" "$golden"
says_part "replay_ddp_fusion: $scratch/short: line "
echo '{}' >"$scratch/object"
expect 2 '0 checked, 0 wrong' "$scratch/object"
says_part 'is not a list of cases'
echo '[]' >"$scratch/empty"
expect 0 '0 checked, 0 wrong' "$scratch/empty"

# The second recording: lists of passes, calls in place, and cases for which PyTorch raised an error.
more=$SHOAL_TEST_SOURCE_DIR/tests/golden/more_graphs.json
expect 0 '38 checked, 0 wrong' "$more"
says '6 for which PyTorch raised an error had to be valid graphs'
says '1 in which PyTorch joined several dtypes had to be valid graphs'
expect 1 '38 checked, ' --disable fuse_ddp_with_coalesced_op "$more"
# object JSON STATUS WORDS: a file that is an object
object() {
    echo "$1" >"$scratch/object"
    expect "$2" '' "$scratch/object"
    says_part "$3"
}
graph='[{"name":"x","op":"placeholder","target":"x","args":[],"kwargs":{},"meta":[[2],"float32"]},{"name":"output",'
graph+='"op":"output","target":"output","args":[[{"node":"x"}]],"kwargs":{},"meta":null}]'
one='"kind":"k","passes":["schedule_comm_wait"],"bucket_size_mb":1'
object "{\"ddp_fusion\":{\"before\":{\"k\":$graph},\"cases\":[{$one,\"after\":$graph,\"error\":null}]}}" 0 '1 checked, 0 wrong'
object "{\"ddp_fusion\":{\"before\":{\"k\":$graph},\"cases\":[{$one,\"after\":null,\"error\":\"no\"}]}}" 0 '1 checked, 0 wrong'
object "{\"ddp_fusion\":{\"before\":{\"k\":$graph},\"cases\":[{$one,\"after\":$graph,\"error\":\"no\"}]}}" 2 \
    '"error" is not a text, or "after" is there too'
object "{\"ddp_fusion\":{\"before\":{\"k\":$graph},\"cases\":[{$one,\"after\":$graph,\"colour\":1}]}}" 2 '"colour" is unknown'
object "{\"ddp_fusion\":{\"before\":{\"j\":$graph},\"cases\":[{$one,\"after\":$graph}]}}" 2 \
    'has a kind that "before" does not have'
object "{\"ddp_fusion\":{\"before\":{\"k\":$graph},\"cases\":[{$one,\"before\":$graph}]}}" 2 'has a graph of its own'
object '{"ddp_fusion":{"cases":[]}}' 2 '"ddp_fusion" is not an object of "before" and "cases" alone'
object '{"ddp_fusion":{"before":{},"cases":[]},"colour":1}' 2 'has an unknown member beside'

! $failed
