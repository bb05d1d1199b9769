/* SPDX-License-Identifier: MIT */
/*
 * What a call gives in a graph is what it gives outside of one on the meta device: for every op there is, the same shapes, dtypes,
 * strides, shared storages, and the same errors. Calls outside use groups of a world without peers.
 */
#include <stdio.h>
#include <string.h>

#include "graph/graph.h"
#include "harness/test.h"
#include "op/op.h"
#include "shoal/autograd.h"
#include "shoal/graph.h"
#include "shoal/group.h"
#include "shoal/op.h"
#include "shoal/ops.h"
#include "shoal/world.h"
#include "tensor/tensor.h"

/* Inputs ----------------------------------------------------------------------------------------------- */

enum input {
    A,       /* f32 [12, 4] */
    B,       /* f32 [12, 4] */
    ROW,     /* f32 [4] */
    ONES,    /* f32 [1, 12, 1] */
    SCALAR,  /* f32 [] */
    I64,     /* i64 [12] */
    BF16,    /* bf16 [12, 4] */
    TIMES,   /* f32 [12 n, 4] */
    WIDE,    /* f32 [12, 4 n] */
    PART,    /* f32 [12 / n, 4] */
    COLUMNS, /* f32 [12, 12] */
    UNEVEN,  /* f32 [n (n + 1) / 2, 4]: what uneven splits give */
    FLAT,    /* f32 [96 n] */
    N_INPUTS
};

static void shape_input(enum input input, int64_t n, int64_t shape[3], int *n_dims, shoal_dtype *dtype)
{
    const int64_t shapes[N_INPUTS][3] = {[A] = {12, 4},
                                         [B] = {12, 4},
                                         [ROW] = {4},
                                         [ONES] = {1, 12, 1},
                                         [I64] = {12},
                                         [BF16] = {12, 4},
                                         [TIMES] = {12 * n, 4},
                                         [WIDE] = {12, 4 * n},
                                         [PART] = {12 / n, 4},
                                         [COLUMNS] = {12, 12},
                                         [UNEVEN] = {n * (n + 1) / 2, 4},
                                         [FLAT] = {96 * n}};
    static const int dims[N_INPUTS] = {
        [A] = 2,     [B] = 2,    [ROW] = 1,  [ONES] = 3,    [SCALAR] = 0, [I64] = 1, [BF16] = 2,
        [TIMES] = 2, [WIDE] = 2, [PART] = 2, [COLUMNS] = 2, [UNEVEN] = 2, [FLAT] = 1};
    memcpy(shape, shapes[input], 3 * sizeof *shape);
    *n_dims = dims[input];
    *dtype = input == I64 ? SHOAL_I64 : input == BF16 ? SHOAL_BF16 : SHOAL_F32;
}

/* Cases ------------------------------------------------------------------------------------------------ */

#define MAX_ITEMS 4

struct spec {
    enum {
        END,
        TENSOR,
        LIST,   /* of inputs */
        PIECES, /* the list that split gives of an input */
        TURNED, /* an input transposed: not contiguous */
        ABSENT,
        INT,
        INTS,
        FLOAT,
        BOOL,
        DTYPE,
        STRING,
        GROUP,
        GROWING, /* 1, 2, ... for the ranks */
        REST,    /* what makes up 12 rows: the first rank gets most */
        ROTATION /* each rank sends to the next */
    } kind;
    int64_t number;
    int64_t items[MAX_ITEMS];
    double real;
    const char *string;
    size_t count;
};

#define T(input)                          \
    {                                     \
        .kind = TENSOR, .number = (input) \
    }
#define TURN(input)                       \
    {                                     \
        .kind = TURNED, .number = (input) \
    }
#define COUNT(...) (sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t))
#define L(...)                                                            \
    {                                                                     \
        .kind = LIST, .items = {__VA_ARGS__}, .count = COUNT(__VA_ARGS__) \
    }
#define P(input)                          \
    {                                     \
        .kind = PIECES, .number = (input) \
    }
#define I(value)                       \
    {                                  \
        .kind = INT, .number = (value) \
    }
#define IS(...)                                                           \
    {                                                                     \
        .kind = INTS, .items = {__VA_ARGS__}, .count = COUNT(__VA_ARGS__) \
    }
#define NO_INTS      \
    {                \
        .kind = INTS \
    }
#define NO_LIST      \
    {                \
        .kind = LIST \
    }
#define F(value)                       \
    {                                  \
        .kind = FLOAT, .real = (value) \
    }
#define YES                       \
    {                             \
        .kind = BOOL, .number = 1 \
    }
#define D(value)                         \
    {                                    \
        .kind = DTYPE, .number = (value) \
    }
#define S(value)                          \
    {                                     \
        .kind = STRING, .string = (value) \
    }
#define G             \
    {                 \
        .kind = GROUP \
    }
#define NONE           \
    {                  \
        .kind = ABSENT \
    }

struct infer_case {
    const char *op;
    struct spec args[OP_MAX_PARAMS];
};

static const struct infer_case cases[] = {
    {"empty", {IS(2, 3), D(SHOAL_F32), S("meta")}},
    {"zeros", {IS(2, 3), D(SHOAL_BF16), S("meta")}},
    {"zeros", {NO_INTS, D(SHOAL_BF16), S("meta")}},
    {"zeros", {IS(2, -1), D(SHOAL_BF16), S("meta")}},
    {"zeros", {IS(2), D(SHOAL_BF16), S("moon")}},
    {"full", {IS(2, 3), I(4), D(SHOAL_I64), S("meta")}},
    {"full", {IS(2, 3), F(0.5), D(SHOAL_F64), S("meta")}},
    {"clone", {T(A)}},
    {"clone", {TURN(A)}},
    {"contiguous", {T(A)}},
    {"contiguous", {TURN(A)}},
    {"to_dtype", {T(A), D(SHOAL_F32)}},
    {"to_dtype", {T(A), D(SHOAL_BF16)}},
    {"copy_", {T(A), T(ROW)}},
    {"copy_", {T(ROW), T(A)}},
    {"copy_", {T(BF16), T(A)}},
    {"view", {T(A), IS(6, 8)}},
    {"view", {T(A), IS(6, 7)}},
    {"view", {TURN(A), IS(48)}},
    {"view_dtype", {T(A), D(SHOAL_BF16)}},
    {"view_dtype", {T(A), D(SHOAL_F64)}},
    {"reshape", {T(A), IS(6, -1)}},
    {"reshape", {TURN(A), IS(48)}},
    {"flatten", {T(A)}},
    {"flatten", {TURN(A)}},
    {"flatten", {T(ONES), I(1), I(2)}},
    {"narrow", {T(A), I(0), I(3), I(4)}},
    {"narrow", {T(A), I(1), I(3), I(4)}},
    {"slice", {T(A), I(0), I(1), I(12), I(3)}},
    {"slice", {T(A), I(0), I(1), I(100)}},
    {"select", {T(A), I(1), I(2)}},
    {"select", {T(A), I(1), I(9)}},
    {"permute", {T(ONES), IS(2, 0, 1)}},
    {"permute", {T(ONES), IS(2, 0, 0)}},
    {"transpose", {T(A), I(0), I(-1)}},
    {"squeeze", {T(ONES), I(0)}},
    {"squeeze_all", {T(ONES)}},
    {"unsqueeze", {T(A), I(1)}},
    {"expand", {T(ONES), IS(3, 12, 2)}},
    {"expand", {T(A), IS(3, 12, 2)}},
    {"as_strided", {T(A), IS(2, 2), IS(1, 1), I(3)}},
    {"as_strided", {T(A), IS(48), IS(2)}},
    {"split", {T(A), I(5)}},
    {"split", {T(A), I(0)}},
    {"split_with_sizes", {T(A), IS(5, 7)}},
    {"split_with_sizes", {T(A), IS(5, 6)}},
    {"split_with_sizes", {T(A), IS(1, 3), I(1)}},
    {"chunk", {T(A), I(5)}},
    {"chunk_with_empty", {T(A), I(7)}},
    {"cat", {L(A, B, A)}},
    {"cat", {L(A, ROW)}},
    {"cat", {NO_LIST}},
    {"cat", {P(A), I(1)}},
    {"stack", {L(A, B), I(2)}},
    {"getitem", {L(A, B, ROW), I(2)}},
    {"getitem", {L(A, B, ROW), I(-3)}},
    {"getitem", {L(A, B, ROW), I(3)}},
    {"getitem", {P(A), I(0)}},
    {"getitem", {P(A), I(-1)}},
    {"getitem", {P(A), I(3)}},
    {"getitem", {P(A), I(-4)}},
    {"getitem", {P(A), F(1)}},
    {"add", {T(A), T(ROW)}},
    {"add", {T(A), T(I64)}},
    {"add", {T(A), T(BF16)}},
    {"add", {T(A), NONE}},
    {"add", {T(A)}},
    {"sub", {T(A), T(B)}},
    {"mul", {T(A), T(SCALAR)}},
    {"div", {T(A), T(ONES)}},
    {"neg", {T(A)}},
    {"add_scalar", {T(A), I(1)}},
    {"sub_scalar", {T(A), F(1)}},
    {"mul_scalar", {T(I64), F(1.5)}},
    {"div_scalar", {T(A), F(2)}},
    {"add_", {T(A), T(ROW)}},
    {"add_", {T(ROW), T(A)}},
    {"sub_", {T(A), T(B)}},
    {"mul_", {TURN(A), T(SCALAR)}},
    {"div_", {T(A), T(B)}},
    {"neg_", {T(A)}},
    {"add_scalar_", {T(A), I(1)}},
    {"sub_scalar_", {T(A), I(1)}},
    {"mul_scalar_", {T(A), F(2)}},
    {"div_scalar_", {T(A), F(2)}},
    {"sum", {T(A)}},
    {"sum", {T(A), IS(1), YES}},
    {"sum", {T(A), IS(2)}},
    {"mean", {T(A), IS(0)}},
    {"mean", {T(I64)}},
    {"foreach_copy_", {L(A, ROW), L(B, ROW)}},
    {"foreach_copy_", {P(A), P(B)}},
    {"foreach_copy_", {L(A), L(B, ROW)}},
    {"foreach_copy_", {NO_LIST, NO_LIST}},
    {"foreach_div", {L(A, ROW), F(3)}},
    {"foreach_div", {NO_LIST, F(3)}},
    {"foreach_add_", {L(A, ROW), L(B, SCALAR)}},
    {"chunk_cat", {L(A, ROW), I(4), D(SHOAL_BF16)}},
    {"split_with_sizes_copy", {T(A), IS(4, 8)}},
    {"all_gather_copy_in", {T(FLAT), L(A, B), I(2), I(0)}},
    {"where_equal", {T(A), T(B), T(A)}},
    {"wait_tensor", {T(A)}},
    {"wait_tensor", {TURN(A)}},
    {"wait_tensors", {L(A, B)}},
    {"wait_tensors", {P(A)}},
    {"all_reduce", {T(A), S("sum"), G}},
    {"all_reduce", {T(A), S("premul_sum"), G, F(0.5)}},
    {"all_reduce", {T(A), S("premul_sum"), G}},
    {"all_reduce", {T(A), S("sum"), G, F(0.5)}},
    {"all_reduce", {T(A), S("sun"), G}},
    {"all_reduce", {TURN(A), S("max"), G}},
    {"all_reduce_", {T(A), S("avg"), G}},
    {"all_reduce_", {TURN(A), S("avg"), G}},
    {"all_reduce_coalesced", {L(A, ROW), S("sum"), G}},
    {"all_reduce_coalesced", {P(A), S("sum"), G}},
    {"all_reduce_coalesced", {L(A, I64), S("sum"), G}},
    {"all_reduce_coalesced", {NO_LIST, S("sum"), G}},
    {"all_reduce_coalesced_", {L(A, ROW), S("sum"), G}},
    {"all_reduce_coalesced_", {P(A), S("sum"), G}},
    {"reduce", {T(A), S("sum"), I(0), G}},
    {"reduce", {T(A), S("sum"), I(2), G}},
    {"reduce_scatter_tensor", {T(A), S("sum"), I(0), G}},
    {"reduce_scatter_tensor", {T(A), S("sum"), I(1), G}},
    {"reduce_scatter_tensor", {T(SCALAR), S("sum"), I(0), G}},
    {"reduce_scatter_tensor_out", {T(A), T(TIMES), S("sum"), G}},
    {"reduce_scatter_tensor_out", {T(ROW), T(TIMES), S("sum"), G}},
    {"reduce_scatter_tensor_inplace", {T(A), T(WIDE), S("sum"), I(1), G}},
    {"reduce_scatter_tensor_coalesced", {L(A, B), S("sum"), NO_INTS, G}},
    {"reduce_scatter_tensor_coalesced", {L(A, COLUMNS), S("sum"), IS(0, 1), G}},
    {"all_gather_tensor", {T(A), I(1), G}},
    {"all_gather_tensor", {T(A), I(2), G}},
    {"all_gather_tensor", {T(SCALAR), I(0), G}},
    {"all_gather_tensor_inplace", {T(WIDE), T(A), I(1), G}},
    {"all_gather_tensor_inplace", {T(TIMES), T(A), I(1), G}},
    {"all_gather_into_tensor", {T(A), G}},
    {"all_gather_into_tensor_out", {T(TIMES), T(A), G}},
    {"all_gather_into_tensor_out", {T(TIMES), T(BF16), G}},
    {"all_gather_into_tensor_coalesced", {L(A, ROW), G}},
    {"all_gather_inplace", {L(A), T(B), G}},
    {"all_gather_inplace", {L(A, WIDE), T(B), G}},
    {"all_to_all_single", {T(A), NO_INTS, NO_INTS, G}},
    {"all_to_all_single", {T(A), {.kind = GROWING}, {.kind = REST}, G}},
    {"all_to_all_single", {T(A), {.kind = GROWING}, NO_INTS, G}},
    {"all_to_all_single", {T(A), {.kind = GROWING}, IS(1, 1, 1, 1), G}},
    {"all_to_all_inplace", {T(UNEVEN), T(A), {.kind = GROWING}, {.kind = REST}, G}},
    {"broadcast", {T(A), I(0), G}},
    {"broadcast", {T(A), I(3), G}},
    {"broadcast_", {T(A), I(0), G}},
    {"permute_tensor", {T(A), {.kind = ROTATION}, G}},
    {"permute_tensor", {T(A), IS(0, 0), G}},
    {"shard_dim_alltoall", {T(COLUMNS), I(0), I(1), G}},
    {"shard_dim_alltoall", {T(A), I(1), I(2), G}},
    {"isend", {T(A), I(0), I(7), G}},
    {"isend", {T(A), I(5), I(7), G}},
    {"irecv", {T(A), I(0), I(7), G}},
    {"irecv", {T(A), I(0), I(-7), G}},
    {"batch_p2p_ops", {L(A, B), S("isend irecv"), IS(0, 0), IS(1, 1), G}},
    {"batch_p2p_ops", {L(A, B), S("isend irec"), IS(0, 0), IS(1, 1), G}},
    {"batch_p2p_ops", {NO_LIST, S(""), NO_INTS, NO_INTS, G}},
    {"one_shot_all_reduce", {T(A), S("sum"), G}},
    {"one_shot_all_reduce_out", {T(A), T(B), S("sum"), G}},
    {"one_shot_all_reduce_copy", {T(A), T(B), S("sum"), G}},
    {"one_shot_all_reduce_copy_out", {T(A), T(B), T(A), S("sum"), G}},
    {"one_shot_all_reduce_copy_out", {T(ROW), T(B), T(A), S("sum"), G}},
    {"two_shot_all_reduce_", {T(A), S("sum"), G}},
    {"two_shot_all_reduce_out", {T(A), T(B), S("sum"), G}},
    /* Kinds that do not fit. */
    {"add", {T(A), F(1)}},
    {"narrow", {T(A), I(0), F(3), I(4)}},
    {"sum", {T(A), I(1)}},
    {"all_reduce", {T(A), G, G}},
    {"all_reduce", {T(A), S("sum"), S("g")}},
    {"to_dtype", {T(A), D(99)}},
};

/* Numbers that depend on how many ranks there are. */
static size_t list_numbers(const struct spec *spec, int n, int64_t numbers[MAX_ITEMS])
{
    if (spec->kind == INTS) {
        memcpy(numbers, spec->items, sizeof spec->items);
        return spec->count;
    }
    for (int i = 0; i < n; i++) {
        numbers[i] = spec->kind == GROWING    ? i + 1
                     : spec->kind == ROTATION ? (i + 1) % n
                     : i == 0                 ? 12 - (n - 1)
                                              : 1;
    }
    return (size_t)n;
}

static const shoal_op *find_op(const char *name)
{
    const shoal_op *op = NULL;
    CHECK_OK(shoal_op_find(name, &op));
    return op;
}

/* A call outside of a graph ---------------------------------------------------------------------------- */

struct eager {
    shoal_tensor *inputs[N_INPUTS];
    shoal_value arguments[OP_MAX_PARAMS];
    shoal_tensor *lists[OP_MAX_PARAMS][MAX_ITEMS];
    int64_t numbers[OP_MAX_PARAMS][MAX_ITEMS];
    size_t n_arguments;
};

static void box_eager(struct eager *eager, size_t at, const struct spec *spec, int n, shoal_group *group)
{
    shoal_value *value = &eager->arguments[at];
    *value = (shoal_value){.kind = SHOAL_VALUE_NONE};
    switch (spec->kind) {
    case END:
    case ABSENT:
        break;
    case TENSOR:
    case TURNED:
        *value =
            (shoal_value){.kind = SHOAL_VALUE_TENSOR, .count = 1, .as.tensor = eager->inputs[spec->number]};
        if (spec->kind == TURNED) {
            value->as.tensor = shoal_transpose(value->as.tensor, 0, 1);
        }
        break;
    case LIST:
        for (size_t i = 0; i < spec->count; i++) {
            eager->lists[at][i] = eager->inputs[spec->items[i]];
        }
        *value =
            (shoal_value){.kind = SHOAL_VALUE_TENSORS, .count = spec->count, .as.tensors = eager->lists[at]};
        break;
    case PIECES:
        CHECK_OK(shoal_op_call(
            find_op("split"),
            (shoal_value[]){
                {.kind = SHOAL_VALUE_TENSOR, .count = 1, .as.tensor = eager->inputs[spec->number]},
                {.kind = SHOAL_VALUE_INT, .as.integer = 5}},
            2, value));
        break;
    case INT:
        *value = (shoal_value){.kind = SHOAL_VALUE_INT, .as.integer = spec->number};
        break;
    case INTS:
    case GROWING:
    case REST:
    case ROTATION:
        *value = (shoal_value){.kind = SHOAL_VALUE_INTS,
                               .count = list_numbers(spec, n, eager->numbers[at]),
                               .as.integers = eager->numbers[at]};
        break;
    case FLOAT:
        *value = (shoal_value){.kind = SHOAL_VALUE_FLOAT, .as.real = spec->real};
        break;
    case BOOL:
        *value = (shoal_value){.kind = SHOAL_VALUE_BOOL, .as.boolean = true};
        break;
    case DTYPE:
        *value = (shoal_value){.kind = SHOAL_VALUE_DTYPE, .as.dtype = (shoal_dtype)spec->number};
        break;
    case STRING:
        *value = (shoal_value){.kind = SHOAL_VALUE_STRING, .as.string = spec->string};
        break;
    case GROUP:
        *value = (shoal_value){.kind = SHOAL_VALUE_GROUP, .as.group = group};
        break;
    }
}

static void make_eager(struct eager *eager, const struct infer_case *wanted, int n, shoal_group *group)
{
    memset(eager, 0, sizeof *eager);
    for (int i = 0; i < N_INPUTS; i++) {
        int64_t shape[3];
        int n_dims;
        shoal_dtype dtype;
        shape_input((enum input)i, n, shape, &n_dims, &dtype);
        eager->inputs[i] = shoal_empty_on(shape, n_dims, dtype, SHOAL_META);
    }
    while (eager->n_arguments < OP_MAX_PARAMS && wanted->args[eager->n_arguments].kind != END) {
        box_eager(eager, eager->n_arguments, &wanted->args[eager->n_arguments], n, group);
        eager->n_arguments++;
    }
}

/* The same in a graph ---------------------------------------------------------------------------------- */

struct graphed {
    shoal_graph *graph;
    shoal_node *inputs[N_INPUTS];
    shoal_arg args[OP_MAX_PARAMS];
    shoal_arg lists[OP_MAX_PARAMS][MAX_ITEMS];
    size_t n_args;
};

static shoal_arg arg_node(shoal_node *node)
{
    return (shoal_arg){.kind = SHOAL_ARG_NODE, .as.node = node};
}

static shoal_arg arg_int(int64_t number)
{
    return (shoal_arg){.kind = SHOAL_ARG_INT, .as.integer = number};
}

static shoal_arg arg_list(const shoal_arg *items, size_t count)
{
    return (shoal_arg){.kind = SHOAL_ARG_LIST, .as.list = {.items = items, .count = count}};
}

/* NULL on failure. */
static shoal_node *call(shoal_graph *graph, const char *op, const shoal_arg *args, size_t n_args)
{
    shoal_node *node = NULL;
    CHECK_OK(shoal_graph_call(graph, find_op(op), args, n_args, NULL, &node));
    return node;
}

static shoal_arg arg_numbers(struct graphed *graphed, size_t at, const struct spec *spec, int n)
{
    int64_t numbers[MAX_ITEMS];
    size_t count = list_numbers(spec, n, numbers);
    for (size_t i = 0; i < count; i++) {
        graphed->lists[at][i] = arg_int(numbers[i]);
    }
    return arg_list(graphed->lists[at], count);
}

static shoal_arg make_arg(struct graphed *graphed, size_t at, const struct spec *spec, int n)
{
    switch (spec->kind) {
    case END:
    case ABSENT:
        break;
    case TENSOR:
        return arg_node(graphed->inputs[spec->number]);
    case TURNED: {
        shoal_arg args[] = {arg_node(graphed->inputs[spec->number]), arg_int(0), arg_int(1)};
        return arg_node(call(graphed->graph, "transpose", args, 3));
    }
    case LIST:
        for (size_t i = 0; i < spec->count; i++) {
            graphed->lists[at][i] = arg_node(graphed->inputs[spec->items[i]]);
        }
        return arg_list(graphed->lists[at], spec->count);
    case PIECES: {
        shoal_arg args[] = {arg_node(graphed->inputs[spec->number]), arg_int(5)};
        return arg_node(call(graphed->graph, "split", args, 2));
    }
    case INT:
        return arg_int(spec->number);
    case INTS:
    case GROWING:
    case REST:
    case ROTATION:
        return arg_numbers(graphed, at, spec, n);
    case FLOAT:
        return (shoal_arg){.kind = SHOAL_ARG_FLOAT, .as.real = spec->real};
    case BOOL:
        return (shoal_arg){.kind = SHOAL_ARG_BOOL, .as.boolean = true};
    case DTYPE:
        return (shoal_arg){.kind = SHOAL_ARG_DTYPE, .as.dtype = (shoal_dtype)spec->number};
    case STRING:
        return (shoal_arg){.kind = SHOAL_ARG_STRING, .as.string = spec->string};
    case GROUP:
        return (shoal_arg){.kind = SHOAL_ARG_GROUP, .as.string = "g"};
    }
    return (shoal_arg){.kind = SHOAL_ARG_NONE};
}

static shoal_graph *make_graph(int n)
{
    static const int ranks[] = {0, 1, 2, 3, 4, 5, 6, 7};
    shoal_graph *graph = NULL;
    CHECK_OK(shoal_graph_create(&graph));
    CHECK_OK(shoal_graph_add_group(graph, "g", ranks, 2, (size_t)n));
    return graph;
}

static void make_graphed(struct graphed *graphed, const struct infer_case *wanted, int n)
{
    memset(graphed, 0, sizeof *graphed);
    graphed->graph = make_graph(n);
    for (int i = 0; i < N_INPUTS; i++) {
        int64_t shape[3];
        int n_dims;
        shoal_dtype dtype;
        shape_input((enum input)i, n, shape, &n_dims, &dtype);
        CHECK_OK(shoal_graph_placeholder(graphed->graph, "x", shape, n_dims, dtype, &graphed->inputs[i]));
    }
    while (graphed->n_args < OP_MAX_PARAMS && wanted->args[graphed->n_args].kind != END) {
        graphed->args[graphed->n_args] =
            make_arg(graphed, graphed->n_args, &wanted->args[graphed->n_args], n);
        graphed->n_args++;
    }
}

/* Comparing -------------------------------------------------------------------------------------------- */

static bool is_same_layout(const shoal_tensor *a, const shoal_tensor *b)
{
    size_t bytes = (size_t)a->layout.n_dims * sizeof(int64_t);
    return a->dtype == b->dtype && a->layout.n_dims == b->layout.n_dims &&
           memcmp(a->layout.shape, b->layout.shape, bytes) == 0 &&
           memcmp(a->layout.strides, b->layout.strides, bytes) == 0 && a->layout.offset == b->layout.offset &&
           a->storage->bytes == b->storage->bytes;
}

static const shoal_tensor *at(const shoal_value *value, size_t index)
{
    return value->kind == SHOAL_VALUE_TENSOR ? value->as.tensor : value->as.tensors[index];
}

static void compare(const struct eager *eager, const shoal_value *result, const struct graphed *graphed,
                    const shoal_node *node)
{
    CHECK_INT(shoal_node_n_values(node), result->count);
    CHECK_INT(shoal_node_is_list(node), result->kind == SHOAL_VALUE_TENSORS);
    for (size_t i = 0; i < result->count && !test_has_failed(); i++) {
        const shoal_tensor *expected = at(result, i);
        const shoal_tensor *actual = shoal_node_value(node, i);
        CHECK(is_same_layout(expected, actual));
        CHECK_INT(actual->storage->device, SHOAL_META);
        CHECK(!shoal_node_value(graphed->inputs[0], 0)->history);
        for (int k = 0; k < N_INPUTS; k++) {
            CHECK_INT(actual->storage == shoal_node_value(graphed->inputs[k], 0)->storage,
                      expected->storage == eager->inputs[k]->storage);
        }
        for (size_t k = 0; k < i; k++) {
            CHECK_INT(actual->storage == shoal_node_value(node, k)->storage,
                      expected->storage == at(result, k)->storage);
        }
    }
}

/* Whether both went well. */
static bool try_case(const struct infer_case *wanted, int n, shoal_group *group)
{
    struct eager eager;
    struct graphed graphed;
    shoal_value result;
    shoal_node *node = NULL;
    const shoal_op *op = find_op(wanted->op);
    CHECK_OK(shoal_scope_begin());
    make_eager(&eager, wanted, n, group);
    make_graphed(&graphed, wanted, n);
    size_t n_before = shoal_graph_n_nodes(graphed.graph);
    shoal_status status = shoal_op_call(op, eager.arguments, eager.n_arguments, &result);
    char text[512];
    /* What is missing is found before the op is asked, and does not name it twice. */
    const char *words = strstr(shoal_error_text(), ": ");
    (void)snprintf(text, sizeof text, "%s", words ? words : "");
    CHECK_STATUS(shoal_graph_call(graphed.graph, op, graphed.args, graphed.n_args, "y", &node), status);
    if (status == SHOAL_OK && node) {
        compare(&eager, &result, &graphed, node);
    } else if (status != SHOAL_OK) {
        /* A list that does not fit is refused while it is boxed. */
        if (!strstr(text, "of kind ints does not fit") && !strstr(text, "of kind tensors does not fit")) {
            CHECK_ERROR_TEXT(text);
        }
        CHECK(!node);
        CHECK_INT(shoal_graph_n_nodes(graphed.graph), n_before);
    }
    shoal_graph_free(graphed.graph);
    CHECK_STATUS(shoal_scope_end(), status);
    return status == SHOAL_OK;
}

static shoal_world *open_fake(int n_ranks)
{
    shoal_world *world = NULL;
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = n_ranks, .rank = 0, .transport = "fake"};
    CHECK_OK(shoal_world_open(&options, &world));
    return world;
}

TEST(graphs_and_programs_agree)
{
    for (int n = 1; n <= 3; n++) {
        shoal_world *world = open_fake(n);
        REQUIRE(world);
        size_t n_good = 0;
        for (size_t i = 0; i < sizeof cases / sizeof cases[0] && !test_has_failed(); i++) {
            n_good += try_case(&cases[i], n, shoal_world_group(world));
            if (test_has_failed()) {
                test_failed(__FILE__, __LINE__, "case %zu, %s, %d ranks", i, cases[i].op, n);
            }
        }
        CHECK(n_good >= OP_COUNT - 2); /* some need as many ranks as they name */
        CHECK_OK(shoal_world_close(world));
    }
}

TEST(every_op_has_a_case)
{
    for (size_t i = 0; i < OP_COUNT; i++) {
        size_t n_cases = 0;
        for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
            n_cases += strcmp(cases[k].op, shoal_op_name(shoal_op_at(i))) == 0;
        }
        if (n_cases == 0) {
            test_failed(__FILE__, __LINE__, "%s has no case", shoal_op_name(shoal_op_at(i)));
        }
    }
}

/* Nodes ------------------------------------------------------------------------------------------------ */

static shoal_node *add_input(shoal_graph *graph, const char *name, int64_t rows, int64_t columns)
{
    shoal_node *node = NULL;
    CHECK_OK(shoal_graph_placeholder(graph, name, (int64_t[]){rows, columns}, 2, SHOAL_F32, &node));
    return node;
}

TEST(lists_and_single_tensors_are_told_apart)
{
    shoal_graph *graph = make_graph(2);
    shoal_node *x = add_input(graph, "x", 4, 4);
    shoal_node *pieces = call(graph, "split", (shoal_arg[]){arg_node(x), arg_int(2)}, 2);
    shoal_node *node = NULL;
    CHECK_STATUS(shoal_graph_call(graph, find_op("neg"), (shoal_arg[]){arg_node(pieces)}, 1, NULL, &node),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("neg: self: node split gives a list of 2");
    CHECK_STATUS(shoal_graph_call(graph, find_op("cat"), (shoal_arg[]){arg_node(x)}, 1, NULL, &node),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("cat: tensors: node x gives one tensor, not a list");
    shoal_arg mixed[] = {arg_node(x), arg_node(pieces)};
    shoal_arg list = arg_list(mixed, 2);
    CHECK_STATUS(shoal_graph_call(graph, find_op("cat"), &list, 1, NULL, &node), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("cat: tensors: item 1 of the list: node split gives a list of 2");
    mixed[1] = arg_int(3);
    CHECK_STATUS(shoal_graph_call(graph, find_op("cat"), &list, 1, NULL, &node), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("cat: tensors: item 1 of the list is not a node");
    CHECK_STATUS(shoal_graph_call(graph, find_op("view"), (shoal_arg[]){arg_node(x), list}, 2, NULL, &node),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("view: shape: item 0 of the list is not an integer");
    CHECK_STATUS(shoal_graph_call(graph, find_op("neg"), &list, 1, NULL, &node), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("neg: self: a list does not fit");
    CHECK(!node);
    shoal_graph_free(graph);
}

TEST(a_group_must_be_in_the_table)
{
    shoal_graph *graph = make_graph(2);
    shoal_node *x = add_input(graph, "x", 4, 4);
    shoal_node *node = NULL;
    shoal_arg args[] = {arg_node(x),
                        {.kind = SHOAL_ARG_STRING, .as.string = "sum"},
                        {.kind = SHOAL_ARG_GROUP, .as.string = "other"}};
    CHECK_STATUS(shoal_graph_call(graph, find_op("all_reduce"), args, 3, NULL, &node), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("other");
    CHECK(!node);
    shoal_graph_free(graph);
}

/* Numbers that depend on the rank ---------------------------------------------------------------------- */

static shoal_arg arg_rank(int64_t factor, int64_t offset)
{
    return (shoal_arg){.kind = SHOAL_ARG_RANK, .as.rank = {.group = "g", .factor = factor, .offset = offset}};
}

TEST(a_place_may_depend_on_the_rank_and_a_shape_may_not)
{
    shoal_graph *graph = make_graph(4);
    shoal_node *x = add_input(graph, "x", 8, 4);
    shoal_arg args[] = {arg_node(x), arg_int(0), arg_rank(2, 0), arg_int(2)};
    shoal_node *node = call(graph, "narrow", args, 4);
    REQUIRE(node);
    const shoal_tensor *value = shoal_node_value(node, 0);
    CHECK_INT(value->layout.shape[0], 2);
    CHECK_INT(value->layout.offset, 0);
    CHECK(value->storage == shoal_node_value(x, 0)->storage);
    /* The last rank would look behind the end. */
    shoal_node *bad = NULL;
    args[2] = arg_rank(2, 1);
    CHECK_STATUS(shoal_graph_call(graph, find_op("narrow"), args, 4, NULL, &bad), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("on the last rank: narrow: ");
    args[2] = arg_int(0);
    args[3] = arg_rank(1, 1);
    CHECK_STATUS(shoal_graph_call(graph, find_op("narrow"), args, 4, NULL, &bad), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("narrow: it gives f32 [1, 4] on the first rank, and f32 [4, 4] on the last one");
    args[1] = arg_rank(INT64_MAX, 0);
    CHECK_STATUS(shoal_graph_call(graph, find_op("narrow"), args, 4, NULL, &bad), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("more than can be counted");
    args[1] = arg_rank(1, 0);
    args[1].as.rank.group = "other";
    CHECK_STATUS(shoal_graph_call(graph, find_op("narrow"), args, 4, NULL, &bad), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("other");
    /* Inside of lists as well. */
    shoal_arg shape[] = {arg_int(4), arg_rank(1, 8)};
    CHECK_STATUS(shoal_graph_call(graph, find_op("view"), (shoal_arg[]){arg_node(x), arg_list(shape, 2)}, 2,
                                  NULL, &bad),
                 SHOAL_ERR_INVALID);
    CHECK(!bad);
    shoal_graph_free(graph);
}

TEST(the_number_of_pieces_may_not_depend_on_the_rank)
{
    shoal_graph *graph = make_graph(2);
    shoal_node *x = add_input(graph, "x", 8, 4);
    shoal_node *bad = NULL;
    CHECK_STATUS(
        shoal_graph_call(graph, find_op("split"), (shoal_arg[]){arg_node(x), arg_rank(2, 2)}, 2, NULL, &bad),
        SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("split: it gives 4 tensors on the first rank, and 2 on the last one");
    /* A factor of 0 is a number like others. */
    CHECK(call(graph, "split", (shoal_arg[]){arg_node(x), arg_rank(0, 2)}, 2));
    shoal_graph_free(graph);
}

TEST(some_ranks_may_not_be_left_out_of_a_permutation)
{
    shoal_graph *graph = make_graph(3);
    shoal_node *x = add_input(graph, "x", 8, 4);
    shoal_node *bad = NULL;
    shoal_arg places[] = {arg_int(2), arg_int(0), arg_int(1)};
    shoal_arg args[] = {arg_node(x), arg_list(places, 3), {.kind = SHOAL_ARG_GROUP, .as.string = "g"}};
    CHECK(call(graph, "permute_tensor", args, 3));
    args[1] = arg_list(places, 2);
    CHECK_STATUS(shoal_graph_call(graph, find_op("permute_tensor"), args, 3, NULL, &bad), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("permute_tensor: destinations: 2 of 3 ranks send");
    shoal_graph_free(graph);
}

/* Constants -------------------------------------------------------------------------------------------- */

static shoal_node *add_constant(shoal_graph *graph, const char *name, shoal_tensor *tensor)
{
    shoal_node *node = NULL;
    CHECK_OK(shoal_graph_constant(graph, name, tensor, &node));
    return node;
}

TEST(constants_mix_with_inputs_and_their_views_share)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_graph *graph = make_graph(2);
    shoal_tensor *tensor = shoal_full((int64_t[]){4, 4}, 2, 3.0, SHOAL_F32);
    shoal_node *x = add_input(graph, "x", 4, 4);
    shoal_node *c = add_constant(graph, "c", tensor);
    shoal_node *half = add_constant(graph, "half", shoal_narrow(tensor, 0, 2, 2));
    REQUIRE(x && c && half);
    shoal_node *sum = call(graph, "add", (shoal_arg[]){arg_node(x), arg_node(c)}, 2);
    shoal_node *turned = call(graph, "transpose", (shoal_arg[]){arg_node(c), arg_int(0), arg_int(1)}, 3);
    shoal_node *row = call(graph, "select", (shoal_arg[]){arg_node(half), arg_int(0), arg_int(1)}, 3);
    shoal_node *changed = call(graph, "add_", (shoal_arg[]){arg_node(c), arg_node(x)}, 2);
    REQUIRE(sum && turned && row && changed);
    const struct storage *storage = shoal_node_value(turned, 0)->storage;
    CHECK_INT(storage->device, SHOAL_META);
    CHECK_INT(shoal_node_value(sum, 0)->storage->device, SHOAL_META);
    CHECK(shoal_node_value(row, 0)->storage == storage);
    CHECK(shoal_node_value(changed, 0)->storage == storage);
    CHECK(shoal_node_value(sum, 0)->storage != storage);
    CHECK_INT(shoal_node_value(row, 0)->layout.offset, 12);
    /* Nothing ran. */
    CHECK_DOUBLE(*(const float *)shoal_data(tensor), 3.0);
    CHECK_INT(atomic_load(&tensor->storage->version), 0);
    shoal_graph_free(graph);
    CHECK_OK(shoal_scope_end());
}

TEST(a_constant_that_needs_a_gradient_records_nothing)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_graph *graph = make_graph(2);
    shoal_tensor *tensor = shoal_full((int64_t[]){4}, 1, 3.0, SHOAL_F32);
    CHECK_OK(shoal_set_requires_grad(tensor, true));
    shoal_node *c = add_constant(graph, "c", tensor);
    shoal_node *sum = call(graph, "add", (shoal_arg[]){arg_node(c), arg_node(c)}, 2);
    REQUIRE(sum);
    CHECK(!shoal_node_value(sum, 0)->history);
    shoal_graph_free(graph);
    CHECK_OK(shoal_scope_end());
}

/* Factories are on the meta device, whatever they say; an unknown device is still an error. */
TEST(factories_make_nothing)
{
    shoal_graph *graph = make_graph(2);
    shoal_arg shape[] = {arg_int(INT64_C(1) << 20), arg_int(INT64_C(1) << 20)};
    shoal_arg args[] = {arg_list(shape, 2),
                        {.kind = SHOAL_ARG_DTYPE, .as.dtype = SHOAL_F32},
                        {.kind = SHOAL_ARG_STRING, .as.string = "cpu"}};
    shoal_node *zeros = call(graph, "zeros", args, 3);
    REQUIRE(zeros);
    CHECK_INT(shoal_node_value(zeros, 0)->storage->device, SHOAL_META);
    CHECK(call(graph, "empty", args, 2));
    args[2].as.string = "moon";
    shoal_node *bad = NULL;
    CHECK_STATUS(shoal_graph_call(graph, find_op("zeros"), args, 3, NULL, &bad), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("moon");
    shoal_graph_free(graph);
}

/* Registered ops --------------------------------------------------------------------------------------- */

static int n_kernels;

static shoal_status run_nothing(shoal_op_call_context *call, const shoal_value *arguments,
                                shoal_tensor *const *outputs, size_t n_outputs)
{
    n_kernels++;
    return SHOAL_OK;
}

static shoal_status meta_square(shoal_op_call_context *call, const shoal_value *arguments)
{
    int64_t n = arguments[0].as.integer;
    if (n < 0) {
        return shoal_fail(SHOAL_ERR_INVALID, "n is %d, and squares are not that small", (int)n);
    }
    return shoal_op_output(call, (int64_t[]){n, n}, 2, SHOAL_F64);
}

static shoal_status meta_ranks(shoal_op_call_context *call, const shoal_value *arguments)
{
    return shoal_op_output(call, (int64_t[]){shoal_group_n_ranks(arguments[1].as.group)}, 1, SHOAL_I64);
}

static const shoal_op *register_op(const char *name, const char *signature, uint32_t flags,
                                   shoal_op_meta meta)
{
    const shoal_op *op = NULL;
    shoal_op_definition definition = SHOAL_OP_DEFINITION_INIT;
    definition.name = name;
    definition.signature = signature;
    definition.flags = flags;
    definition.meta = meta;
    definition.kernel = run_nothing;
    size_t n_blocks = test_live_blocks();
    CHECK_OK(shoal_op_register(&definition, &op));
    test_keep_blocks(test_live_blocks() - n_blocks);
    return op;
}

TEST(registered_ops_are_asked_and_not_run)
{
    const shoal_op *square = register_op("infer.square", "int n -> tensor", SHOAL_OP_FACTORY, meta_square);
    const shoal_op *fill =
        register_op("infer.fill_", "tensor self, tensor? other -> tensor", SHOAL_OP_IN_PLACE, NULL);
    const shoal_op *ranks = register_op("infer.ranks", "tensor self, group group -> tensor", 0, meta_ranks);
    REQUIRE(square && fill && ranks);
    shoal_graph *graph = make_graph(3);
    shoal_node *made = NULL;
    shoal_node *filled = NULL;
    shoal_node *counted = NULL;
    shoal_arg n = arg_int(3);
    REQUIRE_OK(shoal_graph_call(graph, square, &n, 1, NULL, &made));
    CHECK_INT(shoal_node_value(made, 0)->storage->device, SHOAL_META);
    CHECK_INT(shoal_node_value(made, 0)->count, 9);
    shoal_arg args[] = {arg_node(made), {.kind = SHOAL_ARG_NONE}};
    REQUIRE_OK(shoal_graph_call(graph, fill, args, 2, NULL, &filled));
    CHECK(shoal_node_value(filled, 0)->storage == shoal_node_value(made, 0)->storage);
    args[1] = (shoal_arg){.kind = SHOAL_ARG_GROUP, .as.string = "g"};
    REQUIRE_OK(shoal_graph_call(graph, ranks, args, 2, NULL, &counted));
    CHECK_INT(shoal_node_value(counted, 0)->layout.shape[0], 3);
    n = arg_int(-1);
    CHECK_STATUS(shoal_graph_call(graph, square, &n, 1, NULL, &made), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("infer.square: n is -1, and squares are not that small");
    CHECK_INT(n_kernels, 0);
    shoal_graph_free(graph);
}

/* Scopes and memory ------------------------------------------------------------------------------------ */

/* A graph is made with or without a scope, and a scope's error stays what it was. */
TEST(scopes_around_do_not_matter)
{
    CHECK_OK(shoal_scope_begin());
    CHECK(!shoal_neg(NULL));
    shoal_graph *graph = make_graph(2);
    shoal_node *x = add_input(graph, "x", 4, 4);
    CHECK(call(graph, "neg", (shoal_arg[]){arg_node(x)}, 1));
    shoal_node *bad = NULL;
    CHECK_STATUS(shoal_graph_call(graph, find_op("view"), (shoal_arg[]){arg_node(x), arg_list(NULL, 0)}, 2,
                                  NULL, &bad),
                 SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("neg");
    shoal_graph_free(graph);
}

static shoal_status build_with(void *context)
{
    shoal_tensor *tensor = context;
    shoal_graph *graph = NULL;
    shoal_node *c = NULL;
    shoal_node *pieces = NULL;
    shoal_node *joined = NULL;
    shoal_node *sent = NULL;
    shoal_status status = shoal_graph_create(&graph);
    if (status == SHOAL_OK) {
        status = shoal_graph_add_group(graph, "g", (int[]){0, 1}, 1, 2);
    }
    if (status == SHOAL_OK) {
        status = shoal_graph_constant(graph, "c", tensor, &c);
    }
    if (status == SHOAL_OK) {
        shoal_arg args[] = {arg_node(c), arg_rank(0, 1)};
        status = shoal_graph_call(graph, find_op("split"), args, 2, NULL, &pieces);
    }
    if (status == SHOAL_OK) {
        shoal_arg items[] = {arg_node(c), arg_node(c)};
        shoal_arg list = arg_list(items, 2);
        status = shoal_graph_call(graph, find_op("cat"), &list, 1, NULL, &joined);
    }
    if (status == SHOAL_OK) {
        shoal_arg args[] = {arg_node(joined), arg_int(0), {.kind = SHOAL_ARG_GROUP, .as.string = "g"}};
        status = shoal_graph_call(graph, find_op("all_gather_tensor"), args, 3, NULL, &sent);
    }
    shoal_graph_free(graph);
    return status;
}

TEST(memory_may_be_missing)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *tensor = shoal_full((int64_t[]){12}, 1, 1.0, SHOAL_F32);
    CHECK(shoal_tensor_ref(tensor) == tensor);
    CHECK_OK(shoal_scope_end()); /* which keeps spare blocks */
    CHECK(test_sweep_allocations(build_with, tensor) > 20);
    shoal_tensor_unref(tensor);
}

/* Taking a long list apart touches each tensor once. */
TEST(long_lists)
{
    enum {
        N = 20000
    };
    shoal_graph *graph = make_graph(2);
    shoal_node *x = add_input(graph, "x", N, 1);
    shoal_node *pieces = call(graph, "split", (shoal_arg[]){arg_node(x), arg_int(1)}, 2);
    REQUIRE(pieces);
    CHECK_INT(shoal_node_n_values(pieces), N);
    const shoal_op *getitem = find_op("getitem");
    for (int64_t i = 0; i < N && !test_has_failed(); i++) {
        shoal_node *item = NULL;
        CHECK_OK(
            shoal_graph_call(graph, getitem, (shoal_arg[]){arg_node(pieces), arg_int(i)}, 2, NULL, &item));
        CHECK(item && shoal_node_value(item, 0) == shoal_node_value(pieces, (size_t)i));
    }
    shoal_graph_free(graph);
}
