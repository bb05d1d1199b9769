#!/bin/bash
# SPDX-License-Identifier: MIT
# Graphs of tests/ir, each one behaviour of a pass or of the reader. Lines of a graph say what is expected:
#     # RUN: ARGUMENTS       of shoal opt, once
#     # CHECK: TEXT          a line of the output has it; behind the line that the CHECK before it has found
#     # CHECK-NOT: TEXT      no line between the CHECKs around it has it
#     # FAIL: TEXT           exit status 1, nothing printed, and the error has it
# TEXT is taken as it is. `ir_test.sh FILE...` checks those files only.
# Graphs that do not fail are also executed, by as many ranks as their groups have: after the passes, and as a plan.
set -euo pipefail

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# Looking for leaks takes seconds per run on some machines.
export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0

# check_output GRAPH OUTPUT: the CHECK lines, in order.
check_output() {
    awk '
        function fail(text) { print text; is_bad = 1; exit 1 }
        FNR == NR {
            if (match($0, /^# CHECK(-NOT)?: /)) {
                kinds[++n] = /^# CHECK-NOT/ ? "not" : "has"
                texts[n] = substr($0, RLENGTH + 1)
            }
            next
        }
        { lines[++n_lines] = $0 }
        END {
            if (is_bad) exit 1
            at = 0
            for (i = 1; i <= n; i = next_has + 1) {
                for (next_has = i; next_has <= n && kinds[next_has] == "not"; next_has++) continue
                found = at + 1
                while (next_has <= n && found <= n_lines && !index(lines[found], texts[next_has])) found++
                if (next_has <= n && found > n_lines) fail("not behind line " at " of the output: " texts[next_has])
                if (next_has > n) found = n_lines + 1
                for (k = i; k < next_has; k++) {
                    for (line = at + 1; line < found; line++) {
                        if (index(lines[line], texts[k])) fail("in line " line " of the output: " texts[k])
                    }
                }
                at = found
            }
        }' "$1" "$2"
}

# check_graph GRAPH: what is wrong is said, and the status is 1.
check_graph() {
    local graph=$1 status=0 run failure
    local -a words
    if [[ $(grep -c '^# RUN:' "$graph") -ne 1 ]]; then
        echo "there is not one RUN line"
        return 1
    fi
    run=$(sed -n 's/^# RUN://p' "$graph")
    failure=$(sed -n 's/^# FAIL: //p' "$graph")
    read -ra words <<<"$run"
    "$SHOAL_TEST_TOOL" opt "${words[@]}" "$graph" >"$scratch/out" 2>"$scratch/err" || status=$?
    if [[ -n $failure ]]; then
        if [[ $status -ne 1 || -s $scratch/out ]] || ! grep -qF -- "$failure" "$scratch/err"; then
            echo "exit status $status, and not: $failure"
            cat "$scratch/out" "$scratch/err"
            return 1
        fi
        return 0
    fi
    if [[ $status -ne 0 || -s $scratch/err ]]; then
        echo "exit status $status"
        cat "$scratch/err"
        return 1
    fi
    if ! grep -q '^# CHECK: ' "$graph"; then
        echo "nothing is checked"
        return 1
    fi
    if ! check_output "$graph" "$scratch/out"; then
        cat "$scratch/out"
        return 1
    fi
}

# execute GRAPH: results are those of the graph without passes. What is wrong is said, and the status is 1.
execute() {
    local graph=$1 run lower
    local -a words
    run=$(sed -n 's/^# RUN://p' "$graph")
    read -ra words <<<"$run"
    for lower in "" --lower; do
        if ! "$SHOAL_TEST_TOOL" opt "${words[@]}" --run ${lower:+"$lower"} "$graph" >"$scratch/out" 2>"$scratch/err" ||
            ! grep -q '^# run: ranks [0-9]*, outputs [0-9]*, same bits$' "$scratch/out"; then
            echo "not executed ${lower:+with $lower}"
            cat "$scratch/err"
            return 1
        fi
    done
}

if [[ $# -eq 0 ]]; then
    set -- "$SHOAL_TEST_SOURCE_DIR"/tests/ir/*.graph
    [[ $# -ge 12 ]]
    is_whole=true
fi
failed=false
for graph in "$@"; do
    if ! check_graph "$graph" >"$scratch/said"; then
        echo "$graph: $(cat "$scratch/said")"
        failed=true
    fi
    cp "$scratch/out" "$scratch/kept"
    if ! grep -q '^# FAIL: ' "$graph" && ! execute "$graph" >"$scratch/said"; then
        echo "$graph: $(cat "$scratch/said")"
        failed=true
    fi
    if [[ -z ${is_whole:-} ]]; then
        continue
    fi
    # What would go unnoticed? Each expectation of the file is spoiled in turn, and the copy must fail: with the output that there
    # was, which does not depend on them.
    again=(check_output "$scratch/spoiled" "$scratch/kept")
    if grep -q '^# FAIL: ' "$graph"; then
        again=(check_graph "$scratch/spoiled")
    fi
    n_lines=$(grep -cE '^# (CHECK|FAIL): ' "$graph")
    for ((which = 1; which <= n_lines; which++)); do
        awk -v which="$which" '/^# (CHECK|FAIL): / && ++n == which { $0 = $0 " spoiled" } { print }' "$graph" >"$scratch/spoiled"
        if "${again[@]}" >"$scratch/said"; then
            echo "$graph: succeeds although expectation $which is spoiled"
            failed=true
        fi
    done
done
if [[ -z ${is_whole:-} ]]; then
    if $failed; then
        exit 1
    fi
    exit 0
fi

# The rules themselves, on a graph that prints three lines between its braces.
# rule STATUS LINES: whether a graph with these expectations succeeds
rule() {
    local status=0
    {
        printf '%s\n' "$2"
        printf 'graph {\n  %%a = placeholder : f32[1]\n  %%b = neg(%%a)\n  return %%b\n}\n'
    } >"$scratch/rule"
    check_graph "$scratch/rule" >"$scratch/said" || status=$?
    if [[ $status -ne $1 ]]; then
        printf 'status %d instead of %d for\n%s\n' "$status" "$1" "$2"
        cat "$scratch/said"
        failed=true
    fi
}
rule 0 $'# RUN:\n# CHECK: %a\n# CHECK: %b = neg(%a)\n# CHECK: return'
rule 1 $'# RUN:\n# CHECK: return\n# CHECK: %b = neg(%a)'
rule 1 $'# RUN:\n# CHECK: %b = neg(%a)\n# CHECK: %b = neg(%a)'
rule 1 $'# RUN:\n# CHECK: %c'
rule 0 $'# RUN:\n# CHECK: placeholder\n# CHECK-NOT: placeholder\n# CHECK: return'
rule 1 $'# RUN:\n# CHECK: placeholder\n# CHECK-NOT: neg\n# CHECK: return'
rule 1 $'# RUN:\n# CHECK: placeholder\n# CHECK-NOT: return'
rule 1 $'# RUN:\n# CHECK-NOT: placeholder\n# CHECK: neg'
rule 1 $'# RUN:\n# CHECK-NOT: something'
rule 1 $'# RUN:\n# FAIL: something'
rule 1 $'# RUN: --passes=nothing\n# FAIL: no pass'
rule 1 '# CHECK: %a'
rule 1 $'# RUN:\n# RUN:\n# CHECK: %a'

! $failed
