#!/bin/bash
# SPDX-License-Identifier: MIT
# The examples with several ranks print what they must. (Alone they are tests of their own; launch_test.sh runs
# 01_all_reduce under every launcher.)
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=false
limit_s=$((60 * ${SHOAL_TEST_TIME_SCALE:-1}))
# Looking for leaks takes seconds per run on some machines.
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0

# prints EXAMPLE N_RANKS: the lines of all ranks, in order of ranks, are those of the standard input.
prints() {
    cat >"$scratch/wanted"
    if ! timeout "$limit_s" "$SHOAL_TEST_TOOL" run --no-label -n "$2" "$SHOAL_TEST_BUILD_DIR/examples/$1" \
        >"$scratch/out"; then
        echo "$1 with $2 ranks: failed"
        failed=true
    fi
    if ! sort "$scratch/out" | diff "$scratch/wanted" -; then
        echo "$1 with $2 ranks: printed something else"
        failed=true
    fi
}

prints 03_mesh 4 <<'EOF'
rank 0 at (0, 0): its row sums to 1, its column to 2
rank 1 at (0, 1): its row sums to 1, its column to 4
rank 2 at (1, 0): its row sums to 5, its column to 2
rank 3 at (1, 1): its row sums to 5, its column to 4
EOF
prints 03_mesh 3 <<'EOF'
rank 0 at (0, 0): its row sums to 3, its column to 0
rank 1 at (0, 1): its row sums to 3, its column to 1
rank 2 at (0, 2): its row sums to 3, its column to 2
EOF
prints 04_overlap 3 <<'EOF'
rank 0: averages 1 2 3
rank 1: averages 1 2 3
rank 2: averages 1 2 3
EOF
prints 05_ring 4 <<'EOF'
rank 0 of 4 heard: 3 2 1
rank 1 of 4 heard: 0 3 2
rank 2 of 4 heard: 1 0 3
rank 3 of 4 heard: 2 1 0
EOF
prints 06_window 2 <<'EOF'
rank 0, step 0: 100000 weights are right
rank 0, step 1: 100000 weights are right
rank 0: the sum of ranks is 1
rank 1, step 0: 100000 weights are right
rank 1, step 1: 100000 weights are right
rank 1: the sum of ranks is 1
EOF
prints 07_threads 1 <<'EOF'
rank 0: 3 ranks multiply to 6
rank 1: 3 ranks multiply to 6
rank 2: 3 ranks multiply to 6
EOF
prints 08_functional 2 <<'EOF'
rank 0: y = 3.000 x -2.000, loss 0.000000
rank 1: y = 3.000 x -2.000, loss 0.000000
EOF

# Its numbers depend on the BLAS: steps, and that it learns (0.45 is what predicting zero gives).
if ! timeout "$limit_s" "$SHOAL_TEST_TOOL" run --no-label -n 3 "$SHOAL_TEST_BUILD_DIR/examples/10_modules" >"$scratch/out"; then
    echo "10_modules with 3 ranks: failed"
    failed=true
fi
if ! awk '$1 != "step" || $2 != 20 * NR ":" || !($4 + 0 < 0.2) { exit 1 } END { exit NR != 3 }' "$scratch/out"; then
    echo "10_modules with 3 ranks: printed something else"
    cat "$scratch/out"
    failed=true
fi

# Parameters that are gathered as int8: it learns all the same (21 is what predicting zero gives).
if ! timeout "$limit_s" "$SHOAL_TEST_TOOL" run --no-label -n 3 "$SHOAL_TEST_BUILD_DIR/examples/17_int8_gather" >"$scratch/out" ||
    ! awk '$1 != "step" || $2 != 20 * NR ":" || !($4 + 0 < 8) { exit 1 } END { exit NR != 3 }' "$scratch/out"; then
    echo "17_int8_gather with 3 ranks: failed, or printed something else"
    cat "$scratch/out"
    failed=true
fi

# A kernel of the program, on the driver for tests.
if ! SHOAL_CUDA="$SHOAL_TEST_BUILD_DIR/tests/fakecuda/libcuda.so.1" timeout "$limit_s" "$SHOAL_TEST_TOOL" run --no-label -n 3 \
    "$SHOAL_TEST_BUILD_DIR/examples/18_cuda_kernel" >"$scratch/out" ||
    [[ $(tail -n 1 "$scratch/out") != "the weights are the mean of the ranks' numbers" ]]; then
    echo "18_cuda_kernel with 3 ranks: failed, or printed something else"
    cat "$scratch/out"
    failed=true
fi

# A run that goes on from the checkpoint of step 3 on another number of ranks.
for ranks in 2 3; do
    if ! timeout "$limit_s" "$SHOAL_TEST_TOOL" run --no-label -n "$ranks" "$SHOAL_TEST_BUILD_DIR/examples/14_checkpoint" "$scratch/checkpoints" >"$scratch/out"; then
        echo "14_checkpoint with $ranks ranks: failed"
        failed=true
    fi
done
if [[ $(sed 's/:.*//' "$scratch/out" | tr '\n' ',') != 'step 4,step 5,step 4,step 5,' ]]; then
    echo "14_checkpoint with 3 ranks: does not go on after step 3"
    cat "$scratch/out"
    failed=true
fi

! $failed
