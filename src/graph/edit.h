/* SPDX-License-Identifier: MIT */
/*
 * Other arguments for nodes, all or none. What the nodes give is inferred anew, and what depends on it: a node whose input's
 * shape has changed, and a node that aliases an input which lies in another storage now.
 */
#ifndef GRAPH_EDIT_H
#define GRAPH_EDIT_H

#include "graph/uses.h"

/* A node and what it shall have. */
struct edit {
    struct shoal_node *node;
    const shoal_arg *args; /* in the arena, checked, complete; may be those it has */
    size_t n_args;
    struct uses uses;
};

shoal_status edit_apply(struct shoal_graph *graph, struct edit *edits, size_t n_edits);

/* Whether fresh values of a call alias something: to be asked before anybody else has a reference on them. */
bool edit_is_alias(shoal_tensor *const *values, size_t n_values);

#endif
