# shellcheck shell=bash
# SPDX-License-Identifier: MIT
# Finds the MPI libraries that we are compared with, and builds the program that measures them. Scripts of this folder read it.
# It sets openmpi_run and mpich_run: the command that starts ranks, as an array, empty if the library is not there.
#
#   mpi_peers_find WORK [ARCHIVE]    WORK: where the programs go; ARCHIVE: MPICH, made by bench/pack_mpich.sh

measure_sources=(bench/measure/*.c src/base/clock.c src/base/option_parse.c)
measure_flags=(-std=c11 -D_GNU_SOURCE -O3 -DNDEBUG -Ibench -Isrc -Iinclude)

# Prints the names of the compiler and the launcher of an MPI library: with its name as a suffix, as Debian has
# them, or plain. Debian has the compiler in another package than the header.
find_mpi() {
    local name=$1 words=$2 suffix
    for suffix in ".$name" ""; do
        if "mpicc$suffix" -E -x c - <<<'#include <mpi.h>' >/dev/null 2>&1 && "mpirun$suffix" --version 2>/dev/null | grep "$words" >/dev/null; then
            echo "mpicc$suffix mpirun$suffix"
            return
        fi
    done
}

# build_mpi WORK NAME COMPILER...
build_mpi() {
    local work=$1 name=$2
    shift 2
    "$1" "${measure_flags[@]}" -o "$work/mpi_collectives.$name" bench/peers/mpi_collectives.c "${measure_sources[@]}" "${@:2}"
}

# From an archive: the libraries lie beside each other, those that MPICH loads by itself too.
use_mpich_archive() {
    local work=$1 archive=$2 tree=$1/mpich folder headers
    rm -rf "$tree"
    mkdir -p "$tree"
    tar -C "$tree" -xf "$archive" || return 1
    tree=$(realpath "$tree")
    folder=$(dirname "$(find "$tree" -name libmpich.so.12 | head -n 1)")
    headers=$(dirname "$(find "$tree" -name mpi.h | head -n 1)")
    build_mpi "$work" mpich cc "-I$headers" "$folder/libmpich.so.12" "-Wl,-rpath-link,$folder" -Wl,--allow-shlib-undefined ||
        return 1
    mpich_run=(env "LD_LIBRARY_PATH=$folder:$tree/lib/$(basename "$folder")" "$tree/usr/bin/mpiexec.hydra")
}

mpi_peers_find() {
    local work=$1 archive=${2:-} compiler launcher
    openmpi_run=()
    mpich_run=()
    read -r compiler launcher <<<"$(find_mpi openmpi 'Open MPI\|OpenRTE')"
    [[ -n $launcher ]] && build_mpi "$work" openmpi "$compiler" && openmpi_run=("$launcher")
    if [[ -n $archive ]]; then
        use_mpich_archive "$work" "$archive" || mpich_run=()
        return 0
    fi
    read -r compiler launcher <<<"$(find_mpi mpich HYDRA)"
    [[ -n $launcher ]] && build_mpi "$work" mpich "$compiler" && mpich_run=("$launcher")
    return 0
}

# The options with which Open MPI starts so many ranks: it wants to be told that root means it, and that more ranks than
# processors are meant.
set_openmpi_options() {
    openmpi_options=(--bind-to none)
    [[ $(id -u) -eq 0 ]] && openmpi_options+=(--allow-run-as-root)
    [[ $1 -gt $(nproc) ]] && openmpi_options+=(--oversubscribe)
    # It wants a remote shell even for ranks of this machine; any command will do.
    export OMPI_MCA_plm_rsh_agent=true
}

print_mpi_peers() {
    local openmpi=absent mpich=absent
    [[ ${#openmpi_run[@]} -gt 0 ]] && openmpi="$("${openmpi_run[@]}" --version | sed -n "1s/.* //p") ${openmpi_run[*]}"
    [[ ${#mpich_run[@]} -gt 0 ]] && mpich="$("${mpich_run[@]}" --version | sed -nE 's/^ *Version: *//p') ${mpich_run[*]}"
    echo "# openmpi: $openmpi"
    echo "# mpich: $mpich"
}
