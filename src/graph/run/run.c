/* SPDX-License-Identifier: MIT */
/*
 * Runs a graph, node by node. The graph, the inputs and the groups are checked before the first call.
 *
 * Values of nodes are kept in a table by id, a reference each, until their last user has run. Each call has a scope of
 * its own, so nothing else remains of it.
 */
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "device/device.h"
#include "graph/ir/boxing.h"
#include "graph/ir/captured.h"
#include "graph/ir/graph.h"
#include "graph/analysis/lint.h"
#include "graph/plan/need.h"
#include "graph/ir/run_groups.h"
#include "op/op.h"
#include "shoal/compile.h"
#include "shoal/group.h"
#include "tensor/handle.h"
#include "tensor/scope.h"

/* The values of a node: tensors[0..count), a reference each. */
struct given {
    shoal_tensor *one; /* room for a single tensor */
    shoal_tensor **tensors;
    size_t count;
    const struct shoal_node *last_user; /* NULL if nobody uses it */
};

/* A group of the table, and the group of the world that is used for it. */
struct run_group {
    const struct graph_group *row;
    shoal_group *group;
};

struct run {
    const struct shoal_graph *graph;
    shoal_world *world;
    shoal_tensor *const *inputs;
    size_t n_inputs;
    shoal_tensor **outputs;
    size_t n_outputs;
    struct given *given;
    struct run_group *groups;
    size_t n_groups;
};

/* What nodes give -------------------------------------------------------------------------------------- */

static void let_go(struct given *given)
{
    for (size_t i = given->count; i > 0; i--) {
        shoal_tensor_unref(given->tensors[i - 1]);
    }
    if (given->tensors != &given->one) {
        mem_free(given->tensors);
    }
    given->tensors = NULL;
    given->count = 0;
}

static shoal_status keep(struct run *run, const struct shoal_node *node, shoal_tensor *const *tensors,
                         size_t count)
{
    struct given *given = &run->given[node->id];
    given->tensors = &given->one;
    if (count > 1) {
        given->tensors = mem_alloc_zeroed(count, sizeof(shoal_tensor *));
        if (!given->tensors) {
            return SHOAL_ERR_NO_MEMORY;
        }
    }
    for (size_t i = 0; i < count; i++) {
        given->tensors[i] = shoal_tensor_ref(tensors[i]);
    }
    given->count = count;
    return SHOAL_OK;
}

/* Drops the values that are not needed any more after a node has run. */
static void let_go_after(struct run *run, const struct shoal_node *node)
{
    for (size_t i = 0; i < node->n_inputs; i++) {
        struct given *given = &run->given[node->inputs[i]->id];
        if (given->last_user == node) {
            let_go(given);
        }
    }
    if (!run->given[node->id].last_user) {
        let_go(&run->given[node->id]);
    }
}

static shoal_status create_table(struct run *run)
{
    run->given = mem_alloc_zeroed(run->graph->n_ids, sizeof *run->given);
    if (!run->given) {
        return SHOAL_ERR_NO_MEMORY;
    }
    GRAPH_EACH(run->graph, node)
    {
        for (size_t i = 0; i < node->n_inputs; i++) {
            run->given[node->inputs[i]->id].last_user = node;
        }
    }
    return SHOAL_OK;
}

static void free_run(struct run *run)
{
    for (uint32_t id = 0; run->given && id < run->graph->n_ids; id++) {
        let_go(&run->given[id]);
    }
    mem_free(run->given);
    mem_free(run->groups);
}

/* Groups ----------------------------------------------------------------------------------------------- */

static shoal_status make_group(struct run *run, const struct graph_group *row, struct run_group *made)
{
    const int *list = NULL;
    *made = (struct run_group){.row = row};
    TRY(graph_bound_group(row, &made->group));
    if (made->group) {
        return SHOAL_OK;
    }
    if (!run->world) {
        return error_set(SHOAL_ERR_INVALID, "world is NULL, but the graph has group @%.64s", row->name);
    }
    TRY(run_group_list(row, shoal_world_rank(run->world), shoal_world_n_ranks(run->world), &list));
    return run_group_create(run->world, row->name, list, row->size, &made->group);
}

static shoal_status make_groups(struct run *run)
{
    size_t n_groups = 0;
    for (const struct graph_group *row = run->graph->groups; row; row = row->next) {
        n_groups++;
    }
    if (n_groups == 0) {
        return SHOAL_OK;
    }
    run->groups = mem_alloc_zeroed(n_groups, sizeof *run->groups);
    if (!run->groups) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (const struct graph_group *row = run->graph->groups; row; row = row->next) {
        TRY(make_group(run, row, &run->groups[run->n_groups]));
        run->n_groups++;
    }
    return SHOAL_OK;
}

/* Before anything runs --------------------------------------------------------------------------------- */

static shoal_status check_input(const struct shoal_node *node, const shoal_tensor *tensor, size_t index)
{
    char given[TENSOR_TEXT_BYTES];
    char wanted[TENSOR_TEXT_BYTES];
    if (!tensor) {
        return error_set(SHOAL_ERR_INVALID, "%%%s: input %zu is NULL", node->name, index);
    }
    shoal_status status = handle_check(tensor);
    if (status != SHOAL_OK) {
        return error_prefix(status, "%%%s: input %zu", node->name, index);
    }
    const shoal_tensor *like = node->values[0];
    if (tensor->dtype != like->dtype || !layout_is_same_shape(tensor->layout.n_dims, tensor->layout.shape,
                                                              like->layout.n_dims, like->layout.shape)) {
        return error_set(SHOAL_ERR_INVALID, "%%%s: input %zu is %s, but the placeholder is %s", node->name,
                         index, tensor_format(given, tensor), tensor_format(wanted, like));
    }
    if (!tensor->is_contiguous) {
        return error_set(SHOAL_ERR_INVALID, "%%%s: input %zu, %s, is not contiguous: strides %s", node->name,
                         index, tensor_format(given, tensor),
                         layout_format(wanted, tensor->layout.n_dims, tensor->layout.strides));
    }
    if (!device_has_data(tensor->storage->device)) {
        return error_set(SHOAL_ERR_INVALID, "%%%s: input %zu has no data: it is on device %s", node->name,
                         index, device_name(tensor->storage->device));
    }
    return SHOAL_OK;
}

static shoal_status check_inputs(const struct run *run)
{
    size_t index = 0;
    GRAPH_EACH(run->graph, node)
    {
        if (node->kind == SHOAL_NODE_PLACEHOLDER && index++ < run->n_inputs) {
            TRY(check_input(node, run->inputs[index - 1], index - 1));
        }
    }
    return index == run->n_inputs
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID, "n_inputs is %zu, but the graph has %zu placeholders",
                           run->n_inputs, index);
}

/* Calls `visit` with each node among the outputs, in order, and with NULL for each absent output. */
static void visit_outputs(const shoal_arg *arg, graph_visit visit, void *context)
{
    if (arg->kind == SHOAL_ARG_NODE || arg->kind == SHOAL_ARG_NONE) {
        visit(context, arg->kind == SHOAL_ARG_NODE ? arg->as.node : NULL);
    }
    for (size_t i = 0; arg->kind == SHOAL_ARG_LIST && i < arg->as.list.count; i++) {
        visit_outputs(&arg->as.list.items[i], visit, context);
    }
}

static void count_outputs(void *context, struct shoal_node *node)
{
    size_t *count = context;
    *count += node ? node->n_values : 1;
}

static shoal_status check_nodes(const struct shoal_graph *graph)
{
    GRAPH_EACH(graph, node)
    {
        if (node->kind == SHOAL_NODE_CALL && !node->op) {
            return error_set(SHOAL_ERR_INVALID,
                             "%%%s: there is no op \"%.64s\" in this program, so the node cannot run",
                             node->name, node->target);
        }
        if (node->kind == SHOAL_NODE_CONSTANT && !device_has_data(node->values[0]->storage->device)) {
            return error_set(SHOAL_ERR_INVALID, "%%%s: the constant has no data", node->name);
        }
    }
    return SHOAL_OK;
}

static shoal_status check(const struct run *run)
{
    const struct shoal_graph *graph = run->graph;
    if ((run->n_inputs > 0 && !run->inputs) || (run->n_outputs > 0 && !run->outputs)) {
        bool is_inputs = run->n_inputs > 0 && !run->inputs;
        return error_set(SHOAL_ERR_INVALID, "%s is NULL, but n_%s is %zu", is_inputs ? "inputs" : "outputs",
                         is_inputs ? "inputs" : "outputs", is_inputs ? run->n_inputs : run->n_outputs);
    }
    if (!graph->output) {
        return error_set(SHOAL_ERR_STATE, "the graph has no output");
    }
    if (graph->last != graph->output) {
        return error_set(SHOAL_ERR_STATE, "%%%s comes after the output", graph->last->name);
    }
    TRY(graph_lint_order(graph));
    TRY(check_nodes(graph));
    TRY(check_inputs(run));
    size_t n_outputs = 0;
    visit_outputs(&graph->output->args[0], count_outputs, &n_outputs);
    return n_outputs == run->n_outputs
               ? need_check_run(graph)
               : error_set(SHOAL_ERR_INVALID, "n_outputs is %zu, but the graph has %zu outputs",
                           run->n_outputs, n_outputs);
}

/* Running ---------------------------------------------------------------------------------------------- */

static shoal_status get_one(void *context, const struct shoal_node *node, shoal_tensor **tensor_out)
{
    const struct run *run = context;
    *tensor_out = run->given[node->id].tensors[0];
    return SHOAL_OK;
}

static shoal_tensor *const *get_list(void *context, const struct shoal_node *node)
{
    const struct run *run = context;
    return run->given[node->id].tensors;
}

static shoal_group *get_group(void *context, const struct graph_group *row)
{
    const struct run *run = context;
    size_t i = 0;
    while (run->groups[i].row != row) {
        i++;
    }
    return run->groups[i].group;
}

static int64_t get_rank(void *context, const struct graph_group *row)
{
    return shoal_group_rank(get_group(context, row));
}

static bool is_like(const shoal_tensor *given, const shoal_tensor *inferred)
{
    const struct layout *a = &given->layout;
    const struct layout *b = &inferred->layout;
    return given->dtype == inferred->dtype && a->n_dims == b->n_dims &&
           (a->n_dims == 0 || memcmp(a->shape, b->shape, (size_t)a->n_dims * sizeof(a->shape[0])) == 0);
}

/* Checks that the result is what the graph says, because later nodes rely on it. Inference compares only the first and
   the last rank of a group; others may get something else. */
static shoal_status check_result(const struct shoal_node *node, shoal_tensor *const *tensors, size_t count)
{
    if (count != node->n_values) {
        return error_set(SHOAL_ERR_INVALID, "%s gives %zu tensors here, but %zu in the graph", node->op->name,
                         count, node->n_values);
    }
    for (size_t i = 0; i < count; i++) {
        if (!is_like(tensors[i], node->values[i])) {
            return error_set(SHOAL_ERR_INVALID,
                             "tensor %zu of %s has another shape or dtype here than in the graph", i,
                             node->op->name);
        }
    }
    return SHOAL_OK;
}

static shoal_status call(struct run *run, const struct shoal_node *node)
{
    struct boxing boxing = {.graph = run->graph,
                            .context = run,
                            .one = get_one,
                            .list = get_list,
                            .group = get_group,
                            .rank = get_rank};
    shoal_value values[OP_MAX_PARAMS] = {{.kind = SHOAL_VALUE_NONE}};
    shoal_value result = {.kind = SHOAL_VALUE_NONE};
    TRY(shoal_scope_begin());
    shoal_status status = boxing_box(&boxing, node->op, node->args, node->n_args, values);
    if (status == SHOAL_OK) {
        status = shoal_op_call(node->op, values, node->n_args, &result);
    }
    if (status == SHOAL_OK) {
        bool is_list = result.kind == SHOAL_VALUE_TENSORS;
        shoal_tensor *const *tensors = is_list ? result.as.tensors : &result.as.tensor;
        size_t count = is_list ? result.count : 1;
        status = check_result(node, tensors, count);
        if (status == SHOAL_OK) {
            status = keep(run, node, tensors, count);
        }
    }
    if (status != SHOAL_OK) {
        (void)scope_fail(status); /* keeps the text while the scope ends */
    }
    return shoal_scope_end();
}

static shoal_status run_node(struct run *run, const struct shoal_node *node, size_t *n_placeholders)
{
    shoal_status status = SHOAL_OK;
    switch ((shoal_node_kind)node->kind) {
    case SHOAL_NODE_PLACEHOLDER:
        status = keep(run, node, &run->inputs[(*n_placeholders)++], 1);
        break;
    case SHOAL_NODE_CONSTANT:
        status = keep(run, node, node->values, 1);
        break;
    case SHOAL_NODE_CALL:
        status = call(run, node);
        break;
    case SHOAL_NODE_OUTPUT:
        return SHOAL_OK; /* outputs are given at the end, when nothing can fail any more */
    }
    if (status != SHOAL_OK) {
        return error_prefix(status, "%%%s", node->name);
    }
    let_go_after(run, node);
    return SHOAL_OK;
}

static shoal_status run_nodes(struct run *run)
{
    size_t n_placeholders = 0;
    TRY(shoal_scope_begin());
    scope_current()->has_grad = false;
    shoal_status status = SHOAL_OK;
    GRAPH_EACH(run->graph, node)
    {
        status = run_node(run, node, &n_placeholders);
        if (status != SHOAL_OK) {
            (void)scope_fail(status);
            break;
        }
    }
    return shoal_scope_end();
}

static void take_outputs(void *context, struct shoal_node *node)
{
    struct run *run = context;
    if (!node) {
        *run->outputs++ = NULL;
        return;
    }
    const struct given *given = &run->given[node->id];
    for (size_t i = 0; i < given->count; i++) {
        *run->outputs++ = shoal_tensor_ref(given->tensors[i]);
    }
}

static shoal_status run_graph(struct run *run)
{
    TRY(check(run));
    TRY(captured_wait_for_sources(run->graph, run->inputs, run->n_inputs));
    TRY(make_groups(run));
    TRY(create_table(run));
    TRY(run_nodes(run));
    visit_outputs(&run->graph->output->args[0], take_outputs, run);
    return SHOAL_OK;
}

shoal_status shoal_graph_run(const shoal_graph *graph, shoal_world *world, shoal_tensor *const *inputs,
                             size_t n_inputs, shoal_tensor **outputs, size_t n_outputs)
{
    struct run run = {.graph = graph,
                      .world = world,
                      .inputs = inputs,
                      .n_inputs = n_inputs,
                      .outputs = outputs,
                      .n_outputs = n_outputs};
    error_clear();
    if (!graph) {
        return error_set(SHOAL_ERR_INVALID, "graph_run: graph is NULL");
    }
    shoal_status status = run_graph(&run);
    free_run(&run);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "graph_run");
}
