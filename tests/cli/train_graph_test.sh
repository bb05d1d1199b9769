#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal train --graph`: the captured step before and after passes. `shoal opt --passes=default` makes the second of the first, and
# parameters have the names of the model.
# shellcheck source-path=SCRIPTDIR source=train_common.sh
. "${BASH_SOURCE[0]%/*}/train_common.sh"
tiny=(--layers 1 --width 16 --heads 2 --context 16 --batch 2 --steps 1 --data "$text" --compile)
step=$scratch/step.graph

# No library needs to be loaded for the ops of the model.
optimizes() {
    "$SHOAL_TEST_TOOL" opt "$@" >"$scratch/opt" 2>"$scratch/err" || complain "opt $*: failed"
}

for arguments in "--mode ddp --ranks 2" "--mode fsdp --ranks 2" "--mode zero2 --ranks 2 --accumulate 2" \
    "--mode single" "--mode hsdp --ranks 2 --dtype bf16"; do
    rm -f "$step" "$step.after"
    # shellcheck disable=SC2086 # several words
    trains 0 $arguments --graph "$step"
    [[ -s $step && -s $step.after ]] || complain "$arguments: no graphs"
    optimizes --passes=default "$step"
    cmp "$scratch/opt" "$step.after" || complain "$arguments: shoal opt --passes=default makes another graph"
    grep -q '%transformer\.h\.0\.attn\.c_proj\.bias = placeholder' "$step" || complain "$arguments: no name of the model"
    if grep -qE '%tensor(_[0-9]+)? ' "$step"; then
        complain "$arguments: a tensor without a name"
    fi
done

# What cannot be written.
trains 1 --mode single --graph "$scratch/nowhere/step.graph"
grep -q -- "--graph: $scratch/nowhere/step.graph: open its directory: No such file" "$scratch/err" || complain "does not say which file"
mkfifo "$scratch/pipe"
trains 1 --mode single --graph "$scratch/pipe"
grep -q -- "--graph: $scratch/pipe: is a device, pipe or socket" "$scratch/err" || complain "does not say that it is a pipe"

# The data is not an output.
cp "$SHOAL_TEST_SOURCE_DIR/README.md" "$scratch/data.txt"
! "$SHOAL_TEST_TOOL" train --compile --data "$scratch/data.txt" --graph "$scratch/data.txt" >"$scratch/out" 2>"$scratch/err" ||
    complain "writes a graph over the data"
grep -q "would write over the data" "$scratch/err" || complain "does not say that the data would be written over"
cmp -s "$SHOAL_TEST_SOURCE_DIR/README.md" "$scratch/data.txt" || complain "has written over the data"

! $failed
