/* SPDX-License-Identifier: MIT */
/* The list of nodes, and their order numbers, which grow along it. Nothing here allocates or fails. */
#ifndef GRAPH_IR_ORDER_H
#define GRAPH_IR_ORDER_H

#include "graph/ir/graph.h"

/* Inserts a node that is in no list after `prev`, or before the first node if that is NULL. */
void order_insert_after(struct shoal_graph *graph, struct shoal_node *node, struct shoal_node *prev);

/* Removes a node from the list. Its `prev` and `next` stay as they are, for walks that are at this node. */
void order_remove(struct shoal_node *node);

#endif
