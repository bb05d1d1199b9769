#!/bin/bash
# SPDX-License-Identifier: MIT
# Times a step of `shoal train`: fully sharded against ranks that do not talk (mode none), and against PyTorch's FSDP2 over
# Gloo on the same model, batch, threads and processors, in turns within one run.
#
#   bench/train.sh [--tool build/bin/shoal] [--cases "2x1 8x1 8x2 alone 8x1_bf16 alone_bf16"] [--rounds 2] [--steps 10]
#                  [--limit 90] [--budget 0] [--bind "cores none"] [--output FILE] [--trace FILE]
#
#   --cases    RANKSxTHREADS, or alone: one rank with one thread; _bf16 behind it: in bf16. Default: those for which there
#              are processors. Two ranks train 4.8 million parameters with 4 x 128 tokens a rank, all other cases
#              25.4 million with 2 x 128.
#   --limit    seconds for one program; what takes longer is ended and has no number
#   --budget   seconds for everything: what has not begun by then is left out; 0: no end
#   --bind     of ranks, ours and PyTorch's (`--bind` of `shoal train`); with two values every case is measured with both
#   --output   where the table goes too
#   --trace    one more fully sharded run of the first case with several ranks, recorded, and its table (`shoal trace`)
#
# Rounds go over all cases, so that a run that ends early has one of each. Prints a row of JSON per program and round, then a
# table of the medians over rounds for docs/performance.md, then the bars of bench/bars.txt. PyTorch is left out where there
# is none; PYTHON names an interpreter.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

tool=build/bin/shoal
cases=
rounds=2
steps=10
limit=90
budget=0
bindings=none
output=
trace=
while [[ $# -gt 0 ]]; do
    if [[ $# -lt 2 ]]; then
        echo "bench/train.sh: $1 needs a value" >&2
        exit 2
    fi
    case $1 in
    --tool) tool=$2 ;;
    --cases) cases=$2 ;;
    --rounds) rounds=$2 ;;
    --steps) steps=$2 ;;
    --limit) limit=$2 ;;
    --budget) budget=$2 ;;
    --bind) bindings=$2 ;;
    --output) output=$2 ;;
    --trace) trace=$2 ;;
    *)
        echo "bench/train.sh: bad argument: $1" >&2
        exit 2
        ;;
    esac
    shift 2
done
processors=$(nproc)
load=$(cut -d" " -f1-3 /proc/loadavg)
if [[ -z $cases ]]; then
    cases="2x1 alone alone_bf16"
    ((processors >= 8)) && cases="8x1 alone 8x1_bf16 alone_bf16 2x1"
    ((processors >= 16)) && cases="8x1 8x2 alone 8x1_bf16 alone_bf16 2x1"
fi

# The programs ----------------------------------------------------------------------------------------------

find_python() {
    local python
    for python in ${PYTHON:-} python3 /usr/bin/python3; do
        if CUDA_VISIBLE_DEVICES='' timeout 120 "$python" -c 'import torch.distributed.fsdp as f; f.fully_shard' 2>/dev/null; then
            echo "$python"
            return
        fi
    done
}

# set_case NAME: ranks, threads, dtype and options, which every program takes.
set_case() {
    local model
    dtype=f32
    [[ $1 == *_bf16 ]] && dtype=bf16
    ranks=1
    threads=1
    if [[ $1 =~ ^([1-9][0-9]*)x([1-9][0-9]*)(_bf16)?$ ]]; then
        ranks=${BASH_REMATCH[1]}
        threads=${BASH_REMATCH[2]}
    elif [[ $1 != alone && $1 != alone_bf16 ]]; then
        echo "bench/train.sh: bad case: $1" >&2
        exit 2
    fi
    model="--layers 8 --width 512 --heads 8 --context 128 --batch 2"
    ((ranks == 2)) && model="--layers 6 --width 256 --heads 4 --context 128 --batch 4"
    read -r -a options <<<"--ranks $ranks --threads $threads --dtype $dtype $model --steps $steps"
}

# row CASE BINDING PROGRAM COMMAND...: adds the last line that the command prints, or why there is none.
row() {
    local name="$1 $2 $3" line status
    shift 3
    if ((budget > 0 && SECONDS >= budget)); then
        line='{"left_out": "no time"}'
    else
        line=$(OMP_NUM_THREADS=$threads CUDA_VISIBLE_DEVICES='' timeout -k 5 "$limit" "$@" | tail -n 1)
        status=$?
        ((status == 0)) || line="{\"left_out\": \"exit status $status\"}"
    fi
    echo "$name $line" | tee -a "$rows"
}

# measure CASE BINDING
measure() {
    local peer=("$python" bench/peers/fsdp2_torch.py --bind "$2")
    set_case "$1"
    [[ $ranks -gt 1 || $2 == "${bindings%% *}" ]] || return
    row "$1" "$2" none "$tool" train --mode none "${options[@]}" --bind "$2" --clip 0 --json
    ((ranks > 1)) && row "$1" "$2" fsdp "$tool" train --mode fsdp "${options[@]}" --bind "$2" --clip 0 --json
    [[ -n $python ]] || return
    ((ranks > 1)) && row "$1" "$2" torch_fsdp "${peer[@]}" --mode fsdp "${options[@]}"
    row "$1" "$2" torch_none "${peer[@]}" --mode none "${options[@]}"
}

for name in $cases; do
    set_case "$name"
done
work=build/bench
mkdir -p "$work"
rows=$work/train.rows
: >"$rows"
python=$(find_python)
for ((round = 0; round < rounds; round++)); do
    for binding in $bindings; do
        for name in $cases; do
            measure "$name" "$binding"
        done
    done
done

# What came of it ---------------------------------------------------------------------------------------------

describe() {
    local model cores huge
    model=$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1)
    cores=$(cat /sys/devices/system/cpu/cpu*/topology/thread_siblings_list 2>/dev/null | sort -u | wc -l)
    huge=$(cat /sys/kernel/mm/transparent_hugepage/enabled 2>/dev/null)
    echo "$(date +%F), $(uname -m) ${model:-}, $processors processors on $cores cores; huge pages: ${huge:-?};" \
        "load before: $load; $steps steps, $rounds rounds; PyTorch: ${version:-absent}"
}


version=$(sed -n 's/.*"torch": "\([^"]*\)".*/\1/p' "$rows" | head -n 1)
{
    echo
    describe
    echo
    perl bench/train_table.pl --processors "$processors" "$rows" "$work/train.jsonl"
} | tee "${output:-/dev/null}"
echo
perl bench/compare.pl bench/bars.txt "$work/train.jsonl" | grep '^train_.*/'

if [[ -n $trace ]]; then
    for name in $cases; do
        set_case "$name"
        ((ranks > 1)) && break
    done
    timeout -k 5 "$limit" "$tool" train --mode fsdp "${options[@]}" --clip 0 --trace "$trace" --json >/dev/null &&
        "$tool" trace "$trace"
fi
exit 0
