#!/bin/bash
# SPDX-License-Identifier: MIT
# Packs Debian's MPICH into an archive, for machines that have none and cannot install it: bench/beside.sh and bench/run.sh unpack
# and use it there (--mpich ARCHIVE). Nothing is installed on this machine. Needs apt-get, dpkg-deb and the network.
#
#   bench/pack_mpich.sh [--architecture amd64] [--output build/mpich-amd64.tar.xz]
set -euo pipefail
cd "$(dirname "$0")/.."

architecture=$(dpkg --print-architecture)
output=
while [[ $# -gt 0 ]]; do
    case $1 in
    --architecture) architecture=$2 ;;
    --output) output=$2 ;;
    *)
        echo "bench/pack_mpich.sh: bad argument: $1" >&2
        exit 2
        ;;
    esac
    shift 2
done
output=${output:-build/mpich-$architecture.tar.xz}
packages=(mpich libmpich12 libmpich-dev libucx0 libhwloc15 libslurm38 libnuma1 libudev1)

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
chmod 755 "$scratch"
mkdir -p "$scratch"/{lists/partial,cache/archives/partial,debs}
touch "$scratch/status"
options=(-o "APT::Architecture=$architecture" -o "APT::Architectures::=$architecture" -o "APT::Sandbox::User=$(id -un)"
    -o "Dir::State=$scratch" -o "Dir::State::Lists=$scratch/lists" -o "Dir::State::status=$scratch/status"
    -o "Dir::Cache=$scratch/cache")
apt-get -qq "${options[@]}" update
(cd "$scratch/debs" && apt-get -qq "${options[@]}" download "${packages[@]}")

tree=$scratch/tree
for package in "$scratch"/debs/*.deb; do
    dpkg-deb -x "$package" "$tree"
done
# What no benchmark needs: static libraries, Fortran and C++, documents.
find "$tree" \( -name '*.a' -o -name '*.mod' -o -name '*fort*.so*' -o -name '*mpichcxx*' -o -name '*.py' \) -delete
rm -rf "${tree:?}/usr/share" "${tree:?}/etc"
mkdir -p "$(dirname "$output")"
tar -C "$tree" -cJf "$output" .
echo "$output: $(du -h "$output" | cut -f1)"
