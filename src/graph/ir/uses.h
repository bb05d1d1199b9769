/* SPDX-License-Identifier: MIT */
/* Edges between nodes: each leads from a node to one of its inputs, and makes it a user of that input. */
#ifndef GRAPH_IR_USES_H
#define GRAPH_IR_USES_H

#include "graph/ir/graph.h"

/* The inputs that a node will have. If the node's arrays are large enough, `inputs` is in scratch memory, to be copied.
   Otherwise `inputs` and `edges` are the node's new arrays. */
struct uses {
    struct shoal_node **inputs;
    size_t n_inputs;
    struct edge *edges; /* NULL if the node's own arrays are large enough */
    size_t capacity;    /* of the new arrays */
};

/* Collects the nodes that the arguments name, each once, for a node whose arrays have room for `capacity` inputs.
   `scratch` must outlive `uses_out`. */
shoal_status uses_collect(struct shoal_graph *graph, struct arena *scratch, size_t capacity,
                          const shoal_arg *args, size_t n_args, struct uses *uses_out);

/* Replaces the inputs of a node. The node becomes the newest user of each. Cannot fail. */
void uses_set(struct shoal_node *node, const struct uses *uses);

/* Removes all inputs of a node. */
void uses_drop(struct shoal_node *node);

#endif
