#!/bin/bash
# SPDX-License-Identifier: MIT
# Knows every Debian package that Shoal needs, and installs those that are missing.
#
#   scripts/deps.sh build test lint     install what is missing for these purposes
#   scripts/deps.sh --list build        only name the packages that are missing
#
# Without root it names the packages and stops. A thing counts as present when its probe finds it, however it
# came to this machine.
set -euo pipefail

# purpose  package          probe: a command, a header in < >, a shared library after =, a Python module after @, or -
#                           for the package itself
rows='
build      gcc              cc
build      libc6-dev        <threads.h>
build      make             make
build      binutils         objcopy
build      cmake            cmake
build      libdlpack-dev    <dlpack/dlpack.h>
build      libjansson-dev   <jansson.h>
run        libopenblas0-pthread  =libopenblas.so.0
test       g++              c++
test       pkg-config       pkg-config
test       perl             perl
test       libopenblas0-pthread  =libopenblas.so.0
test       openmpi-bin      mpirun.openmpi
test       mpich            mpirun.mpich
lint       clang-format-14  clang-format-14
lint       clang-tidy-14    clang-tidy-14
lint       clang-14         clang-14
lint       libclang-rt-14-dev  -
lint       shellcheck       shellcheck
lint       perl             perl
bench      libopenmpi-dev   mpicc.openmpi
bench      openmpi-bin      mpirun.openmpi
bench      libmpich-dev     mpicc.mpich
bench      mpich            mpirun.mpich
bench      python3-torch    @torch
bench      perl             perl
bench      libopenblas0-pthread  =libopenblas.so.0
'

# Debian's Python may not be the first in the path.
has_module() {
    local python
    for python in python3 /usr/bin/python3; do
        if "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)' \
            "$1" 2>/dev/null; then
            return 0
        fi
    done
    return 1
}

is_present() {
    local package=$1 probe=$2
    case $probe in
    '<'*'>') cc -E -x c - <<<"#include $probe" >/dev/null 2>&1 ;;
    '='*) [[ $(cc -print-file-name="${probe#=}") == */* ]] ;;
    '@'*) has_module "${probe#@}" ;;
    -) dpkg -s "$package" 2>/dev/null | grep '^Status: install ok installed' >/dev/null ;;
    *) command -v "$probe" >/dev/null ;;
    esac
}

# Prints the packages of one purpose whose probe finds nothing.
list_missing() {
    local wanted=$1 purpose package probe
    while read -r purpose package probe; do
        if [[ $purpose == "$wanted" ]] && ! is_present "$package" "$probe"; then
            echo "$package"
        fi
    done <<<"$rows"
}

only_list=false
if [[ ${1:-} == --list ]]; then
    only_list=true
    shift
fi
if [[ $# -eq 0 ]]; then
    echo "usage: scripts/deps.sh [--list] build|run|test|lint|bench..." >&2
    exit 2
fi

missing=()
for purpose in "$@"; do
    case $purpose in
    build | run | test | lint | bench) ;;
    *)
        echo "scripts/deps.sh: unknown purpose '$purpose' (build, run, test, lint, bench)" >&2
        exit 2
        ;;
    esac
    mapfile -t -O "${#missing[@]}" missing < <(list_missing "$purpose")
done

if [[ ${#missing[@]} -eq 0 ]]; then
    exit 0
fi
if $only_list; then
    printf '%s\n' "${missing[@]}"
    exit 0
fi
if [[ $(id -u) -ne 0 ]]; then
    echo "scripts/deps.sh: these Debian packages are missing, and installing them needs root:" >&2
    echo "    apt-get install ${missing[*]}" >&2
    exit 1
fi
if ! command -v apt-get >/dev/null; then
    echo "scripts/deps.sh: missing, and there is no apt-get here: ${missing[*]}" >&2
    exit 1
fi

echo "scripts/deps.sh: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
install=(apt-get install -y -q --no-install-recommends "${missing[@]}")
# The package lists of a fresh machine may be absent or old: fetch them once, then try again.
"${install[@]}" || { apt-get update -q && "${install[@]}"; }
