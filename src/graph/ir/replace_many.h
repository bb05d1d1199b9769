/* SPDX-License-Identifier: MIT */
/* Replacing many nodes at once: each user gets its new arguments once, however many of them change. */
#ifndef GRAPH_IR_REPLACE_MANY_H
#define GRAPH_IR_REPLACE_MANY_H

#include "graph/ir/graph.h"

struct replace_pair {
    struct shoal_node *old;
    struct shoal_node *other; /* none of the old ones */
};

/*
 * Replaces all uses of the old nodes by the others, as shoal_node_replace does for each pair, except in other old
 * nodes. The old nodes stay; the caller erases them, the last in the list first. Each node may be old once. After a
 * failure only origins have changed.
 */
shoal_status graph_replace_many(struct shoal_graph *graph, const struct replace_pair *pairs, size_t n_pairs);

#endif
