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

# A row: the purpose, the package, and a probe that asks for what is used, in one of these forms:
#   COMMAND                    a command in the path
#   COMPILER <HEADER> [-lLIB]  a compiler that makes a program with this header and library
#   =LIBRARY                   a shared library that the loader finds by this name
#   perl @MODULE, python3 @MODULE   an interpreter that has this module
rows='
build      gcc              cc
build      libc6-dev        cc <threads.h>
build      make             make
build      binutils         objcopy
build      cmake            cmake
build      libdlpack-dev    cc <dlpack/dlpack.h>
build      libjansson-dev   cc <jansson.h> -ljansson
build      libxxhash-dev    cc <xxhash.h> -lxxhash
run        libopenblas0-pthread  =libopenblas.so.0
test       g++              c++ <string>
test       pkg-config       pkg-config
test       perl             perl @JSON::PP
test       perl             perl @File::Find
test       libopenblas0-pthread  =libopenblas.so.0
test       libdnnl2         =libdnnl.so.2
test       libopenmpi-dev   mpicc.openmpi <mpi.h>
test       openmpi-bin      mpirun.openmpi
test       libmpich-dev     mpicc.mpich <mpi.h>
test       mpich            mpirun.mpich
browser    chromium         chromium
browser    chromium-driver  chromedriver
browser    perl             perl @HTTP::Tiny
browser    perl             perl @JSON::PP
python     python3          python3
python     python3-pytest   python3 @pytest
python     python3-numpy    python3 @numpy
python     mypy             mypy
python     python3-mpi4py   python3 @mpi4py
python     openmpi-bin      mpirun.openmpi
python     g++              c++ <string>
python     python3-torch    python3 @torch
python     libtorch-dev     c++ <torch/csrc/api/include/torch/version.h>
python     pybind11-dev     c++ <pybind11/attr.h> -fsyntax-only -I/usr/include/python3.11
wheel      python3-build    python3 @build
wheel      python3-setuptools  python3 @setuptools
wheel      python3-wheel    python3 @wheel
wheel      python3-venv     python3 @ensurepip
lint       clang-format-14  clang-format-14
lint       clang-tidy-14    clang-tidy-14
lint       clang-14         clang-14 <threads.h>
lint       shellcheck       shellcheck
lint       perl             perl @File::Find
lint       perl             perl @JSON::PP
slurm      slurm-wlm        slurmctld
slurm      munge            munged
abi        abigail-tools    abidiff
abi        perl             perl @JSON::PP
fuzz       clang-14         clang-14 <threads.h>
fuzz       libclang-rt-14-dev  clang-14 <threads.h> -fsanitize=fuzzer-no-link,address,undefined
bench      libopenmpi-dev   mpicc.openmpi <mpi.h>
bench      openmpi-bin      mpirun.openmpi
bench      libmpich-dev     mpicc.mpich <mpi.h>
bench      mpich            mpirun.mpich
bench      python3-torch    python3 @torch
bench      perl             perl
bench      libopenblas0-pthread  =libopenblas.so.0
'

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# compiles COMPILER HEADER [-lLIB]: with everything that a program needs, not the header alone.
compiles() {
    local language=c
    [[ $1 == *++ ]] && language=c++
    "$1" -x "$language" - -o "$scratch/program" "${@:3}" >/dev/null 2>&1 <<<"#include $2
int main(void) { return 0; }"
}

# has_module INTERPRETER MODULE. Debian's Python may not be the first in the path.
has_module() {
    local python
    if [[ $1 == perl ]]; then
        perl "-M$2" -e 1 2>/dev/null
        return
    fi
    for python in python3 /usr/bin/python3; do
        if "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)' \
            "$2" 2>/dev/null; then
            return 0
        fi
    done
    return 1
}

# loads LIBRARY: the loader complains about what it should load first and does not find.
loads() {
    ! LD_PRELOAD=$1 "$(type -P true)" 2>&1 | grep -F "$1" >/dev/null
}

# is_present PROBE, in words
is_present() {
    case ${2:-} in
    '<'*'>') compiles "$@" ;;
    '@'*) has_module "$1" "${2#@}" ;;
    *)
        case $1 in
        '='*) loads "${1#=}" ;;
        *) command -v "$1" >/dev/null ;;
        esac
        ;;
    esac
}

# Prints the packages of one purpose whose probe finds nothing.
list_missing() {
    local wanted=$1 purpose package probe
    while read -r purpose package probe; do
        # shellcheck disable=SC2086 # the words of the probe
        if [[ $purpose == "$wanted" ]] && ! is_present $probe </dev/null; then
            echo "$package"
        fi
    done <<<"$rows"
}

# The same for several purposes, in `missing`.
find_missing() {
    local purpose
    mapfile -t missing < <(for purpose in "$@"; do list_missing "$purpose"; done | awk '!seen[$0]++')
}

only_list=false
if [[ ${1:-} == --list ]]; then
    only_list=true
    shift
fi
purposes=$(awk 'NF && !seen[$1]++ { print $1 }' <<<"$rows")
if [[ $# -eq 0 ]]; then
    echo "usage: scripts/deps.sh [--list] ${purposes//$'\n'/|}..." >&2
    exit 2
fi

for purpose in "$@"; do
    if ! grep -qxF -- "$purpose" <<<"$purposes"; then
        echo "scripts/deps.sh: unknown purpose '$purpose' (${purposes//$'\n'/, })" >&2
        exit 2
    fi
done
find_missing "$@"

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
find_missing "$@"
if [[ ${#missing[@]} -gt 0 ]]; then
    echo "scripts/deps.sh: installed, but what they are needed for is still not found: ${missing[*]}" >&2
    exit 1
fi
