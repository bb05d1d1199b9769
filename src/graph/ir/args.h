/* SPDX-License-Identifier: MIT */
/* Checks, completes and copies arguments. A copy lies in the arena and belongs to one node. */
#ifndef GRAPH_IR_ARGS_H
#define GRAPH_IR_ARGS_H

#include "graph/ir/graph.h"
#include "op/op.h"

/* Lists may be nested so deep. */
#define ARGS_MAX_DEPTH 64

/*
 * Checks that nodes belong to this graph, are not erased, and give something; that groups are in its table; and that
 * lists and strings are not NULL. `user` is the node that will get the arguments, and must not be one of them; NULL for
 * a new node. `op` names parameters in errors; if it is NULL, they are counted.
 */
shoal_status args_check(const struct shoal_graph *graph, const struct shoal_node *user, const shoal_op *op,
                        const shoal_arg *args, size_t n_args);

/* Checks the argument of an output, which may contain nodes, none and lists only. */
shoal_status args_check_output(const shoal_arg *arg);

/* Fills `complete` with one argument per parameter of the op; missing ones get their defaults. Its pointers lead into
   `args` and the op. */
shoal_status args_complete(const shoal_op *op, const shoal_arg *args, size_t n_args,
                           shoal_arg complete[OP_MAX_PARAMS]);

shoal_status args_copy(struct arena *arena, const shoal_arg *args, size_t n_args, const shoal_arg **copy_out);

/* Finds the places in arguments (of the arena) where a node is used, and appends them to `places`. */
struct args_places {
    shoal_arg **places;
    size_t n_places;
    size_t capacity;
};

shoal_status args_find(const shoal_arg *args, size_t n_args, const struct shoal_node *node,
                       struct args_places *places);

#endif
