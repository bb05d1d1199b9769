#!/bin/bash
# SPDX-License-Identifier: MIT
# shoal opt: options, exit status, and which of its outputs says what. What passes make of graphs is in ir_test.sh.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=false
step=$SHOAL_TEST_SOURCE_DIR/examples/ddp_step.graph
library=$SHOAL_TEST_BUILD_DIR/tests/modules/opt_library.so
nn_library=$SHOAL_TEST_BUILD_DIR/lib/libshoal_nn.so
# Looking for leaks takes seconds per run on some machines: once, at the end.
asan_options=${ASAN_OPTIONS:-}
export ASAN_OPTIONS=$asan_options:detect_leaks=0

# expect STATUS ARGS...: runs shoal opt; its outputs are left in $scratch/out and $scratch/err. Standard input: $scratch/in.
expect() {
    local wanted=$1 status=0
    shift
    "$SHOAL_TEST_TOOL" opt "$@" <"$scratch/in" >"$scratch/out" 2>"$scratch/err" || status=$?
    if [[ $status -ne $wanted || ($wanted -eq 0 && -s $scratch/err) || ($wanted -ne 0 && ! -s $scratch/err) ]]; then
        echo "shoal opt $*: exit status $status, expected $wanted; standard error:"
        cat "$scratch/err"
        failed=true
    fi
    if [[ $wanted -ne 0 && -s $scratch/out ]]; then
        echo "shoal opt $*: failed, and printed"
        cat "$scratch/out"
        failed=true
    fi
}

# says FILE WORDS
says() {
    if ! grep -qF -- "$2" "$scratch/$1"; then
        echo "standard $1 does not say '$2':"
        cat "$scratch/$1"
        failed=true
    fi
}

# says_not FILE WORDS
says_not() {
    if grep -qF -- "$2" "$scratch/$1"; then
        echo "standard $1 says '$2':"
        cat "$scratch/$1"
        failed=true
    fi
}

# same FILE FILE
same() {
    if ! cmp "$scratch/$1" "$scratch/$2"; then
        failed=true
    fi
}

# Help, and what is no call.
: >"$scratch/in"
expect 0 --help
says out "usage: shoal opt"
expect 0 "$step" --help
expect 2
says err "the file is missing"
expect 2 "$step" "$step"
says err "one file expected, but got"
expect 2 --pases=schedule_comm_wait "$step"
says err "did you mean '--passes'?"
expect 2 --passes
says err "--passes needs a value"
expect 2 --passes= "$step"
says err "--passes needs a value"
expect 2 --dot= "$step"
says err "--dot needs a value"
expect 2 --stats=1 "$step"
says err "--stats takes no value, but got '1'"
for word in '' x 1x - --1 nan inf; do
    expect 2 --bucket-mb "$word" "$step"
    says err "--bucket-mb"
done
for word in x -1; do
    expect 2 "--comm-bucket-mb=$word" "$step"
    says err "--comm-bucket-mb: '$word' is not a number from 0 on"
done
expect 2 --list "$step"
says err "--list takes no file"
for option in --passes --disable --print-after; do
    expect 2 "$option=schedule_com_wait" "$step"
    says err "$option: there is no pass 'schedule_com_wait'; the nearest is \"schedule_comm_wait\""
done
expect 2 --passes=fuse_ddp "$step"
says err 'the nearest are "fuse_ddp_with_concat_op", "fuse_ddp_with_coalesced_op" and "fuse_ddp_communication"'
expect 2 --passes=defualt "$step"
says err 'the nearest is "default"'
expect 2 --passes=fuse_ddp_communication --print-after=schedule_comm_wait "$step"
says err "'schedule_comm_wait' is not among --passes"
# Names are looked at before the file.
expect 2 --passes=nothing "$scratch/missing"

# What cannot be read, or is no graph.
expect 1 "$scratch/missing"
says err "shoal opt: $scratch/missing: No such file"
expect 1 "$scratch"
says err "shoal opt: $scratch: Is a directory"
printf 'graph {\n  %%x = neg(%%y)\n}\n' >"$scratch/in"
expect 1 -
says err "shoal opt: standard input: line 2, column 12: there is no node %y"
cp "$scratch/in" "$scratch/bad.graph"
expect 1 "$scratch/bad.graph"
says err "shoal opt: $scratch/bad.graph: line 2, column 12: "
: >"$scratch/in"
expect 1 -
says err "shoal opt: standard input: line 1"

# Without passes: the text in full. It reads back as itself, also through standard input.
expect 0 "$step"
says out '%sum4 = all_reduce(%mean4, "sum", @world, nan) : f32[65536]'
says_not out "#"
cp "$scratch/out" "$scratch/plain"
cp "$scratch/out" "$scratch/in"
expect 0 -
same out plain

# Passes: several options and several names are one list; values may be words of their own.
expect 0 --passes=fuse_ddp_communication --bucket-mb=25 "$step"
cp "$scratch/out" "$scratch/fused"
expect 0 --passes=fuse_ddp_with_concat_op,schedule_comm_wait --bucket-mb=25 "$step"
same out fused
expect 0 "$step" --passes fuse_ddp_with_concat_op --passes schedule_comm_wait --bucket-mb 25
same out fused
# Output of one run is the input of another.
"$SHOAL_TEST_TOOL" opt --passes=fuse_ddp_with_concat_op --bucket-mb=25 --stats "$step" >"$scratch/in"
expect 0 --passes=schedule_comm_wait -
same out fused
expect 0 --passes=fuse_ddp_communication --disable=fuse_ddp_with_concat_op,schedule_comm_wait "$step"
same out plain
# 256 KiB are a gradient here: the first bucket, of 1 MiB, takes all four, whatever the size of the others.
expect 0 --passes=fuse_ddp_communication --bucket-mb=-1 "$step"
same out fused
# Of 1 MiB each one fills the first bucket; then it matters.
sed 's/65536\]/262144]/' "$step" >"$scratch/large.graph"
expect 0 --passes=fuse_ddp_communication --stats --bucket-mb=25 "$scratch/large.graph"
says out "# after: all_reduce 2, bytes 4194304"
# By default it follows from the machine.
expect 0 --passes=fuse_ddp_communication --stats --machine=neoverse_v1 "$scratch/large.graph"
says out "# after: all_reduce 2, bytes 4194304"
expect 0 --passes=fuse_ddp_communication --stats --machine xeon_16 "$scratch/large.graph"
says out "# after: all_reduce 4, bytes 4194304"
expect 0 --passes=fuse_ddp_communication --stats --bucket-mb=2 "$scratch/large.graph"
says out "# after: all_reduce 3, bytes 4194304"

# The example: on both machines that are built in, a start comes before compute that does not need it, and the wait behind.
for machine in neoverse_v1 xeon_16; do
    expect 0 --passes=default "--machine=$machine" "$step"
    first=$(grep -nE '= all_reduce\(' "$scratch/out" | head -1 | cut -d: -f1)
    last=$(grep -nE '= wait_tensor\(' "$scratch/out" | head -1 | cut -d: -f1)
    [[ $(sed -n "$first,${last}p" "$scratch/out" | grep -cE '= (mul|sum)\(') -ge 3 ]] || { cat "$scratch/out" && failed=true; }
done

# The list of shoal_compile, alone and within others.
expect 0 --passes=default "$step"
cp "$scratch/out" "$scratch/default"
default=$(sed -nE 's/^#define DEFAULT_PASSES "(.*)"/\1/p' "$SHOAL_TEST_SOURCE_DIR/src/graph/passes/passes.c")
expect 0 "--passes=$default" "$step"
same out default
expect 0 --passes=fuse_ddp_communication,default,dedupe_waits --print-after=dedupe_waits,fuse_ddp_communication "$step"
[[ $(grep -c '^# after dedupe_waits' "$scratch/out") -eq 2 ]]

# Statistics are comments.
expect 0 --passes=fuse_ddp_with_coalesced_op --bucket-mb=25 --stats "$step"
says out "# before: nodes 33, collectives 4, bytes 1048576, waits 4"
says out "# before: all_reduce 4, bytes 1048576"
says out "# after: all_reduce_coalesced 1, bytes 1048576"

# Estimates, before and after each pass, and how long a step took.
expect 0 --passes=default --stats --machine=neoverse_v1 "$step"
says out "# estimates for neoverse_v1: step is compute and exposed."
says out "so it can be more than communication."
[[ $(grep -cE '^# (before|after [a-z_]+): step [0-9.]+ us, compute [0-9.]+ us, communication [0-9.]+ us, exposed [0-9.]+ us, peak [0-9]+ bytes$' \
    "$scratch/out") -eq 6 ]] || { cat "$scratch/out" && failed=true; }
cp "$scratch/out" "$scratch/estimated"
SHOAL_MACHINE=neoverse_v1 expect 0 --passes=default --stats "$step"
same out estimated
expect 0 --passes=default --run --time 3 "$step"
says out "# measured: step "
expect 2 --time 3 "$step"
says err "--time needs --run"
for word in 0 x; do
    expect 2 --run --time "$word" "$step"
done

# Machines that are none.
expect 1 --passes=default --machine "$scratch/missing" "$step"
says err "machine: $scratch/missing: it is no machine that is built in, and no file: No such file"
SHOAL_MACHINE=$scratch/missing expect 1 --passes=default --stats "$step"
says err "SHOAL_MACHINE: $scratch/missing: it is no machine that is built in"
# Where no pass asks for one, it does not matter.
SHOAL_MACHINE=$scratch/missing expect 0 --passes=dedupe_waits "$step"
echo '{"shoal_machine": 1' >"$scratch/half.json"
expect 1 --stats --machine "$scratch/half.json" "$step"
says err "this is not valid JSON"

# The graph in between.
expect 0 --passes=fuse_ddp_with_concat_op,schedule_comm_wait --print-after=fuse_ddp_with_concat_op,schedule_comm_wait "$step"
[[ $(grep -c '^graph {' "$scratch/out") -eq 3 ]]
[[ $(grep '^#' "$scratch/out" | paste -sd' ') == "# after fuse_ddp_with_concat_op # after schedule_comm_wait # result" ]]

# Plans: of rank 0, and nobody else is there.
cat >"$scratch/small.graph" <<'END'
graph {
    group @w = [[0, 1, 2]]
    %x = placeholder : f32[6]
    %n = neg(%x)
    %s = all_reduce(%n, "sum", @w)
    %d = wait_tensor(%s)
    return [%d, none]
}
END
expect 0 --lower "$scratch/small.graph"
says out "plan {"
says out "start all_reduce sum @w 0: in place on"
says_not out "graph {"
says_not out "# "
expect 0 --lower --one-shot "$scratch/small.graph"
says out "block all_reduce"
expect 0 --lower --one-shot=23 "$scratch/small.graph"
says_not out "block all_reduce"
expect 0 --lower --no-comm-buffers "$scratch/small.graph"
says out "0 bytes of comm memory"
expect 0 --lower --stats --no-reuse "$scratch/small.graph"
says out "# before: plan: steps 3, collectives 1, blocking 0, bytes 24"
says out "# after: plan: pool 0, outputs 0, comm 64, windows 0, peak 0"
expect 0 --passes=dedupe_waits --print-after=dedupe_waits --lower "$scratch/small.graph"
[[ $(grep -c '^graph {' "$scratch/out") -eq 1 && $(grep -c '^plan {' "$scratch/out") -eq 1 ]]
# The example as it is, and in one bucket, which gives the same bits.
expect 0 --lower "$step"
says out "%sum4 = start all_reduce sum @world 0"
# A call of something that is no op here can be changed, not lowered or run.
sed 's/mul(%d4, %x4)/opaque "mm"(%d4, %x4) : f32[8, 65536]/' "$step" >"$scratch/opaque.graph"
expect 0 --passes=fuse_ddp_communication "$scratch/opaque.graph"
expect 1 --lower "$scratch/opaque.graph"
says err 'there is no op "mm" in this program'
for option in --one-shot --no-reuse --no-comm-buffers; do
    expect 2 "$option" "$step"
    says err "$option needs --lower"
done
for word in x 0 -1; do
    expect 2 --lower "--one-shot=$word" "$step"
    says err "--one-shot: '$word' is not a number of bytes"
done
expect 2 --lower --dot "$step"
says err "--dot is a picture of a graph: not with --lower"

# Ranks: as many as groups have, unless told otherwise.
expect 0 --run "$scratch/small.graph"
says out "# run: ranks 3, outputs 2, same bits"
says out "graph {"
expect 1 --run -n 4 "$scratch/small.graph"
says err "group @w does not have this rank, 3"
sed 's/1, 2/1/' "$scratch/small.graph" >"$scratch/two.graph"
for lower in "" --lower; do
    # shellcheck disable=SC2086 # perhaps no word
    expect 0 --run -n 2 $lower "$scratch/two.graph"
    says out "# run: ranks 2, outputs 2, same bits"
    # What a pass got wrong is found, by whatever rank finds it first.
    # shellcheck disable=SC2086
    expect 1 --run $lower --passes=test_spoil "--load=$library" "$scratch/two.graph"
    says err ": output 0 differs from that of the graph as it was, first in element 0"
done
# Inputs that the graph writes are results, too.
printf 'graph { %%x = placeholder : i32[3] %%n = neg(%%x) %%c = copy_(%%x, %%n) return none }' >"$scratch/in"
expect 0 --run --lower -
says out "# run: ranks 1, outputs 1, same bits"
expect 1 --run --passes=test_spoil "--load=$library" -
says err "rank 0: input 0 differs"
for lower in "" --lower; do
    # shellcheck disable=SC2086
    expect 0 --passes=fuse_ddp_communication --run -n 2 $lower "$step"
    says out "# run: ranks 2, outputs 4, same bits"
done
expect 1 --run "$scratch/opaque.graph"
says err 'there is no op "mm" in this program'
for word in x 0 -1 129; do
    expect 2 --run "-n=$word" "$step"
    says err "-n: '$word' is not a whole number from 1 to 128"
done
expect 2 -n 2 "$step"
says err "-n needs --run"

# Memory: a text can declare anything. It is refused before any rank begins, with the sizes and the names.
cat >"$scratch/in" <<'END'
graph {
    %x = placeholder : f32[1099511627776]
    %y = placeholder : u8[262144]
    %a = neg(%x)
    return [%a, %y]
}
END
for lower in "" --lower; do
    # shellcheck disable=SC2086
    expect 1 --run $lower -
    says err "standard input: --run takes 16.00 TiB on 1 rank, with two sets of inputs of 4.00 TiB on each, more than "
    says err "half of what is free; --memory=BYTES sets another limit; largest: %x 4.00 TiB, %a 4.00 TiB, %y 256.00 KiB"
done
expect 0 --lower -
sed -i 's/1099511627776/4294967296/' "$scratch/in"
expect 1 --run -n 2 --memory=8G -
says err "--run takes 128.00 GiB on 2 ranks, with two sets of inputs of 16.00 GiB on each, more than 8.00 GiB, the limit of --memory; largest: %x 16.00 GiB"
sed -i 's/4294967296/262144/' "$scratch/in"
expect 1 --run --memory=4M -
says err "--run takes 5.50 MiB on 1 rank"
expect 0 --run --memory=6M -
says out "# run: ranks 1, outputs 2, same bits"
# A view is a few bytes, but it is copied to be compared: once of each graph.
cat >"$scratch/in" <<'END'
graph {
    %x = placeholder : f32[1, 4]
    %y = expand(%x, [274877906944, 4])
    %z = expand(%x, [4, 4])
    return [%y, %z]
}
END
for lower in "" --lower; do
    # shellcheck disable=SC2086
    expect 1 --run --memory=8G $lower -
    says err "--run takes 8.00 TiB on 1 rank, with two sets of inputs of 16 bytes on each, more than 8.00 GiB, the limit of --memory; largest: %y 4.00 TiB"
done
sed -i 's/274877906944/65536/' "$scratch/in"
expect 1 --run --memory=1M -
expect 0 --run --memory=3M -
says out "# run: ranks 1, outputs 2, same bits"
for word in x 0 -1; do
    expect 2 --run "--memory=$word" "$step"
    says err "--memory: '$word' is not a number of bytes"
done
expect 2 --memory=1G "$step"
says err "--memory needs --run"

# Pictures.
expect 0 --dot "$step"
says out "digraph"
says_not out "group @world"
cp "$scratch/out" "$scratch/picture"
cp "$scratch/out" "$scratch/out_dot"
expect 0 "--dot=$scratch/picture_file" --stats "$step"
same picture picture_file
says out "# before: "
says_not out "graph"
expect 1 "--dot=$scratch/missing/file" "$step"
says err "--dot: $scratch/missing/file: open its directory: No such file"
expect 1 /dev/zero
says err "/dev/zero: is a device, which may never end"
mkfifo "$scratch/pipe"
expect 1 "--dot=$scratch/pipe" "$step"
says err "--dot: $scratch/pipe: is a device, pipe or socket"
# A legend, also for what passes have made and erased. A pass of one part that changes anything does not repeat its pictures.
for words in 'subgraph cluster_legend' 'starts communication' 'waits for communication' 'input, constant or output'; do
    says out_dot "$words"
done
expect 0 --passes=default --machine=neoverse_v1 "--dot-prefix=$scratch/step_" "$step"
[[ $(find "$scratch" -name 'step_*_graph.dot' | wc -l) -eq 2 ]] || { ls "$scratch" && failed=true; }
grep -q 'label="erased by the pass", fillcolor=yellow' "$scratch"/step_*_input_graph.dot || failed=true
grep -q 'label="made by the pass", fillcolor=yellow' "$scratch"/step_*_output_graph.dot || failed=true
expect 1 --passes=fuse_ddp_communication --bucket-mb=25 "--dot-prefix=$scratch/missing/" "$step"
says err "dot_prefix"

# Libraries: their ops and passes are as good as the built-in ones.
expect 0 --list
while IFS= read -r name; do
    grep -qE "^$name +[A-Za-z]" "$scratch/out" || { echo "--list has no $name" && failed=true; }
done < <(sed -nE 's/^PASS\(([a-z_0-9]+),.*/\1/p' "$SHOAL_TEST_SOURCE_DIR/src/graph/passes/passes.def")
says_not out test_drop_negs
expect 0 --list "--load=$library"
says out "Drops negs in pairs."
printf 'graph { %%x = placeholder : f32[2] %%a = neg(%%x) %%b = neg(%%a) %%c = test.like(%%b) return %%c }' >"$scratch/in"
expect 1 -
says err "there is no op test.like"
expect 2 --passes=test_drop_negs -
expect 0 --passes=test_drop_negs "--load=$library" -
says out "%c = test.like(%x) : f32[2]"
says_not out neg
expect 1 --passes=test_fail --load "$library" -
says err "shoal opt: standard input: graph_run_passes: pass test_fail: as it always does"
expect 1 "--load=$scratch/missing.so" -
says err "--load: $scratch/missing.so cannot be loaded: cannot open"
expect 1 --load=missing.so -
says err "for a file in this directory use ./missing.so"
expect 1 "--load=$SHOAL_TEST_BUILD_DIR/tests/modules/libshoal_transport_test_post-1.so" --list
says err "has registered neither an op nor a pass"
sed -i 's/test.like/neg/' "$scratch/in"
expect 0 --passes=my_pass "--load=$SHOAL_TEST_BUILD_DIR/tests/modules/libmy_pass.so" -
says out "%c = neg(%x) : f32[2]"
says_not out %a
printf 'graph { %%x = placeholder : f32[2] %%y = nn.tanh(%%x) return %%y }' >"$scratch/in"
for load in "" "--load=$nn_library"; do
    # shellcheck disable=SC2086 # perhaps no word
    expect 0 $load --run -
    says out "%y = nn.tanh(%x) : f32[2]"
done
sed -i 's/nn.tanh/nn.tang/' "$scratch/in"
for load in "" "--load=$nn_library"; do
    # shellcheck disable=SC2086 # perhaps no word
    expect 1 $load -
    says err 'there is no op nn.tang; the nearest are "nn.tanh"'
done

# Nothing can be written.
if [[ -e /dev/full ]] && "$SHOAL_TEST_TOOL" opt "$step" >/dev/full 2>"$scratch/err"; then
    echo "shoal opt succeeded although nothing could be written"
    failed=true
fi

ASAN_OPTIONS=$asan_options expect 0 --passes=fuse_ddp_communication --stats --disable=schedule_comm_wait "$step"

! $failed
