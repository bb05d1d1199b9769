/* SPDX-License-Identifier: MIT */
#include "graph/ir/infer_view.h"

#include "base/try.h"
#include "tensor/handle.h"
#include "tensor/tensor.h"

/* Returns the tensor of an argument if it is contiguous and has more than one element; otherwise NULL. Any shape with
   as many elements is then a view of it, with the strides of a new tensor. (With one element or none, meta functions
   keep strides that do not matter.) */
static shoal_tensor *find_dense(const shoal_arg *arg)
{
    const struct shoal_node *node = arg->kind == SHOAL_ARG_NODE ? arg->as.node : NULL;
    if (!node || node->is_list || node->n_values != 1 || node->kind == SHOAL_NODE_CONSTANT) {
        return NULL;
    }
    shoal_tensor *tensor = node->values[0];
    return tensor->is_contiguous && tensor->count > 1 && !handle_is_dead(tensor) ? tensor : NULL;
}

static bool is_int(const shoal_arg *arg, int64_t value)
{
    return arg->kind == SHOAL_ARG_INT && arg->as.integer == value;
}

/* Reads a shape. Returns false if a size is not a fixed number, or they do not make up `count` elements. */
static bool read_shape(const shoal_arg *arg, int64_t count, int64_t *shape)
{
    int64_t product = 1;
    if (arg->kind != SHOAL_ARG_LIST || arg->as.list.count > SHOAL_MAX_DIMS || !arg->as.list.items) {
        return false;
    }
    for (size_t i = 0; i < arg->as.list.count; i++) {
        const shoal_arg *size = &arg->as.list.items[i];
        if (size->kind != SHOAL_ARG_INT || size->as.integer < 1 ||
            __builtin_mul_overflow(product, size->as.integer, &product)) {
            return false;
        }
        shape[i] = size->as.integer;
    }
    return product == count;
}

static shoal_status infer_reshape(struct shoal_graph *graph, const shoal_arg *args, shoal_tensor **tensor_out)
{
    shoal_tensor *self = find_dense(&args[0]);
    int64_t shape[SHOAL_MAX_DIMS];
    if (!self || !read_shape(&args[1], self->count, shape)) {
        return SHOAL_OK;
    }
    return tensor_create_shape_dense(&graph->shapes, self, (int)args[1].as.list.count, shape, tensor_out);
}

static shoal_status infer_flatten(struct shoal_graph *graph, const shoal_arg *args, shoal_tensor **tensor_out)
{
    shoal_tensor *self = find_dense(&args[0]);
    if (!self || !is_int(&args[1], 0) || !is_int(&args[2], -1)) {
        return SHOAL_OK;
    }
    return tensor_create_shape_dense(&graph->shapes, self, 1, &self->count, tensor_out);
}

static shoal_status infer_getitem(const shoal_arg *args, shoal_tensor **tensor_out)
{
    const struct shoal_node *list = args[0].kind == SHOAL_ARG_NODE ? args[0].as.node : NULL;
    if (!list || !list->is_list || args[1].kind != SHOAL_ARG_INT || args[1].as.integer < 0 ||
        (uint64_t)args[1].as.integer >= list->n_values) {
        return SHOAL_OK;
    }
    shoal_tensor *item = list->values[args[1].as.integer];
    *tensor_out = handle_is_dead(item) ? NULL : shoal_tensor_ref(item);
    return SHOAL_OK;
}

shoal_status infer_view(struct shoal_graph *graph, const shoal_op *op, const shoal_arg *args,
                        shoal_tensor **tensor_out)
{
    *tensor_out = NULL;
    switch (op->index) {
    case OP_flatten:
        return infer_flatten(graph, args, tensor_out);
    case OP_reshape:
    case OP_view:
        return infer_reshape(graph, args, tensor_out);
    case OP_getitem:
        return infer_getitem(args, tensor_out);
    default:
        return SHOAL_OK;
    }
}
