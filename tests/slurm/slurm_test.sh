#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal bench` and `shoal train` under Slurm, on one node that tests/slurm/fixture.sh sets up: ranks of srun over each
# transport, a rank that is killed, and a job that saves when its time limit is near, is queued again and goes on.
# `make test-slurm` runs it; as root.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=fixture.sh
. "$(dirname "${BASH_SOURCE[0]}")/fixture.sh"

tool=${SHOAL_TEST_TOOL:?}
export SHOAL_MODULE_PATH=${SHOAL_TEST_BUILD_DIR:?}/lib/shoal
failed=false

complain() {
    echo "FAIL $1"
    sed 's/^/  /' "$slurm/out"
    failed=true
}

# runs WANTED COMMAND...: with that exit status, or any but 0 if WANTED is "fail".
runs() {
    local wanted=$1 status=0
    shift
    timeout 120 "$@" >"$slurm/out" 2>&1 </dev/null || status=$?
    [[ $status == "$wanted" || ($wanted == fail && $status -ne 0 && $status -ne 124) ]] || complain "$*: exit status $status"
}

# says TEXT
says() {
    grep -qF -- "$1" "$slurm/out" || complain "does not say '$1'"
}

# measures OPTION... -- of srun, then of the benchmark: one table of four ranks, nothing wrong.
measures() {
    local options=()
    while [[ $1 != -- ]]; do
        options+=("$1")
        shift
    done
    shift
    echo "srun ${options[*]} -n 4 shoal bench all_reduce all_gather $*"
    runs 0 srun "${options[@]}" -n 4 "$tool" bench all_reduce all_gather --sizes 1K:64K:64 --iterations 10 "$@"
    [[ $(grep -c '^#op ' "$slurm/out") -eq 1 ]] || complain "not one table"
    [[ $(grep -cE '^all_(reduce|gather) +4 .* 0$' "$slurm/out") -eq 4 ]] || complain "not four rows with nothing wrong"
    grep -E '^(#library|all_)' "$slurm/out" | cut -c 1-140
}

# Bench ------------------------------------------------------------------------------------------------------------------

measures -- --transport shm
measures -- --transport socket
SHOAL_MPI=mpich measures --mpi=pmi2 -- --transport mpi
SHOAL_MPI=openmpi measures --mpi=pmix -- --transport mpi
# Without a PMI that this MPI understands, each rank is alone in its MPI.
SHOAL_MPI=mpich runs fail srun --mpi=none -n 2 "$tool" bench all_reduce --transport mpi --sizes 1K
says "Slurm says rank"
says "was the program started by the mpirun of another MPI, or by none?"
runs fail srun -n 2 "$tool" bench all_reduce --ranks 2
says "--ranks is about ranks that the command starts itself, but Slurm has started 2"

# Train ------------------------------------------------------------------------------------------------------------------

model=(--layers 2 --width 32 --heads 2 --context 32 --batch 2 --data "${SHOAL_TEST_SOURCE_DIR:?}/README.md")
echo "srun -n 4 shoal train"
runs 0 srun -n 4 "$tool" train "${model[@]}" --steps 20
says "fsdp on 4 ranks"
runs 0 srun -n 4 "$tool" train "${model[@]}" --steps 20 --json
expected=$(grep -o '"digest": "[^"]*"' "$slurm/out")
runs 0 "$tool" train "${model[@]}" --ranks 4 --steps 20 --json
[[ $(grep -o '"digest": "[^"]*"' "$slurm/out") == "$expected" ]] || complain "other bits than without Slurm"

echo "a rank that is killed"
# shellcheck disable=SC2016 # the ranks' shells expand it
runs fail srun -n 4 sh -c 'if [ "$SLURM_PROCID" = 2 ]; then (sleep 3; kill -9 $$) & fi; exec "$@"' - \
    "$tool" train "${model[@]}" --steps 1000000
says "rank 2"

# A job of one minute that is told 50 s before its end, by --signal. It saves, and the script puts it into the queue again;
# the second time it goes on from there, until it is told again.
echo "sbatch --time 1 --signal USR1@50, requeued, resumed"
cat >"$slurm/job.sh" <<TEXT
#!/bin/bash
#SBATCH --time=1 --signal=USR1@50 --requeue -n 2 --open-mode=append --output=$slurm/job.out
resume=\$([[ \${SLURM_RESTART_COUNT:-0} -gt 0 ]] && echo --resume)
status=0
if [[ -z \$resume ]]; then
    srun "$tool" train ${model[*]} --steps 1000000 --lr 0.0001 --checkpoint "$slurm/saved" || status=\$?
else
    srun "$tool" train --checkpoint "$slurm/saved" --resume >"$slurm/resumed" 2>&1 &
    sleep 5
    ls "$slurm/saved"
    kill -USR1 \$!
    wait \$! || status=\$?
    grep -E "goes on|interrupted" "$slurm/resumed"
    echo "second run \$status"
    exit 0
fi
echo "first run \$status"
scontrol requeue \$SLURM_JOB_ID
TEXT
sbatch "$slurm/job.sh" >/dev/null
for ((i = 0; i < 1800; i++)); do
    grep -q '^second run' "$slurm/job.out" 2>/dev/null && break
    sleep 0.1
done
cp "$slurm/job.out" "$slurm/out"
says "saved in $slurm/saved"
says "first run 138"
says "goes on after step"
says "second run 138"
cat "$slurm/out"

if $failed; then
    echo "slurm: FAILED"
    exit 1
fi
echo "slurm: ok"
