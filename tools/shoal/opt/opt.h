/* SPDX-License-Identifier: MIT */
/* `shoal opt`: what its files share. */
#ifndef OPT_OPT_H
#define OPT_OPT_H

#include "graph/analysis/estimate.h"
#include "shoal/compile.h"
#include "shoal/graph.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Words that were separated by commas. */
struct opt_names {
    char **names;
    size_t n_names;
    size_t capacity;
};

struct opt_plan {
    const char *path; /* "-": standard input */
    struct opt_names passes;
    struct opt_names print_after;
    struct opt_names disabled;
    struct opt_names libraries; /* paths, as they are */
    double bucket_size_mb;
    double comm_bucket_mb;
    const char *dot_prefix;
    const char *dot_path; /* NULL means standard output */
    bool is_dot;
    bool has_stats;
    bool is_list;
    bool is_lowered;
    bool is_run;
    int n_times;         /* how often the result is timed; 0 means not at all */
    const char *machine; /* for estimates; NULL means SHOAL_MACHINE */
    int n_ranks;         /* that run; 0 means as many as groups of the graph need */
    size_t max_bytes;    /* of memory that they take together; 0 means half of what is free */
    shoal_compile_options lowering;
};

/* Text that grows, with a zero behind it. */
struct opt_text {
    char *chars;
    size_t n_bytes;
    size_t capacity;
};

/* Adds what stands between the commas. False, and told, without memory. */
bool opt_names_split(struct opt_names *names, const char *text);
bool opt_names_add(struct opt_names *names, const char *name, size_t bytes);
bool opt_names_has(const struct opt_names *names, const char *name);
void opt_names_free(struct opt_names *names);

/* Reads, runs, prints. The exit status. */
int opt_run(const struct opt_plan *plan);

/* For functions that print: of a FILE, and of a struct opt_text. */
int opt_put(void *context, const char *text, size_t bytes);
int opt_append(void *context, const char *text, size_t bytes);

/* What ranks run, and how. */
struct opt_ranks {
    int n_ranks;
    const struct opt_text *before; /* graphs */
    const struct opt_text *after;
    const shoal_compile_options *lowering; /* NULL if the second is run as a graph, too */
    uint64_t max_bytes;                    /* 0 means half of what is free */
    int n_times;                           /* how often the second is timed */
    size_t n_outputs;                      /* is set */
    double step_us;      /* is set, if n_times is not 0: the median of the longest of any rank */
    double fastest_us;   /* and the shortest of these */
    double processor_us; /* and the shortest time that a rank's thread had a processor in a run */
};

/* As many as the groups of the graph need, at least one. */
int opt_ranks_count(const shoal_graph *graph);
/* Runs both graphs, on ranks that are threads, with the same random inputs: outputs, and inputs that were written, are
   compared bit by bit. A difference is SHOAL_ERR_MISMATCH. `after` and the plan (which may be NULL) are those of rank
   0, for what memory they need. */
shoal_status opt_ranks_run(struct opt_ranks *ranks, const shoal_graph *after, const shoal_plan *plan);

/* What is about to run. */
struct opt_memory {
    const shoal_graph *before;
    const shoal_graph *after;
    const shoal_plan *plan; /* NULL if the second is run as a graph, too */
    int n_ranks;
    uint64_t limit; /* 0 means half of what is free */
};

/* SHOAL_ERR_NO_MEMORY, with sizes and the largest values: the ranks would take more memory than the limit. */
shoal_status opt_memory_check(const struct opt_memory *memory);

/* The plan of rank 0. Nobody else is needed: it has no memory and cannot run. */
shoal_status opt_lower(const shoal_graph *graph, const shoal_compile_options *options, shoal_plan **plan_out);

/* How much communication there is in a graph. */
struct opt_stats {
    size_t n_nodes;
    size_t n_waits;
    struct opt_kind {
        const char *op;
        size_t n_calls;
        size_t n_bytes; /* of their results */
    } * kinds;          /* of collectives, by name */
    size_t n_kinds;
    size_t capacity;
    bool has_plan;
    shoal_plan_stats plan;
};

/* What passes make of the estimates of a graph, in the order in which they ran. */
struct opt_estimates {
    struct opt_estimate {
        const char *pass; /* after it; NULL: before all of them */
        struct estimate estimate;
    } * rows;
    size_t n_rows;
    size_t capacity;
    struct machine machine;
};

/* Estimates the graph on estimates->machine, and adds a row. */
shoal_status opt_estimates_add(struct opt_estimates *estimates, const char *pass, const shoal_graph *graph);
void opt_estimates_print(const struct opt_estimates *estimates, FILE *out);
void opt_estimates_free(struct opt_estimates *estimates);

/* Counts communication in the graph, and, unless `lowering` is NULL, in the plan that it gives. */
shoal_status opt_stats_count(const shoal_graph *graph, const shoal_compile_options *lowering,
                             struct opt_stats *stats);
void opt_stats_print(const struct opt_stats *stats, const char *when, FILE *out);
void opt_stats_free(struct opt_stats *stats);

#endif
