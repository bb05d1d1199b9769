/* SPDX-License-Identifier: MIT */
/* How `shoal bench` calls the library: one rank of a collective benchmark. */
#ifndef BENCH_CALLS_H
#define BENCH_CALLS_H

#include "measure/measure.h"

struct bench_ranks;

struct bench_collective {
    struct measure_request request;
    const char *transport; /* NULL means the library's default */
    const char *algorithm; /* NULL means what the tables pick */
    const char *buffers;   /* "heap", "symmetric" or "window" */
    const struct bench_ranks *ranks;
    /* Rank 0 calls it when all ranks have their worlds and buffers. */
    void (*begin)(const struct bench_collective *bench);
    bool has_header; /* printed by an earlier benchmark of the command */
    bool is_threads;
};

/* Opens a world as this rank, measures, closes it. False when something failed or was wrong: what, is on standard
   error. */
bool bench_collective_rank(const struct bench_collective *bench, struct measure_page *page, int rank);

#endif
