/* SPDX-License-Identifier: MIT */
/*
 * What the benchmarks of collectives on tensors share: their arguments, ranks with a world and a scope, and a page on
 * which ranks leave their times. A round times several things in turn. A number is the median over rounds of the
 * longest time of any rank, as in bench/measure.
 */
#ifndef BENCH_TENSORS_H
#define BENCH_TENSORS_H

#include "measure/measure.h"

#include "shoal/group.h"
#include "shoal/status.h"
#include "shoal/tensor.h"
#include "shoal/world.h"

enum {
    BENCH_TENSORS_MAX_TIMES = 4,
    BENCH_TENSORS_MAX_COLUMNS = 4
};

struct bench_ranks;
struct bench_tensors;
struct tool_options;

/* One rank, with a scope open. */
struct bench_rank {
    const struct bench_tensors *bench;
    struct measure_page *page;
    int number;
    shoal_world *world;
    shoal_group *group;
    struct measure_pattern pattern;
    uint32_t iteration; /* of the next values */
    uint64_t n_wrong;
};

/* A benchmark. */
struct bench_tensors_kind {
    const char *name;
    const struct tool_options *options;
    bool (*run)(struct bench_rank *rank); /* false, with a message, when something failed */
    unsigned n_times;                     /* things that are measured in a round */
    const char *columns[BENCH_TENSORS_MAX_COLUMNS];
    void (*fill_columns)(const double *medians_us, double *columns_out);
    const char *note; /* for people: a line of the header */
};

struct bench_tensors {
    const struct bench_tensors_kind *kind;
    struct measure_request request; /* its iterations: rounds */
    size_t bytes;                   /* of a tensor, in whole elements */
    int64_t count;
    shoal_dtype dtype;
    int n_rounds;
    bool is_threads;
    const struct bench_ranks *ranks;
};

/* All of `shoal bench NAME ...`: what it returns is the exit status. */
int bench_tensors(const struct bench_tensors_kind *kind, int argc, char **argv);

/* For `run` --------------------------------------------------------------------------------------------- */

/* True when all is well; otherwise says what is not. */
bool bench_rank_check(const struct bench_rank *rank, shoal_status status, const char *what);

/* Leaves a time in nanoseconds; rounds below 0 are warm-up and leave none. */
void bench_rank_keep(struct bench_rank *rank, unsigned which, int round, int64_t time_ns);
/* What all ranks take a time to be: the median of the longest, of the first n_rounds. All meet in here, so all call
   it; 0 when one has failed. */
int64_t bench_rank_agree(struct bench_rank *rank, unsigned which, int n_rounds);

/* A tensor of the benchmark's size, of the open scope; NULL, with a message, when there is none. */
shoal_tensor *bench_rank_make_tensor(struct bench_rank *rank);
/* Writes the values of an iteration; counts what is not their sum over all ranks. */
bool bench_rank_write(struct bench_rank *rank, shoal_tensor *tensor, uint32_t iteration);
void bench_rank_check_sum(struct bench_rank *rank, const void *data, uint32_t iteration);

#endif
