/* SPDX-License-Identifier: MIT */
/* Communication blocks (shoal/compile.h) for passes, which ask for many and expect most nodes not to be one. */
#ifndef GRAPH_COMM_BLOCK_H
#define GRAPH_COMM_BLOCK_H

#include "graph/graph.h"
#include "shoal/compile.h"

/* Whether a node only looks at its first input: a view, or reshape and flatten, which are views where they can be. */
bool comm_block_looks(const struct shoal_node *node);

/* Like shoal_comm_block_get: *is_block_out is false, without an error text, for what is none. */
shoal_status comm_block_find(struct shoal_node *start, shoal_comm_block *block_out, bool *is_block_out);

#endif
