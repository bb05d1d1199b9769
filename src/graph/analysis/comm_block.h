/* SPDX-License-Identifier: MIT */
/* Communication blocks (shoal/compile.h), for passes. */
#ifndef GRAPH_ANALYSIS_COMM_BLOCK_H
#define GRAPH_ANALYSIS_COMM_BLOCK_H

#include "graph/ir/graph.h"
#include "shoal/compile.h"

/* Whether a node is a view, or a reshape or flatten, which are views if possible. */
bool comm_block_looks(const struct shoal_node *node);

/* Like shoal_comm_block_get, but if `start` does not begin a block, it is no error: *is_block_out is false. */
shoal_status comm_block_find(struct shoal_node *start, shoal_comm_block *block_out, bool *is_block_out);

#endif
