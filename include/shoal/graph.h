/* SPDX-License-Identifier: MIT */
/*
 * A training step as a graph: the form in which the compiler (shoal/compile.h) captures, changes and prints it. Use
 * this header to read such a graph, to write a pass that changes one, or to build one by hand. docs/graph.md describes
 * the text form.
 *
 * A graph is a list of nodes in program order. A node is a placeholder (an input of the step), a constant, a call of an
 * op, or the output, which is the last node. The arguments of a node are numbers, strings, groups and other nodes,
 * nested in lists. The nodes among them are its inputs; it is one of their users. The value of a node is a tensor or a
 * list of tensors on the meta device: they have shapes and storages, but no data. Two tensors that share a storage are
 * views of one memory.
 *
 * A graph is the same on all ranks. Groups are therefore names, written "@shard", with a table of their ranks, and a
 * number may depend on the rank that runs the graph (SHOAL_ARG_RANK).
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
 * Ownership: a graph owns its nodes, which live until shoal_graph_free; an erased node must not be used again. Strings
 * and arguments are copied. Returned arrays belong to the graph and are valid until the node's arguments change.
 * Threads: one at a time per graph.
 * Errors: status and text. A wrong argument, also a node of another graph, is SHOAL_ERR_INVALID. A call that fails
 * leaves the graph as it was.
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
    SHOAL_NODE_PLACEHOLDER = 0, /* an input; placeholders are in the order of the step's arguments */
    SHOAL_NODE_CONSTANT = 1,    /* a tensor that is part of the graph */
    SHOAL_NODE_CALL = 2,        /* a call of an op */
    SHOAL_NODE_OUTPUT = 3       /* what the graph returns; exactly one, and the last node */
} shoal_node_kind;

/* Arguments -------------------------------------------------------------------------------------------- */

typedef enum shoal_arg_kind {
    SHOAL_ARG_NONE = 0, /* no value: of an optional tensor ("tensor?"), or of an output */
    SHOAL_ARG_NODE = 1,
    SHOAL_ARG_INT = 2,
    SHOAL_ARG_RANK = 3, /* an integer that depends on the rank: factor * (its rank in the group) + offset */
    SHOAL_ARG_FLOAT = 4,
    SHOAL_ARG_BOOL = 5,
    SHOAL_ARG_DTYPE = 6,
    SHOAL_ARG_STRING = 7,
    SHOAL_ARG_GROUP = 8, /* the name of a group in the graph's table, without the "@" */
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
        const char *string; /* SHOAL_ARG_STRING and SHOAL_ARG_GROUP */
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

/* Makes an empty graph. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_create(SHOAL_GIVES shoal_graph **graph_out);
/* Frees a graph and all its nodes. NULL is allowed. */
SHOAL_API void shoal_graph_free(SHOAL_TAKES shoal_graph *graph);

/*
 * Adds a group to the table, under a name of letters, digits and '_'. `ranks` has n_lists lists of `size` world ranks,
 * one after the other: for two groups of two ranks, {0, 1, 2, 3}. A rank that runs the graph uses the list that it is
 * in. SHOAL_ERR_INVALID: a rank is there twice, or the name has other ranks already. (Adding the same again changes
 * nothing.)
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_add_group(shoal_graph *graph, const char *name,
                                                              const int *ranks, size_t n_lists, size_t size);

/* Adding nodes ----------------------------------------------------------------------------------------- */

/*
 * The calls of this part add a node at the insertion point (below; at first the end of the graph). Its name is `name`,
 * with a number added if another node has that name. If `name` is NULL, the op's name is used. node_out may be NULL.
 */

/* Adds an input of that shape and dtype. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_placeholder(shoal_graph *graph, const char *name,
                                                                const int64_t *shape, int n_dims,
                                                                shoal_dtype dtype, shoal_node **node_out);

/* Adds a constant. The tensor is referenced, not copied. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_constant(shoal_graph *graph, const char *name,
                                                             shoal_tensor *tensor, shoal_node **node_out);

/*
 * Adds a call of an op. Arguments are checked as by shoal_op_call, and missing ones at the end get their defaults, so
 * that the node has one argument per parameter. The op's meta function computes shape and storage of the value.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_call(shoal_graph *graph, const shoal_op *op,
                                                         const shoal_arg *args, size_t n_args,
                                                         const char *name, shoal_node **node_out);

/*
 * Adds a call of something that is no op of this process, for a graph that was written elsewhere. It counts as a call
 * without side effects, whose value is new tensors with the shapes of `values`: one, or a list if `is_list`. A graph
 * with such a node can be changed and printed, but not run.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_opaque(shoal_graph *graph, const char *target,
                                                           const shoal_arg *args, size_t n_args,
                                                           shoal_tensor *const *values, size_t n_values,
                                                           bool is_list, const char *name,
                                                           shoal_node **node_out);

/* Adds the output, always at the end. `arg` is a node, SHOAL_ARG_NONE (for the gradient of a parameter that the step
   does not use, for example), or a nested list of these. SHOAL_ERR_STATE: the graph has an output. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_output(shoal_graph *graph, const shoal_arg *arg,
                                                           shoal_node **node_out);

/* The insertion point ---------------------------------------------------------------------------------- */

/*
 * Where new nodes go: before `node`, or directly after it. Several nodes that are added before a node stand in the
 * order in which they were added; added after a node, in reverse order. If `node` is NULL, they go before the first
 * node of the graph, or after the last one, which is the initial insertion point. If the node is erased, the point
 * stays between the same neighbours.
 */
typedef struct shoal_insert_point {
    shoal_node *node;
    bool is_after;
} shoal_insert_point;

/* Returns the insertion point; sets it. */
SHOAL_API shoal_insert_point shoal_graph_insert_point(const shoal_graph *graph);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_set_insert_point(shoal_graph *graph,
                                                                     shoal_insert_point point);

/* Reading ---------------------------------------------------------------------------------------------- */

/* How many nodes the graph has. */
SHOAL_API size_t shoal_graph_n_nodes(const shoal_graph *graph);
/* Return the first node in program order, and the last one; NULL if the graph is empty. */
SHOAL_API shoal_node *shoal_graph_first(const shoal_graph *graph);
SHOAL_API shoal_node *shoal_graph_last(const shoal_graph *graph);
/* Returns the node of that name, or NULL if there is none. */
SHOAL_API shoal_node *shoal_graph_find(const shoal_graph *graph, const char *name);
/* Return the node behind this one in program order, and the one before it; NULL if there is none. */
SHOAL_API shoal_node *shoal_node_next(const shoal_node *node);
SHOAL_API shoal_node *shoal_node_prev(const shoal_node *node);
/* Whether `a` is before `b` in program order. Takes constant time. False for nodes of different graphs. */
SHOAL_API bool shoal_node_is_before(const shoal_node *a, const shoal_node *b);

/* What the node is: a placeholder, a constant, a call or the output. */
SHOAL_API shoal_node_kind shoal_node_get_kind(const shoal_node *node);
/* The name of the node, which no other node of its graph has. */
SHOAL_API const char *shoal_node_name(const shoal_node *node);
/* Returns the op that the node calls, or NULL if it calls none. */
SHOAL_API const shoal_op *shoal_node_op(const shoal_node *node);
/* The name of what the node calls: an op, or the target of shoal_graph_opaque. For other nodes, the node's own name. */
SHOAL_API const char *shoal_node_target(const shoal_node *node);
/* The arguments, one per parameter of the op. */
SHOAL_API const shoal_arg *shoal_node_args(const shoal_node *node, size_t *count_out);
/* The inputs, each once, in the order in which they first appear in the arguments. */
SHOAL_API shoal_node *const *shoal_node_inputs(const shoal_node *node, size_t *count_out);
/* How many users the node has. */
SHOAL_API size_t shoal_node_n_users(const shoal_node *node);
/* Return the users, in the order in which they became users: the first one, and the one after `user`; NULL if there is
   no further one. */
SHOAL_API shoal_node *shoal_node_first_user(const shoal_node *node);
SHOAL_API shoal_node *shoal_node_next_user(const shoal_node *node, const shoal_node *user);
/* The value: how many tensors it has (0 for the output), whether they are a list, and tensor number `index`. Tensors
   are on the meta device, except the tensor of a constant. */
SHOAL_API size_t shoal_node_n_values(const shoal_node *node);
SHOAL_API bool shoal_node_is_list(const shoal_node *node);
SHOAL_API const shoal_tensor *shoal_node_value(const shoal_node *node, size_t index);

/* Changing --------------------------------------------------------------------------------------------- */

/* Replaces the arguments of a call or of the output. The value of the node, the values of its users, and so on, are
   computed again. The node becomes the newest user of its inputs. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_node_set_args(shoal_node *node, const shoal_arg *args,
                                                            size_t n_args);

/* Says whether a user takes part in a replacement. */
typedef bool (*shoal_node_filter)(void *context, shoal_node *user);

/* Makes users of `old` use `other` instead, if `filter` returns true for them or is NULL. Gives the number of changed
   users in *n_changed_out, which may be NULL. SHOAL_ERR_INVALID: `other` itself would be among them. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_node_replace(shoal_node *old, shoal_node *other,
                                                           shoal_node_filter filter, void *context,
                                                           size_t *n_changed_out);

/* Move a node directly before or after another one. The result is not checked: shoal_graph_lint finds a node that is
   now before one of its inputs. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_node_move_before(shoal_node *node, shoal_node *where);
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_node_move_after(shoal_node *node, shoal_node *where);

/* Removes a node from the graph. SHOAL_ERR_STATE: it has users, which the text names. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_node_erase(SHOAL_TAKES shoal_node *node);

/* Checking and tidying --------------------------------------------------------------------------------- */

/*
 * Checks a graph. Call it after a pass, or for a graph from elsewhere. SHOAL_ERR_STATE, with the first thing that is
 * wrong in the text:
 * - a node is used before its place in the order;
 * - a collective is started and never waited for, or its result is used before the wait;
 * - memory is used while a collective in flight uses it: between a start and its wait nobody may read or write what it
 *   writes, nor write what it reads;
 * - the lists of users, inputs or names contradict each other;
 * - there is no output, or it is not the last node.
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_lint(const shoal_graph *graph);

/* Erases constants, and calls without side effects, that have no users. Gives the number of them in *n_erased_out,
   which may be NULL. SHOAL_ERR_STATE: a node is used before its place in the order. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_remove_dead(shoal_graph *graph, size_t *n_erased_out);

/* Moves nodes behind their inputs, and the output to the end; other nodes keep their order. SHOAL_ERR_INVALID: there is
   a cycle; the text names a node of it. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_sort(shoal_graph *graph);

/* Text ------------------------------------------------------------------------------------------------- */

/* A function of the program that takes a piece of the text, without a zero at its end. If it returns anything but 0,
   the call that prints ends with SHOAL_ERR_CANCELLED. */
typedef int (*shoal_graph_write)(void *context, const char *text, size_t bytes);

/* Prints the graph as text (docs/graph.md), which shoal_graph_parse reads back as the same graph. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_print(const shoal_graph *graph, shoal_graph_write write,
                                                          void *context);

/* Prints the graph in the language of Graphviz, which draws it. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_print_dot(const shoal_graph *graph,
                                                              shoal_graph_write write, void *context);

/* Reads a graph from `bytes` bytes of text; no zero is needed at the end. Call shoal_graph_lint afterwards.
   SHOAL_ERR_INVALID: the text is wrong; the error text has line and column. If an argument does not fit its op, these
   are the line and column of the op. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_graph_parse(const char *text, size_t bytes,
                                                          SHOAL_GIVES shoal_graph **graph_out);

SHOAL_END_DECLS

#endif
