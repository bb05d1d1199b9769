/* SPDX-License-Identifier: MIT */
/*
 * List scheduling gives all nodes a new order: of the nodes whose predecessors (graph/analysis/constraints.h) have been placed,
 * the one with the lowest score comes next. Placeholders stay first, the output stays last, and all starts keep their
 * order.
 */
#ifndef GRAPH_PASSES_LIST_SCHEDULE_H
#define GRAPH_PASSES_LIST_SCHEDULE_H

#include <stdbool.h>

#include "graph/ir/graph.h"
#include "shoal/compile.h"

struct list_schedule {
    bool raises_starts; /* nodes that the next start needs come before all others */
    bool sinks_waits;   /* apart from that, waits come after other nodes */
    /* A start is followed by compute for as long as it takes (graph/analysis/estimate.h). */
    bool covers_starts;
};

/* Takes n log n time. A failure changes nothing. */
shoal_status list_schedule_run(struct shoal_graph *graph, const struct list_schedule *settings,
                               const shoal_pass_options *options);

#endif
