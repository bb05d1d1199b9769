#!/bin/bash
# SPDX-License-Identifier: MIT
# Times a step of `shoal train`: fully sharded against ranks that do not talk (mode none), and against PyTorch's FSDP2 over
# Gloo on the same model, batch and threads, in turns within one run.
#
#   bench/train.sh [--tool build/bin/shoal] [--ranks 2] [--threads 1] [--rounds 3] [--dtype f32] [OPTION...]
#
# Further options (--layers --width --heads --context --batch --steps) go to every program; the defaults are the 5 million
# parameters and 4 x 128 tokens of docs/performance.md. Prints a row of JSON per program and round, then the medians over
# rounds and their quotients. PyTorch is left out where there is none; PYTHON names an interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."

tool=build/bin/shoal
ranks=2
threads=1
rounds=3
dtype=f32
declare -A model=([layers]=6 [width]=256 [heads]=4 [context]=128 [batch]=4 [steps]=20)
while [[ $# -gt 0 ]]; do
    case $1 in
    --tool) tool=$2 ;;
    --ranks) ranks=$2 ;;
    --threads) threads=$2 ;;
    --rounds) rounds=$2 ;;
    --dtype) dtype=$2 ;;
    --layers | --width | --heads | --context | --batch | --steps) model[${1#--}]=$2 ;;
    *)
        echo "bench/train.sh: bad argument: $1" >&2
        exit 2
        ;;
    esac
    shift 2 || exit 2
done
options=(--threads "$threads" --dtype "$dtype")
for name in layers width heads context batch steps; do
    options+=("--$name" "${model[$name]}")
done

find_python() {
    local python
    for python in ${PYTHON:-} python3 /usr/bin/python3; do
        if "$python" -c 'import torch.distributed.fsdp as f; f.fully_shard' 2>/dev/null; then
            echo "$python"
            return
        fi
    done
}

rows=$(mktemp)
trap 'rm -f "$rows"' EXIT

# row NAME COMMAND...: the last line that the command prints.
row() {
    local name=$1 line
    shift
    line=$("$@" | tail -n 1)
    echo "$name $line" | tee -a "$rows"
}

python=$(find_python)
[[ -n $python ]] || echo "bench/train.sh: without PyTorch"
for ((round = 0; round < rounds; round++)); do
    row shoal_none "$tool" train --mode none --ranks "$ranks" "${options[@]}" --clip 0 --json
    row shoal_fsdp "$tool" train --mode fsdp --ranks "$ranks" "${options[@]}" --clip 0 --json
    row shoal_alone "$tool" train --mode none --ranks 1 "${options[@]}" --clip 0 --json
    if [[ -n $python ]]; then
        row torch_fsdp "$python" bench/peers/fsdp2_torch.py --mode fsdp --ranks "$ranks" "${options[@]}"
        row torch_alone "$python" bench/peers/fsdp2_torch.py --ranks 1 "${options[@]}"
    fi
done

perl -ne '
    push @{$ms{$1}}, $2 if /^(\S+) .*"step_ms_median": ([0-9.]+)/;
    END {
        for (sort keys %ms) {
            my @sorted = sort { $a <=> $b } @{$ms{$_}};
            $median{$_} = $sorted[$#sorted / 2];
            printf "%-12s %9.2f ms\n", $_, $median{$_};
        }
        for (["shoal_fsdp", "shoal_none"], ["torch_fsdp", "shoal_fsdp"], ["shoal_alone", "torch_alone"]) {
            my ($a, $b) = @$_;
            printf "%s / %s: %.3f\n", $a, $b, $median{$a} / $median{$b} if $median{$a} && $median{$b};
        }
    }' "$rows"
