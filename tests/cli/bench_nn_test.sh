#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal bench nn`: the rows and keys it promises, and exit status. No times: those are the business of a quiet machine.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=false
# Looking for leaks takes seconds per run on some machines.
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0

complain() {
    echo "$1"
    cat "$scratch/out" "$scratch/err"
    failed=true
}

bench() {
    "$SHOAL_TEST_TOOL" bench nn "$@" >"$scratch/out" 2>"$scratch/err"
}

# A row for both passes of every case. Attention is as long as asked for; its reference takes most of the time.
bench --json --rounds 1 --tokens 2 --elements 3000 --length 5 --length 33 || complain "failed"
number='[0-9.]*'
keys='^{"bench": "nn", "kind": "[a-z]*", "case": "[a-z_]*", "pass": "[a-z]*", "shape": "[0-9x]*", "dtype": "f32", "threads": 1'
keys+=", \"us\": $number, \"rate\": $number, \"reference_rate\": $number, \"ratio\": $number, \"bar\": $number}\$"
if grep -v "$keys" "$scratch/out" >/dev/null; then
    complain "other keys"
fi
for case in linear projection attention relu tanh gelu gelu_tanh exp log sigmoid silu layer_norm softmax cross_entropy \
    embedding dropout; do
    for pass in forward backward; do
        grep -q "\"case\": \"$case\", \"pass\": \"$pass\"" "$scratch/out" || complain "no row $case $pass"
    done
done
grep -q '"shape": "33x4x64"' "$scratch/out" || complain "no attention of length 33"
grep -q '"shape": "2x768x3072"' "$scratch/out" || complain "no layer of 2 tokens"

bench --rounds 1 --case gelu --dtype bf16 --elements 5000 --threads 2 || complain "failed"
[[ $(grep -c '^element ' "$scratch/out") -eq 2 ]] || complain "not two rows"

for arguments in "--kind nonsense" "--case nonsense" "--dtype f64" "--threads 0" "--length 0" "--rounds -1" "--what 1"; do
    status=0
    # shellcheck disable=SC2086 # several words on purpose
    bench $arguments || status=$?
    [[ $status -eq 2 ]] || complain "$arguments: exit status $status, expected 2"
done

[[ $failed == false ]]
