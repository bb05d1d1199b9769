# shellcheck shell=bash disable=SC2034
# SPDX-License-Identifier: MIT
# What the tests of `shoal bench` share; they read it first:
#
#   . "${BASH_SOURCE[0]%/*}/bench_common.sh"
#
# It makes $scratch, in which `bench` leaves what was printed as `out` and `err`. A test ends with [[ $failed == false ]].
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=false

# Looking for leaks takes seconds per run on some machines: a test does it once, ASAN_OPTIONS=$asan_options, where the ranks
# are threads of the process. Ranks that end by _exit are not looked at anyway.
asan_options=${ASAN_OPTIONS:-}
export ASAN_OPTIONS=$asan_options:detect_leaks=0

complain() {
    echo "$1"
    cat "$scratch/out" "$scratch/err"
    failed=true
}

# bench ARGUMENTS...: `shoal bench`, with its exit status. A test sets which one it is, or names it in each call.
bench_name=()
bench() {
    timeout 120 "$SHOAL_TEST_TOOL" bench "${bench_name[@]}" "$@" >"$scratch/out" 2>"$scratch/err"
}

# value COLUMN: of the first row, in JSON
value() {
    sed -nE "1s/.*\"$1\": (-?[0-9.]+).*/\1/p" "$scratch/out"
}

# holds EXPRESSION: of perl, over the columns.
holds() {
    perl -e "exit !($1)" || complain "not so: $1"
}

# refuses ARGUMENTS...: each of them, of one or several words, is a usage error that says something.
refuses() {
    local arguments status
    for arguments in "$@"; do
        status=0
        # shellcheck disable=SC2086 # several words on purpose
        bench $arguments || status=$?
        [[ $status -eq 2 ]] || complain "${bench_name[*]} $arguments: exit status $status, expected 2"
        [[ -s $scratch/err ]] || complain "${bench_name[*]} $arguments: was refused without a word"
    done
}

# names_what_it_refuses ARGUMENTS...: the same, and one line names the command, and the option or the value.
names_what_it_refuses() {
    local arguments
    for arguments in "$@"; do
        refuses "$arguments"
        grep -qF -e "${arguments%% *}" -e "'${arguments##* }'" "$scratch/err" || complain "${bench_name[*]} $arguments: is not named"
        [[ $(wc -l <"$scratch/err") -eq 1 && $(<"$scratch/err") == "shoal bench ${bench_name[*]}: "* ]] ||
            complain "${bench_name[*]} $arguments: not one line of this command"
    done
}

# explains_columns ARGUMENTS...: docs/benchmarks.md explains the columns that people see, and JSON has them. What people see
# is in $scratch/people afterwards.
explains_columns() {
    local header column
    bench "$@" || complain "failed"
    cp "$scratch/out" "$scratch/people"
    header=$(grep -E '^#(bench|op) ' "$scratch/out") || complain "no header"
    bench "$@" --json || complain "failed"
    for column in $header; do
        grep -qF "\`${column#\#}\`" "$SHOAL_TEST_SOURCE_DIR/docs/benchmarks.md" ||
            complain "docs/benchmarks.md does not explain ${column#\#}"
        grep -qE "\"${column#\#}(_gbs)?\": " "$scratch/out" || complain "JSON has no ${column#\#}"
    done
}
