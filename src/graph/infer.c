/* SPDX-License-Identifier: MIT */
/*
 * What a call gives: the op's own meta function says so, on tensors of the meta device, through the dispatcher, which checks
 * arguments as it does for a call that runs. So a graph and a program never disagree about a shape, a view or an error.
 *
 * It happens in a scope of its own, without tracer and tape. Boxed lists live in that scope, and so does what calls give until
 * it is referenced.
 */
#include <inttypes.h>

#include "base/error.h"
#include "base/try.h"
#include "graph/graph.h"
#include "graph/twins.h"
#include "op/box.h"
#include "op/dispatch.h"
#include "op/op.h"
#include "shoal/group.h"
#include "tensor/layout.h"
#include "tensor/scope.h"

/* Boxing ----------------------------------------------------------------------------------------------- */

struct boxing {
    struct shoal_graph *graph;
    bool is_last_rank;    /* numbers that depend on the rank are those of the last one, not of the first */
    bool depends_on_rank; /* there was such a number */
};

/* NULL, with the error set: SHOAL_ERR_INVALID. */
static const struct graph_group *find_group(const struct boxing *boxing, const char *name)
{
    const struct graph_group *group = name ? graph_find_group(boxing->graph, name) : NULL;
    if (!group) {
        (void)error_set(SHOAL_ERR_INVALID, "the graph has no group @%.64s", name ? name : "(NULL)");
    }
    return group;
}

/* A graph is one for all ranks: what it gives must not depend on the rank. So any rank would do here, and the first one is
   taken; infer_alike tries the last one as well. */
static shoal_status box_rank(struct boxing *boxing, const shoal_arg *arg, int64_t *number_out)
{
    const struct graph_group *group = find_group(boxing, arg->as.rank.group);
    if (!group) {
        return SHOAL_ERR_INVALID;
    }
    int64_t rank = boxing->is_last_rank ? (int64_t)group->size - 1 : 0;
    int64_t product;
    if (__builtin_mul_overflow(arg->as.rank.factor, rank, &product) ||
        __builtin_add_overflow(product, arg->as.rank.offset, number_out)) {
        return error_set(SHOAL_ERR_INVALID,
                         "%" PRId64 " times rank %" PRId64 " plus %" PRId64 " is more than can be counted",
                         arg->as.rank.factor, rank, arg->as.rank.offset);
    }
    boxing->depends_on_rank |= arg->as.rank.factor != 0 && group->size > 1;
    return SHOAL_OK;
}

/* The tensor of a node that gives one. */
static shoal_status box_node(const struct boxing *boxing, const shoal_node *node, shoal_tensor **tensor_out)
{
    if (!node) {
        return error_set(SHOAL_ERR_INVALID, "the node is NULL");
    }
    if (node->is_list) {
        return error_set(SHOAL_ERR_INVALID,
                         "node %s gives a list of %zu, not one tensor (getitem takes one of them)",
                         node->name, node->n_values);
    }
    if (node->n_values != 1) {
        return error_set(SHOAL_ERR_INVALID, "node %s gives nothing", node->name);
    }
    return twins_tensor(boxing->graph, node->values[0], tensor_out);
}

/* The tensors of a node that gives a list. Those of calls are on the meta device. */
static shoal_status box_node_list(const shoal_node *node, shoal_value *value_out)
{
    if (!node) {
        return error_set(SHOAL_ERR_INVALID, "the node is NULL");
    }
    if (!node->is_list) {
        return error_set(SHOAL_ERR_INVALID, "node %s gives %s, not a list", node->name,
                         node->n_values == 1 ? "one tensor" : "nothing");
    }
    *value_out = box_tensors(node->values, node->n_values);
    return SHOAL_OK;
}

static shoal_status fail_item(size_t index, const char *expected)
{
    return error_set(SHOAL_ERR_INVALID, "item %zu of the list is not %s", index, expected);
}

static shoal_status box_tensor_list(const struct boxing *boxing, const shoal_arg *arg, shoal_value *value_out)
{
    size_t count = arg->as.list.count;
    shoal_tensor **tensors = scope_alloc(scope_current(), count * sizeof *tensors);
    if (!tensors) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        const shoal_arg *item = &arg->as.list.items[i];
        if (item->kind != SHOAL_ARG_NODE) {
            return fail_item(i, "a node");
        }
        shoal_status status = box_node(boxing, item->as.node, &tensors[i]);
        if (status != SHOAL_OK) {
            return error_prefix(status, "item %zu of the list", i);
        }
    }
    *value_out = box_tensors(tensors, count);
    return SHOAL_OK;
}

static shoal_status box_int_list(struct boxing *boxing, const shoal_arg *arg, shoal_value *value_out)
{
    size_t count = arg->as.list.count;
    int64_t *integers = scope_alloc(scope_current(), count * sizeof *integers);
    if (!integers) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        const shoal_arg *item = &arg->as.list.items[i];
        if (item->kind == SHOAL_ARG_RANK) {
            TRY(box_rank(boxing, item, &integers[i]));
        } else if (item->kind == SHOAL_ARG_INT) {
            integers[i] = item->as.integer;
        } else {
            return fail_item(i, "an integer");
        }
    }
    *value_out = box_ints(integers, count);
    return SHOAL_OK;
}

static shoal_status box_list(struct boxing *boxing, const struct op_param *param, const shoal_arg *arg,
                             shoal_value *value_out)
{
    if (arg->as.list.count > 0 && !arg->as.list.items) {
        return error_set(SHOAL_ERR_INVALID, "the list is NULL with %zu items", arg->as.list.count);
    }
    switch (param->type) {
    case OP_PARAM_TENSORS:
        return box_tensor_list(boxing, arg, value_out);
    case OP_PARAM_INTS:
        return box_int_list(boxing, arg, value_out);
    case OP_PARAM_TENSOR:
    case OP_PARAM_OPTIONAL_TENSOR:
    case OP_PARAM_INT:
    case OP_PARAM_FLOAT:
    case OP_PARAM_SCALAR:
    case OP_PARAM_BOOL:
    case OP_PARAM_DTYPE:
    case OP_PARAM_STRING:
    case OP_PARAM_GROUP:
        break;
    }
    return error_set(SHOAL_ERR_INVALID, "a list does not fit");
}

/* Whether the kind fits the parameter is for the dispatcher to say, except where boxing depends on it. */
static shoal_status box(struct boxing *boxing, const struct op_param *param, const shoal_arg *arg,
                        shoal_value *value_out)
{
    const struct graph_group *group;
    int64_t number = 0;
    *value_out = (shoal_value){.kind = SHOAL_VALUE_NONE};
    switch (arg->kind) {
    case SHOAL_ARG_NONE:
        return SHOAL_OK;
    case SHOAL_ARG_NODE:
        if (param->type == OP_PARAM_TENSORS) {
            return box_node_list(arg->as.node, value_out);
        }
        value_out->kind = SHOAL_VALUE_TENSOR;
        value_out->count = 1;
        return box_node(boxing, arg->as.node, &value_out->as.tensor);
    case SHOAL_ARG_INT:
        *value_out = box_int(arg->as.integer);
        return SHOAL_OK;
    case SHOAL_ARG_RANK:
        TRY(box_rank(boxing, arg, &number));
        *value_out = box_int(number);
        return SHOAL_OK;
    case SHOAL_ARG_FLOAT:
        *value_out = box_float(arg->as.real);
        return SHOAL_OK;
    case SHOAL_ARG_BOOL:
        *value_out = box_bool(arg->as.boolean);
        return SHOAL_OK;
    case SHOAL_ARG_DTYPE:
        *value_out = box_dtype(arg->as.dtype);
        return SHOAL_OK;
    case SHOAL_ARG_STRING:
        *value_out = box_string(arg->as.string);
        return SHOAL_OK;
    case SHOAL_ARG_GROUP:
        group = find_group(boxing, arg->as.string);
        *value_out = box_group(group ? group->stand_in : NULL);
        return group ? SHOAL_OK : SHOAL_ERR_INVALID;
    case SHOAL_ARG_LIST:
        return box_list(boxing, param, arg, value_out);
    }
    return error_set(SHOAL_ERR_INVALID, "%d is no kind of argument", (int)arg->kind);
}

/* Calling ---------------------------------------------------------------------------------------------- */

/* One tensor of a node's list: only that one is boxed, so that taking all of a long list apart is no quadratic walk. */
static void shorten_getitem(const shoal_op *op, shoal_value *values, size_t n_values)
{
    if (op->index != OP_getitem || n_values != 2 || values[1].kind != SHOAL_VALUE_INT) {
        return;
    }
    int64_t count = (int64_t)values[0].count;
    int64_t index = values[1].as.integer;
    if (values[0].kind == SHOAL_VALUE_TENSORS && index >= -count && index < count) {
        values[0] = box_tensors(values[0].as.tensors + (index < 0 ? index + count : index), 1);
        values[1] = box_int(0);
    }
}

/* Where nobody sends to a rank it gets no rows, which depends on the rank although no argument does. */
static shoal_status check_permutation(const shoal_op *op, const shoal_value *values)
{
    if (op->index != OP_permute_tensor) {
        return SHOAL_OK;
    }
    size_t n_ranks = (size_t)shoal_group_n_ranks(values[2].as.group);
    return values[1].count == n_ranks ? SHOAL_OK
                                      : error_set(SHOAL_ERR_INVALID,
                                                  "%s: destinations: %zu of %zu ranks send, so some get no "
                                                  "rows, and the shape depends on the "
                                                  "rank",
                                                  op->name, values[1].count, n_ranks);
}

static shoal_status infer(struct boxing *boxing, const shoal_op *op, const shoal_arg *args, size_t n_args,
                          shoal_value *result_out)
{
    shoal_value values[OP_MAX_PARAMS] = {{.kind = SHOAL_VALUE_NONE}};
    for (size_t i = 0; i < n_args && i < op->n_params; i++) {
        shoal_status status = box(boxing, &op->params[i], &args[i], &values[i]);
        if (status != SHOAL_OK) {
            return error_prefix(status, "%s: %s", op->name, op->params[i].name);
        }
    }
    shorten_getitem(op, values, n_args);
    TRY(op_infer(op, values, n_args, result_out));
    return check_permutation(op, values);
}

static shoal_tensor *result_at(const shoal_value *result, size_t index)
{
    return result->kind == SHOAL_VALUE_TENSOR ? result->as.tensor : result->as.tensors[index];
}

/* Two ranks see the same shapes; where in a storage may differ. */
static bool is_alike(const shoal_tensor *a, const shoal_tensor *b)
{
    const struct layout *left = &a->layout;
    const struct layout *right = &b->layout;
    return a->dtype == b->dtype &&
           layout_is_same_shape(left->n_dims, left->shape, right->n_dims, right->shape) &&
           layout_is_same_shape(left->n_dims, left->strides, right->n_dims, right->strides);
}

/* As on the first rank, and as on the last one, where an argument depends on the rank. */
static shoal_status infer_alike(struct shoal_graph *graph, const shoal_op *op, const shoal_arg *args,
                                size_t n_args, shoal_value *result_out)
{
    struct boxing first = {.graph = graph};
    TRY(infer(&first, op, args, n_args, result_out));
    if (!first.depends_on_rank) {
        return SHOAL_OK;
    }
    struct boxing last = {.graph = graph, .is_last_rank = true};
    shoal_value other = {.kind = SHOAL_VALUE_NONE};
    shoal_status status = infer(&last, op, args, n_args, &other);
    if (status != SHOAL_OK) {
        return error_prefix(status, "on the last rank");
    }
    if (other.count != result_out->count) {
        return error_set(SHOAL_ERR_INVALID,
                         "%s: it gives %zu tensors on the first rank, and %zu on the last one", op->name,
                         result_out->count, other.count);
    }
    for (size_t i = 0; i < other.count; i++) {
        const shoal_tensor *here = result_at(result_out, i);
        const shoal_tensor *there = result_at(&other, i);
        if (!is_alike(here, there)) {
            char a[TENSOR_TEXT_BYTES];
            char b[TENSOR_TEXT_BYTES];
            return error_set(SHOAL_ERR_INVALID, "%s: it gives %s on the first rank, and %s on the last one",
                             op->name, tensor_format(a, here), tensor_format(b, there));
        }
    }
    return SHOAL_OK;
}

/* References on what the call gave, which would end with the scope. */
static shoal_status take(struct shoal_graph *graph, const shoal_value *result, shoal_tensor ***values_out)
{
    shoal_tensor **values = NULL;
    if (result->count > 0) {
        values = arena_alloc(&graph->arena, result->count, sizeof *values);
        if (!values) {
            return SHOAL_ERR_NO_MEMORY;
        }
    }
    for (size_t i = 0; i < result->count; i++) {
        values[i] = shoal_tensor_ref(result_at(result, i));
    }
    *values_out = values;
    return SHOAL_OK;
}

shoal_status graph_infer(struct shoal_graph *graph, const shoal_op *op, const shoal_arg *args, size_t n_args,
                         shoal_tensor ***values_out, size_t *n_values_out, bool *is_list_out)
{
    shoal_value result = {.kind = SHOAL_VALUE_NONE};
    shoal_tensor **values = NULL;
    TRY(shoal_scope_begin());
    scope_current()->has_grad = false;
    scope_current()->tracer = NULL;
    shoal_status status = infer_alike(graph, op, args, n_args, &result);
    if (status == SHOAL_OK) {
        status = take(graph, &result, &values);
    }
    if (status != SHOAL_OK) {
        (void)scope_fail(status); /* which keeps the text while the scope ends */
    }
    size_t n_values = result.count;
    status = shoal_scope_end();
    if (status != SHOAL_OK) {
        /* A meta function may have hidden the failure of a call that it made. */
        for (size_t i = 0; values && i < n_values; i++) {
            shoal_tensor_unref(values[i]);
        }
        return status;
    }
    *values_out = values;
    *n_values_out = n_values;
    *is_list_out = op->returns_list;
    return SHOAL_OK;
}
