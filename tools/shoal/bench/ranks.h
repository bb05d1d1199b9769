/* SPDX-License-Identifier: MIT */
/* The ranks of a benchmark, which the tool starts itself: as processes or as threads. */
#ifndef BENCH_RANKS_H
#define BENCH_RANKS_H

#include "measure/measure.h"
#include "shoal/status.h"

struct bench_ranks {
    int n_ranks;
    bool is_threads;
    struct measure_page *page;
    /* One rank. False when something failed or was wrong: what, is on standard error. Who returns before the others
       can go on without it calls measure_page_fail. */
    bool (*run)(const void *context, struct measure_page *page, int rank);
    const void *context;
};

/* Returns when all have ended; false when one was not good. The library is first called in the ranks: each reads its
   own options. */
bool bench_ranks_run(const struct bench_ranks *ranks);

/* Of times `first`, `first + 1`, ... on the page: the median of the longest of any rank; -1 when there is no memory to
   sort in. */
double bench_ranks_median_ns(struct measure_page *page, int n_ranks, size_t first, size_t n_times);

/* True when a call of a rank went well; otherwise says what did not. */
bool bench_ranks_check(const char *bench, int rank, shoal_status status, const char *what);

#endif
