/* SPDX-License-Identifier: MIT */
/* Inputs of nodes and users of nodes: two sides of the same edges. */
#ifndef GRAPH_USES_H
#define GRAPH_USES_H

#include "graph/graph.h"

/* The inputs that a node shall have. Where its arrays have room they are `inputs` of memory that is freed soon;
   where they have none, they are its new arrays. */
struct uses {
    struct shoal_node **inputs;
    size_t n_inputs;
    struct edge *edges; /* NULL: its own have room */
    size_t capacity;    /* of new arrays */
};

/* What the arguments name, each once, for a node with room for so many inputs. `scratch` must outlive `uses_out`. */
shoal_status uses_collect(struct shoal_graph *graph, struct arena *scratch, size_t capacity,
                          const shoal_arg *args, size_t n_args, struct uses *uses_out);

/* The node has these inputs instead of those it has, and is the newest user of each. Cannot fail. */
void uses_set(struct shoal_node *node, const struct uses *uses);

/* The node has no inputs any more. */
void uses_drop(struct shoal_node *node);

#endif
