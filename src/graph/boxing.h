/* SPDX-License-Identifier: MIT */
/* The arguments of a call as the dispatcher takes them. Who boxes says what nodes give and what groups are. */
#ifndef GRAPH_BOXING_H
#define GRAPH_BOXING_H

#include "graph/graph.h"

struct boxing {
    const struct shoal_graph *graph;
    bool depends_on_rank; /* set: there was a number that is not the same on all ranks */
    void *context;
    /* What a node that gives one tensor gives. */
    shoal_status (*one)(void *context, const struct shoal_node *node, shoal_tensor **tensor_out);
    /* What a node that gives a list gives: node->n_values tensors, which live until the call is over. */
    shoal_tensor *const *(*list)(void *context, const struct shoal_node *node);
    struct shoal_group *(*group)(void *context, const struct graph_group *group);
    /* For whom numbers that depend on the rank are worked out. */
    int64_t (*rank)(void *context, const struct graph_group *group);
    struct arena *lists; /* where lists live; NULL: in the innermost scope */
};

/* `args` are complete, and there is room for as many values. */
shoal_status boxing_box(struct boxing *boxing, const shoal_op *op, const shoal_arg *args, size_t n_args,
                        shoal_value *values_out);

#endif
