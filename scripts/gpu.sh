#!/bin/bash
# SPDX-License-Identifier: MIT
# Device `cuda` on a machine with a GPU. A run does what is left, for at most LIMIT_S seconds (540), and says what is missing;
# call it again until it says "all done".
#
#   scripts/gpu.sh pack              here: build/gpu-ARCHITECTURE.tar.xz, the headers and libraries of Debian that a GPU machine
#                                    may lack, to be carried there
#   scripts/gpu.sh run [PART...]     there: builds, and tries what needs no driver for tests. Parts: build facts kernels sanitizer
#   scripts/gpu.sh report            there: what was done, from build/gpu-check
#
# COMPUTE_SANITIZER   the program (default: compute-sanitizer, in the PATH or below /usr/local/cuda)
set -euo pipefail
cd "$(dirname "$0")/.."

state=$PWD/build/gpu-check
end=$((SECONDS + ${LIMIT_S:-540}))
mkdir -p "$state"

is_done() { [[ -e $state/done.$1 ]]; }
finish() { touch "$state/done.$1"; }
# need SECONDS PART: whether there is time to begin something.
need() {
    [[ $((end - SECONDS)) -ge $1 ]] && return
    echo "gpu.sh: $2 goes on with the next call"
    return 1
}

pack() {
    # shellcheck source=bench/pack_debian.sh
    . bench/pack_debian.sh
    pack_options gpu "$@"
    pack_unpack libjansson4 libjansson-dev libxxhash0 libxxhash-dev libdlpack-dev
    pack_archive "$tree"
}

# The programs that compare kernels with the CPU's: they reach memory of the device by copies only.
kernel_tests='copy elements lists move reduce sum update'

part_build() {
    local archive targets
    archive=$(find build -maxdepth 1 -name 'gpu-*.tar.xz' | head -n 1)
    if [[ ! -e /usr/include/jansson.h && -n $archive ]]; then
        tar -C / -xJf "$archive"
    fi
    cmake --preset dev >"$state/build.log" 2>&1
    read -r -a targets <<<"$kernel_tests"
    targets=("${targets[@]/#/test_unit_cuda_}")
    cmake --build --preset dev -j "$(nproc)" --target shoal_cuda shoal_tool "${targets[@]}" >>"$state/build.log" 2>&1 ||
        { tail -n 20 "$state/build.log" && return 1; }
    finish build
}

# What the driver and the GPU are, and how long the first kernels take to load.
part_facts() {
    {
        nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
        build/dev/bin/shoal info | grep -A1 '^device'
        cat /proc/sys/kernel/yama/ptrace_scope 2>/dev/null || echo "no yama"
    } 2>&1 | tee "$state/facts.txt"
    finish facts
}

run_kernel_tests() {
    local name failed=0
    for name in $kernel_tests; do
        need 60 "$1" || return 0
        if SHOAL_MODULE_PATH=$PWD/build/dev/lib/shoal "${@:2}" "build/dev/tests/unit/cuda/${name}_test" \
            >"$state/$1.$name.txt" 2>&1; then
            echo "$1: $name ok"
        else
            echo "$1: $name FAILED" && tail -n 5 "$state/$1.$name.txt"
            failed=1
        fi
    done
    [[ $failed -eq 0 ]] && finish "$1"
}

part_kernels() { run_kernel_tests kernels env; }

part_sanitizer() {
    local sanitizer=${COMPUTE_SANITIZER:-$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)}
    if [[ -z $sanitizer ]]; then
        echo "sanitizer: not run: there is no compute-sanitizer" | tee "$state/sanitizer.txt"
        finish sanitizer
        return
    fi
    run_kernel_tests sanitizer "$sanitizer" --error-exitcode 9
}

run() {
    local parts=("$@") part
    [[ ${#parts[@]} -gt 0 ]] || parts=(build facts kernels sanitizer)
    for part in "${parts[@]}"; do
        is_done "$part" || "part_$part"
    done
    for part in "${parts[@]}"; do
        is_done "$part" || return 0
    done
    echo "all done"
}

report() {
    local file
    for file in "$state"/*.txt; do
        echo "== $(basename "$file" .txt)"
        tail -n 12 "$file"
    done
}

case ${1:-} in
pack | run | report) "$@" ;;
*)
    echo "usage: scripts/gpu.sh pack | run [PART...] | report" >&2
    exit 2
    ;;
esac
