#!/bin/bash
# SPDX-License-Identifier: MIT
# Whatever computes products: `shoal train` ends with the digest of one process that takes the same parts, in every mode, compiled
# or not, on 2, 3 and 4 ranks, and with any number of threads. Ranks that compute them differently are told so. With
# SHOAL_TEST_SWEEP=whole (scripts/sweep.sh) every mode with every number of ranks, in f32 and bf16.
# shellcheck source-path=SCRIPTDIR source=train_common.sh
. "${BASH_SOURCE[0]%/*}/train_common.sh"

model=(--data "$text" --layers 1 --width 16 --heads 2 --context 16 --batch 1 --steps 2)
tiny=("${model[@]}")

# compare_modes ARGUMENTS...
compare_modes() {
    local ranks mode
    for ranks in 2 3 4; do
        wants --mode single --accumulate "$ranks" "$@"
        for mode in ddp zero1 zero2 fsdp; do
            same_as --mode "$mode" --ranks "$ranks" "$@"
            same_as --mode "$mode" --ranks "$ranks" --compile "$@"
        done
    done
    wants --mode single --accumulate 2x2 "$@"
    same_as --mode hsdp --ranks 4 --replicas 2 "$@"
    same_as --mode hsdp --ranks 4 --replicas 2 --compile "$@"
}

# A mode for each number of ranks, one of them compiled.
compare_some() {
    wants --mode single --accumulate 2 "$@"
    same_as --mode fsdp --ranks 2 --compile "$@"
    wants --mode single --accumulate 3 "$@"
    same_as --mode fsdp --ranks 3 "$@"
    wants --mode single --accumulate 4 "$@"
    same_as --mode ddp --ranks 4 --compile "$@"
}

# compare_threads ARGUMENTS...: of products that are large enough to be cut, if the row is not too slow for them.
compare_threads() {
    local n
    wants --mode single --threads 1 "$@"
    for n in 2 4; do
        same_as --mode single --threads "$n" "$@"
    done
}

check_row() {
    if [[ ${SHOAL_TEST_SWEEP:-} == whole ]]; then
        compare_modes --dtype f32
        compare_modes --dtype bf16
    else
        compare_some --dtype "$1"
    fi
    compare_threads --dtype bf16
}

export SHOAL_PRODUCTS
SHOAL_PRODUCTS=plain
check_row bf16
SHOAL_PRODUCTS=onednn SHOAL_NN_ONEDNN=$SHOAL_TEST_FAKE_ONEDNN check_row bf16

large=(--data "$text" --layers 1 --width 256 --heads 2 --context 128 --batch 3 --steps 2)
there=$(SHOAL_PRODUCTS='' "$SHOAL_TEST_TOOL" info --json)
for SHOAL_PRODUCTS in openblas onednn; do
    if ! grep -qE "\"name\": \"$SHOAL_PRODUCTS\", \"doc\": \"[^\"]*\", \"details\"" <<<"$there"; then
        echo "$SHOAL_PRODUCTS is not here"
        continue
    fi
    [[ $SHOAL_PRODUCTS == openblas ]] || check_row f32
    tiny=("${large[@]}")
    compare_threads
    tiny=("${model[@]}")
done

# Named when a run begins and in its checkpoints; a run that goes on with another says so.
SHOAL_PRODUCTS=plain trains 0 --checkpoint "$scratch/run"
grep -qx "data: .*; products: plain" "$scratch/out" || complain "the row is not named"
grep -qF '\"products\":\"plain\"' "$scratch"/run/step-*/shoal.index.json || complain "the checkpoint does not name the row"
SHOAL_PRODUCTS=onednn SHOAL_NN_ONEDNN=$SHOAL_TEST_FAKE_ONEDNN trains 0 --checkpoint "$scratch/run" --resume --steps 3
grep -q "goes on with other bits .*: products were computed by plain, and are now by onednn 2\.6\.99" "$scratch/err" ||
    complain "another row is not told"

# Rank 1 has another one.
# shellcheck disable=SC2016 # ranks expand it
differs='[ "$SHOAL_RANK" = 0 ] || export SHOAL_PRODUCTS=onednn; exec "$0" "$@"'
status=0
SHOAL_PRODUCTS=plain SHOAL_NN_ONEDNN=$SHOAL_TEST_FAKE_ONEDNN timeout "$limit_s" "$SHOAL_TEST_TOOL" run -n 2 --no-label \
    sh -c "$differs" "$SHOAL_TEST_TOOL" train "${tiny[@]}" --mode none >"$scratch/out" 2>"$scratch/err" || status=$?
[[ $status -ne 0 ]] || complain "ranks with different products train together"
grep -qE 'what computes products \(SHOAL_PRODUCTS\) is not the same on all ranks: "plain" on rank 0, "onednn 2\.6\.99 [^"]*" on rank 1' \
    "$scratch/err" || complain "the difference is not told"

! $failed
