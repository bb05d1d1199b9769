/* SPDX-License-Identifier: MIT */
/* What the files of `shoal bench probe` share: the graphs whose plans are timed. */
#ifndef BENCH_PROBE_H
#define BENCH_PROBE_H

#include <stdbool.h>
#include <stddef.h>

enum probe_case {
    PROBE_CALLS,    /* many small calls */
    PROBE_TOUCH,    /* a sum of large tensors */
    PROBE_PRODUCT,  /* a matrix product */
    PROBE_FUNCTION, /* gelu */
    PROBE_COMPUTE,  /* a chain of matrix products */
    PROBE_STARTS,   /* the same, with a small all_reduce beside each */
    PROBE_BOTH,     /* the same, with a large one beside all of them */
    PROBE_REDUCE_SMALL,
    PROBE_REDUCE_LARGE,
    PROBE_GATHER_SMALL,
    PROBE_GATHER_LARGE,
    PROBE_SCATTER_SMALL,
    PROBE_SCATTER_LARGE,
    PROBE_N_CASES
};

enum {
    PROBE_N_CALLS = 64,
    PROBE_TOUCHED_BYTES = 3 << 24, /* two inputs and a result */
    PROBE_N_VALUES = 1 << 17,      /* of gelu */
    PROBE_N_PRODUCTS = 8,          /* of the chain */
    PROBE_SMALL_BYTES = 1 << 12,
    PROBE_LARGE_BYTES = 1 << 22,
    PROBE_TEXT_BYTES = 8192
};

#define PROBE_OPERATIONS (2.0 * 256 * 256 * 1024)

/* How often it is timed. */
int probe_n_runs(enum probe_case which);
/* Writes the graph of a case, over so many ranks. */
void probe_write_graph(enum probe_case which, int n_ranks, char text[PROBE_TEXT_BYTES]);

#endif
