/* SPDX-License-Identifier: MIT */
/* Inputs of nodes and users of nodes: two sides of the same edges. */
#ifndef GRAPH_USES_H
#define GRAPH_USES_H

#include "graph/graph.h"

/* The inputs that a node shall have, and edges that are not yet part of the graph. */
struct uses {
    struct shoal_node **inputs;
    struct edge *edges;
    size_t n_inputs;
};

/* What the arguments name, each once. */
shoal_status uses_collect(struct shoal_graph *graph, const shoal_arg *args, size_t n_args,
                          struct uses *uses_out);

/* The node has these inputs instead of those it has, and is the newest user of each. Cannot fail. */
void uses_set(struct shoal_node *node, const struct uses *uses);

/* The node has no inputs any more. */
void uses_drop(struct shoal_node *node);

#endif
