#!/bin/bash
# SPDX-License-Identifier: MIT
# The backend of torch.distributed on a torch that Debian does not have (2.x), on a machine with many cores. Every call
# does what is left, for at most LIMIT_S seconds (540), and says what is missing; call it again until it says "all done".
#
#   scripts/torch.sh [PART...]        parts: build tests own4 own8 gloo4 gloo8 sources bench; default: all
#   scripts/torch.sh --report         writes the report of what was done: build/torch-check/report.txt
#
# PYTHON          the Python that has this torch (default: python3)
# PYTORCH_SOURCE  a checkout of PyTorch, for the part `sources`: the tests listed below (or in SOURCE_TESTS), on Gloo and on Shoal.
#                 A copy of each imports python/tests/torch_instead.py: Shoal where it names Gloo, forked ranks
# RANKS           of the benchmark (8)
# SOURCE_JOBS     files of the part `sources` that run at once (4)
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
state=$PWD/build/torch-check
end=$((SECONDS + ${LIMIT_S:-540}))
export SHOAL_LIBRARY=$PWD/build/lib/libshoal.so.0.1 SHOAL_TOOL=$PWD/build/bin/shoal PYTHONPATH=$PWD/python${PYTHONPATH:+:$PYTHONPATH}
export SHOAL_TORCH_CACHE=$state/cache PYTHONDONTWRITEBYTECODE=1
mkdir -p "$state"

# Files of test/distributed whose ranks meet on Gloo where there is no GPU: collectives, functional collectives, FSDP2, DTensor,
# tensor parallelism, checkpoints.
source_tests='
test_c10d_object_collectives.py
test_collective_utils.py
test_device_mesh.py
test_inductor_collectives.py
_composable/test_replicate.py
_composable/fsdp/test_fully_shard_init.py
_composable/fsdp/test_fully_shard_state_dict.py
_composable/fsdp/test_fully_shard_training.py
tensor/test_dtensor.py
tensor/test_redistribute.py
tensor/test_init.py
tensor/test_api.py
tensor/test_matrix_ops.py
tensor/test_tensor_ops.py
tensor/test_pointwise_ops.py
tensor/test_math_ops.py
tensor/test_embedding_ops.py
tensor/test_optimizers.py
tensor/parallel/test_tp_style.py
tensor/parallel/test_tp_examples.py
tensor/parallel/test_parallelize_api.py
checkpoint/test_checkpoint.py
checkpoint/test_file_system_checkpoint_cpu.py
checkpoint/test_dtensor_checkpoint.py
checkpoint/test_dtensor_resharding.py
checkpoint/test_save_load_api.py
checkpoint/test_state_dict.py
checkpoint/test_utils.py
'

left() { echo $((end - SECONDS)); }
is_done() { [[ -e $state/done.$1 ]]; }
finish() { touch "$state/done.$1"; }
# need SECONDS PART: whether there is time to begin something.
need() {
    [[ $(left) -ge $1 ]] && return
    echo "torch.sh: $2 goes on with the next call"
    return 1
}

part_build() {
    make --no-print-directory all >"$state/build.log" 2>&1 || { tail -20 "$state/build.log" && return 1; }
    "$python" -m shoal.torch build 2>&1 | tee "$state/build.txt"
    {
        "$python" -c 'import torch, sys; print("torch", torch.__version__, "Python", sys.version.split()[0])'
        echo "machine: $(nproc) cores, $(uname -m); Shoal $(git describe --always --dirty 2>/dev/null || echo '?'); $(date +%F)"
    } >"$state/machine.txt"
    finish build
}

part_tests() {
    need 200 tests || return 0
    (cd python && "$python" -m pytest -rP -p no:cacheprovider tests/test_torch_*.py --deselect tests/test_torch_own.py) \
        2>&1 | tee "$state/tests.txt" | tail -5
    finish tests
}

# own BACKEND RANKS: PyTorch's distributed_test.py, every test once, one after the other.
own() {
    local backend=$1 ranks=$2 results=$state/own.$1.$2.jsonl names
    export BACKEND=$backend WORLD_SIZE=$ranks
    touch "$results"
    "$python" python/tests/torch_own.py list >"$state/names.$backend.$ranks" 2>"$state/own.$backend.$ranks.log"
    mapfile -t names < <(grep -vxF -f <(sed 's/^{"test": "\([^"]*\)".*/\1/' "$results") "$state/names.$backend.$ranks")
    if [[ ${#names[@]} -gt 0 ]]; then
        need 100 "$backend on $ranks ranks" || return 0
        LIMIT_S=$(($(left) - 40)) timeout "$(left)" "$python" python/tests/torch_own.py run 0 1 "${names[@]}" \
            2>>"$state/own.$backend.$ranks.log" </dev/null | sed -n 's/^RESULT //p' >"$state/some.$backend.$ranks" || true
        # A test that ends the program is not begun again.
        [[ -s $state/some.$backend.$ranks ]] || echo "{\"test\": \"${names[0]}\", \"outcome\": \"fail\", \"why\": \"no answer\"}" >"$state/some.$backend.$ranks"
        cat "$state/some.$backend.$ranks" >>"$results"
    fi
    if [[ $(wc -l <"$results") -ge $(wc -l <"$state/names.$backend.$ranks") ]]; then
        finish "own.$backend.$ranks"
    else
        echo "torch.sh: $backend on $ranks ranks goes on with the next call"
    fi
}
part_own4() { is_done own.shoal.4 || own shoal 4; }
part_own8() { is_done own.shoal.8 || own shoal 8; }
part_gloo4() { is_done own.gloo.4 || own gloo 4; }
part_gloo8() { is_done own.gloo.8 || own gloo 8; }

# One file of PyTorch's sources on one backend, of which a copy imports python/tests/torch_instead.py first.
run_source() {
    local file=$1 backend=$2 name=${1//\//_} folder=$state/sources.$2 status=0
    mkdir -p "$folder"
    sed '0,/^import torch/s//import torch_instead\nimport torch/' "$PYTORCH_SOURCE/test/distributed/$file" >"$folder/$name"
    BACKEND=$backend CUDA_VISIBLE_DEVICES='' OMP_NUM_THREADS=1 \
        PYTHONPATH=$PYTHONPATH:$PWD/python/tests:$PYTORCH_SOURCE/test/distributed \
        timeout "$(left)" "$python" -m pytest -q -rA --tb=line -p no:cacheprovider --rootdir "$folder" "$folder/$name" \
        >"$folder/$name.txt" 2>&1 </dev/null || status=$?
    [[ $status -ne 124 ]] || echo "cut off at the limit of time" >>"$folder/$name.txt"
    echo "$backend $file: $(summary "$folder/$name.txt")"
    [[ $status -ne 124 ]]
}
part_sources() {
    local file name
    if [[ ! -d ${PYTORCH_SOURCE:-}/test/distributed ]]; then
        echo "torch.sh: sources: PYTORCH_SOURCE has no test/distributed: left out"
        return 0
    fi
    for file in ${SOURCE_TESTS:-$source_tests}; do
        name=${file//\//_}
        is_done "sources.$name" && continue
        while [[ $(jobs -rp | wc -l) -ge ${SOURCE_JOBS:-4} ]]; do wait -n || true; done
        need 60 sources || { wait && return 0; }
        { run_source "$file" gloo && run_source "$file" shoal && finish "sources.$name"; } &
    done
    wait
    finish sources
}

part_bench() {
    local what
    for what in calls collectives ddp fsdp; do
        is_done "bench.$what" && continue
        need 60 bench || return 0
        timeout "$(left)" "$python" bench/torch_backends.py --ranks "${RANKS:-8}" --threads 2 --only "$what" \
            >"$state/bench.$what.jsonl" 2>>"$state/bench.log"
        finish "bench.$what"
    done
    finish bench
}

# count FILE OUTCOME
count() { grep -c "\"outcome\": \"$2\"" "$1" 2>/dev/null || true; }
# What PyTorch's sources gave on both backends, by file, and the tests that passed on Gloo only.
outcomes() { sed -nE "s/^($1) [^:]*::([^ ]*).*/\2/p" "$2" | sort -u; }
# What pytest says at its end, or why there is no such line.
summary() {
    grep -hE '^(=+ )?[0-9]+ (passed|failed|skipped).* in [0-9.]+s' "$1" | sed 's/[= ]*$//; s/^[= ]*//' | tail -1 | grep . ||
        grep -hoE 'Fatal Python error: .*|cut off at the limit of time' "$1" | tail -1 | grep . || echo "not run"
}
compare_sources() {
    local file there here
    for there in "$state"/sources.gloo/*.txt; do
        [[ -e $there ]] || continue
        file=$(basename "$there" .txt)
        here=$state/sources.shoal/$file.txt
        [[ -e $here ]] || continue
        echo "$file: Gloo: $(summary "$there"); Shoal: $(summary "$here")"
        comm -12 <(outcomes PASSED "$there") <(outcomes "(FAILED|ERROR)" "$here") | sed 's/^/    passes on Gloo only: /'
    done
}
report() {
    local ranks backend file
    cat "$state/machine.txt"
    grep -h "compiling" "$state/build.txt" 2>/dev/null | sed 's/: [^ ]*$//' || true
    echo "python/tests: $(summary "$state/tests.txt")"
    grep -hE '^(FAILED|told after)' "$state/tests.txt" 2>/dev/null || true
    for ranks in 4 8; do
        for backend in gloo shoal; do
            file=$state/own.$backend.$ranks.jsonl
            [[ -e $file ]] && echo "distributed_test.py, $ranks ranks, $backend: $(count "$file" ok) ok, $(count "$file" skip) skipped, $(count "$file" fail) failed"
            grep -s '"outcome": "fail"' "$file" | sed 's/^/    /' || true
        done
        file=$state/names
        [[ -e $file.gloo.$ranks && -e $file.shoal.$ranks ]] &&
            comm -23 <(sort "$file.gloo.$ranks") <(sort "$file.shoal.$ranks") | sed 's/^/    for Gloo only: /'
    done
    compare_sources
    cat "$state"/bench.*.jsonl 2>/dev/null || true
}

if [[ ${1:-} == --report ]]; then
    report | tee "$state/report.txt"
    exit 0
fi
all=(build tests own4 own8 gloo4 gloo8 sources bench)
parts=("$@")
[[ $# -gt 0 ]] || parts=("${all[@]}")
for part in "${parts[@]}"; do
    if ! declare -F "part_$part" >/dev/null; then
        echo "torch.sh: no part '$part' (${all[*]})" >&2
        exit 2
    fi
    is_done "$part" || "part_$part"
done
missing=()
for part in build tests own.shoal.4 own.shoal.8 own.gloo.4 own.gloo.8 bench; do
    is_done "$part" || missing+=("$part")
done
if [[ ${#missing[@]} -gt 0 ]]; then
    echo "torch.sh: missing: ${missing[*]}: call it again"
else
    echo "torch.sh: all done: scripts/torch.sh --report"
fi
