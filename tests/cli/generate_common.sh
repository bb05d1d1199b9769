# shellcheck shell=bash disable=SC2034,SC2154
# SPDX-License-Identifier: MIT
# What the tests of `shoal generate` and `shoal export` share, besides what those of `shoal train` do. They read it first, and
# have a model of bytes in $run/step-000000006 then.
# shellcheck source-path=SCRIPTDIR source=train_common.sh
. "${BASH_SOURCE[0]%/*}/train_common.sh"
tiny=(--data "$text" --layers 2 --width 16 --heads 2 --context 16 --batch 2 --steps 6 --lr 0.01)

# tool STATUS ARGUMENTS...: leaves what it prints in $scratch/out and $scratch/err.
tool() {
    local wanted=$1 status=0
    shift
    timeout "$limit_s" "$SHOAL_TEST_TOOL" "$@" >"$scratch/out" 2>"$scratch/err" || status=$?
    [[ $status -eq $wanted ]] || complain "$*: exit status $status, wanted $wanted"
}

# fails STATUS TEXT COMMAND ARGUMENTS...: the first line has the text, a regular expression; nothing is printed.
fails() {
    local status=$1 text=$2
    shift 2
    tool "$status" "$@"
    [[ $(head -n 1 "$scratch/err") =~ ^shoal\ $1:\  ]] || complain "$*: does not say who"
    head -n 1 "$scratch/err" | grep -E -- "$text" >/dev/null || complain "$*: does not say: $text"
    [[ $status -eq 2 || $(wc -l <"$scratch/err") -eq 1 ]] || complain "$*: not one line"
    [[ ! -s $scratch/out ]] || complain "$*: prints something"
}

# writes ARGUMENTS...: `shoal generate` prints $wanted.
writes() {
    tool 0 generate "$@"
    cmp -s "$scratch/wanted" "$scratch/out" || complain "generate $*: writes something else"
}

run=$scratch/run
trains 0 --checkpoint "$run" --mode single --accumulate 2 --prompt The --sample 30
