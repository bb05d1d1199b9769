/* SPDX-License-Identifier: MIT */
/*
 * Names of nodes. A name is letters, digits and '_', and begins with no digit; other characters that are wished for
 * become '_'. A name that is taken gets the smallest number that is free behind it: "add", "add_1", "add_2". A number
 * that the wished name has already is such a number: where "add_1" is taken, it is "add" that is counted on.
 *
 * Names of erased nodes stay taken: what is said of a node (graph/observer.h) is said of one only.
 */
#ifndef GRAPH_NAMES_H
#define GRAPH_NAMES_H

#include "graph/graph.h"

shoal_status names_create(struct graph_names **names_out);
void names_free(struct graph_names *names);

/* Gives the node the name that it shall have who wishes for `wish`, in the arena, and there is room to find it by
   that. The name is not taken yet. `is_lasting`: the string outlives the graph, so that it is known by its address. */
shoal_status names_choose(struct graph_names *names, struct arena *arena, const char *wish, bool is_lasting,
                          struct shoal_node *node);

/* Takes the node's name, which was just chosen. Cannot fail. */
void names_take(struct graph_names *names, struct shoal_node *node);

/* NULL when no node has had the name; one that is erased otherwise. */
struct shoal_node *names_find(const struct graph_names *names, const char *name);

/* Whether the node has the name that it took, so that it is found by it. Faster than looking for the name. */
bool names_has(const struct graph_names *names, const struct shoal_node *node);

#endif
