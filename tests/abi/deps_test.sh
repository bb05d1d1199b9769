#!/bin/bash
# SPDX-License-Identifier: MIT
# scripts/deps.sh installs what is missing and nothing else, and without root only names it. The commands it
# asks are replaced: a compiler that finds no <dlpack/dlpack.h>, an id, an apt-get that notes how it was called.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
deps=$SHOAL_TEST_SOURCE_DIR/scripts/deps.sh
mkdir "$scratch/bin"
export PATH=$scratch/bin:$PATH SCRATCH=$scratch

plant() {
    printf '#!/bin/bash\n%s\n' "$2" >"$scratch/bin/$1"
    chmod +x "$scratch/bin/$1"
}
# shellcheck disable=SC2016 # expanded when the planted commands run
{
    plant cc 'if grep -q dlpack; then exit 1; fi'
    plant apt-get 'echo "$*" >>"$SCRATCH/apt.log"'
}

fail() {
    echo "$1"
    cat "$scratch/err" "$scratch/apt.log" 2>/dev/null || true
    exit 1
}

plant id 'echo 1000'
if "$deps" build >"$scratch/out" 2>"$scratch/err"; then
    fail "without root: did not stop"
fi
grep -q 'apt-get install libdlpack-dev$' "$scratch/err" || fail "without root: did not name the one package"
[[ ! -e $scratch/apt.log ]] || fail "without root: called apt-get"

[[ $("$deps" --list build) == libdlpack-dev ]] || fail "--list does not name the one package"

plant id 'echo 0'
"$deps" build >"$scratch/out" 2>"$scratch/err" || fail "with root: failed"
[[ $(wc -l <"$scratch/apt.log") -eq 1 ]] || fail "with root: more than one call of apt-get"
grep -qE '^install .* libdlpack-dev$' "$scratch/apt.log" || fail "with root: installed something else"

rm "$scratch/apt.log"
plant cc 'exit 0'
"$deps" build >"$scratch/out" 2>"$scratch/err" || fail "nothing missing: failed"
[[ ! -e $scratch/apt.log ]] || fail "nothing missing: called apt-get"

if "$deps" bulid >"$scratch/out" 2>"$scratch/err"; then
    fail "accepted an unknown purpose"
fi
