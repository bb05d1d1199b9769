/* SPDX-License-Identifier: MIT */
/*
 * Names of nodes. A name consists of letters, digits, '_' and '.', and begins with a letter or '_'; other characters
 * become '_', and so do the points of an op that gives its node a name ("nn.linear": "nn_linear"). If a name is taken, the smallest free number is appended: "add", "add_1", "add_2". A number at the end of the
 * wanted name is replaced: if "add_1" is wanted and taken, the node becomes "add_2", not "add_1_1".
 *
 * Names of erased nodes stay taken, so that origins (graph/ir/observer.h) never name two different nodes.
 */
#ifndef GRAPH_IR_NAMES_H
#define GRAPH_IR_NAMES_H

#include "graph/ir/graph.h"

enum names_wish {
    NAMES_GIVEN,  /* somebody has asked for this name: points stay */
    NAMES_TARGET, /* what the node calls */
    NAMES_OP /* the same, and the string outlives the graph, so that it can be recognized by its address */
};

shoal_status names_create(struct graph_names **names_out);
void names_free(struct graph_names *names);

/* Chooses a free name for a node that wants to be called `wish`, puts it into the arena and into node->name, and
   reserves memory, so that names_take cannot fail. */
shoal_status names_choose(struct graph_names *names, struct arena *arena, const char *wish,
                          enum names_wish kind, struct shoal_node *node);

/* Registers the name that names_choose has just chosen for the node. Cannot fail. */
void names_take(struct graph_names *names, struct shoal_node *node);

/* Returns the node of that name, which may be erased; NULL if there never was one. */
struct shoal_node *names_find(const struct graph_names *names, const char *name);

/* Whether the node is registered under the name that it has. Faster than names_find. */
bool names_has(const struct graph_names *names, const struct shoal_node *node);

#endif
