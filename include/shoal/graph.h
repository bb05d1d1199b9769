/* SPDX-License-Identifier: MIT */
/*
 * A training step as a graph: what the communication compiler reads, changes and writes.
 *
 * A graph is a list of nodes in program order. A node is an input (placeholder), a constant, a call of an op, or the
 * output, which is the last node. Arguments are values or other nodes, nested in lists. The nodes that a node's
 * arguments name are its inputs; it is one of their users. Each node knows what it gives: one tensor or a list of them,
 * on the meta device, so with a shape and a storage but without data. Two values that share a storage are views of one
 * memory.
 *
 * Groups of ranks are symbols, written "@shard", with a table of their ranks: a graph is the same on all ranks, and on
 * no rank in particular. A number may depend on the rank that will run the graph (SHOAL_ARG_RANK).
 *
 *     shoal_graph *graph;
 *     shoal_node *x, *sum;
 *     const shoal_op *add;
 *     shoal_graph_create(&graph);
 *     shoal_graph_placeholder(graph, "x", (int64_t[]){4, 4}, 2, SHOAL_F32, &x);
 *     shoal_op_find("add", &add);
 *     shoal_graph_call(graph, add, (shoal_arg[]){{SHOAL_ARG_NODE, {x}}, {SHOAL_ARG_NODE, {x}}}, 2, NULL, &sum);
 *     shoal_graph_output(graph, &(shoal_arg){SHOAL_ARG_NODE, {sum}}, NULL);
 *
 * Ownership: a graph owns its nodes; an erased node must not be used again. Strings and arguments are copied. Arrays
 * that are returned belong to the graph and hold until the node's arguments change.
 * Threads: a graph is used by one thread at a time.
 * Errors: a call that fails leaves the graph as it was.
 */
#ifndef SHOAL_GRAPH_H
#define SHOAL_GRAPH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/api.h"
#include "shoal/dtype.h"
#include "shoal/op.h"
#include "shoal/status.h"
#include "shoal/tensor.h"

SHOAL_BEGIN_DECLS

typedef struct shoal_graph shoal_graph;
typedef struct shoal_node shoal_node;

typedef enum shoal_node_kind {
    SHOAL_NODE_PLACEHOLDER = 0, /* an input of the graph; their order is the order of the step's arguments */
    SHOAL_NODE_CONSTANT = 1,    /* a tensor that is part of the graph */
    SHOAL_NODE_CALL = 2,        /* a call of an op */
    SHOAL_NODE_OUTPUT = 3       /* what the graph gives; exactly one, and the last node */
} shoal_node_kind;

/* Arguments -------------------------------------------------------------------------------------------- */

typedef enum shoal_arg_kind {
    SHOAL_ARG_NONE = 0, /* an absent "tensor?", or an absent output */
    SHOAL_ARG_NODE = 1,
    SHOAL_ARG_INT = 2,
    SHOAL_ARG_RANK = 3, /* an integer that depends on the rank: factor * (rank in the group) + offset */
    SHOAL_ARG_FLOAT = 4,
    SHOAL_ARG_BOOL = 5,
    SHOAL_ARG_DTYPE = 6,
    SHOAL_ARG_STRING = 7,
    SHOAL_ARG_GROUP = 8, /* a name of the graph's table, without the "@" */
    SHOAL_ARG_LIST = 9
} shoal_arg_kind;

typedef struct shoal_arg {
    shoal_arg_kind kind;
    union {
        shoal_node *node;
        int64_t integer;
        double real;
        bool boolean;
        shoal_dtype dtype;
        const char *string; /* of a string or group */
        struct {
            const char *group;
            int64_t factor;
            int64_t offset;
        } rank;
        struct {
            const struct shoal_arg *items;
            size_t count;
        } list;
    } as;
} shoal_arg;

/* Making and freeing ----------------------------------------------------------------------------------- */

SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_create(shoal_graph **graph_out);
SHOAL_API void shoal_graph_free(shoal_graph *graph);

/*
 * Adds a group to the table: `n_lists` lists of `size` ranks each, one after the other, every rank in one list at most;
 * a rank that runs the graph is in one of them. SHOAL_ERR_INVALID for a name that is taken by other ranks.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_add_group(shoal_graph *graph, const char *name,
                                                              const int *ranks, size_t n_lists, size_t size);

/* New nodes go to the insertion point, and get a name that no other node has: `name`, with a number if it is taken;
   NULL: the op's name. node_out may be NULL. ----------------------------------------------------------- */

SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_placeholder(shoal_graph *graph, const char *name,
                                                                const int64_t *shape, int n_dims,
                                                                shoal_dtype dtype, shoal_node **node_out);

/* `tensor` is kept, not copied. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_constant(shoal_graph *graph, const char *name,
                                                             shoal_tensor *tensor, shoal_node **node_out);

/*
 * A call of an op at the insertion point, checked as shoal_op_call checks it: the result's shape and storage come from
 * the op's meta function, so nodes that passes make have values as all others do. Fewer arguments than parameters are
 * filled with defaults, so a call has one argument per parameter.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_call(shoal_graph *graph, const shoal_op *op,
                                                         const shoal_arg *args, size_t n_args,
                                                         const char *name, shoal_node **node_out);

/*
 * A call of something that is not an op here, such as an op of another program: it has no effects, and gives new
 * tensors shaped like `values`, a list of them if `is_list`. A graph with one can be changed and printed, not run.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_opaque(shoal_graph *graph, const char *target,
                                                           const shoal_arg *args, size_t n_args,
                                                           shoal_tensor *const *values, size_t n_values,
                                                           bool is_list, const char *name,
                                                           shoal_node **node_out);

/* Ends the graph; `arg` is a node, none (an output that is absent, such as the gradient of a parameter that the step
   does not use), or a nested list of them. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_output(shoal_graph *graph, const shoal_arg *arg,
                                                           shoal_node **node_out);

/* The insertion point ---------------------------------------------------------------------------------- */

/*
 * Before a node (in the order in which nodes are made), or directly behind it (so that the node made last comes first).
 * NULL: before the first, or behind the last, where it is at the beginning. A node that is erased takes the point along
 * to its neighbour.
 */
typedef struct shoal_insert_point {
    shoal_node *node;
    bool is_after;
} shoal_insert_point;

SHOAL_API shoal_insert_point shoal_graph_insert_point(const shoal_graph *graph);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_set_insert_point(shoal_graph *graph,
                                                                     shoal_insert_point point);

/* Reading ---------------------------------------------------------------------------------------------- */

SHOAL_API size_t shoal_graph_n_nodes(const shoal_graph *graph);
SHOAL_API shoal_node *shoal_graph_first(const shoal_graph *graph);
SHOAL_API shoal_node *shoal_graph_last(const shoal_graph *graph);
/* NULL when there is none. */
SHOAL_API shoal_node *shoal_graph_find(const shoal_graph *graph, const char *name);
SHOAL_API shoal_node *shoal_node_next(const shoal_node *node);
SHOAL_API shoal_node *shoal_node_prev(const shoal_node *node);
/* Whether `a` stands before `b`, in constant time. */
SHOAL_API bool shoal_node_is_before(const shoal_node *a, const shoal_node *b);

SHOAL_API shoal_node_kind shoal_node_get_kind(const shoal_node *node);
SHOAL_API const char *shoal_node_name(const shoal_node *node);
/* NULL unless it is a call of an op. */
SHOAL_API const shoal_op *shoal_node_op(const shoal_node *node);
/* The name of the op, or of what an opaque call calls; of other nodes, their own. */
SHOAL_API const char *shoal_node_target(const shoal_node *node);
SHOAL_API const shoal_arg *shoal_node_args(const shoal_node *node, size_t *count_out);
/* Each once, in the order in which the arguments name them first. */
SHOAL_API shoal_node *const *shoal_node_inputs(const shoal_node *node, size_t *count_out);
SHOAL_API size_t shoal_node_n_users(const shoal_node *node);
/* Users in the order in which they began to be: the first, and the one after `user`; NULL past the last. */
SHOAL_API shoal_node *shoal_node_first_user(const shoal_node *node);
SHOAL_API shoal_node *shoal_node_next_user(const shoal_node *node, const shoal_node *user);
/* What it gives: how many tensors, whether as a list, and one of them, on the meta device; of a constant, the tensor
   itself. 0 for the output. */
SHOAL_API size_t shoal_node_n_values(const shoal_node *node);
SHOAL_API bool shoal_node_is_list(const shoal_node *node);
SHOAL_API const shoal_tensor *shoal_node_value(const shoal_node *node, size_t index);

/* Changing --------------------------------------------------------------------------------------------- */

/* Other arguments; what the node gives is worked out again. Its inputs count it as their newest user. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_node_set_args(shoal_node *node, const shoal_arg *args,
                                                            size_t n_args);

/* Which users a replacement is for. */
typedef bool (*shoal_node_filter)(void *context, shoal_node *user);

/* Users of `old` that the filter accepts (NULL: all) use `other` instead. n_changed_out may be NULL. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_node_replace(shoal_node *old, shoal_node *other,
                                                           shoal_node_filter filter, void *context,
                                                           size_t *n_changed_out);

SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_node_move_before(shoal_node *node, shoal_node *where);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_node_move_after(shoal_node *node, shoal_node *where);

/* SHOAL_ERR_STATE, naming them, while it has users. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_node_erase(shoal_node *node);

/* Checking and tidying --------------------------------------------------------------------------------- */

/*
 * SHOAL_ERR_STATE with the first thing that is wrong: a node that is used before it stands, a start that nobody waits
 * for or whose result is used before its wait, memory that is touched while communication uses it (until its wait, what
 * a start writes or gives is for nobody, and what it reads is not written), users and inputs that do not agree, no
 * output at the end.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_lint(const shoal_graph *graph);

/* Erases calls without effects, and constants, that nobody uses. SHOAL_ERR_STATE for a graph that is not in order.
   n_erased_out may be NULL. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_remove_dead(shoal_graph *graph, size_t *n_erased_out);

/* Brings nodes behind their inputs and the output to the end, and otherwise changes no order. SHOAL_ERR_INVALID, naming
   a node, for a cycle. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_sort(shoal_graph *graph);

/* Text ------------------------------------------------------------------------------------------------- */

/* Takes a piece of text; anything but 0 ends the call with SHOAL_ERR_CANCELLED. */
typedef int (*shoal_graph_write)(void *context, const char *text, size_t bytes);

/* docs/graph.md describes the text. It reads back as the same graph. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_print(const shoal_graph *graph, shoal_graph_write write,
                                                          void *context);

/* A picture for Graphviz. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_print_dot(const shoal_graph *graph,
                                                              shoal_graph_write write, void *context);

/* SHOAL_ERR_INVALID with line and column of what is wrong, of the op where an argument does not fit it. Does not
   lint. `text` needs no zero at its end. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_parse(const char *text, size_t bytes,
                                                          shoal_graph **graph_out);

SHOAL_END_DECLS

#endif
