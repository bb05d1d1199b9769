#!/bin/bash
# SPDX-License-Identifier: MIT
# Packs Debian's MPICH into an archive, for machines that have none and cannot install it: bench/beside.sh and bench/run.sh unpack
# and use it there (--mpich ARCHIVE). Nothing is installed on this machine. Needs apt-get, dpkg-deb and the network.
#
#   bench/pack_mpich.sh [--architecture amd64] [--output build/mpich-amd64.tar.xz]
set -euo pipefail
cd "$(dirname "$0")/.."
. bench/pack_debian.sh

pack_options mpich "$@"
pack_unpack mpich libmpich12 libmpich-dev libucx0 libhwloc15 libslurm38 libnuma1 libudev1
# What no benchmark needs: static libraries, Fortran and C++, documents.
find "$tree" \( -name '*.a' -o -name '*.mod' -o -name '*fort*.so*' -o -name '*mpichcxx*' -o -name '*.py' \) -delete
rm -rf "${tree:?}/usr/share" "${tree:?}/etc"
pack_archive "$tree"
