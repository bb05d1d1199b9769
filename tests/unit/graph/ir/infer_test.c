/* SPDX-License-Identifier: MIT */
/*
 * What a call gives in a graph is what it gives outside of one on the meta device: for every op there is, the same shapes, dtypes,
 * strides, shared storages, and the same errors. Calls outside use groups of a world without peers.
 */
#include <stdio.h>
#include <string.h>

#include "harness/test.h"
#include "op/op.h"
#include "shoal/group.h"
#include "shoal/ops.h"
#include "shoal/world.h"
#include "tensor/tensor.h"
#include "unit/graph/building.h"

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

/* clang-format off */
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
    {"to_device", {T(A), S("meta")}},
    {"to_device", {TURN(A), S("meta")}},
    {"to_device", {T(A), S("moon")}},
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
    {"as_strided_scatter", {T(A), T(ROW), IS(4), IS(1), I(4)}},
    {"as_strided_scatter", {T(A), T(ROW), IS(4), IS(1), I(4000)}},
    {"as_strided_scatter", {T(A), T(B), IS(4), IS(1), I(4)}},
    {"as_strided_scatter", {T(A), T(ROW), IS(4), IS(0), I(4)}},
    {"control_deps", {T(A), L(B, ROW)}},
    {"control_deps", {T(A), NO_LIST}},
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
    {"chunk_cat", {L(A, ROW), I(4), D(SHOAL_BF16), I(0)}},
    {"chunk_cat_out", {T(A), L(B), I(12)}},
    {"chunk_cat_out", {T(A), L(A), I(12)}},
    {"split_with_sizes_copy", {T(A), IS(4, 8)}},
    {"split_with_sizes_copy_out", {L(A), T(B), IS(12)}},
    {"split_with_sizes_copy_out", {L(A, A), T(B), IS(12, 0)}},
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
/* clang-format on */

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
        graphed->lists[at][i] = int_arg(numbers[i]);
    }
    return list_arg(graphed->lists[at], count);
}

static shoal_arg make_arg(struct graphed *graphed, size_t at, const struct spec *spec, int n)
{
    switch (spec->kind) {
    case END:
    case ABSENT:
        break;
    case TENSOR:
        return node_arg(graphed->inputs[spec->number]);
    case TURNED: {
        shoal_arg args[] = {node_arg(graphed->inputs[spec->number]), int_arg(0), int_arg(1)};
        return node_arg(call(graphed->graph, "transpose", args, 3));
    }
    case LIST:
        for (size_t i = 0; i < spec->count; i++) {
            graphed->lists[at][i] = node_arg(graphed->inputs[spec->items[i]]);
        }
        return list_arg(graphed->lists[at], spec->count);
    case PIECES: {
        shoal_arg args[] = {node_arg(graphed->inputs[spec->number]), int_arg(5)};
        return node_arg(call(graphed->graph, "split", args, 2));
    }
    case INT:
        return int_arg(spec->number);
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

static shoal_graph *make_grouped(int n)
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
    graphed->graph = make_grouped(n);
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
        if (!strstr(text, "of kind ints,") && !strstr(text, "of kind tensors,")) {
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
