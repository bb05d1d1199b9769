#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal bench` as ranks that a launcher started: one table from rank 0, also where ranks seem to be on several hosts.
# tests/procs/mpi/bench_test.sh does the same under both mpiruns.
# shellcheck source-path=SCRIPTDIR source=bench_common.sh
. "${BASH_SOURCE[0]%/*}/bench_common.sh"
export SHOAL_MODULE_PATH=${SHOAL_MODULE_PATH:-$SHOAL_TEST_BUILD_DIR/lib/shoal}

# launched N ARGUMENTS...: `shoal bench` on N ranks of `shoal run`, with its exit status.
launched() {
    local n_ranks=$1
    shift
    timeout 120 "$SHOAL_TEST_TOOL" run -n "$n_ranks" -- "$SHOAL_TEST_TOOL" bench "$@" >"$scratch/out" 2>"$scratch/err"
}

# measures N_ROWS N_RANKS ARGUMENTS...: succeeds with that many rows, all of rank 0, and nothing wrong.
measures() {
    local n_rows=$1 n_ranks=$2
    shift 2
    launched "$n_ranks" "$@" --json || complain "$*: failed"
    [[ $(grep -cE '^\[0\] .*"wrong": 0[,}]' "$scratch/out") -eq $n_rows ]] || complain "$*: not $n_rows rows of rank 0"
    [[ $(wc -l <"$scratch/out") -eq $n_rows ]] || complain "$*: more than $n_rows rows"
    [[ ! -s $scratch/err ]] || complain "$*: says more"
}

launched 3 all_reduce all_gather --bytes 1K:64K:64 --iterations 3 || complain "failed"
[[ $(grep -c '^\[0\] #op ' "$scratch/out") -eq 1 ]] || complain "not one table"
[[ $(grep -cE '^\[0\] all_(reduce|gather) +3 ' "$scratch/out") -eq 4 ]] || complain "not four rows"
grep -q '3 ranks of shoal run' "$scratch/out" || complain "does not say whose ranks they are"
grep -qv '^\[0\]' "$scratch/out" && complain "another rank prints"

measures 4 3 all_reduce barrier all_to_all broadcast --sizes 4K --iterations 3 --transport socket
grep -qv '"transport": "socket"' "$scratch/out" && complain "another transport"
measures 1 2 all_gather --window --sizes 4K --iterations 3
measures 1 2 all_reduce --symmetric --in-place --sizes 4K --iterations 3
measures 1 1 all_reduce --sizes 4K --iterations 3
measures 2 2 overlap functional --bytes 4K --iterations 3
measures 1 2 fsdp --units 2 --width 16 --tokens 4 --iterations 2
measures 2 2 compiled --units 2 --width 16 --tokens 4 --iterations 2
mkdir "$scratch/files"
measures 1 2 checkpoint --bytes 64K --iterations 1 --directory "$scratch/files"
[[ -z $(ls "$scratch/files") ]] || complain "files are left"

export SHOAL_TRANSPORT_SOCKET_ADDRESS=127.0.0.1
# On several hosts each has a page of its own, and what ranks of other hosts found comes over the control world.
SHOAL_PRETEND_HOSTS=0,0,1,1 measures 4 4 all_reduce reduce_scatter barrier all_gather --sizes 4K --iterations 3
grep -qv '"transport": "two_level"' "$scratch/out" && complain "names another transport than the one between hosts"
SHOAL_PRETEND_HOSTS=0,1,0 measures 2 3 overlap functional --bytes 4K --iterations 3
SHOAL_PRETEND_HOSTS=0,0,1 measures 1 3 fsdp --units 2 --width 16 --tokens 4 --iterations 2
SHOAL_PRETEND_HOSTS=0,1 launched 2 all_reduce --transport shm --sizes 1K && complain "shm between hosts"
grep -q "transport shm carries ranks of one host only" "$scratch/err" "$scratch/out" || complain "does not refuse shm by its name"

# What is not for ranks runs once, and says so.
launched 2 kernels --kernel op_overhead_ns || complain "kernels failed"
[[ $(grep -c op_overhead_ns "$scratch/out") -eq 1 ]] || complain "kernels ran twice"
grep -q "has no ranks: runs in rank 0 of 2" "$scratch/out" "$scratch/err" || complain "does not say that it runs once"
"$SHOAL_TEST_TOOL" run -n 2 -- "$SHOAL_TEST_TOOL" info >"$scratch/out" 2>"$scratch/err" || complain "info failed"
[[ $(grep -c ' version ' "$scratch/out") -eq 1 ]] || complain "info prints more than once"

# Ranks are there already.
refused() {
    local status=0
    launched 2 "${@:2}" || status=$?
    [[ $status -eq 2 ]] || complain "${*:2}: exit status $status"
    [[ $(grep -cF -- "$1" <(cat "$scratch/out" "$scratch/err")) -eq 1 ]] || complain "${*:2}: does not say once: $1"
}
refused "--ranks is about ranks that the command starts itself, but shoal run has started 2" all_reduce all_gather --ranks 2
refused "--ranks is about ranks" fsdp -n 2
refused "--threads is about ranks" functional --threads
# In the same words by all commands, also if the launcher has started one process.
for command in 'train --steps 1 -n 2' 'generate nowhere --ranks 1' 'opt --run -n 2 nowhere' 'bench all_reduce -n 1'; do
    status=0
    # shellcheck disable=SC2086 # words
    "$SHOAL_TEST_TOOL" run -n 1 "$SHOAL_TEST_TOOL" $command >"$scratch/out" 2>"$scratch/err" || status=$?
    [[ $status -eq 2 ]] || complain "$command: exit status $status"
    grep -q ': --ranks is about ranks that the command starts itself, but shoal run has started 1: leave it out$' "$scratch/err" ||
        complain "$command: does not say why"
done
refused "these were started by another launcher" all_reduce --transport mpi
# Every rank has the same command line, and the first says what is wrong with it.
refused "'-b' is not an option; did you mean '--sizes'?" all_reduce -b 8
refused "--sizes: 'x' is not a size" all_reduce --sizes x
refused "--iterations: '0' is not a whole number" fsdp --iterations 0
refused "--json takes no value" barrier --json=yes
refused "'none' is not a benchmark" none
refused "'none' is not a transport" all_gather --transport none
refused "--window is about all_gather" all_reduce --window
refused "--redop is bitwise" all_reduce --redop bxor
# Nothing is measured if the options do not fit the last one, which has no ranks.
refused "shoal bench kernels: '--sizes' is not an option" all_reduce kernels --sizes 1K
[[ ! -s $scratch/out ]] || complain "has measured"
launched 2 all_reduce --help || complain "no help"
[[ $(grep -c usage: "$scratch/out") -eq 1 ]] || complain "not one help"
launched 2 all_reduce --symmetric --transport socket && complain "symmetric memory over sockets"
[[ ! -s $scratch/out ]] || complain "prints a table before it fails"

# A rank that fails alone says why, and all end at once: nobody waits for a deadline, which closing a world has, too.
cat >"$scratch/little_memory" <<'END'
#!/bin/bash
if [[ $SHOAL_RANK == 1 ]]; then
    ulimit -v "$1" 2>/dev/null
    export ASAN_OPTIONS=$ASAN_OPTIONS:max_allocation_size_mb=64:allocator_may_return_null=1
    export TSAN_OPTIONS=$TSAN_OPTIONS:max_allocation_size_mb=64:allocator_may_return_null=1
fi
exec "${@:2}"
END
chmod +x "$scratch/little_memory"
little=$((300 * 1024))
if ldd "$SHOAL_TEST_TOOL" | grep -E 'lib[at]san' >/dev/null; then
    little=unlimited # shadow memory counts
fi
fails_alone() {
    local status=0
    SHOAL_TIMEOUT=1000 timeout 120 "$SHOAL_TEST_TOOL" run -n 3 -- "$scratch/little_memory" "$little" "$SHOAL_TEST_TOOL" bench "${@:2}" \
        >"$scratch/out" 2>"$scratch/err" || status=$?
    [[ $status -eq 1 ]] || complain "${*:2}: a rank that fails alone: exit status $status"
    grep -qE "^\[1\] shoal bench ${2}: rank 1: $1" "$scratch/err" || complain "${*:2}: rank 1 does not say why"
    [[ $(grep -vc 'Sanitizer failed to allocate' "$scratch/err") -eq 2 ]] || complain "${*:2}: others say something, too"
}
fails_alone "no memory for a pool of" all_reduce --sizes 1K:256M:262144 --iterations 2
fails_alone "no memory for a pool of" all_gather --sizes 1K:320M:327680 --iterations 2 --back-to-back --transport socket
fails_alone "no memory for its shards" checkpoint --bytes 960M --iterations 1 --directory "$scratch/files"

# A rank that is killed ends the others, with what happened.
SHOAL_TIMEOUT=60 timeout 120 "$SHOAL_TEST_TOOL" run -n 3 -- "$SHOAL_TEST_TOOL" bench all_reduce --sizes 1M --iterations 1000000 \
    >"$scratch/out" 2>"$scratch/err" &
launcher=$!
for _ in $(seq 300); do
    grep -q '#op' "$scratch/out" && break
    sleep 0.1
done
# The child of `timeout` is the launcher of the ranks.
kill -9 "$(pgrep -P "$(pgrep -P "$launcher")" | tail -n 1)"
status=0
wait "$launcher" || status=$?
[[ $status -ne 0 && $status -ne 124 ]] || complain "a killed rank: exit status $status"
[[ -z $(find /dev/shm -name 'shoal-bench-*' -newer "$scratch/files" 2>/dev/null) ]] || complain "a page is left in /dev/shm"

[[ $failed == false ]]
