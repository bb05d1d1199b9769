/* SPDX-License-Identifier: MIT */
/* Replacing many nodes at once: each user gets its new arguments once, however many of them change. */
#ifndef GRAPH_REPLACE_MANY_H
#define GRAPH_REPLACE_MANY_H

#include "graph/graph.h"

struct replace_pair {
    struct shoal_node *old;
    struct shoal_node *other; /* none of the old ones */
};

/*
 * Uses of the old nodes become uses of the others, as by shoal_node_replace for each pair, except in other old nodes. The old ones
 * stay, for the caller to erase: the last in the list first. Each is old once. After a failure nothing has changed but origins.
 */
shoal_status graph_replace_many(struct shoal_graph *graph, const struct replace_pair *pairs, size_t n_pairs);

#endif
