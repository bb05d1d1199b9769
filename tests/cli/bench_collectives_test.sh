#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal bench all_reduce` and the like: rows, keys and exit status, with more ranks than one and small sizes.
# shellcheck source-path=SCRIPTDIR source=bench_common.sh
. "${BASH_SOURCE[0]%/*}/bench_common.sh"

# measures N_ROWS ARGS...: succeeds, with that many rows and no wrong element.
measures() {
    local n_rows=$1
    shift
    bench "$@" --json --iterations 3 || complain "$*: failed"
    [[ $(grep -c '"wrong": 0,' "$scratch/out") -eq $n_rows ]] || complain "$*: not $n_rows rows without a wrong element"
    [[ $(wc -l <"$scratch/out") -eq $n_rows ]] || complain "$*: not $n_rows rows"
}

keys='^{"op": "[a-z_]*", "ranks": [0-9]*, "bytes": [0-9]*, "dtype": "[a-z0-9]*", "transport": "[a-z]*", '
keys+='"algorithm": "[a-z_]*", "median_us": [0-9.]*, "p99_us": [0-9.]*, "max_us": [0-9.]*, "wrong": [0-9]*, '

for op in all_reduce all_gather reduce_scatter all_to_all broadcast; do
    for ranks in 2 3; do
        measures 2 "$op" --ranks "$ranks" --sizes 1K:256K:256
        [[ $(grep -c "$keys" "$scratch/out") -eq 2 ]] || complain "$op: other keys"
        grep -q "\"op\": \"$op\", \"ranks\": $ranks, " "$scratch/out" || complain "$op: another op"
    done
done
measures 1 barrier --ranks 3
grep -q '"bytes": 0,' "$scratch/out" || complain "a barrier with bytes"

# Buffers, places and ranks of the other kinds.
measures 2 all_reduce --symmetric --sizes 1K:256K:256
grep -q '"buffers": "symmetric"' "$scratch/out" || complain "not symmetric"
measures 2 all_gather --window --sizes 1K:256K:256
grep -q '"buffers": "window"' "$scratch/out" || complain "no window"
measures 2 all_gather --window --sizes 1K:256K:256 --rotate 2M
measures 1 reduce_scatter --sizes 1K --rotate 1M --symmetric
ASAN_OPTIONS=$asan_options measures 1 all_reduce --sizes 4K --threads --ranks 3
measures 1 all_reduce --sizes 1000 --dtype bf16 --ranks 3
measures 1 all_reduce --sizes 64K --algorithm staged --ranks 2
grep -q '"algorithm": "staged"' "$scratch/out" || complain "--algorithm does not choose"
grep -q measured "$scratch/err" && complain "a complaint about what was asked for"
# What the environment chose is what the row says.
SHOAL_TRANSPORT=socket measures 1 all_reduce --sizes 1K --ranks 2
grep -q '"transport": "socket"' "$scratch/out" || complain "another transport than SHOAL_TRANSPORT"
# What cannot carry the call does not, and the tool says so.
measures 1 all_reduce --sizes 64K --algorithm oneshot --ranks 2
grep -q '"algorithm": "staged"' "$scratch/out" || complain "not staged"
grep -qF "all_reduce of 65536 bytes: measured staged, since oneshot cannot carry it" "$scratch/err" ||
    complain "does not say that oneshot was not taken"
measures 1 all_reduce --sizes 1K --ranks 1
# Ranks that do not meet; a rank that is late; iterations that are slow, all of them and none.
measures 1 all_reduce --sizes 1K --ranks 3 --back-to-back
measures 1 all_reduce --sizes 1K --ranks 2 --late 10000 --slow 10
grep -q '"slow": 1.0000, "cpu_us": [0-9.]*, ' "$scratch/out" || complain "ranks that wait 10 ms are not slow"
measures 1 all_reduce --sizes 1K --ranks 2 --slow 10000000
grep -q '"mean_us": [0-9.]*, "slow": 0.0000, ' "$scratch/out" || complain "a call was slower than ten seconds"

# For people: comments, then the columns that docs/benchmarks.md explains.
explains_columns all_reduce --sizes 1K --iterations 3

bench_name=(all_reduce)
refuses "--ranks" "--ranks 0" "--ranks x" "--sizes 0" "--sizes 4K:1K" "--sizes 1K:4K:1" "--sizes 1:2:3:4" \
    "--sizes 1Q" "--dtype f31" "--transport carrier_pigeon" "--algorithm carrier_pigeon" "--rotate -1" "--iterations 0" "--warmup -1" "--redop mean" "--root -1" "--late x" "--slow 0" "--what" "--window"
bench_name=()
bench all_reduce --algorithm carrier_pigeon || true
grep -q "there are: local oneshot" "$scratch/err" || complain "does not list the algorithms"
bench all_reduce --dtype f31 || true
grep -qF "shoal bench all_reduce: 'f31' is not a dtype; did you mean 'f32'?" "$scratch/err" || complain "no dtype suggested"
bench all_reduce --dtype carrier_pigeon || true
grep -q "there are: all f64 f32" "$scratch/err" || complain "does not list the dtypes"
says_why() {
    bench "${@:2}" && complain "${*:2}: not refused"
    grep -qF -- "$1" "$scratch/err" || complain "${*:2}: does not say: $1"
}
says_why "'what' is not a benchmark" all_reduce what
says_why "--redop is bitwise, but --dtype is not an integer" all_reduce --redop bxor
says_why "--root is not a rank" broadcast --root 2
says_why "--window is about all_gather" all_reduce --window
says_why "two kinds of buffers" all_gather --window --symmetric
says_why "--sizes: '1Q' is not a size" all_reduce --bytes 1Q
says_why "--sizes: '64M:1K' is not a size, as 64K, or a smaller and a larger one and a factor of at least 2, as 1K:64M:4" \
    all_reduce --sizes 64M:1K
says_why "'-J' is not an option; did you mean '--json'? It prints on standard output." all_reduce -J file
says_why "needs ranks that an mpirun has started" all_reduce --transport mpi
# What cannot begin has no table.
says_why "transport socket, which has no symmetric memory" all_reduce --symmetric --transport socket
[[ ! -s $scratch/out ]] || complain "prints a table before it fails"
says_why "window" all_gather --window --transport socket
[[ ! -s $scratch/out ]] || complain "prints a table before it fails"
# A pipeline whose reader has gone ends without a word, and without the benchmarks that are left.
status=0
perl -e 'pipe(R, W); close(R); open(STDOUT, ">&", W); $SIG{PIPE} = "DEFAULT"; exec @ARGV' \
    "$SHOAL_TEST_TOOL" bench all_reduce all_gather --sizes 1K --iterations 2 2>"$scratch/err" || status=$?
[[ $status -eq 141 && ! -s $scratch/err ]] || complain "a closed pipe: exit status $status"
# Options and values of nccl-tests.
while read -r flag ours; do
    says_why "shoal bench all_reduce: '${flag/8/}' is not an option; did you mean '${ours%% *}'?${ours#"${ours%% *}"}" all_reduce "$flag" 8
done <<'END'
-b --sizes It is --sizes FROM:TO:FACTOR.
-b8 --sizes It is --sizes FROM:TO:FACTOR.
-e --sizes It is --sizes FROM:TO:FACTOR.
-f --sizes It is --sizes FROM:TO:FACTOR.
-i --sizes It is --sizes FROM:TO:FACTOR, whose steps multiply.
-g --ranks mpirun -n N starts ranks, too.
-t --threads Ranks are threads then, --ranks N of them.
-w --warmup
-o --redop
-d --dtype
-r --root
--minbytes --sizes It is --sizes FROM:TO:FACTOR.
--iters --iterations
--warmup_iters --warmup
END
says_why "'float' is not a dtype; did you mean 'f32'?" all_reduce --dtype float
says_why "--root is about broadcast, which is not to be measured" all_reduce all_gather --root 1
says_why "--redop is about all_reduce and reduce_scatter" broadcast barrier --redop max
# A barrier has no data.
for option in "--sizes 1K" "--bytes 1K" "--dtype bf16" --symmetric "--rotate 1M"; do
    name=${option%% *}
    # shellcheck disable=SC2086 # two words
    says_why "${name/bytes/sizes} is about all_reduce, all_gather, reduce_scatter, all_to_all and broadcast, which are not" barrier $option
done
says_why "--in-place is about all_reduce, all_gather and reduce_scatter, which are not" broadcast barrier --in-place
measures 2 barrier broadcast --sizes 1K --dtype bf16
says_why "'--sizes' is not an option" all_reduce kernels --sizes 1K
says_why "'prod' is not a redop; did you mean 'product'?" all_reduce --redop prod

# Several at once are one table. Reductions, roots, calls in place, all dtypes, and other names of options.
bench all_reduce all_gather --bytes 1K -n 3 --iterations 2 || complain "two at once failed"
[[ $(grep -c '^#op ' "$scratch/out") -eq 1 ]] || complain "not one table"
[[ $(grep -cE '^all_(reduce|gather) +3 ' "$scratch/out") -eq 2 ]] || complain "not two rows"
for redop in avg product min max; do
    measures 24 all_reduce reduce_scatter --sizes 1K --ranks 3 --dtype all --redop "$redop" --in-place
    [[ $(grep -c "\"redop\": \"$redop\".*\"in_place_wrong\": 0}" "$scratch/out") -eq 24 ]] || complain "$redop: not in place"
done
measures 8 all_reduce --sizes 1000 --ranks 3 --dtype all --redop bxor
measures 2 all_reduce broadcast --sizes 4K --ranks 3 --root 2
grep -q '"root": 2}' "$scratch/out" || complain "not root 2"
measures 1 all_gather --window --in-place --sizes 1K
grep -q in_place "$scratch/out" && complain "a window in place"
measures 1 all_reduce --sizes 1K --warmup 0 --symmetric --in-place
# A rank that is killed is named, and what it measured.
"$SHOAL_TEST_TOOL" bench all_reduce --sizes 1K --iterations 1000000 >"$scratch/out" 2>"$scratch/err" &
job=$!
end=$((SECONDS + 60))
ranks=()
until [[ ${#ranks[@]} -eq 2 || $SECONDS -ge $end ]]; do
    read -rt 0.02 <> <(:) || true
    read -r -a ranks <"/proc/$job/task/$job/children" || true # its line does not end
done
kill -KILL "${ranks[1]}"
wait $job && complain "a killed rank was not noticed"
grep -q '^shoal bench all_reduce: rank 1 ended by signal 9 (Killed)$' "$scratch/err" || complain "does not say what was killed"
bench all_reduce --transport carrier_pigeon || true
grep -q "there are: shm fake" "$scratch/err" || complain "does not list the transports"
bench all_gather --help || complain "no help"
grep -q -- --window "$scratch/out" || complain "the help does not tell"

[[ $failed == false ]]
