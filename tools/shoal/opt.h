/* SPDX-License-Identifier: MIT */
/* `shoal opt`: what its files share. */
#ifndef TOOL_OPT_H
#define TOOL_OPT_H

#include "shoal/compile.h"
#include "shoal/graph.h"

#include <stdbool.h>
#include <stddef.h>
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
    const char *dot_path; /* NULL: standard output */
    bool is_dot;
    bool has_stats;
    bool is_list;
};

/* Adds what stands between the commas. False, and told, without memory. */
bool opt_names_split(struct opt_names *names, const char *text);
bool opt_names_add(struct opt_names *names, const char *name, size_t bytes);
bool opt_names_has(const struct opt_names *names, const char *name);
void opt_names_free(struct opt_names *names);

/* Reads, runs, prints. The exit status. */
int opt_run(const struct opt_plan *plan);

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
};

/* SHOAL_ERR_NO_MEMORY, or SHOAL_OK. */
shoal_status opt_stats_count(const shoal_graph *graph, struct opt_stats *stats);
void opt_stats_print(const struct opt_stats *stats, const char *when, FILE *out);
void opt_stats_free(struct opt_stats *stats);

#endif
