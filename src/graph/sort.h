/* SPDX-License-Identifier: MIT */
/*
 * Bringing nodes behind what they need, with as little change as possible (shoal_graph_sort).
 *
 * Nodes are looked at in the order of the list. One whose predecessors have all been placed is placed; another one is
 * parked at the last predecessor that is missing, and looked at again as soon as that has been placed, in the order
 * of parking, before the list goes on. A list that is in order stays as it is. The output is placed last, wherever it
 * stood.
 *
 * Only the list changes: nodes, edges and the insertion point stay. Nothing changes after a failure.
 */
#ifndef GRAPH_SORT_H
#define GRAPH_SORT_H

#include <stddef.h>

#include "graph/graph.h"

/*
 * Nodes that `node` must stand behind, besides its inputs: their number, and an array that holds, and stays the same,
 * until the sort ends. It is asked for all nodes that are sorted, and several times. Order of inputs that are written
 * in place, for one.
 */
typedef size_t (*graph_predecessors)(void *context, const struct shoal_node *node,
                                     struct shoal_node *const **nodes_out);

/* SHOAL_ERR_INVALID, naming a node, for a cycle. `extra` may be NULL. */
shoal_status graph_sort_with(struct shoal_graph *graph, graph_predecessors extra, void *context);

/* Only the nodes from `first` to `last`, which stands behind it or is it; they keep their place among the others.
   What they need outside of it does not count. Takes time for these nodes alone. */
shoal_status graph_sort_region(struct shoal_node *first, struct shoal_node *last, graph_predecessors extra,
                               void *context);

#endif
