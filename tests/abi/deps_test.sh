#!/bin/bash
# SPDX-License-Identifier: MIT
# scripts/deps.sh installs what is missing and nothing else, and without root only names it. What it asks is replaced: a
# compiler that finds no <dlpack/dlpack.h> until it is installed, an id, an apt-get that notes how it was called.
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
    plant cc 'if grep -q dlpack && ! grep -q libdlpack-dev "$SCRATCH/apt.log"; then exit 1; fi'
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

# A package that does not bring what it is there for is not installed again and again in silence.
rm "$scratch/apt.log"
plant cc 'if grep -q dlpack; then exit 1; fi'
if "$deps" build >"$scratch/out" 2>"$scratch/err"; then
    fail "still missing after the installation: did not stop"
fi
grep -q 'still not found: libdlpack-dev$' "$scratch/err" || fail "still missing: did not name the package"

rm "$scratch/apt.log"
plant cc 'exit 0'
"$deps" build >"$scratch/out" 2>"$scratch/err" || fail "nothing missing: failed"
[[ ! -e $scratch/apt.log ]] || fail "nothing missing: called apt-get"

# Probes ask for what is used. Debian has the compilers of an MPI in another package than its header, a C++ compiler may
# be there without its library, a library's header without the library, and perl without its modules.
# lists: the missing packages, but for the one that the loader is asked for, which cannot be replaced
lists() {
    "$deps" --list build test | sed '/^libopenblas0-pthread$/d'
}
# names PACKAGE COMMAND SCRIPT: is all that is missing when a command is that script
names() {
    plant "$2" "$3"
    local named
    named=$(lists)
    plant "$2" 'exit 0'
    [[ $named == "$1" ]] || fail "with '$3' as $2: names '$named', not '$1'"
}
for command in cc c++ mpicc.openmpi mpicc.mpich mpirun.openmpi mpirun.mpich pkg-config perl objcopy; do
    plant "$command" 'exit 0'
done
missing=$(lists)
[[ -z $missing ]] || fail "with everything there, these are missing: $missing"
for mpi in openmpi mpich; do
    names "lib$mpi-dev" "mpicc.$mpi" 'if grep -q "<mpi\.h>"; then exit 1; fi'
done
names g++ c++ 'if grep -q "<string>"; then exit 1; fi'
# shellcheck disable=SC2016 # expanded when the planted commands run
{
    names libjansson-dev cc 'if [[ $* == *-ljansson* ]]; then exit 1; fi'
    names libxxhash-dev cc 'if [[ $* == *-lxxhash* ]]; then exit 1; fi'
    names perl perl 'if [[ $* == *-MJSON::PP* ]]; then exit 1; fi'
}

if "$deps" bulid >"$scratch/out" 2>"$scratch/err"; then
    fail "accepted an unknown purpose"
fi
