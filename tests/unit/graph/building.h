/* SPDX-License-Identifier: MIT */
/* Short words for building graphs in tests. They return NULL, and fail the test, when a call fails. */
#ifndef UNIT_GRAPH_BUILDING_H
#define UNIT_GRAPH_BUILDING_H

#include <stdio.h>
#include <string.h>

#include "graph/ir/graph.h"
#include "harness/test.h"
#include "op/op.h"
#include "shoal/graph.h"
#include "shoal/op.h"

static inline shoal_arg node_arg(shoal_node *node)
{
    return (shoal_arg){.kind = SHOAL_ARG_NODE, .as.node = node};
}

static inline shoal_arg int_arg(int64_t integer)
{
    return (shoal_arg){.kind = SHOAL_ARG_INT, .as.integer = integer};
}

static inline shoal_arg list_arg(const shoal_arg *items, size_t count)
{
    return (shoal_arg){.kind = SHOAL_ARG_LIST, .as.list = {items, count}};
}

static inline shoal_graph *make_graph(void)
{
    shoal_graph *graph = NULL;
    CHECK_OK(shoal_graph_create(&graph));
    return graph;
}

/* f32 [4, 4] */
static inline shoal_node *make_input(shoal_graph *graph, const char *name)
{
    shoal_node *node = NULL;
    CHECK_OK(shoal_graph_placeholder(graph, name, (const int64_t[]){4, 4}, 2, SHOAL_F32, &node));
    return node;
}

static inline const shoal_op *find_op(const char *name)
{
    const shoal_op *op = NULL;
    CHECK_OK(shoal_op_find(name, &op));
    return op;
}

/* A call of an op on up to two nodes. */
static inline shoal_node *make_call(shoal_graph *graph, const char *op, shoal_node *a, shoal_node *b)
{
    shoal_node *node = NULL;
    shoal_arg args[] = {node_arg(a), node_arg(b)};
    CHECK_OK(shoal_graph_call(graph, find_op(op), args, b ? 2 : 1, NULL, &node));
    return node;
}

/* A call of something else, with any arguments, that gives what its first value gives. */
static inline shoal_node *make_opaque(shoal_graph *graph, const char *name, const shoal_arg *args,
                                      size_t n_args)
{
    shoal_node *node = NULL;
    CHECK_OK(shoal_graph_opaque(graph, "something", args, n_args, NULL, 0, false, name, &node));
    return node;
}

static inline void make_output(shoal_graph *graph, shoal_node *node)
{
    shoal_arg arg = node_arg(node);
    CHECK_OK(shoal_graph_output(graph, &arg, NULL));
}

/* Names of nodes in order, separated by spaces. */
static inline const char *order_of(const shoal_graph *graph, char *text, size_t bytes)
{
    size_t length = 0;
    text[0] = '\0';
    for (const shoal_node *node = shoal_graph_first(graph); node; node = shoal_node_next(node)) {
        length +=
            (size_t)snprintf(text + length, bytes - length, "%s%s", length ? " " : "", shoal_node_name(node));
    }
    return text;
}
#define CHECK_ORDER(graph, expected)                                                 \
    do {                                                                             \
        char order_text_[512];                                                       \
        CHECK_STRING(order_of((graph), order_text_, sizeof(order_text_)), expected); \
    } while (0)

/* Names of users, likewise. */
static inline const char *users_of(const shoal_node *node, char *text, size_t bytes)
{
    size_t length = 0;
    text[0] = '\0';
    for (const shoal_node *user = shoal_node_first_user(node); user;
         user = shoal_node_next_user(node, user)) {
        length +=
            (size_t)snprintf(text + length, bytes - length, "%s%s", length ? " " : "", shoal_node_name(user));
    }
    return text;
}
#define CHECK_USERS(node, expected)                                                 \
    do {                                                                            \
        char users_text_[512];                                                      \
        CHECK_STRING(users_of((node), users_text_, sizeof(users_text_)), expected); \
    } while (0)

static inline const char *inputs_of(const shoal_node *node, char *text, size_t bytes)
{
    size_t length = 0;
    size_t n_inputs;
    shoal_node *const *inputs = shoal_node_inputs(node, &n_inputs);
    text[0] = '\0';
    for (size_t i = 0; i < n_inputs; i++) {
        length +=
            (size_t)snprintf(text + length, bytes - length, "%s%s", i ? " " : "", shoal_node_name(inputs[i]));
    }
    return text;
}
#define CHECK_INPUTS(node, expected)                                                   \
    do {                                                                               \
        char inputs_text_[512];                                                        \
        CHECK_STRING(inputs_of((node), inputs_text_, sizeof(inputs_text_)), expected); \
    } while (0)

#endif
