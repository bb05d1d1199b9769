#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal train` ends with one digest whatever the mode: ranks and one process, whatever is sharded, compiled or not, also where
# shards are uneven. With SHOAL_TEST_SWEEP=whole (scripts/sweep.sh) 20 steps, with dropout and without.
# shellcheck source-path=SCRIPTDIR source=train_common.sh
. "${BASH_SOURCE[0]%/*}/train_common.sh"

model=(--layers 2 --width 16 --heads 2 --context 16 --batch 1 --steps 4)
dropouts=(0.1)
if [[ ${SHOAL_TEST_SWEEP:-} == whole ]]; then
    model=(--layers 3 --width 48 --heads 3 --context 32 --batch 2 --steps 20)
    dropouts=(0.1 0)
fi

compare_modes() {
    local mode
    wants --mode single --accumulate 4
    same_as --mode single --accumulate 4 --compile
    for mode in ddp zero1 zero2 fsdp; do
        same_as --mode "$mode" --ranks 4
    done
    same_as --mode ddp --ranks 4 --compile
    same_as --mode fsdp --ranks 4 --compile
    wants --mode single --accumulate 2x2
    same_as --mode hsdp --ranks 4 --replicas 2
    wants --mode single --accumulate 3
    same_as --mode fsdp --ranks 3
    same_as --mode ddp --ranks 3 --compile
    [[ ${SHOAL_TEST_SWEEP:-} == whole ]] || return 0
    for mode in ddp zero1 zero2; do
        same_as --mode "$mode" --ranks 3
    done
    same_as --mode fsdp --ranks 3 --compile
}

# Several backward passes in a step: compiled, they are one plan.
compare_passes() {
    local mode
    wants --mode ddp --ranks 2 --accumulate 3
    for mode in ddp fsdp; do
        same_as --mode "$mode" --ranks 2 --accumulate 3 --compile
    done
    [[ ${SHOAL_TEST_SWEEP:-} == whole ]] || return 0
    for mode in zero1 zero2; do
        same_as --mode "$mode" --ranks 2 --accumulate 3
        same_as --mode "$mode" --ranks 2 --accumulate 3 --compile
    done
    wants --mode hsdp --ranks 4 --accumulate 2
    same_as --mode hsdp --ranks 4 --accumulate 2 --compile
}

# Without clipping, ranks update each parameter as soon as its gradient has arrived, and one process all of them at the end.
# A process that trains alone in bf16 does so too, and keeps copies of parameters (mode none).
compare_updates() {
    local dtype mode
    for dtype in f32 bf16; do
        tiny=(--data "$text" "${model[@]}" --dtype "$dtype" --clip 0)
        wants --mode single --accumulate 3
        for mode in ddp zero1 zero2 fsdp; do
            same_as --mode "$mode" --ranks 3
        done
        wants --mode single --accumulate 2x2
        same_as --mode hsdp --ranks 4 --replicas 2
        wants --mode single
        same_as --mode none
        same_as --mode fsdp --ranks 1
        same_as --mode fsdp --ranks 1 --compile
    done
}

for dropout in "${dropouts[@]}"; do
    tiny=(--data "$text" "${model[@]}" --dropout "$dropout")
    compare_modes
    compare_passes
done
compare_updates
[[ $(wc -l <"$scratch/out") -eq 1 ]] || complain "--json prints more than a line"

! $failed
