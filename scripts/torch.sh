#!/bin/bash
# SPDX-License-Identifier: MIT
# The backend of torch.distributed on a torch that Debian does not have (2.x), on a machine with many cores. Every call
# does what is left, for at most LIMIT_S seconds (540), and says what is missing; call it again until it says "all done".
#
#   scripts/torch.sh [PART...]        parts: build tests own4 own8 gloo4 gloo8 sources bench; default: all
#   scripts/torch.sh --report         writes the report of what was done: build/torch-check/report.txt
#
# PYTHON          the Python that has this torch (default: python3)
# PYTORCH_SOURCE  a checkout of PyTorch at the version of that torch, for the part `sources`. Its tests name backends
#                 literally: those of SOURCE_TESTS are patched to take "shoal" where they say "gloo", and are listed
# RANKS           of the benchmark (8)
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
state=$PWD/build/torch-check
end=$((SECONDS + ${LIMIT_S:-540}))
export SHOAL_LIBRARY=$PWD/build/lib/libshoal.so.0.1 SHOAL_TOOL=$PWD/build/bin/shoal PYTHONPATH=$PWD/python
export SHOAL_TORCH_CACHE=$state/cache PYTHONDONTWRITEBYTECODE=1
mkdir -p "$state"

# Files of test/distributed that run on the CPU, and are about collectives, FSDP2, DTensor or functional collectives.
SOURCE_TESTS='
test_c10d_functional_native.py
test_functional_api.py
test_device_mesh.py
_composable/fsdp/test_fully_shard_comm.py
_composable/fsdp/test_fully_shard_init.py
_composable/fsdp/test_fully_shard_training.py
tensor/test_dtensor.py
tensor/test_redistribute.py
tensor/test_init.py
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
    finish build
}

part_tests() {
    need 300 tests || return 0
    (cd python && "$python" -m pytest -q -p no:cacheprovider tests/test_torch_*.py --deselect tests/test_torch_own.py) \
        2>&1 | tee "$state/tests.txt" | tail -5
    finish tests
}

# own BACKEND RANKS: PyTorch's distributed_test.py, every test once, one after the other.
own() {
    local backend=$1 ranks=$2 results=$state/own.$1.$2.jsonl names
    export BACKEND=$backend WORLD_SIZE=$ranks
    touch "$results"
    "$python" python/tests/torch_own.py list >"$state/names" 2>"$state/own.log"
    mapfile -t names < <(grep -vxF -f <(sed 's/^{"test": "\([^"]*\)".*/\1/' "$results") "$state/names")
    if [[ ${#names[@]} -gt 0 ]]; then
        need 150 "$backend on $ranks ranks" || return 0
        LIMIT_S=$(($(left) - 100)) timeout "$(left)" "$python" python/tests/torch_own.py run 0 1 "${names[@]}" \
            2>>"$state/own.log" </dev/null | sed -n 's/^RESULT //p' >"$state/some" || true
        # A test that ends the program is not begun again.
        [[ -s $state/some ]] || echo "{\"test\": \"${names[0]}\", \"outcome\": \"fail\", \"why\": \"no answer\"}" >"$state/some"
        cat "$state/some" >>"$results"
    fi
    if [[ $(wc -l <"$results") -ge $(wc -l <"$state/names") ]]; then
        finish "own.$backend.$ranks"
    else
        echo "torch.sh: $backend on $ranks ranks goes on with the next call"
    fi
}
part_own4() { is_done own.shoal.4 || own shoal 4; }
part_own8() { is_done own.shoal.8 || own shoal 8; }
part_gloo4() { is_done own.gloo.4 || own gloo 4; }
part_gloo8() { is_done own.gloo.8 || own gloo 8; }

# One file of PyTorch's sources on one backend; the literal "gloo" becomes the backend's name.
run_source() {
    local file=$1 backend=$2 name=${1//\//_}
    local folder=$state/sources.$backend
    mkdir -p "$folder"
    sed "s/\"gloo\"/\"$backend\"/g" "$PYTORCH_SOURCE/test/distributed/$file" >"$folder/$name"
    [[ $backend == shoal ]] && sed -i '0,/^import torch$/s//import torch\nimport shoal.torch/' "$folder/$name"
    CUDA_VISIBLE_DEVICES='' PYTHONPATH=$PYTHONPATH:$PYTORCH_SOURCE/test/distributed timeout 500 "$python" -m pytest -q \
        -p no:cacheprovider --rootdir "$folder" "$folder/$name" >"$folder/$name.txt" 2>&1 || true
    tail -1 "$folder/$name.txt" | sed "s|^|$backend $file: |"
}
part_sources() {
    local file backend
    if [[ ! -d ${PYTORCH_SOURCE:-}/test/distributed ]]; then
        echo "torch.sh: sources: PYTORCH_SOURCE has no test/distributed: left out"
        return 0
    fi
    for file in $SOURCE_TESTS; do
        for backend in gloo shoal; do
            is_done "sources.$backend.${file//\//_}" && continue
            need 510 sources || return 0
            run_source "$file" "$backend"
            finish "sources.$backend.${file//\//_}"
        done
    done
    finish sources
}

part_bench() {
    local what
    for what in calls collectives ddp fsdp; do
        is_done "bench.$what" && continue
        need 240 bench || return 0
        timeout 240 "$python" bench/torch_backends.py --ranks "${RANKS:-8}" --threads 2 --only "$what" \
            >"$state/bench.$what.jsonl" 2>>"$state/bench.log"
        finish "bench.$what"
    done
    finish bench
}

# count FILE OUTCOME
count() { grep -c "\"outcome\": \"$2\"" "$1" 2>/dev/null || true; }
report() {
    local ranks backend file
    "$python" -c 'import torch, sys; print("torch", torch.__version__, "Python", sys.version.split()[0])'
    echo "machine: $(nproc) cores, $(uname -m); Shoal $(git describe --always --dirty 2>/dev/null || echo '?')"
    grep -h "compiling" "$state/build.txt" 2>/dev/null || true
    echo "python/tests: $(tail -1 "$state/tests.txt" 2>/dev/null || echo 'not run')"
    for ranks in 4 8; do
        for backend in gloo shoal; do
            file=$state/own.$backend.$ranks.jsonl
            [[ -e $file ]] && echo "distributed_test.py, $ranks ranks, $backend: $(count "$file" ok) ok, $(count "$file" skip) skipped, $(count "$file" fail) failed"
        done
        file=$state/own.shoal.$ranks.jsonl
        grep -s '"outcome": "fail"' "$file" || true
    done
    for file in "$state"/sources.*/*.txt; do
        [[ -e $file ]] && echo "$(basename "$(dirname "$file")") $(basename "$file" .txt): $(tail -1 "$file")"
    done
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
