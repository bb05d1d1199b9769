#!/bin/bash
# SPDX-License-Identifier: MIT
# One program, examples/01_all_reduce.c, alone and under every launcher; half an environment, and settings that differ
# between ranks, are errors that say so.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=false
limit_s=$((100 * ${SHOAL_TEST_TIME_SCALE:-1}))
program=$SHOAL_TEST_BUILD_DIR/examples/01_all_reduce
# Looking for leaks takes seconds per run on some machines; tests/unit/comm has looked.
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0

# The launcher of whoever runs this test is not the one to be tested.
for name in $(compgen -e | grep -E '^(SHOAL_(RANK|RANKS|KEY)$|RANK$|WORLD_SIZE$|MASTER_|LOCAL_|OMPI_|PMIX?_|SLURM_|TORCHELASTIC_)'); do
    unset "$name"
done

complain() {
    echo "$1"
    sed 's/^/  out: /' "$scratch/out"
    sed 's/^/  err: /' "$scratch/err"
    failed=true
}

# runs WANTED COMMAND...: the exit status is 0, or WANTED is "fail" and it is not.
runs() {
    local wanted=$1 status=0
    shift
    timeout "$limit_s" "$@" >"$scratch/out" 2>"$scratch/err" </dev/null || status=$?
    if [[ $status -eq 124 || ($wanted == ok && $status -ne 0) || ($wanted == fail && $status -eq 0) ]]; then
        complain "$*: exit status $status"
    fi
}

# has_sums N: every one of N ranks has printed the sums over N ranks, and nobody has printed anything else. Launchers may put
# words of their own before a line.
has_sums() {
    local n_ranks=$1 rank first=0 second=0
    for ((rank = 0; rank < n_ranks; rank++)); do
        ((first += rank, second += rank * rank)) || true
    done
    for ((rank = 0; rank < n_ranks; rank++)); do
        grep -qE "(^|[] :])rank $rank of $n_ranks: sums $n_ranks $first $second\$" "$scratch/out" ||
            complain "no right line of rank $rank of $n_ranks"
    done
    [[ $(wc -l <"$scratch/out") -eq $n_ranks ]] || complain "not one line per rank"
}

says() {
    grep -qF -- "$1" "$scratch/err" || complain "the error does not say '$1'"
}

echo "alone"
runs ok "$program"
has_sums 1
for n_ranks in 1 2 3; do
    echo "shoal run -n $n_ranks"
    runs ok "$SHOAL_TEST_TOOL" run -n "$n_ranks" "$program"
    has_sums "$n_ranks"
done

# tested_with COMMAND: whether there is such a launcher here.
tested_with() {
    if command -v "$1" >/dev/null; then
        echo "$1"
    else
        echo "$1: not here, not tested"
        return 1
    fi
}

# Open MPI wants a remote shell even for ranks of this machine; any command will do. Two jobs that start at the same time both
# make its session directory below TMPDIR, and the one that comes second fails: each job has a TMPDIR of its own.
export OMPI_MCA_plm_rsh_agent=true
mkdir "$scratch/one" "$scratch/two"
if tested_with mpirun.openmpi; then
    runs ok env TMPDIR="$scratch/one" mpirun.openmpi --allow-run-as-root --oversubscribe -n 2 "$program"
    has_sums 2
    # Two jobs at once are two worlds.
    runs ok bash -c "TMPDIR=$scratch/two mpirun.openmpi --allow-run-as-root --oversubscribe -n 2 '$program' >'$scratch/other' &
        TMPDIR=$scratch/one mpirun.openmpi --allow-run-as-root --oversubscribe -n 2 '$program' && wait \$!"
    has_sums 2
fi
# trains MPIRUN...: the tool itself as ranks of an mpirun ends with the digest that it has alone, with its own ranks.
train=("$SHOAL_TEST_TOOL" train --layers 1 --width 32 --heads 2 --context 16 --batch 2 --steps 3 --json
    --data "$SHOAL_TEST_SOURCE_DIR/README.md")
digest() {
    grep -oE '"digest": "[0-9a-f]{16}"' "$scratch/out" || true
}
runs ok "${train[@]}" --ranks 2
wanted=$(digest)
trains() {
    runs ok "$@" -n 2 "${train[@]}"
    [[ -n $wanted && $(digest) == "$wanted" ]] || complain "$1: digest '$(digest)', expected '$wanted'"
}
trains "$SHOAL_TEST_TOOL" run --no-label
if tested_with mpirun.openmpi; then
    trains env TMPDIR="$scratch/one" mpirun.openmpi --allow-run-as-root --oversubscribe
fi

if tested_with mpirun.mpich; then
    trains mpirun.mpich
    runs ok mpirun.mpich -n 2 "$program"
    has_sums 2
    runs ok bash -c "mpirun.mpich -n 2 '$program' >'$scratch/other' & mpirun.mpich -n 2 '$program' && wait \$!"
    has_sums 2
    # A launcher around a launcher: the inner one counts.
    runs ok mpirun.mpich -n 1 "$SHOAL_TEST_TOOL" run --no-label -n 2 "$program"
    has_sums 2
fi

# The ports of two tests that run at the same time should differ. Streams are "redirected" for a rank that does
# not exist: PyTorch 1.13 with Python 3.11 does not understand its own default.
torch_options=(--nproc_per_node 2 --master_addr 127.0.0.1 --master_port $((20000 + $$ % 10000)) --redirects 9:1
    --tee 9:1 --no_python)
if tested_with torchrun && torchrun --help >/dev/null 2>&1; then
    runs ok torchrun "${torch_options[@]}" "$program"
    has_sums 2
elif [[ -x /usr/bin/python3 ]] && /usr/bin/python3 -c 'import torch.distributed.run' 2>/dev/null; then
    echo "python3 -m torch.distributed.run"
    runs ok /usr/bin/python3 -m torch.distributed.run "${torch_options[@]}" "$program"
    has_sums 2
fi

echo "half an environment"
# half MISSING NAME=VALUE...
half() {
    local missing=$1
    shift
    runs fail env "$@" "$program"
    grep -Eq "(^|[^A-Z_])$missing([^A-Z_]|\$)" "$scratch/err" || complain "the error does not name $missing"
}
half WORLD_SIZE RANK=0
half RANK WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1
half MASTER_ADDR RANK=0 WORLD_SIZE=2
half SHOAL_RANKS SHOAL_RANK=0 SHOAL_KEY=x
half SHOAL_RANK SHOAL_RANKS=2 SHOAL_KEY=x
half SHOAL_KEY SHOAL_RANKS=2 SHOAL_RANK=0
half OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_RANK=0
half PMI_SIZE PMI_RANK=0
half SLURM_NTASKS SLURM_PROCID=0 SLURM_JOB_ID=1 SLURM_STEP_ID=0
half SLURM_JOB_ID SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0
half PMI_FD PMI_RANK=0 PMI_SIZE=2
half PMIX_NAMESPACE OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2
half SHOAL_RANK SHOAL_RANK=2 SHOAL_RANKS=2 SHOAL_KEY=x
half SHOAL_RANK SHOAL_RANK=one SHOAL_RANKS=2 SHOAL_KEY=x

echo "ranks that fold in other orders"
# One of three ranks, on two hosts as they believe, would give other bits. shoal run ends the others when the
# first rank fails, which must not keep them from speaking.
# shellcheck disable=SC2016 # each rank expands it
runs fail env SHOAL_MODULE_PATH="$SHOAL_TEST_BUILD_DIR/lib/shoal" SHOAL_PRETEND_HOSTS=here,here,there \
    SHOAL_TRANSPORT_SOCKET_ADDRESS=127.0.0.1 "$SHOAL_TEST_TOOL" run -n 3 \
    bash -c 'trap "" TERM; if [[ $SHOAL_RANK -eq 1 ]]; then export SHOAL_REDUCE=fast; fi; exec "$0"' "$program"
for rank in 0 1 2; do
    grep -qE "^\\[$rank\\] 01_all_reduce: .*rank 1 has SHOAL_REDUCE=fast" "$scratch/err" ||
        complain "rank $rank does not say that rank 1 differs"
done

echo "ranks that gather in other ways"
# shellcheck disable=SC2016 # each rank expands it
runs fail "$SHOAL_TEST_TOOL" run -n 2 \
    bash -c 'trap "" TERM; if [[ $SHOAL_RANK -eq 1 ]]; then export SHOAL_FSDP_GATHER=copy; fi; exec "$0"' \
    "$SHOAL_TEST_BUILD_DIR/examples/mlp_fsdp"
grep -qF "options here: SHOAL_FSDP_GATHER auto; on rank 1: SHOAL_FSDP_GATHER copy" "$scratch/err" ||
    complain "rank 0 does not say that rank 1 gathers in another way"

! $failed
