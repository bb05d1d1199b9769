/* SPDX-License-Identifier: MIT */
/* Boxes the arguments of a node's call, for the dispatcher. The caller says which tensors nodes give, and which groups
   to use. */
#ifndef GRAPH_IR_BOXING_H
#define GRAPH_IR_BOXING_H

#include "graph/ir/graph.h"

struct boxing {
    const struct shoal_graph *graph;
    bool depends_on_rank; /* set by boxing_box: a number is not the same on all ranks */
    void *context;
    /* Gives the tensor of a node that gives one. */
    shoal_status (*one)(void *context, const struct shoal_node *node, shoal_tensor **tensor_out);
    /* Returns the node->n_values tensors of a node that gives a list. They must live until the call is over. */
    shoal_tensor *const *(*list)(void *context, const struct shoal_node *node);
    struct shoal_group *(*group)(void *context, const struct graph_group *group);
    /* Returns the rank in the group for which numbers that depend on the rank are computed. */
    int64_t (*rank)(void *context, const struct graph_group *group);
    struct arena *lists; /* where lists live; NULL means in the innermost scope */
};

/* Boxes n_args arguments, which must be complete, into values_out. */
shoal_status boxing_box(struct boxing *boxing, const shoal_op *op, const shoal_arg *args, size_t n_args,
                        shoal_value *values_out);

#endif
