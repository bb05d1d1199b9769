/* SPDX-License-Identifier: MIT */
/*
 * What a plan or the run of a graph takes of memory. It is known before anything is taken, and compared with what is
 * free: most kernels give more memory than there is, and kill a process when it is used.
 */
#ifndef GRAPH_PLAN_NEED_H
#define GRAPH_PLAN_NEED_H

#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"

struct shoal_graph;
struct shoal_plan;
struct text;

/* So many values are named in errors. */
#define NEED_N_LARGEST 3

struct need {
    uint64_t bytes;
    struct need_value {
        const char *name; /* of the node that creates it; lives as long as the graph or plan */
        uint64_t bytes;
    } largest[NEED_N_LARGEST]; /* descending; 0 bytes: no more */
    /* Of a plan; `bytes` is their sum. Windows exist once per host. */
    uint64_t pool_bytes;
    uint64_t output_bytes;
    uint64_t comm_bytes;
    uint64_t window_bytes;
};

/* Keeps the value if it is among the largest. */
void need_add_value(struct need *need, const char *name, uint64_t bytes);

/* What running a graph node by node takes at most, beside its inputs and constants. */
shoal_status need_of_graph(const struct shoal_graph *graph, struct need *need_out);
/* What binding a plan takes. */
void need_of_plan(const struct shoal_plan *plan, struct need *need_out);

/* "; largest: %a 16.00 GiB, %b 1.00 GiB"; nothing if there are no values. */
void need_add_largest(struct text *text, const struct need *need);
/* "pool 1.00 GiB, outputs 96 bytes, comm memory 0 bytes, windows 0 bytes" */
void need_add_parts(struct text *text, const struct need *need);

/* SHOAL_ERR_NO_MEMORY, with all numbers: the plan takes more than `max_bytes` (0 means no such limit) or than is
   free. */
shoal_status need_check_plan(const struct need *need, uint64_t max_bytes);
/* Checks, as need_check_plan does, the memory of a graph that is about to run. Does nothing for graphs whose values are
   small together. */
shoal_status need_check_run(const struct shoal_graph *graph);

#endif
