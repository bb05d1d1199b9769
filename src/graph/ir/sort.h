/* SPDX-License-Identifier: MIT */
/*
 * Sorts nodes, so that each comes after its predecessors, with as few changes as possible (shoal_graph_sort).
 *
 * Nodes are visited in the order of the list. A node whose predecessors have all been placed is placed. Any other node
 * is parked at its last predecessor that is missing, and visited again when that one has been placed, before the walk
 * goes on. A list that is in order stays as it is. The output is always placed last.
 *
 * Only the list changes; nodes, edges and the insertion point stay. A failure changes nothing.
 */
#ifndef GRAPH_IR_SORT_H
#define GRAPH_IR_SORT_H

#include <stddef.h>

#include "graph/ir/graph.h"

/*
 * Returns how many nodes `node` must stay behind, besides its inputs, and gives an array of them, which must stay valid
 * and unchanged until the sort ends. It is called for all nodes that are sorted, several times for each. For example,
 * it tells the order of reads and writes of memory.
 */
typedef size_t (*graph_predecessors)(void *context, const struct shoal_node *node,
                                     struct shoal_node *const **nodes_out);

/* Sorts a graph. `extra` may be NULL. SHOAL_ERR_INVALID, with the name of a node: there is a cycle. */
shoal_status graph_sort_with(struct shoal_graph *graph, graph_predecessors extra, void *context);

/* Sorts only the nodes from `first` to `last`, which must not be before `first`. Predecessors outside of this range are
   ignored. The time depends on the number of these nodes only. */
shoal_status graph_sort_region(struct shoal_node *first, struct shoal_node *last, graph_predecessors extra,
                               void *context);

#endif
