/* SPDX-License-Identifier: MIT */
/*
 * A new order for all nodes at once: of those whose predecessors (graph/constraints.h) have been placed, the one with
 * the lowest score comes next. Inputs stay first, the output stays last, and all starts keep their order.
 */
#ifndef GRAPH_LIST_SCHEDULE_H
#define GRAPH_LIST_SCHEDULE_H

#include <stdbool.h>

#include "graph/graph.h"

struct list_schedule {
    bool raises_starts; /* what the next start needs comes before everything else */
    bool sinks_waits;   /* otherwise what is no wait comes before waits */
    bool covers_starts; /* as much compute as a start takes comes directly behind it (graph/estimate.h) */
};

/* n log n. Nothing changes after a failure. */
shoal_status list_schedule_run(struct shoal_graph *graph, const struct list_schedule *settings);

#endif
