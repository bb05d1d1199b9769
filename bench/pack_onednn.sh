#!/bin/bash
# SPDX-License-Identifier: MIT
# Packs Debian's oneDNN (libdnnl2, and libgomp1, which it needs) into an archive, for machines that have none and cannot install
# it: bench/products.sh unpacks and uses it there (--onednn ARCHIVE). Nothing is installed on this machine. Needs apt-get, dpkg-deb
# and the network.
#
#   bench/pack_onednn.sh [--architecture amd64] [--output build/onednn-amd64.tar.xz]
set -euo pipefail
cd "$(dirname "$0")/.."
. bench/pack_debian.sh

pack_options onednn "$@"
pack_unpack libdnnl2 libgomp1
mkdir -p "${scratch:?}/lib"
find "$tree" -name '*.so.*' -exec cp -P {} "$scratch/lib" \;
pack_archive "$scratch/lib"
