#!/bin/bash
# SPDX-License-Identifier: MIT
# Random sharded networks under random settings, compiled beside eager (tests/parallel/compile/shard_sweep_test.c), on 2,
# 3, 4 and 6 ranks, as threads and as processes, and how many of them had which setting.
#
#   scripts/settings.sh [NUMBER [FIRST]]      default: 200 networks for each number of ranks, from number 1 on
set -euo pipefail
cd "$(dirname "$0")/.."

cmake --preset dev >/dev/null
cmake --build --preset dev -j "$(nproc)" --target test_parallel_compile_shard_sweep >/dev/null
number=${1:-200} first=${2:-1} portion=50
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# A test has a deadline, so they come in portions. What fails says its number.
for ((from = first; from < first + number; from += portion)); do
    left=$((first + number - from))
    export SHOAL_TEST_TABLE=1 SHOAL_TEST_STEPS_FIRST=$from SHOAL_TEST_STEPS=$((left < portion ? left : portion))
    build/dev/tests/parallel/compile/shard_sweep_test >>"$log" 2>&1 || {
        cat "$log"
        exit 1
    }
done

# The tables of threads; those of processes are the same.
perl -ne 'if (/^(\d+) ranks, (\d+) networks: (.*)/) {
        my ($ranks, $networks, $rest) = ($1, $2, $3);
        $all{$ranks} += $networks;
        while ($rest =~ /(?:^|, )([a-z ]+) (\d+)/g) {
            my ($name, $count) = ($1, $2);
            push @names, $name if !$is_known{$name}++;
            $sum{$ranks}{$name} += $count;
        }
    }
    END {
        for my $ranks (sort { $a <=> $b } keys %all) {
            print "$ranks ranks, $all{$ranks} networks: ", join(", ", map { "$_ $sum{$ranks}{$_}" } @names), "\n";
        }
    }' "$log"
