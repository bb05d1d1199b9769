/* SPDX-License-Identifier: MIT */
/* The benchmarks of `shoal bench`, the rows of benches.def, and the tables of their options. */
#ifndef BENCH_BENCHES_H
#define BENCH_BENCHES_H

struct tool_options;

#define BENCH(name, function, options, has_ranks, summary) int function(int argc, char **argv);
#include "bench/benches.def"
#undef BENCH

extern const struct tool_options bench_checkpoint_options;
extern const struct tool_options bench_collective_options;
extern const struct tool_options bench_compiled_options;
extern const struct tool_options bench_fsdp_options;
extern const struct tool_options bench_functional_options;
extern const struct tool_options bench_kernels_options;
extern const struct tool_options bench_nn_options;
extern const struct tool_options bench_overlap_options;
extern const struct tool_options bench_passes_options;
extern const struct tool_options bench_probe_options;

#endif
