#!/bin/bash
# SPDX-License-Identifier: MIT
# How command lines are read, which is the same in all commands (tools/shoal/common/options.h): values in the same word and
# in the next one, second names, operands, and a line for each mistake, with the name of the command and the value.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=false
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0
graph=$SHOAL_TEST_SOURCE_DIR/examples/ddp_step.graph

complain() {
    echo "$1"
    cat "$scratch/out" "$scratch/err"
    failed=true
}

# tool STATUS ARGUMENTS...
tool() {
    local wanted=$1 status=0
    shift
    timeout 60 "$SHOAL_TEST_TOOL" "$@" >"$scratch/out" 2>"$scratch/err" || status=$?
    [[ $status -eq $wanted ]] || complain "shoal $*: exit status $status, wanted $wanted"
}

# refuses LINE ARGUMENTS...: a wrong call, and this is all that is said.
refuses() {
    local line=$1
    shift
    tool 2 "$@"
    [[ $(<"$scratch/err") == "$line" && ! -s $scratch/out ]] || complain "shoal $*: does not say: $line"
}

# gives TEXT ARGUMENTS...
gives() {
    local text=$1
    shift
    tool 0 "$@"
    grep -qF -- "$text" "$scratch/out" || complain "shoal $*: does not print: $text"
}

# Values, in two words and in one, and second names.
ranks=(info --explain all_reduce --bytes 4K)
for words in '--ranks 3' '--ranks=3' '-n 3' '-n=3' '-n3'; do
    # shellcheck disable=SC2086 # perhaps two words
    gives 'all_reduce, 3 ranks, 4096 bytes' "${ranks[@]}" $words
done
gives 'all_reduce, 5 ranks, 4096 bytes' "${ranks[@]}" -n 3 --ranks 5
refuses "shoal info: --ranks: '3x' is not a whole number from 1 to 1000000" "${ranks[@]}" -n3x
refuses "shoal info: --ranks: '3x' is not a whole number from 1 to 1000000" "${ranks[@]}" -n 3x
refuses "shoal info: --ranks: '99999999999999999999' is not a whole number from 1 to 1000000" "${ranks[@]}" --ranks=99999999999999999999

# Operands: also behind "--", also "-" and what looks like an option there.
cp "$graph" "$scratch/--dashed"
(cd "$scratch" && tool 0 opt -- --dashed && ! $failed) || failed=true
tool 0 opt -- "$graph"
refuses "shoal opt: one file expected, but got 'a' and 'b'" opt a b
refuses "shoal opt: one file expected, but got '$graph' and '--help'" opt "$graph" -- --help
refuses "shoal train: 'my.txt' belongs to no option; did you mean --data my.txt?" train my.txt
refuses "shoal train: 'run' belongs to no option; did you mean --checkpoint run --resume?" train --resume run
refuses "shoal train: 'my.txt' belongs to no option; did you mean --data my.txt?" train --resume --lr 1 my.txt
refuses "shoal bench kernels: 'my.txt' belongs to no option" bench kernels --json my.txt
refuses "shoal help: one command expected, but got 'info' and 'run'" help info run
# shellcheck disable=SC2016 # the shell's
tool 0 run -n 1 sh -c 'test "$1 $2" = "--help -n"' sh --help -n

# What is wrong, by the kind of the value.
refuses "shoal bench fsdp: --units: '0' is not a whole number from 1 to 65536" bench fsdp --units 0
refuses "shoal bench fsdp: 'weights' is not a value of --sharded; there are: parameters gradients state" bench fsdp --sharded weights
refuses "shoal bench fsdp: '--unit' is not an option; did you mean '--units'?" bench fsdp --unit 3
refuses "shoal bench fsdp: --units needs a value" bench fsdp --units
refuses "shoal bench fsdp: --json takes no value, but got 'yes'" bench fsdp --json=yes
refuses "shoal bench checkpoint: --bytes: '15K' is not a number of bytes (4096, 64K, 8M, 2G) from 16384 to 1099511627776" bench checkpoint --bytes 15K
refuses "shoal bench checkpoint: --directory needs a value that is not empty" bench checkpoint --directory ''
refuses "shoal train: --lr: '1x' is not a number from 0 to 1000000" train --lr 1x
refuses "shoal train: --accumulate: '2x' is neither a number of parts from 1 to 4096 nor two of them, as 2x2" train --accumulate 2x
refuses "shoal train: 'fsd' is not a mode; did you mean 'fsdp'?" train --mode fsd
refuses "shoal opt: --comm-bucket-mb: '-1' is not a number from 0 on" opt --comm-bucket-mb -1 "$graph"
refuses "shoal opt: --bucket-mb: 'x' is not a number" opt --bucket-mb=x "$graph"
refuses "shoal trace: --step: 'x' is not a whole number" trace --step x file
# What other tools call it, also where no spelling of ours is near: with '-' and with '_', as options and as values.
while read -r theirs ours; do
    tool 2 train "$theirs" 3
    grep -qF -- "shoal train: '$theirs' is not an option; did you mean '$ours'?" "$scratch/err" || complain "train $theirs is not $ours"
done <<EOF
--learning-rate --lr
--learning_rate --lr
--epochs --steps
--batch-size --batch
--seq-len --context
--block_size --context
--n_layer --layers
--n_embd --width
--n-head --heads
--grad-clip --clip
EOF
refuses "shoal train: '--epochs' is not an option; did you mean '--steps'? Runs are counted in steps." train --epochs=3
refuses "shoal train: 'zero3' is not a mode; did you mean 'fsdp'? It shards what ZeRO-3 shards." train --mode zero3
refuses "shoal train: 'fully_sharded' is not a mode; did you mean 'fsdp'?" train --mode=fully_sharded
refuses "shoal generate: '--max_new_tokens' is not an option; did you mean '--length'?" generate --max_new_tokens 3
refuses "shoal report: '--output' is not an option; did you mean '--out'?" report --output x
for option in --nproc --np; do
    refuses "shoal run: '$option' is not an option; did you mean '-n'?" run $option 2 true
    refuses "shoal generate: '$option' is not an option; did you mean '--ranks'?" generate $option 2 run
done
for option in -v -V; do
    refuses "shoal: '$option' is not an option; did you mean '--version'?" $option
done
refuses "shoal run: 'tcp' is not a transport; did you mean 'socket'? It carries data over TCP." run --transport tcp -n 1 true
# Only where the command has it.
tool 2 trace --learning-rate 3
grep -qF "shoal trace: '--learning-rate' is not an option; there are: --ops --step" "$scratch/err" || complain "trace --learning-rate"
sizes=$(printf -- '--nodes 20 %.0s' {1..9})
# shellcheck disable=SC2086 # several words
refuses "shoal bench passes: --nodes 20: there are 8 of them already, and no more are possible" bench passes $sizes

# What belongs together.
tool 2 info --ranks 2
grep -qF "shoal info: --ranks, --bytes, --symmetric and --transport are for --explain OP" "$scratch/err" || complain "--ranks alone"
tool 2 info --json --ops
grep -qF "shoal info: one thing at a time can be printed" "$scratch/err" || complain "two pages"

# Each command has help under both names, also behind other options.
for command in help info opt run trace train "bench fsdp" "bench nn" "bench overlap" "bench functional"; do
    # shellcheck disable=SC2086 # perhaps two words
    for option in --help -h; do
        gives "usage: shoal $command " $command $option
    done
done

# Names that a value can have stand below the option.
gives '  --redop R            of reductions; default sum; one of' bench all_reduce --help
gives '  --kernel NAME        only this; one of' bench kernels --help

! $failed
