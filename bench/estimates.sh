#!/bin/bash
# SPDX-License-Identifier: MIT
# Estimated and measured times of steps, side by side: graphs of `shoal train`, and the example. Each graph is changed by the
# default passes, estimated, and run as a plan on ranks that are threads of one process, with one thread of BLAS each.
#
#   bench/estimates.sh [--machine FILE] [--times N]
#
# --machine: for which times are estimated; default: the one of this architecture. The table is that of docs/performance.md.
set -euo pipefail

cd "${BASH_SOURCE[0]%/*}/.."
shoal=${SHOAL:-build/bin/shoal}
library=${SHOAL_NN:-build/lib/libshoal_nn.so}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
machine=()
times=31
while [[ $# -gt 0 ]]; do
    case $1 in
    --machine) machine=("--machine=$2") && shift 2 ;;
    --times) times=$2 && shift 2 ;;
    *) sed -n '3,9s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
    esac
done
export OPENBLAS_NUM_THREADS=1

# A name, the ranks, and the arguments of shoal train.
graphs="gpt_single 1 --mode single
gpt_ddp 2 --mode ddp
gpt_fsdp 2 --mode fsdp
gpt_zero2 2 --mode zero2
gpt_hsdp 2 --mode hsdp
gpt_ddp_accumulated 2 --mode ddp --accumulate 2
gpt_ddp_short 2 --mode ddp --context 32 --batch 2
gpt_fsdp_short 2 --mode fsdp --context 32 --batch 2
gpt_ddp_wide 2 --mode ddp --width 384 --context 64 --batch 2
gpt_fsdp_wide 2 --mode fsdp --width 384 --context 64 --batch 2"

# row NAME FILE RANKS
row() {
    "$shoal" opt --passes=default --stats --lower --run -n "$3" --time "$times" "--load=$library" "${machine[@]}" "$2" |
        perl -ne '
            ($step, $compute, $comm, $exposed) = ($1, $2, $3, $4)
                if /^# after \w+: step ([\d.]+) us, compute ([\d.]+) us, communication ([\d.]+) us, exposed ([\d.]+) us/;
            ($median, $fastest, $processor, $load) = ($1, $2, $3, $4)
                if /^# measured: step ([\d.]+) us, fastest ([\d.]+) us, processor ([\d.]+) us,.* load ([\d.]+)/;
            END {
                printf "| `%s` | %d | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f | %s |\n", '"'$1', $3"',
                    (map { $_ / 1e3 } $compute, $comm, $exposed, $step, $processor, $fastest, $median),
                    $step / $median, $load;
            }'
}

echo "# $(date -u +%F), $(uname -m), $(nproc) processors, $(sed -nE 's/^(model name|CPU part)\s*: //p' /proc/cpuinfo | head -1); load before: $(cut -d' ' -f1-3 /proc/loadavg)"
echo "| graph | ranks | compute | communication | exposed | estimated | processor | fastest | median | estimated / median | load |"
echo "|---|---|---|---|---|---|---|---|---|---|---|"
row ddp_step examples/ddp_step.graph 2
while read -r name ranks arguments; do
    # shellcheck disable=SC2086 # several words
    "$shoal" train --ranks "$ranks" --steps 1 --compile --graph "$scratch/$name" $arguments >"$scratch/log" 2>&1 ||
        { cat "$scratch/log" >&2 && exit 1; }
    row "$name" "$scratch/$name" "$ranks"
done <<<"$graphs"
