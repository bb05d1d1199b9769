# shellcheck shell=bash
# SPDX-License-Identifier: MIT
# Debian's packages unpacked on this machine without installing them, to be sourced by bench/pack_*.sh. Needs apt-get, dpkg-deb
# and the network.
#
#   pack_options NAME ARGUMENTS...    reads --architecture and --output, into $architecture and $output
#                                     (build/NAME-ARCHITECTURE.tar.xz)
#   pack_unpack PACKAGE...            unpacks them into $tree, in the folder $scratch that is removed at the end
#   pack_archive FOLDER               packs its files into $output

pack_options() {
    local name=$1
    shift
    architecture=$(dpkg --print-architecture)
    output=
    while [[ $# -gt 0 ]]; do
        case $1 in
        --architecture) architecture=$2 ;;
        --output) output=$2 ;;
        *)
            echo "bench/pack_$name.sh: bad argument: $1" >&2
            exit 2
            ;;
        esac
        shift 2
    done
    output=${output:-build/$name-$architecture.tar.xz}
}

pack_unpack() {
    local package
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    chmod 755 "$scratch"
    mkdir -p "$scratch"/{lists/partial,cache/archives/partial,debs}
    touch "$scratch/status"
    local options=(-o "APT::Architecture=$architecture" -o "APT::Architectures::=$architecture"
        -o "APT::Sandbox::User=$(id -un)" -o "Dir::State=$scratch" -o "Dir::State::Lists=$scratch/lists"
        -o "Dir::State::status=$scratch/status" -o "Dir::Cache=$scratch/cache")
    apt-get -qq "${options[@]}" update
    (cd "$scratch/debs" && apt-get -qq "${options[@]}" download "$@")
    tree=$scratch/tree
    for package in "$scratch"/debs/*.deb; do
        dpkg-deb -x "$package" "$tree"
    done
}

pack_archive() {
    mkdir -p "$(dirname "$output")"
    tar -C "$1" -cJf "$output" .
    echo "$output: $(du -h "$output" | cut -f1)"
}
