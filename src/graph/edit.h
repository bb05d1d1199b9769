/* SPDX-License-Identifier: MIT */
/*
 * Gives nodes other arguments: all of them, or none if something fails. Infers anew what these nodes give, and also
 * nodes that depend on it: those whose input has another shape, and those that alias an input which has moved to
 * another storage.
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
