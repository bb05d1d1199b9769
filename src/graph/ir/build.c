/* SPDX-License-Identifier: MIT */
/* The public calls that make nodes: they make the values, and graph_add does the rest. */
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "graph/ir/args.h"
#include "tensor/handle.h"
#include "tensor/tensor.h"

static void unref_all(shoal_tensor *const *tensors, size_t n_tensors)
{
    for (size_t i = 0; i < n_tensors; i++) {
        shoal_tensor_unref(tensors[i]);
    }
}

/* Adds a node, and drops the references to its values if that fails. */
static shoal_status add(struct shoal_graph *graph, const struct node_spec *spec, struct shoal_node **node_out)
{
    shoal_status status = graph_add(graph, spec, node_out);
    if (status != SHOAL_OK) {
        unref_all(spec->values, spec->n_values);
    }
    return status;
}

/* Puts the name of the call in front of an error. */
static shoal_status finish(const char *call, shoal_status status)
{
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "%s", call);
}

/* Placeholders and constants --------------------------------------------------------------------------- */

static shoal_status add_placeholder(struct shoal_graph *graph, const char *name, const int64_t *shape,
                                    int n_dims, shoal_dtype dtype, struct shoal_node **node_out)
{
    shoal_tensor *tensor;
    if (!graph) {
        return error_set(SHOAL_ERR_INVALID, "graph is NULL");
    }
    TRY(tensor_create_shape(&graph->shapes, dtype, n_dims, shape, &tensor));
    struct node_spec spec = {.kind = SHOAL_NODE_PLACEHOLDER,
                             .name = name,
                             .target = "placeholder",
                             .values = &tensor,
                             .n_values = 1};
    return add(graph, &spec, node_out);
}

shoal_status shoal_graph_placeholder(shoal_graph *graph, const char *name, const int64_t *shape, int n_dims,
                                     shoal_dtype dtype, shoal_node **node_out)
{
    error_clear();
    return finish("graph_placeholder", add_placeholder(graph, name, shape, n_dims, dtype, node_out));
}

static shoal_status add_constant(struct shoal_graph *graph, const char *name, shoal_tensor *tensor,
                                 struct shoal_node **node_out)
{
    if (!graph || !tensor) {
        return error_set(SHOAL_ERR_INVALID, "%s is NULL", graph ? "tensor" : "graph");
    }
    TRY(handle_check(tensor));
    shoal_tensor *value = shoal_tensor_ref(tensor);
    struct node_spec spec = {
        .kind = SHOAL_NODE_CONSTANT, .name = name, .target = "constant", .values = &value, .n_values = 1};
    return add(graph, &spec, node_out);
}

shoal_status shoal_graph_constant(shoal_graph *graph, const char *name, shoal_tensor *tensor,
                                  shoal_node **node_out)
{
    error_clear();
    return finish("graph_constant", add_constant(graph, name, tensor, node_out));
}

/* Calls ------------------------------------------------------------------------------------------------ */

/* is_checked: nodes and groups are known to belong to the graph. */
static shoal_status add_call(struct shoal_graph *graph, const shoal_op *op, const shoal_arg *args,
                             size_t n_args, bool is_checked, const char *name, struct shoal_node **node_out)
{
    shoal_arg complete[OP_MAX_PARAMS];
    shoal_tensor **values;
    TRY(args_complete(op, args, n_args, complete));
    if (!is_checked) {
        TRY(args_check(graph, NULL, op, complete, op->n_params));
    }
    struct node_spec spec = {.kind = SHOAL_NODE_CALL,
                             .name = name,
                             .target = op->name,
                             .op = op,
                             .args = complete,
                             .n_args = op->n_params,
                             .is_ready = true};
    TRY(graph_infer(graph, op, complete, op->n_params, &values, &spec.n_values, &spec.is_list));
    spec.values = values;
    return add(graph, &spec, node_out);
}

shoal_status shoal_graph_call(shoal_graph *graph, const shoal_op *op, const shoal_arg *args, size_t n_args,
                              const char *name, shoal_node **node_out)
{
    error_clear();
    if (!graph || !op) {
        return error_set(SHOAL_ERR_INVALID, "graph_call: %s is NULL", graph ? "op" : "graph");
    }
    shoal_status status = add_call(graph, op, args, n_args, /*is_checked=*/false, name, node_out);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "graph_call(%s)", op->name);
}

shoal_status graph_call(struct shoal_graph *graph, const shoal_op *op, const shoal_arg *args, size_t n_args,
                        struct shoal_node **node_out)
{
    shoal_status status = add_call(graph, op, args, n_args, /*is_checked=*/true, NULL, node_out);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "graph_call(%s)", op->name);
}

/* Makes a new tensor with the shape and strides of another one. */
static shoal_status create_like(const shoal_tensor *model, shoal_tensor **tensor_out)
{
    struct layout layout = model->layout;
    struct storage *storage;
    int64_t first;
    int64_t end;
    layout.offset = 0;
    TRY(layout_extent(layout.n_dims, layout.shape, layout.strides, 0, &first, &end));
    layout.offset = -first; /* strides may go backwards */
    TRY(storage_create(SHOAL_META, (size_t)(end - first) * dtype_bytes(model->dtype), &storage));
    return tensor_create(storage, model->dtype, &layout, tensor_out);
}

static shoal_status create_all_like(shoal_tensor *const *models, size_t n_models, shoal_tensor **tensors)
{
    for (size_t i = 0; i < n_models; i++) {
        shoal_status status = create_like(models[i], &tensors[i]);
        if (status != SHOAL_OK) {
            unref_all(tensors, i);
            return status;
        }
    }
    return SHOAL_OK;
}

/* Adds an opaque call. `spec` has everything but values, which get the shapes of `models`. */
static shoal_status add_opaque(struct shoal_graph *graph, struct node_spec *spec, shoal_tensor *const *models,
                               struct shoal_node **node_out)
{
    shoal_tensor **values = arena_alloc(&graph->arena, spec->n_values, sizeof(*values));
    if (!values) {
        return SHOAL_ERR_NO_MEMORY;
    }
    TRY(create_all_like(models, spec->n_values, values));
    spec->values = values;
    return add(graph, spec, node_out);
}

static shoal_status check_models(const char *target, shoal_tensor *const *values, size_t n_values,
                                 bool is_list)
{
    if (!target || !target[0]) {
        return error_set(SHOAL_ERR_INVALID, "target is %s", target ? "empty" : "NULL");
    }
    if (n_values > 0 && !values) {
        return error_set(SHOAL_ERR_INVALID, "values is NULL, but n_values is %zu", n_values);
    }
    if (n_values > 1 && !is_list) {
        return error_set(SHOAL_ERR_INVALID, "%zu values are given, but is_list is false", n_values);
    }
    for (size_t i = 0; i < n_values; i++) {
        if (!values[i]) {
            return error_set(SHOAL_ERR_INVALID, "value %zu is NULL", i);
        }
    }
    return handle_check_list("value", values, n_values);
}

shoal_status shoal_graph_opaque(shoal_graph *graph, const char *target, const shoal_arg *args, size_t n_args,
                                shoal_tensor *const *values, size_t n_values, bool is_list, const char *name,
                                shoal_node **node_out)
{
    struct node_spec spec = {.kind = SHOAL_NODE_CALL,
                             .name = name,
                             .target = target,
                             .args = args,
                             .n_args = n_args,
                             .n_values = n_values,
                             .is_list = is_list};
    error_clear();
    shoal_status status = graph ? check_models(target, values, n_values, is_list)
                                : error_set(SHOAL_ERR_INVALID, "graph is NULL");
    if (status == SHOAL_OK) {
        status = add_opaque(graph, &spec, values, node_out);
    }
    return finish("graph_opaque", status);
}

/* The output ------------------------------------------------------------------------------------------- */

static shoal_status add_output(struct shoal_graph *graph, const shoal_arg *arg, struct shoal_node **node_out)
{
    if (!graph || !arg) {
        return error_set(SHOAL_ERR_INVALID, "%s is NULL", graph ? "arg" : "graph");
    }
    if (graph->output) {
        return error_set(SHOAL_ERR_STATE, "the graph has an output already, node %s", graph->output->name);
    }
    TRY(args_check(graph, NULL, NULL, arg, 1));
    TRY(args_check_output(arg));
    struct node_spec spec = {.kind = SHOAL_NODE_OUTPUT, .target = "output", .args = arg, .n_args = 1};
    return graph_add(graph, &spec, node_out);
}

shoal_status shoal_graph_output(shoal_graph *graph, const shoal_arg *arg, shoal_node **node_out)
{
    error_clear();
    return finish("graph_output", add_output(graph, arg, node_out));
}
