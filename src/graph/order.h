/* SPDX-License-Identifier: MIT */
/* The list of nodes and their numbers, which grow along it. Nothing here allocates or fails. */
#ifndef GRAPH_ORDER_H
#define GRAPH_ORDER_H

#include "graph/graph.h"

/* Puts a node that is in no list between `prev` and the node behind it; NULL: before the first. */
void order_insert_after(struct shoal_graph *graph, struct shoal_node *node, struct shoal_node *prev);

/* Takes it out. Its `prev` and `next` stay, for walks that stand on it. */
void order_remove(struct shoal_node *node);

#endif
