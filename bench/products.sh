#!/bin/bash
# SPDX-License-Identifier: MIT
# What computes products, on this machine: bits, speeds of layers, and steps of `shoal train` beside PyTorch's.
#
#   bench/products.sh [--onednn ARCHIVE] [--tool build/bin/shoal] [--parts "bits layers trace steps"]
#                     [--cases "alone_bf16 8x1_bf16 alone 8x1 8x2"] [--rounds 5] [--steps 6] [--budget 500] [--output FILE]
#
#   --onednn   of bench/pack_onednn.sh, where oneDNN is not installed
#   --parts    bits: digests with 1, 2 and 4 threads, and of 2, 3 and 4 ranks beside one process, for each row
#              layers: `shoal bench nn` of layers in f32 and bf16, for each row
#              trace: where the time of a step alone goes, for bf16 and f32
#              steps: bench/train.sh, with its bars
#   --budget   seconds for the steps: what has not begun by then is left out
#
# Ends with status 1 if bits differ. Everything that is printed goes to FILE, too.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

onednn=
tool=build/bin/shoal
parts="bits layers trace steps"
cases="alone_bf16 8x1_bf16 alone 8x1 8x2"
rounds=5
steps=6
budget=500
output=build/bench/products.txt
while [[ $# -gt 0 ]]; do
    if [[ $# -lt 2 ]]; then
        echo "bench/products.sh: $1 needs a value" >&2
        exit 2
    fi
    case $1 in
    --onednn) onednn=$2 ;;
    --tool) tool=$2 ;;
    --parts) parts=$2 ;;
    --cases) cases=$2 ;;
    --rounds) rounds=$2 ;;
    --steps) steps=$2 ;;
    --budget) budget=$2 ;;
    --output) output=$2 ;;
    *)
        echo "bench/products.sh: bad argument: $1" >&2
        exit 2
        ;;
    esac
    shift 2
done

work=$PWD/build/bench
mkdir -p "$work" "$(dirname "$output")"
if [[ -n $onednn ]]; then
    rm -rf "$work/onednn"
    mkdir -p "$work/onednn"
    tar -C "$work/onednn" -xf "$onednn" || exit 1
    export SHOAL_NN_ONEDNN=$work/onednn/libdnnl.so.2
    if ! ldconfig -p | grep 'libgomp\.so\.1 ' >/dev/null; then
        export LD_LIBRARY_PATH=$work/onednn${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    fi
fi

# The rows that can be used here.
find_rows() {
    "$tool" info --json | grep -oE '"name": "[a-z]+", "doc": "[^"]*", "details"' | sed -E 's/"name": "([a-z]+)".*/\1/'
}

# digest ROW ARGUMENTS...
digest() {
    local row=$1
    shift
    SHOAL_PRODUCTS=$row timeout 120 "$tool" train --data LICENSE "$@" --json 2>&1 | sed -nE 's/.*"digest": "([0-9a-f]+)".*/\1/p'
}

# compare WHAT WANTED FOUND
compare() {
    if [[ -n $2 && $2 == "$3" ]]; then
        echo "same    $1 $2"
    else
        echo "DIFFERS $1 ${2:-none} ${3:-none}"
        touch "$work/differs"
    fi
}

measure_bits() {
    local row dtype n mode wanted
    local large=(--layers 1 --width 512 --heads 8 --context 128 --batch 2 --steps 2)
    local small=(--layers 2 --width 128 --heads 2 --context 64 --batch 2 --steps 2 --threads 1)
    for row in $(find_rows); do
        for dtype in f32 bf16; do
            wanted=$(digest "$row" --mode single "${large[@]}" --threads 1 --dtype "$dtype")
            for n in 2 4; do
                compare "$row $dtype threads=$n" "$wanted" \
                    "$(digest "$row" --mode single "${large[@]}" --threads "$n" --dtype "$dtype")"
            done
            for n in 2 3 4; do
                wanted=$(digest "$row" --mode single --accumulate "$n" "${small[@]}" --dtype "$dtype")
                for mode in ddp zero1 zero2 fsdp; do
                    compare "$row $dtype $mode ranks=$n" "$wanted" \
                        "$(digest "$row" --mode "$mode" --ranks "$n" "${small[@]}" --dtype "$dtype")"
                    compare "$row $dtype $mode ranks=$n compiled" "$wanted" \
                        "$(digest "$row" --mode "$mode" --ranks "$n" --compile "${small[@]}" --dtype "$dtype")"
                done
            done
        done
    done
}

measure_layers() {
    local row dtype
    for row in $(find_rows); do
        [[ $row == plain ]] && continue
        for dtype in f32 bf16; do
            echo "$row $dtype"
            SHOAL_PRODUCTS=$row timeout 60 "$tool" bench nn --kind layer --dtype "$dtype" --threads 1
        done
    done
}

measure_trace() {
    local dtype
    for dtype in bf16 f32; do
        echo "$dtype"
        OMP_NUM_THREADS=1 timeout 60 "$tool" train --mode none --threads 1 --dtype "$dtype" --layers 8 --width 512 --heads 8 \
            --context 128 --batch 2 --steps 6 --clip 0 --trace "$work/products.json" --json &&
            "$tool" trace --ops "$work/products.json"
    done
}

# What is aimed at: a case, a column of build/bench/train.jsonl, and at most so much.
goals="alone_bf16 torch_ratio 1.1
8x1_bf16 torch_ratio 0.6
alone torch_ratio 1.0
8x1 ratio 1.05
8x2 ratio 1.12"

measure_steps() {
    local case column bound value
    bench/train.sh --tool "$tool" --cases "$cases" --rounds "$rounds" --steps "$steps" --budget "$budget"
    echo
    while read -r case column bound; do
        value=$(sed -nE "s/.*\"bench\": \"train_$case\".*\"$column\": ([0-9.]+).*/\1/p" "$work/train.jsonl")
        [[ -n $value ]] &&
            awk -v c="$case" -v n="$column" -v v="$value" -v b="$bound" \
                'BEGIN { printf "%-12s %-12s %.3f, at most %s: %s\n", c, n, v, b, v <= b ? "met" : "missed" }'
    done <<<"$goals"
}

rm -f "$work/differs"
{
    "$tool" info | sed -n '/^products/,/^transport/p' | sed '$d'
    for part in $parts; do
        echo
        echo "== $part"
        case $part in
        bits | layers | trace | steps) "measure_$part" ;;
        *) echo "bench/products.sh: no such part: $part" >&2 ;;
        esac
    done
} 2>&1 | tee "$output"
[[ ! -e $work/differs ]]
