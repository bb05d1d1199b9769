/* SPDX-License-Identifier: MIT */
#include "graph/ir/boxing.h"

#include <inttypes.h>

#include "base/error.h"
#include "base/try.h"
#include "op/box.h"
#include "op/op.h"
#include "tensor/scope.h"

/* Finds a group. Returns NULL if there is none, and the error is set. */
static const struct graph_group *find_group(const struct boxing *boxing, const char *name)
{
    const struct graph_group *group = name ? graph_find_group(boxing->graph, name) : NULL;
    if (!group) {
        (void)error_set(SHOAL_ERR_INVALID, "the graph has no group @%.64s", name ? name : "(NULL)");
    }
    return group;
}

static shoal_status box_rank(struct boxing *boxing, const shoal_arg *arg, int64_t *number_out)
{
    const struct graph_group *group = find_group(boxing, arg->as.rank.group);
    if (!group) {
        return SHOAL_ERR_INVALID;
    }
    int64_t rank = boxing->rank(boxing->context, group);
    int64_t product;
    if (__builtin_mul_overflow(arg->as.rank.factor, rank, &product) ||
        __builtin_add_overflow(product, arg->as.rank.offset, number_out)) {
        return error_set(SHOAL_ERR_INVALID,
                         "%" PRId64 " times rank %" PRId64 " plus %" PRId64 " does not fit into 64 bits",
                         arg->as.rank.factor, rank, arg->as.rank.offset);
    }
    boxing->depends_on_rank |= arg->as.rank.factor != 0 && group->size > 1;
    return SHOAL_OK;
}

/* Gives the tensor of a node that gives one. */
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
    return boxing->one(boxing->context, node, tensor_out);
}

/* Gives the tensors of a node that gives a list. */
static shoal_status box_node_list(const struct boxing *boxing, const shoal_node *node, shoal_value *value_out)
{
    if (!node) {
        return error_set(SHOAL_ERR_INVALID, "the node is NULL");
    }
    if (!node->is_list) {
        return error_set(SHOAL_ERR_INVALID, "node %s gives %s, not a list", node->name,
                         node->n_values == 1 ? "one tensor" : "nothing");
    }
    *value_out = box_tensors(boxing->list(boxing->context, node), node->n_values);
    return SHOAL_OK;
}

static shoal_status fail_item(size_t index, const char *expected)
{
    return error_set(SHOAL_ERR_INVALID, "item %zu of the list is not %s", index, expected);
}

static void *alloc_list(const struct boxing *boxing, size_t count, size_t item_bytes)
{
    return boxing->lists ? arena_alloc(boxing->lists, count, item_bytes)
                         : scope_alloc(scope_current(), count * item_bytes);
}

static shoal_status box_tensor_list(const struct boxing *boxing, const shoal_arg *arg, shoal_value *value_out)
{
    size_t count = arg->as.list.count;
    shoal_tensor **tensors = alloc_list(boxing, count, sizeof *tensors);
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
    int64_t *integers = alloc_list(boxing, count, sizeof *integers);
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
    return error_set(SHOAL_ERR_INVALID, "a list is not expected here");
}

/* Boxes an argument. The dispatcher checks whether its kind fits the parameter, except where boxing depends on it. */
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
            return box_node_list(boxing, arg->as.node, value_out);
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
        *value_out = box_group(group ? boxing->group(boxing->context, group) : NULL);
        return group ? SHOAL_OK : SHOAL_ERR_INVALID;
    case SHOAL_ARG_LIST:
        return box_list(boxing, param, arg, value_out);
    }
    return error_set(SHOAL_ERR_INVALID, "%d is not a kind of argument", (int)arg->kind);
}

/* Replaces the list of a getitem by the one tensor that it takes, so that taking all tensors out of a long list does
   not take quadratic time. */
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

shoal_status boxing_box(struct boxing *boxing, const shoal_op *op, const shoal_arg *args, size_t n_args,
                        shoal_value *values_out)
{
    for (size_t i = 0; i < n_args && i < op->n_params; i++) {
        shoal_status status = box(boxing, &op->params[i], &args[i], &values_out[i]);
        if (status != SHOAL_OK) {
            return error_prefix(status, "%s: %s", op->name, op->params[i].name);
        }
    }
    shorten_getitem(op, values_out, n_args);
    return SHOAL_OK;
}
