#!/bin/bash
# SPDX-License-Identifier: MIT
# `shoal bench kernels`: the rows and keys it promises, and that SHOAL_SIMD chooses the variant.
# shellcheck source-path=SCRIPTDIR source=bench_common.sh
. "${BASH_SOURCE[0]%/*}/bench_common.sh"
bench_name=(kernels)

bench --json --bytes 16K || complain "a result differs from plain C"
for key in kernel dtype bytes variant gbps memcpy_gbps ratio wrong; do
    grep -q "\"$key\": " "$scratch/out" || complain "no key $key"
done
for kernel in pack unpack cast reduce op_overhead_ns; do
    grep -q "\"kernel\": \"$kernel\"" "$scratch/out" || complain "no row $kernel"
done
if grep -v '"kernel": "op_overhead_ns"' "$scratch/out" | grep -v '"wrong": 0}' >/dev/null; then
    complain "a row with wrong elements"
fi

SHOAL_SIMD=plain bench --bytes 16K --kernel cast || complain "failed"
grep -q '^# variant *plain ' "$scratch/out" || complain "SHOAL_SIMD=plain does not choose plain"

# One of the two is for another architecture.
for other in neon avx2; do
    "$SHOAL_TEST_TOOL" info | grep '^simd ' | grep -w "$other" >/dev/null && continue
    SHOAL_SIMD=$other SHOAL_LOG=warn bench --bytes 16K --kernel cast || complain "failed"
    grep -q "SHOAL_SIMD is $other" "$scratch/err" || complain "no warning about $other"
done

refuses "--bytes" "--bytes 1" "--bytes 10Q" "--bytes -5" "--variant nonsense" "--kernel nonsense" "--what 1"

# The usage names what there is, also behind other options.
bench --json --help || complain "no help"
for word in --variant --kernel --bytes --json plain op_overhead_ns; do
    grep -qw -e "$word" "$scratch/out" || complain "the help does not tell of $word"
done

[[ $failed == false ]]
