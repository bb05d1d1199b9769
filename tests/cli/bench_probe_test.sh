#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal bench probe`: what it prints and writes, and that the compiler reads it. No times: they are what a machine gives.
# shellcheck source-path=SCRIPTDIR source=bench_common.sh
. "${BASH_SOURCE[0]%/*}/bench_common.sh"
bench_name=(probe)
step=$SHOAL_TEST_SOURCE_DIR/examples/ddp_step.graph

bench --transport shm --ranks 3 --ranks 2 --output "$scratch/machine.json" || complain "failed"
for op in all_reduce all_gather reduce_scatter; do
    for ranks in 2 3; do
        grep -qE "^shm +$ranks +$op +[0-9.]+ +[0-9.]+$" "$scratch/out" || complain "no row of $op on $ranks ranks"
    done
done
SHOAL_MACHINE=$scratch/machine.json "$SHOAL_TEST_TOOL" opt --passes=default --stats "$step" >"$scratch/out" 2>"$scratch/err" ||
    complain "shoal opt does not read it"
grep -q "^# estimates for $(uname -m)-" "$scratch/out" || complain "another machine"

bench --transport shm --ranks 2 --name mine --json || complain "--json failed"
for line in '"shoal_machine": 1,' '"name": "mine",' '"hidden": (0|1|0\.[0-9]+|[0-9.]+e-[0-9]+),' \
    '\{"transport": "shm", "ranks": 2, "op": "all_gather", "latency_ns": [0-9.e+]+, "bytes_per_ns": [0-9.e+]+\},'; do
    [[ $(grep -cE "^ +$line$" "$scratch/out") -eq 1 ]] || complain "no line $line"
done

if bench --transport nothing --ranks 2; then
    complain "a transport that is none"
fi
grep -q 'nothing' "$scratch/err" || complain "does not name the transport"
for arguments in "--ranks 1" "--ranks x" "--threads 0" "--output"; do
    # shellcheck disable=SC2086 # two words
    if bench $arguments; then
        complain "$arguments was taken"
    fi
done
if bench --transport shm --ranks 2 --name 'a b'; then
    complain "a name of two words was taken"
fi
if bench --transport shm --ranks 2 --output "$scratch/missing/file"; then
    complain "a file that cannot be written was written"
fi
grep -q "shoal bench probe: --output: $scratch/missing/file: open its directory: No such file" "$scratch/err" || complain "does not name the file"
mkfifo "$scratch/pipe"
if bench --transport shm --ranks 2 --output "$scratch/pipe"; then
    complain "a pipe was taken for a file"
fi
[[ -p $scratch/pipe ]] || complain "the pipe was replaced"
grep -q "shoal bench probe: --output: $scratch/pipe: is a device, pipe or socket" "$scratch/err" || complain "does not say that it is a pipe"

# As many rows as a probe can write are read: 8 transports, 8 numbers of ranks, 3 ops.
rows() {
    perl -e 'my @rows = map { "{\"transport\": \"shm\", \"ranks\": ".(2 + $_).", \"op\": \"all_reduce\", \"latency_ns\": 1, \"bytes_per_ns\": 1}" } 1 .. shift;
        print "{\"shoal_machine\": 1, \"name\": \"many\", \"call_ns\": 1, \"touched_bytes_per_ns\": 1, \"operations_per_ns\": 1,
        \"functions_per_ns\": 1, \"start_ns\": 1, \"hidden\": 0, \"collectives\": [".join(", ", @rows)."]}"' "$1" >"$scratch/many.json"
}
rows 192
"$SHOAL_TEST_TOOL" opt --machine "$scratch/many.json" --passes=default --stats "$step" >"$scratch/out" 2>"$scratch/err" || complain "192 rows are not read"
rows 193
"$SHOAL_TEST_TOOL" opt --machine "$scratch/many.json" --passes=default --stats "$step" >"$scratch/out" 2>"$scratch/err" && complain "193 rows are read"
grep -q 'must be a list of 1 to 192 rows' "$scratch/err" || complain "does not say how many"

! $failed
