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
#define OP(name, reduces, has_root, send_is_share, recv_is_share, in_place, bus_scale) MEASURE_##name,
#include "measure/ops.def"
#undef OP
    MEASURE_N_OPS
};

enum measure_in_place {
    MEASURE_NEVER,
    MEASURE_SAME, /* both are one buffer */
    MEASURE_SHARE_OF_RECV,
    MEASURE_SHARE_OF_SEND
};

struct measure_op_row {
    const char *name;
    bool reduces;
    bool has_root;
    bool send_is_share;
    bool recv_is_share;
    enum measure_in_place in_place;
    double (*bus_scale)(double n);
};
extern const struct measure_op_row measure_ops[MEASURE_N_OPS];

/* False when there is none of that name. */
bool measure_op_find(const char *name, enum measure_op *op_out);

enum measure_redop {
#define REDOP(name, is_bitwise) MEASURE_REDOP_##name,
#include "measure/redops.def"
#undef REDOP
    MEASURE_N_REDOPS
};

struct measure_redop_row {
    const char *name;
    bool is_bitwise;
};
extern const struct measure_redop_row measure_redops[MEASURE_N_REDOPS];

struct measure_dtype {
    const char *name; /* as the library calls it: "f32" */
    bool is_integer;
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
    const struct measure_dtype *dtype; /* NULL means all, one after the other */
    enum measure_redop redop;
    int root;
    size_t rotate_bytes; /* 0: one buffer for all iterations */
    int iterations;      /* 0: by size */
    int warmups;         /* less than 0: by size */
    bool has_in_place;   /* calls in place are measured, too */
    int64_t late_us;     /* rank 0 is so late in every iteration */
    int64_t slow_us;     /* an iteration that takes longer is slow */
    bool is_back_to_back;
    bool is_json;
};

enum {
    MEASURE_MAX_RANKS = 1024,
    MEASURE_MAX_ITERATIONS = 1000000
};

void measure_request_init(struct measure_request *request);

/* Reads an option at argv[0]: how many words it took, 0 when it is none of these, -1 when its value is bad. */
int measure_parse(struct measure_request *request, int argc, char **argv);
/* Reads "1K", "1K:64M" (by 2) or "1K:64M:4"; false if it is none. */
bool measure_read_sizes(struct measure_request *request, const char *text);
/* What is wrong with a request whose ranks are known; NULL if nothing is. */
const char *measure_misfit(const struct measure_request *request);
extern const char measure_usage[];

/* The page that ranks share (page.c) ------------------------------------------------------------------- */

struct measure_page;

/*
 * How ranks that a launcher started reach each other: they are not children of one process, and may be on several
 * hosts. The functions return false, after a message, if another rank cannot be reached; and meet also if is_well is
 * false on a rank.
 */
struct measure_link {
    void *context;
    bool (*meet)(void *context, bool is_well);
    /* Every rank gives as many bytes and gets those of all, in rank order. */
    bool (*gather)(void *context, const void *own, void *all, size_t bytes);
};

/*
 * Ranks that are processes of their own map the same file; where `path` is NULL, the page is memory that children
 * inherit. With a link, only the ranks of one host map the same file; the page is complete on every host after
 * measure_page_collect. Returns NULL if that is not possible, with errno.
 */
struct measure_page *measure_page_map(const struct measure_request *request, const char *path);
struct measure_page *measure_page_map_linked(const struct measure_request *request, const char *path,
                                             const struct measure_link *link, int rank);
void measure_page_unmap(struct measure_page *page);

/* Returns when all ranks have arrived; false when one has failed instead. */
bool measure_page_meet(struct measure_page *page, int rank);
/* Ends the wait of everybody on this host. */
void measure_page_fail(struct measure_page *page);
/* Over a link: returns whether is_well is true on all ranks. If it is not, all of them have stopped using the link, and
   further calls return false at once. Without a link, returns is_well. */
bool measure_page_agree(struct measure_page *page, bool is_well);
/* Rank 0 says that measuring has begun: all ranks have their buffers. */
void measure_page_begin(struct measure_page *page);
bool measure_page_has_begun(const struct measure_page *page);
/* With a link, copies what ranks of other hosts found; all ranks call it. */
bool measure_page_collect(struct measure_page *page, int rank, size_t n_times);

/* For barriers: this rank is about to enter one; how many ranks of this host had not, after it ended. */
void measure_page_enter(struct measure_page *page, int rank);
size_t measure_page_count_absent(const struct measure_page *page, int rank);

/* What a rank found, for rank 0 to sum up once all have met. */
int64_t *measure_page_times(struct measure_page *page, int rank);
uint64_t *measure_page_wrong(struct measure_page *page, int rank);
/* Processor time of the rank's thread in all iterations. */
int64_t *measure_page_cpu_ns(struct measure_page *page, int rank);

/* Values (pattern.c) ----------------------------------------------------------------------------------- */

/*
 * Element j of rank r in iteration i is v(a, r), where a = a(j, i) is a small whole number that changes from one
 * iteration to the next, so a stale result is found. Reductions over ranks are exact in every dtype, and depend on a
 * alone.
 */
struct measure_pattern {
    const struct measure_dtype *dtype;
    int n_ranks;
    enum measure_redop redop;
    uint32_t mask;  /* of a */
    void *encoding; /* by value */
    void *reduced;  /* by a */
};

bool measure_pattern_init(struct measure_pattern *pattern, const struct measure_dtype *dtype,
                          enum measure_redop redop, int n_ranks);
void measure_pattern_fini(struct measure_pattern *pattern);
/* Elements first, first + 1, ... of a rank. */
void measure_pattern_write(const struct measure_pattern *pattern, void *data, size_t count, size_t first,
                           int rank, uint32_t iteration);
/* How many elements are not those of that rank; of the reduction over all ranks. */
size_t measure_pattern_count_wrong(const struct measure_pattern *pattern, const void *data, size_t count,
                                   size_t first, int rank, uint32_t iteration);
size_t measure_pattern_count_unreduced(const struct measure_pattern *pattern, const void *data, size_t count,
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
    int n_warmups;
    /* Iteration i uses place i % n_places. Each pool holds n_places, a stride apart, with guard bytes around each. */
    size_t n_places;
    size_t send_stride;
    size_t recv_stride;
    size_t send_pool_bytes; /* 0 if there is no such pool */
    size_t recv_pool_bytes;
};

struct measure_call {
    enum measure_op op;
    enum measure_redop redop;
    int root;
    const struct measure_dtype *dtype;
    bool is_in_place;
    const void *send;
    void *recv;
    size_t count;
    size_t recv_offset; /* of recv in its pool */
};

/* A library, as one rank of it. What returns bool prints why before it returns false. */
struct measure_library {
    const char *prefix; /* of messages: "shoal bench all_reduce: "; NULL if there is none */
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
    /* Its calls take buffers that are in place; otherwise only calls out of place are measured. */
    bool is_in_place_possible;
    /* On rank 0, before the first call: all ranks have their buffers. */
    void (*begin)(void *context);
    /* How the last call was done. */
    const char *(*algorithm)(void *context, const struct measure_plan *plan);
};

/* All sizes of the request, on one rank; rank 0 prints. False when something failed or was wrong. */
bool measure_run(const struct measure_request *request, struct measure_page *page, int rank,
                 const struct measure_library *library);

/* Printing (report.c) ---------------------------------------------------------------------------------- */

void measure_print_cpu(FILE *out);
void measure_print_header(const struct measure_request *request);

/* What a row says. */
struct measure_summary {
    double min_us;
    double median_us;
    double p99_us;
    double max_us;
    double mean_us;
    double slow;   /* the share of slow iterations */
    double cpu_us; /* processor time of a rank in an iteration; without rank 0 where that comes late */
    double algbw_gbs;
    double busbw_gbs;
    uint64_t wrong;
};

/* On rank 0: of the times on the page, which it sorts. */
void measure_summarise(const struct measure_plan *plan, struct measure_page *page,
                       struct measure_summary *summary_out);
/* `in_place` is NULL if that was not measured. */
void measure_print_row(const struct measure_plan *plan, const struct measure_library *library,
                       const char *algorithm, const struct measure_summary *summary,
                       const struct measure_summary *in_place);

#endif
