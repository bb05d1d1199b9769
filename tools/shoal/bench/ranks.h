/* SPDX-License-Identifier: MIT */
/*
 * The ranks of a benchmark: processes or threads that the tool starts itself, or, under a launcher, the processes that
 * it started (bench/launched.h).
 */
#ifndef BENCH_RANKS_H
#define BENCH_RANKS_H

#include "measure/measure.h"
#include "shoal/status.h"
#include "shoal/world.h"

struct bench_ranks {
    const char *bench;                     /* "fsdp" */
    const struct measure_request *request; /* how many ranks, and for how many times there is room */
    bool is_threads;
    /* Ranks of its own also under a launcher: threads of the launcher's first rank; its other ranks do nothing. */
    bool is_apart;
    const char *transport; /* NULL means the library's default */
    /* One rank. False when something failed or was wrong: what, is on standard error. */
    bool (*run)(const void *context, struct measure_page *page, int rank);
    const void *context;
    /* The rest is made by bench_ranks_begin. */
    struct measure_page *page;
    char key[96]; /* by which ranks find each other */
};

/*
 * Once options were read: sets the number of ranks, which is 0 if it was not given, to that of the launcher or to
 * `standard`. Returns false, after a message, if options say how to start ranks that a launcher has started.
 */
bool bench_ranks_settle(struct measure_request *request, int standard, bool is_threads);

/* Makes what the ranks share; false, after a message, if that fails. What it made is freed by bench_ranks_end. */
bool bench_ranks_begin(struct bench_ranks *ranks);
void bench_ranks_end(struct bench_ranks *ranks);
/* Returns when all have ended; false when one was not good. Then the page has what all ranks found. In ranks that the
   tool starts, the library is first called there: each reads its own options. */
bool bench_ranks_run(const struct bench_ranks *ranks);
/* Opens the world that is measured, as this rank. SHOAL_ERR_CANCELLED: another rank has failed before. */
shoal_status bench_ranks_open_world(const struct bench_ranks *ranks, int rank, shoal_world **world_out);
/* Ends what ranks do together. A rank on which something has failed ends the waits of all others, which then fail without
   a message. Returns whether all is well: of a launcher's ranks on all of them, otherwise on this one. */
bool bench_ranks_agree(const struct bench_ranks *ranks, shoal_world *world, bool is_good);
/* The same, and then closes the world; false, after a message, if that failed. */
bool bench_ranks_close_world(const struct bench_ranks *ranks, int rank, shoal_world *world, bool is_good);
/* What ranks found beyond times: an array with a block of each rank, on memory that ranks share if the tool started
   them. Under a launcher each has written its own block, and gets the others here. False, after a message, on failure. */
bool bench_ranks_gather(void *blocks, size_t block_bytes);
/* "4 ranks as processes", for a header. */
const char *bench_ranks_text(const struct measure_request *request, bool is_threads);

/* Of times `first`, `first + 1`, ... on the page: the median of the longest of any rank; -1 when there is no memory to
   sort in. */
double bench_ranks_median_ns(struct measure_page *page, int n_ranks, size_t first, size_t n_times);

/* True when a call of a rank went well; otherwise says what did not, unless it was ended by a rank that has failed: that
   one says why. */
bool bench_ranks_check(const char *bench, int rank, shoal_status status, const char *what);

#endif
