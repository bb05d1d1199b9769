/* SPDX-License-Identifier: MIT */
/*
 * Replaces the arguments of nodes: of all of them, or of none if something fails. Then infers the values of these nodes
 * again, and of nodes that depend on them: those whose input has another shape, and those that alias an input which has
 * moved to another storage.
 */
#ifndef GRAPH_IR_EDIT_H
#define GRAPH_IR_EDIT_H

#include "graph/ir/uses.h"

/* A node and its new arguments. */
struct edit {
    struct shoal_node *node;
    const shoal_arg *args; /* in the arena, checked and complete; may be those that the node has */
    size_t n_args;
    struct uses uses;
};

shoal_status edit_apply(struct shoal_graph *graph, struct edit *edits, size_t n_edits);

/* Whether the values of a new call share a storage with others. Call it before anybody else has a reference to them. */
bool edit_is_alias(shoal_tensor *const *values, size_t n_values);

#endif
