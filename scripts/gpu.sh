#!/bin/bash
# SPDX-License-Identifier: MIT
# Device `cuda` on a machine with a GPU. A run does what is left, for at most LIMIT_S seconds (540), and says what is missing;
# call it again until it says "all done". A part that fails does not keep the others from running.
#
#   scripts/gpu.sh pack              here: build/gpu-ARCHITECTURE.tar.xz, the headers and libraries of Debian that a GPU machine
#                                    may lack, to be carried there
#   scripts/gpu.sh run [PART...]     there. Parts, in this order:
#                                      build      the tool and the benchmarks; the tests, for the GPU's driver
#                                      facts      GPU, driver, compilers, what `shoal info` says; the module's types beside cuda.h
#                                      kernels    kernels beside the CPU's, bit by bit: from machine code, and from PTX
#                                      host       the host's time of a unit, and how often it calls the driver
#                                      load       how long kernels take to load
#                                      torch_host FSDP2's time of a unit
#                                      bench      kernels and PyTorch's, in turns, twice; ours from PTX too
#                                      large      bits of tensors with more than 4 GiB
#                                      exchanges  tensors that go to PyTorch and back, on streams of both; an example that trains
#                                      tests      every test that has a variant for the driver for tests, on the GPU's
#                                      sanitizer  the tests of kernels under compute-sanitizer
#   scripts/gpu.sh report            what was done, from build/gpu-check; also into build/gpu-check/report.txt
#   scripts/gpu.sh again PART...     forgets that these were done
#
# Everything is kept in build/gpu-check. If OUT names a folder, the report and an archive of all that was printed are put there
# too. The archive, unpacked in build, lets another run go on where the one that made it has stopped.
#
# PYTHON              the Python that has PyTorch (default: python3); without PyTorch its parts say so
# COMPUTE_SANITIZER   the program (default: compute-sanitizer, in the PATH or below /usr/local/cuda)
# GPU_JOBS            tests that run at a time (half of the processors)
# GPU_TESTS           only those of the part tests whose names match this expression
# GPU_DRIVER          another driver than libcuda.so.1, to try this script where there is no GPU: tests/fakecuda. Sizes are
#                     small then, and what is printed is no result
# COMMIT              what is built, where there is no git
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

all=(build facts kernels host load torch_host bench large exchanges tests sanitizer)
state=$PWD/build/gpu-check
limit=${LIMIT_S:-540}
end=$((SECONDS + limit))
python=${PYTHON:-python3}
jobs=${GPU_JOBS:-$((($(nproc) + 1) / 2))}
driver=${GPU_DRIVER:-libcuda.so.1}
gpu=$PWD/build/bench/gpu
tests=$PWD/build/dev/tests
mkdir -p "$state"

is_trial() { [[ -n ${GPU_DRIVER:-} ]]; }
is_done() { [[ -e $state/done.$1 ]]; }
finish() { touch "$state/done.$1"; }
left() { echo $((end - SECONDS)); }
# need SECONDS PART: whether there is time to begin something.
need() {
    [[ $(left) -ge $1 ]] && return
    echo "gpu.sh: $2 goes on with the next call"
    is_postponed=true
    return 1
}
# limited SECONDS COMMAND...: at most so long, and not longer than this call may take.
limited() {
    local seconds=$1
    shift
    ((seconds > $(left))) && seconds=$(left)
    timeout -k 5 "$((seconds > 5 ? seconds : 5))" "$@"
}

pack() {
    # shellcheck source=bench/pack_debian.sh
    . bench/pack_debian.sh
    pack_options gpu "$@"
    pack_unpack libjansson4 libjansson-dev libxxhash0 libxxhash-dev libdlpack-dev
    pack_archive "$tree"
}

# Building ---------------------------------------------------------------------------------------------------------------------

has_headers() {
    echo '#include <jansson.h>
#include <xxhash.h>
#include <dlpack/dlpack.h>' | "${CC:-cc}" -fsyntax-only -x c - 2>/dev/null
}

find_ptxas() {
    local found
    for found in "$(command -v ptxas)" /usr/local/cuda/bin/ptxas /usr/local/cuda-*/bin/ptxas \
        "$("$python" -c 'import triton, os; print(os.path.dirname(triton.__file__))' 2>/dev/null)/backends/nvidia/bin/ptxas"; do
        [[ -x $found ]] && echo "$found" && return
    done
}

build_release() {
    local ptxas options=()
    ptxas=$(find_ptxas)
    [[ -n $ptxas ]] && options=("-DSHOAL_PTXAS=$ptxas")
    cmake --preset release "${options[@]}" &&
        cmake --build --preset release -j "$(nproc)" --target shoal_tool gpu_benchmarks
}

# Warnings of a compiler that we do not know are no reason to stop.
build_tests() {
    local ptxas options=()
    ptxas=$(find_ptxas)
    [[ -n $ptxas ]] && options+=("-DSHOAL_PTXAS=$ptxas")
    is_trial || options+=(-DSHOAL_WERROR=OFF -DSHOAL_TEST_TIME_SCALE=5 -DSHOAL_TEST_CUDA=gpu)
    cmake --preset dev "${options[@]}" &&
        cmake --build --preset dev -j "$(nproc)" --target apart_programs shoal_realcuda test_unit_cuda
}

# Done again on a new machine, whatever has been kept of an older one.
part_build() {
    local archive failed=0 release
    archive=$(find build -maxdepth 1 -name 'gpu-*.tar.xz' | head -n 1)
    if ! has_headers && [[ -n $archive ]]; then
        tar -C / --no-overwrite-dir --keep-directory-symlink -xJf "$archive" && ldconfig
    fi
    build_release >"$state/build.log" 2>&1 &
    release=$!
    build_tests >"$state/build_tests.log" 2>&1 || failed=1
    wait "$release" || failed=1
    if [[ $failed -ne 0 ]]; then
        grep -hE 'error|Error' "$state/build.log" "$state/build_tests.log" | head -n 20
        tail -n 5 "$state/build.log" "$state/build_tests.log"
        return 1
    fi
    echo "build: $(grep -h warning: "$state"/build*.log | sort -u | wc -l) warnings"
    touch build/gpu-built
}

# Facts ------------------------------------------------------------------------------------------------------------------------

part_facts() {
    {
        nvidia-smi --query-gpu=name,driver_version,memory.total,compute_mode --format=csv,noheader \
            2>/dev/null || echo "no nvidia-smi"
        echo "kernel $(uname -r), $(nproc) processors, $("${CC:-cc}" --version | head -n 1)"
        echo "ptxas: $("$(find_ptxas)" --version 2>/dev/null | tail -n 2 | head -n 1 || echo none)"
        "$python" -c 'import torch; print("torch", torch.__version__, torch.cuda.is_available() and torch.cuda.get_device_name())' \
            2>/dev/null || echo "no torch"
        SHOAL_CUDA=$driver build/bin/shoal info | grep -A1 '^device  '
        echo "ptrace_scope: $(cat /proc/sys/kernel/yama/ptrace_scope 2>/dev/null || echo "no yama")"
        echo "types beside cuda.h: $("$tests/unit/cuda/abi_test" 2>&1 | tail -n 1)"
    } >"$state/facts.txt" 2>&1
    cat "$state/facts.txt"
    finish facts
}

# Kernels ----------------------------------------------------------------------------------------------------------------------

# The programs that compare kernels with the CPU's: they reach memory of the device by copies only.
kernel_tests='copy elements lists move reduce sum update'

# And the calls of shoal/cuda.h, on the module of the tests, which has what some of them need.
programs_of() { if [[ $1 == ptx ]]; then echo "$kernel_tests"; else echo "$kernel_tests calls"; fi; }

# kernel_test SECONDS NAME MODULES INTO PROGRAM...: one of them, below a program.
kernel_test() {
    local seconds=$1 name=$2 modules=$3 into=$4 begin=$SECONDS status=0
    shift 4
    SHOAL_CUDA=$driver SHOAL_MODULE_PATH=$modules SHOAL_TEST_SOURCE_DIR=$PWD SHOAL_TEST_TIME_SCALE=20 limited "$seconds" "$@" "$tests/unit/cuda/${name}_test" >"$into.txt" 2>&1 || status=$?
    echo "$status $((SECONDS - begin))" >"$into.status"
}

part_kernels() {
    local name kind modules status seconds failed=0 n=0
    need 60 kernels || return 0
    for kind in cubin ptx; do
        modules=$PWD/build/dev/lib/shoal
        [[ $kind == ptx ]] && modules=$gpu/ptx
        for name in $(programs_of "$kind"); do
            [[ -e $state/kernels.$kind.$name.status ]] || kernel_test 120 "$name" "$modules" "$state/kernels.$kind.$name" env &
        done
        wait
        for name in $(programs_of "$kind"); do
            n=$((n + 1))
            read -r status seconds <"$state/kernels.$kind.$name.status"
            if [[ $status -ne 0 ]]; then
                echo "kernels from $kind: $name FAILED ($status) after $seconds s" && tail -n 6 "$state/kernels.$kind.$name.txt"
                failed=$((failed + 1))
            fi
        done
    done
    echo "kernels: $failed of $n programs failed"
    finish kernels
}

# Benchmarks -------------------------------------------------------------------------------------------------------------------

# once FILE SECONDS COMMAND...: writes FILE, and standard error and output beside it, unless it is there. {} is the file. What
# there is of one that failed is kept under another name.
once() {
    local file=$1 name=${1%.jsonl} seconds=$2 status=0
    shift 2
    [[ -e $state/$file ]] && return 0
    need "$seconds" "$file" || return 1
    rm -f "$state/now"
    limited $((4 * seconds)) "${@/\{\}/$state/now}" >"$state/$name.out" 2>"$state/$name.err" || status=$?
    [[ -e $state/now ]] || cp "$state/$name.out" "$state/now"
    if [[ $status -eq 0 || $status -eq 3 ]]; then
        mv "$state/now" "$state/$file"
        rm -f "$state/$name.partial"
        echo "$file: $(wc -l <"$state/$file") rows$([[ $status -eq 3 ]] && echo ', SOME ARE WRONG')"
    else
        mv "$state/now" "$state/$name.partial"
        echo "$file FAILED ($status): $(tail -n 2 "$state/$name.err" | tr '\n' ' ' | cut -c1-300)"
    fi
}

small_kernels=()
small_host=()
small_torch=()
if is_trial; then
    small_kernels=(--divisor 4096 --samples 1)
    small_host=(--units 2 --steps 2)
    small_torch=(--device cpu --divisor 4000 --samples 1)
fi

part_host() {
    export SHOAL_MODULE_PATH=$PWD/build/lib/shoal
    once host.1.jsonl 20 env SHOAL_CUDA="$driver" "$gpu/gpu_host" "${small_host[@]}" --json '{}' &&
        once counted.jsonl 20 env SHOAL_CUDA="$gpu/libgpu_counted.so" COUNTED_DRIVER="$driver" "$gpu/gpu_host" "${small_host[@]}" --steps 20 --json '{}' &&
        once host.2.jsonl 20 env SHOAL_CUDA="$driver" "$gpu/gpu_host" "${small_host[@]}" --json '{}' &&
        finish host
}

# The driver keeps what it has compiled in a folder: empty, then as the run before has left it.
part_load() {
    local kind modules run cache
    for kind in cubin ptx; do
        modules=$PWD/build/lib/shoal
        [[ $kind == ptx ]] && modules=$gpu/ptx
        cache=$state/cache.$kind
        for run in cold warm warm2; do
            [[ $run == cold && ! -e $state/load.cold-$kind.jsonl ]] && rm -rf "$cache"
            once "load.$run-$kind.jsonl" 15 env CUDA_CACHE_PATH="$cache" SHOAL_MODULE_PATH="$modules" SHOAL_CUDA="$gpu/libgpu_counted.so" \
                COUNTED_DRIVER="$driver" SHOAL_LOG=info "$gpu/gpu_host" --load yes --json '{}' || return
        done
    done
    rm -rf "$state"/cache.*
    finish load
}

has_torch() {
    "$python" -c 'import torch' 2>/dev/null && return
    echo "no torch for $1" | tee "$state/no_torch.txt"
    return 1
}

part_torch_host() {
    has_torch torch_host || { finish torch_host && return; }
    local options=()
    is_trial && options=(--device cpu --units 2 --steps 2)
    once torch_host.jsonl 60 "$python" bench/gpu/torch_host.py "${options[@]}" && finish torch_host
}

part_bench() {
    local run
    export SHOAL_CUDA=$driver SHOAL_MODULE_PATH=$PWD/build/lib/shoal
    for run in 1 2; do
        once "kernels.$run.jsonl" 60 "$gpu/gpu_kernels" "${small_kernels[@]}" --json '{}' || return
        [[ $run == 1 ]] && { has_torch bench || continue; }
        [[ -e $state/no_torch.txt ]] ||
            once "torch.$run.jsonl" 60 "$python" bench/gpu/torch_kernels.py "${small_torch[@]}" || return
    done
    SHOAL_MODULE_PATH=$gpu/ptx once jit.jsonl 60 "$gpu/gpu_kernels" "${small_kernels[@]}" --json '{}' || return
    unset SHOAL_CUDA SHOAL_MODULE_PATH
    finish bench
}

part_large() {
    SHOAL_CUDA=$driver SHOAL_MODULE_PATH=$PWD/build/lib/shoal once large.jsonl 90 "$gpu/gpu_kernels" "${small_kernels[@]}" --large yes --json '{}' &&
        finish large
}

# exchange NAME COMMAND...: what it says last, and how it has ended, into NAME.txt.
exchange() {
    local into=$state/exchanges.$1.txt status=0
    shift
    PYTHONPATH=$PWD/python SHOAL_LIBRARY=$PWD/build/lib/libshoal.so.0.1 limited 150 "$python" "$@" >"$into" 2>&1 || status=$?
    echo "status $status" >>"$into"
    tail -n 2 "$into"
}

part_exchanges() {
    local options=()
    has_torch exchanges || { finish exchanges && return; }
    need 100 exchanges || return
    is_trial && options=(--device cpu)
    exchange random python/tests/torch_dlpack_gpu.py --count 1000 "${options[@]}"
    exchange example python/examples/torch_gpu.py --steps 60 "${options[@]}"
    exchange example_one_stream python/examples/torch_gpu.py --steps 60 --one-stream "${options[@]}"
    finish exchanges
}

report_exchanges() {
    local name
    for name in random example example_one_stream; do
        [[ -e $state/exchanges.$name.txt ]] && echo "$name: $(tail -n 3 "$state/exchanges.$name.txt" | paste -sd'|')"
    done
}

# Tests ------------------------------------------------------------------------------------------------------------------------

# One test, if there is time for it; "NAME RESULT SECONDS" becomes a line of tests.tsv. Of those that pass, only why something
# was skipped is kept.
run_test() {
    local name=$1 state=$2 last=$3 log result begin=$SECONDS
    [[ $(date +%s) -gt $last ]] && return
    log=$state/tests/${name//\//_}.txt
    ctest --test-dir build/dev -V -R "^$name\$" --timeout "$TEST_SECONDS" >"$log" 2>&1
    result=$(grep -oE '(Passed|\*\*\*[A-Za-z]+)' "$log" | head -n 1 | tr -d '*')
    grep -hE '^[0-9]+: skip ' "$log" | sed "s|^[0-9]*: skip |$name: |" >>"$state/skipped.txt"
    [[ $result == Passed || $result == Skipped ]] && rm -f "$log"
    printf '%s\t%s\t%s\n' "$name" "${result:-none}" "$((SECONDS - begin))" >>"$state/tests.tsv"
}
export -f run_test
export TEST_SECONDS=160

part_tests() {
    local last
    mkdir -p "$state/tests"
    touch "$state/tests.tsv" "$state/skipped.txt"
    # Those of kernels were another part. The longest come last.
    ctest --test-dir build/dev -N -L fakecuda | sed -nE 's/^ +Test +#[0-9]+: //p' | grep -E "${GPU_TESTS:-.}" |
        grep -vE '^unit/cuda/|/fakecuda$' >"$state/tests.some"
    { grep -v /whole/ "$state/tests.some" && grep /whole/ "$state/tests.some"; } >"$state/tests.list"
    need "$((TEST_SECONDS + 10))" tests || return 0
    last=$(($(date +%s) + $(left) - TEST_SECONDS - 10))
    cut -f1 "$state/tests.tsv" | grep -vxF -f - "$state/tests.list" >"$state/tests.some"
    # shellcheck disable=SC2016
    xargs -P "$jobs" -I{} bash -c 'run_test "$@"' run_test {} "$state" "$last" <"$state/tests.some"
    echo "tests: $(wc -l <"$state/tests.tsv") of $(wc -l <"$state/tests.list"), $(count_tests)"
    if [[ $(wc -l <"$state/tests.tsv") -ge $(wc -l <"$state/tests.list") ]]; then
        finish tests
    else
        echo "gpu.sh: tests goes on with the next call"
    fi
}

count_tests() {
    cut -f2 "$state/tests.tsv" 2>/dev/null | sort | uniq -c | awk '{ printf "%s%s %s", separator, $1, $2; separator = ", " }'
}

# Sanitizer --------------------------------------------------------------------------------------------------------------------

sanitizer_tools='memcheck racecheck initcheck'

# sanitize TOOL NAME: one program; what it says of errors is kept, and whether it was cut off.
sanitize() {
    local into=$state/sanitizer.$1.$2
    kernel_test 400 "$2" "$gpu/ptx" "$into" "$sanitizer" --tool "$1" --error-exitcode 9 --print-limit 20
}

part_sanitizer() {
    local tool name
    sanitizer=${COMPUTE_SANITIZER:-$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null || true)}
    if [[ -z $sanitizer ]]; then
        echo "sanitizer: not run: there is no compute-sanitizer" | tee "$state/no_sanitizer.txt"
        finish sanitizer
        return
    fi
    for tool in $sanitizer_tools; do
        for name in $kernel_tests; do
            [[ -e $state/sanitizer.$tool.$name.status ]] && continue
            while [[ $(jobs -rp | wc -l) -ge $(nproc) ]]; do wait -n || true; done
            need 150 sanitizer || { wait && return 0; }
            sanitize "$tool" "$name" &
        done
    done
    wait
    report_sanitizer
    finish sanitizer
}

# What one of its runs has shown.
judge_sanitizer() {
    local into=$state/sanitizer.$1.$2 status seconds errors
    [[ -e $into.status ]] || { echo "not run" && return; }
    read -r status seconds <"$into.status"
    errors=$(grep -cE '^=+ +(Invalid|Uninitialized|Error: |Warning: |Program hit|Race)' "$into.txt")
    if grep -qiE 'device not supported|failed to initialize|unable to' "$into.txt"; then
        echo "not run: $(grep -iE 'device not supported|failed to initialize|unable to' "$into.txt" | head -n 1 | cut -c1-100)"
    elif [[ $status -eq 0 ]]; then
        echo "clean"
    elif [[ $status -eq 124 || $status -eq 137 ]]; then
        echo "$errors errors in $seconds s, then it was cut off"
    else
        echo "FAILED ($status), $errors errors: $(grep -E '^=+ +(Invalid|Uninitialized|Error: |Warning: |Program hit|Race)' "$into.txt" | head -n 1 | cut -c1-120)"
    fi
}

report_sanitizer() {
    local tool name
    [[ -e $state/no_sanitizer.txt ]] && cat "$state/no_sanitizer.txt" && return
    for tool in $sanitizer_tools; do
        for name in $kernel_tests; do
            printf '%-10s %-9s %s\n' "$tool" "$name" "$(judge_sanitizer "$tool" "$name")"
        done
    done
}

# Reports ----------------------------------------------------------------------------------------------------------------------

report_kernels() {
    local kind name status seconds
    for kind in cubin ptx; do
        for name in $(programs_of "$kind"); do
            [[ -e $state/kernels.$kind.$name.status ]] || continue
            read -r status seconds <"$state/kernels.$kind.$name.status"
            printf '%-6s %-9s %-28s %s\n' "$kind" "$name" "$(tail -n 1 "$state/kernels.$kind.$name.txt" | cut -c1-60)" \
                "$([[ $status -eq 0 ]] && echo "ok, $seconds s" || echo "FAILED ($status)")"
        done
    done
}

report_tests() {
    echo "$(wc -l <"$state/tests.tsv" 2>/dev/null || echo 0) of $(wc -l <"$state/tests.list" 2>/dev/null || echo '?') tests: $(count_tests)"
    grep -vP '\t(Passed|Skipped)\t' "$state/tests.tsv" 2>/dev/null | sed 's/^/    /'
    if [[ -s $state/skipped.txt ]]; then
        echo "cases that were skipped, by reason:"
        sed 's/^[^:]*: [^:]*: //' "$state/skipped.txt" | sort | uniq -c | sort -rn | sed 's/^/    /'
    fi
}

print_report() {
    local part
    echo "# command: scripts/gpu.sh run"
    echo "# date: $(date -u +%F)"
    echo "# commit: ${COMMIT:-$(git describe --always --dirty 2>/dev/null || echo unknown)}"
    is_trial && echo "# on a driver for tests: no results"
    for part in "${all[@]}"; do
        is_part_done "$part" || echo "# not finished: $part"
    done
    echo && echo "== facts" && cat "$state/facts.txt" 2>/dev/null
    echo && "$python" bench/gpu/table.py "$state"
    echo "== kernels beside the CPU's" && report_kernels
    echo && echo "== exchanges with PyTorch by DLPack, and examples/torch_gpu.py" && report_exchanges
    echo && echo "== tests" && report_tests
    echo && echo "== compute-sanitizer" && report_sanitizer
}

report() {
    print_report 2>&1 | tee "$state/report.txt"
}

# What is known so far, where whoever has started this finds it.
save() {
    [[ -n ${OUT:-} && -d ${OUT:-} ]] || return 0
    print_report >"$state/report.txt" 2>&1
    cp "$state/report.txt" "$OUT/report.txt"
    tar -C build --exclude='gpu-check/cache.*' -czf "$OUT/gpu-check.tar.gz" gpu-check
}

# Running ----------------------------------------------------------------------------------------------------------------------

is_part_done() {
    if [[ $1 == build ]]; then
        [[ -e build/gpu-built && -x build/bin/shoal ]]
    else
        is_done "$1"
    fi
}

run() {
    local parts=("$@") part begin missing=()
    [[ ${#parts[@]} -gt 0 ]] || parts=("${all[@]}")
    for part in "${parts[@]}"; do
        if ! declare -F "part_$part" >/dev/null; then
            echo "gpu.sh: no part '$part' (${all[*]})" >&2
            exit 2
        fi
        is_part_done "$part" && continue
        begin=$SECONDS
        is_postponed=false
        "part_$part" || [[ $is_postponed == true ]] || echo "gpu.sh: $part FAILED"
        echo "gpu.sh: $part: $((SECONDS - begin)) s, $(left) s are left"
        save
        # Nothing else can run without it.
        [[ $part == build ]] && ! is_part_done build && break
    done
    for part in "${parts[@]}"; do
        is_part_done "$part" || missing+=("$part")
    done
    if [[ ${#missing[@]} -gt 0 ]]; then
        echo "gpu.sh: missing: ${missing[*]}: call it again"
    else
        echo "gpu.sh: all done: scripts/gpu.sh report"
    fi
}

again() {
    local part
    for part in "$@"; do
        case $part in
        build) rm -f build/gpu-built ;;
        bench) rm -f "$state"/{done.bench,kernels.[0-9]*.jsonl,torch.[0-9]*.jsonl,jit.jsonl,kernels.?.partial,torch.?.partial,jit.partial} ;;
        host) rm -f "$state"/{done.host,host.*.jsonl,counted.jsonl} ;;
        load) rm -f "$state"/{done.load,load.*.jsonl} ;;
        torch_host) rm -f "$state"/{done.torch_host,torch_host.jsonl} ;;
        large) rm -f "$state"/{done.large,large.jsonl} ;;
        exchanges) rm -f "$state"/{done.exchanges,exchanges.*} ;;
        tests) rm -f "$state"/{done.tests,tests.tsv,skipped.txt} ;;
        kernels) rm -f "$state"/{done.kernels,kernels.cubin.*,kernels.ptx.*} ;;
        sanitizer) rm -f "$state"/{done.sanitizer,sanitizer.*} ;;
        *) rm -f "$state/done.$part" ;;
        esac
    done
}

case ${1:-} in
pack | run | report | again) "$@" ;;
*)
    echo "usage: scripts/gpu.sh pack | run [PART...] | report | again PART..." >&2
    exit 2
    ;;
esac
