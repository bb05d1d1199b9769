/* SPDX-License-Identifier: MIT */
/*
 * How collectives are measured, the same for every library. `shoal bench` and the programs of bench/peers/ use these
 * files and add only the calls of their library. The files need nothing but libc.
 *
 * One iteration, on every rank:
 *   1. the input is written: values that depend on rank, iteration and place
 *   2. all ranks meet on a page of shared memory (page.c), so that no library aligns its own start
 *   3. clock, the call, clock
 *   4. every element of the result is checked
 * The time of an iteration is the longest of any rank; a row is the median, p99 and maximum over iterations.
 * Without step 2 (--back-to-back) ranks call as soon as they can, as programs do: a rank that is kept off its
 * processor makes the iteration long on the others.
 */
#ifndef MEASURE_MEASURE_H
#define MEASURE_MEASURE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum measure_op {
#define OP(name, reduces, has_root, send_is_share, recv_is_share, bus_scale) MEASURE_##name,
#include "measure/ops.def"
#undef OP
    MEASURE_N_OPS
};

struct measure_op_row {
    const char *name;
    bool reduces;
    bool has_root;
    bool send_is_share;
    bool recv_is_share;
    double (*bus_scale)(double n);
};
extern const struct measure_op_row measure_ops[MEASURE_N_OPS];

/* False when there is none of that name. */
bool measure_op_find(const char *name, enum measure_op *op_out);

struct measure_dtype {
    const char *name; /* as the library calls it: "f32" */
    size_t bytes;
    uint64_t (*encode)(uint32_t value); /* the bits of a small whole number */
    uint32_t largest;                   /* up to here whole numbers are exact */
};

/* NULL when there is none of that name. */
const struct measure_dtype *measure_dtype_find(const char *name);
/* NULL past the last. */
const struct measure_dtype *measure_dtype_at(size_t index);

/* Arguments (arguments.c) ------------------------------------------------------------------------------ */

struct measure_request {
    enum measure_op op;
    int n_ranks;
    size_t from_bytes;
    size_t to_bytes;
    size_t factor;
    const struct measure_dtype *dtype;
    size_t rotate_bytes; /* 0: one buffer for all iterations */
    int iterations;      /* 0: by size */
    int64_t late_us;     /* rank 0 is so late in every iteration */
    int64_t slow_us;     /* an iteration that takes longer is slow */
    bool is_back_to_back;
    bool is_json;
};

enum {
    MEASURE_MAX_RANKS = 128,
    MEASURE_MAX_ITERATIONS = 1000000
};

void measure_request_init(struct measure_request *request);

/* Reads an option at argv[0]: how many words it took, 0 when it is none of these, -1 when its value is bad. */
int measure_parse(struct measure_request *request, int argc, char **argv);
extern const char measure_usage[];

/* The page that ranks share (page.c) ------------------------------------------------------------------- */

struct measure_page;

/* Ranks that do not come from one process map the same file; NULL: anonymous memory that children inherit. NULL
   when it cannot be had, with errno. */
struct measure_page *measure_page_map(const struct measure_request *request, const char *path);
void measure_page_unmap(struct measure_page *page, const struct measure_request *request);

/* Returns when all ranks have arrived; false when one has failed instead. */
bool measure_page_meet(struct measure_page *page, int rank);
/* Ends the wait of everybody. */
void measure_page_fail(struct measure_page *page);

/* For barriers: this rank is about to enter one; how many ranks had not, after it ended. */
void measure_page_enter(struct measure_page *page, int rank);
size_t measure_page_count_absent(const struct measure_page *page, int rank);

/* What a rank found, for rank 0 to sum up once all have met. */
int64_t *measure_page_times(struct measure_page *page, int rank);
uint64_t *measure_page_wrong(struct measure_page *page, int rank);
/* Processor time of the rank's thread in all iterations. */
int64_t *measure_page_cpu_ns(struct measure_page *page, int rank);

/* Values (pattern.c) ----------------------------------------------------------------------------------- */

/*
 * Element j of rank r in iteration i is a(j, i) + b(r). Both are small whole numbers, so sums over ranks are exact in
 * every dtype, and the expected sum has a closed form. Every a changes from one iteration to the next, so a stale
 * result is found.
 */
struct measure_pattern {
    const struct measure_dtype *dtype;
    int n_ranks;
    uint32_t mask;  /* of a and of b */
    void *encoding; /* by value */
};

bool measure_pattern_init(struct measure_pattern *pattern, const struct measure_dtype *dtype, int n_ranks);
void measure_pattern_fini(struct measure_pattern *pattern);
/* Elements first, first + 1, ... of a rank. */
void measure_pattern_write(const struct measure_pattern *pattern, void *data, size_t count, size_t first,
                           int rank, uint32_t iteration);
/* How many elements are not those of that rank; of the sum of all ranks. */
size_t measure_pattern_count_wrong(const struct measure_pattern *pattern, const void *data, size_t count,
                                   size_t first, int rank, uint32_t iteration);
size_t measure_pattern_count_wrong_sum(const struct measure_pattern *pattern, const void *data, size_t count,
                                       size_t first, uint32_t iteration);

/* Measuring (measure.c) -------------------------------------------------------------------------------- */

/* One size. */
struct measure_plan {
    const struct measure_request *request;
    size_t size_bytes; /* as asked for */
    size_t bytes;      /* the whole, in whole elements: a multiple of the ranks where it is cut into shares */
    size_t count;      /* what the call gets: elements of the whole, or of a share */
    size_t send_bytes; /* 0 for broadcasts, which have one buffer */
    size_t recv_bytes;
    int n_iterations;
    /* Iteration i uses place i % n_places. Each pool holds n_places, a stride apart. */
    size_t n_places;
    size_t send_stride;
    size_t recv_stride;
};

struct measure_call {
    enum measure_op op;
    const void *send;
    void *recv;
    size_t count;
    size_t recv_offset; /* of recv in its pool */
};

/* A library, as one rank of it. What returns bool prints why before it returns false. */
struct measure_library {
    const char *transport;
    const char *buffers; /* "heap", ... */
    void *context;
    bool (*run)(void *context, const struct measure_call *call);
    /* The rest may be NULL. Before the ranks meet, and not timed: what a library without separate input and output
       needs. */
    bool (*prepare)(void *context, const struct measure_call *call);
    /* After the check: the result is not needed any more. */
    bool (*release)(void *context);
    /* Memory for the pools, instead of the heap. Freed before the next size. */
    bool (*allocate)(void *context, const struct measure_plan *plan, void **send_out, void **recv_out);
    void (*free)(void *context, void *send, void *recv);
    bool is_recv_read_only;
    /* How the last call was done. */
    const char *(*algorithm)(void *context, const struct measure_plan *plan);
};

/* All sizes of the request, on one rank; rank 0 prints. False when something failed or was wrong. */
bool measure_run(const struct measure_request *request, struct measure_page *page, int rank,
                 const struct measure_library *library);

/* Printing (report.c) ---------------------------------------------------------------------------------- */

void measure_print_cpu(FILE *out);
void measure_print_header(void);
/* Sums up the page; returns what was wrong on all ranks. */
uint64_t measure_print_row(const struct measure_plan *plan, struct measure_page *page,
                           const struct measure_library *library);

#endif
