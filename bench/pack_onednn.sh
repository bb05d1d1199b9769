#!/bin/bash
# SPDX-License-Identifier: MIT
# Packs Debian's oneDNN (libdnnl2, and libgomp1, which it needs) into an archive, for machines that have none and cannot install
# it: bench/products.sh unpacks and uses it there (--onednn ARCHIVE). Nothing is installed on this machine. Needs apt-get, dpkg-deb
# and the network.
#
#   bench/pack_onednn.sh [--architecture amd64] [--output build/onednn-amd64.tar.xz]
set -euo pipefail
cd "$(dirname "$0")/.."

architecture=$(dpkg --print-architecture)
output=
while [[ $# -gt 0 ]]; do
    case $1 in
    --architecture) architecture=$2 ;;
    --output) output=$2 ;;
    *)
        echo "bench/pack_onednn.sh: bad argument: $1" >&2
        exit 2
        ;;
    esac
    shift 2
done
output=${output:-build/onednn-$architecture.tar.xz}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
chmod 755 "$scratch"
mkdir -p "$scratch"/{lists/partial,cache/archives/partial,debs}
touch "$scratch/status"
options=(-o "APT::Architecture=$architecture" -o "APT::Architectures::=$architecture" -o "APT::Sandbox::User=$(id -un)"
    -o "Dir::State=$scratch" -o "Dir::State::Lists=$scratch/lists" -o "Dir::State::status=$scratch/status"
    -o "Dir::Cache=$scratch/cache")
apt-get -qq "${options[@]}" update
(cd "$scratch/debs" && apt-get -qq "${options[@]}" download libdnnl2 libgomp1)

for package in "$scratch"/debs/*.deb; do
    dpkg-deb -x "$package" "$scratch/tree"
done
mkdir -p "$scratch/lib" "$(dirname "$output")"
find "$scratch/tree" -name '*.so.*' -exec cp -P {} "$scratch/lib" \;
tar -C "$scratch/lib" -cJf "$output" .
echo "$output: $(du -h "$output" | cut -f1)"
