/* SPDX-License-Identifier: MIT */
/* The benchmarks of `shoal bench`: the rows of benches.def. */
#ifndef BENCH_BENCHES_H
#define BENCH_BENCHES_H

#define BENCH(name, function, summary) int function(int argc, char **argv);
#include "bench/benches.def"
#undef BENCH

#endif
