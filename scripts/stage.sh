#!/bin/bash
# SPDX-License-Identifier: MIT
# One line for a stage of something longer, and everything that it printed if it fails:
#
#   scripts/stage.sh LABEL COMMAND...
#
# On a terminal the line shows how far a build is. Returns the exit status of the command.
set -uo pipefail

label=$1
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT
begin=$SECONDS
"$@" >"$log" 2>&1 &
process=$!
# The shell makes commands in the background deaf to an interrupt.
trap 'kill "$process" 2>/dev/null; wait "$process"; exit 130' INT TERM
while kill -0 "$process" 2>/dev/null; do
    if [[ -t 1 ]]; then
        printf '\r\033[K%s ... %s' "$label" "$(tail -c 4096 "$log" | grep -oE '^\[ *[0-9]+%\]' | tail -n 1)"
    fi
    # Whoever has ended is noticed at once.
    sleep 0.3 &
    wait -n "$process" $! 2>/dev/null
done
status=0
wait "$process" || status=$?
[[ -t 1 ]] && printf '\r\033[K'
if [[ $status -ne 0 ]]; then
    cat "$log"
    echo "$label: failed after $((SECONDS - begin)) s"
    exit "$status"
fi
echo "$label: $((SECONDS - begin)) s"
