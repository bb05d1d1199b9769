/* SPDX-License-Identifier: MIT */
/*
 * Infers the values of a call. The op's own meta function computes them, on tensors of the meta device, through the
 * dispatcher, which checks arguments as it does for a call that runs. So a graph and a program always agree about
 * shapes, views and errors.
 *
 * This happens in a scope of its own, without tracer and tape. Boxed lists, and the values until they are referenced,
 * live in that scope. Most calls need no scope: those of built-in ops whose arguments are on the meta device and are
 * the same on all ranks. They go directly to the meta function, or, for the most common views, to a rule that gives the
 * same (graph/ir/infer_view.h).
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/error.h"
#include "base/try.h"
#include "graph/ir/boxing.h"
#include "graph/ir/graph.h"
#include "graph/ir/infer_view.h"
#include "graph/ir/twins.h"
#include "op/dispatch.h"
#include "op/op.h"
#include "shoal/group.h"
#include "tensor/layout.h"
#include "tensor/scope.h"

#define LAST_RANK INT64_MAX

/* Boxing ----------------------------------------------------------------------------------------------- */

/* An inference for one rank. A graph is the same on all ranks, so shapes must not depend on the rank. The first rank is
   taken, and infer_alike compares others with it. */
struct inference {
    struct shoal_graph *graph;
    int64_t rank;     /* LAST_RANK: the last one of each group */
    bool needs_scope; /* set by infer_meta */
};

static shoal_status infer_one(void *context, const shoal_node *node, shoal_tensor **tensor_out)
{
    const struct inference *inference = context;
    return twins_tensor(inference->graph, node->values[0], tensor_out);
}

/* Twins of constants need a scope, so this sets needs_scope for a constant. */
static shoal_status infer_meta(void *context, const shoal_node *node, shoal_tensor **tensor_out)
{
    struct inference *inference = context;
    *tensor_out = node->values[0];
    inference->needs_scope = node->kind == SHOAL_NODE_CONSTANT; /* others have meta tensors */
    return inference->needs_scope ? SHOAL_ERR_STATE : SHOAL_OK;
}

/* Only calls give lists, and theirs are on the meta device. */
static shoal_tensor *const *infer_list(void *context, const shoal_node *node)
{
    (void)context;
    return node->values;
}

static struct shoal_group *infer_group(void *context, const struct graph_group *group)
{
    (void)context;
    return group->stand_in;
}

static int64_t infer_rank(void *context, const struct graph_group *group)
{
    const struct inference *inference = context;
    return inference->rank == LAST_RANK ? (int64_t)group->size - 1 : inference->rank;
}

static struct boxing boxing_of(struct inference *inference)
{
    return (struct boxing){.graph = inference->graph,
                           .context = inference,
                           .one = infer_one,
                           .list = infer_list,
                           .group = infer_group,
                           .rank = infer_rank};
}

/* Calling ---------------------------------------------------------------------------------------------- */

/* If nobody sends to a rank, it gets no rows: the shape depends on the rank, although no argument does. */
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
    TRY(boxing_box(boxing, op, args, n_args, values));
    TRY(op_infer(op, values, n_args, result_out));
    return check_permutation(op, values);
}

static shoal_tensor *result_at(const shoal_value *result, size_t index)
{
    return result->kind == SHOAL_VALUE_TENSOR ? result->as.tensor : result->as.tensors[index];
}

/* Whether two ranks get the same dtype, shape and strides. The offset in the storage may differ. */
static bool is_alike(const shoal_tensor *a, const shoal_tensor *b)
{
    const struct layout *left = &a->layout;
    const struct layout *right = &b->layout;
    return a->dtype == b->dtype &&
           layout_is_same_shape(left->n_dims, left->shape, right->n_dims, right->shape) &&
           layout_is_same_shape(left->n_dims, left->strides, right->n_dims, right->strides);
}

struct memory_search {
    const struct storage *storage;
    bool is_there;
};

static void find_memory(void *context, struct shoal_node *node)
{
    struct memory_search *search = context;
    for (size_t i = 0; i < node->n_values && !search->is_there; i++) {
        search->is_there = twins_find(node->graph, node->values[i]->storage) == search->storage;
    }
}

/* Whether two ranks get the same storage of an argument, or both new memory. */
static bool is_same_memory(const shoal_tensor *a, const shoal_tensor *b, const shoal_arg *args, size_t n_args)
{
    struct memory_search searches[2] = {{.storage = a->storage}, {.storage = b->storage}};
    for (size_t i = 0; i < n_args && a->storage != b->storage; i++) {
        graph_visit_arg(&args[i], find_memory, &searches[0]);
        graph_visit_arg(&args[i], find_memory, &searches[1]);
    }
    return !searches[0].is_there && !searches[1].is_there;
}

/* A call, and its result on the first rank. */
struct comparison {
    struct shoal_graph *graph;
    const shoal_op *op;
    const shoal_arg *args;
    size_t n_args;
    const shoal_value *first;
};

static shoal_status compare_tensors(const struct comparison *comparison, const shoal_value *other,
                                    const char *other_name)
{
    const char *op_name = comparison->op->name;
    if (other->count != comparison->first->count) {
        return error_set(SHOAL_ERR_INVALID, "%s: it gives %zu tensors on the first rank, and %zu on %s",
                         op_name, comparison->first->count, other->count, other_name);
    }
    for (size_t i = 0; i < other->count; i++) {
        const shoal_tensor *here = result_at(comparison->first, i);
        const shoal_tensor *there = result_at(other, i);
        if (!is_alike(here, there)) {
            char a[TENSOR_TEXT_BYTES];
            char b[TENSOR_TEXT_BYTES];
            return error_set(SHOAL_ERR_INVALID, "%s: it gives %s on the first rank, and %s on %s", op_name,
                             tensor_format(a, here), tensor_format(b, there), other_name);
        }
        if (!is_same_memory(here, there, comparison->args, comparison->n_args)) {
            return error_set(SHOAL_ERR_INVALID, "%s: it gives other memory on the first rank than on %s",
                             op_name, other_name);
        }
    }
    return SHOAL_OK;
}

static shoal_status compare_rank(const struct comparison *comparison, int64_t rank)
{
    struct inference inference = {.graph = comparison->graph, .rank = rank};
    struct boxing boxing = boxing_of(&inference);
    shoal_value other = {.kind = SHOAL_VALUE_NONE};
    char name[32] = "the last one";
    if (rank != LAST_RANK) {
        (void)snprintf(name, sizeof name, "rank %" PRId64, rank);
    }
    shoal_status status = infer(&boxing, comparison->op, comparison->args, comparison->n_args, &other);
    if (status != SHOAL_OK) {
        return error_prefix(status, "on %s", rank == LAST_RANK ? "the last rank" : name);
    }
    return compare_tensors(comparison, &other, name);
}

/* Infers the values on the first rank. If an argument depends on the rank, compares them with those on the last rank;
   if it is the index of a getitem, with those on all ranks, because any item may differ from the others. */
static shoal_status infer_alike(struct shoal_graph *graph, const shoal_op *op, const shoal_arg *args,
                                size_t n_args, shoal_value *result_out)
{
    struct inference on_first = {.graph = graph};
    struct boxing first = boxing_of(&on_first);
    struct comparison comparison = {
        .graph = graph, .op = op, .args = args, .n_args = n_args, .first = result_out};
    TRY(infer(&first, op, args, n_args, result_out));
    if (!first.depends_on_rank) {
        return SHOAL_OK;
    }
    TRY(compare_rank(&comparison, LAST_RANK));
    if (op->index == OP_getitem && args[1].kind == SHOAL_ARG_RANK) {
        const struct graph_group *group = graph_find_group(graph, args[1].as.rank.group);
        for (int64_t rank = 1; group && rank + 1 < (int64_t)group->size; rank++) {
            TRY(compare_rank(&comparison, rank));
        }
    }
    return SHOAL_OK;
}

/* Takes references to the results, which would end with the scope. */
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

/* Without a scope -------------------------------------------------------------------------------------- */

/* Moves the results, with their references, to an array in the graph's arena. */
static shoal_status take_outputs(struct shoal_graph *graph, const shoal_op_call_context *call,
                                 shoal_tensor ***values_out)
{
    shoal_tensor **values = arena_take(&graph->arena, call->n_outputs, sizeof *values);
    for (size_t i = 0; i < call->n_outputs; i++) {
        if (values) {
            values[i] = call->outputs[i].tensor;
        } else {
            shoal_tensor_unref(call->outputs[i].tensor);
        }
    }
    *values_out = values;
    return values ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

/* Infers without a scope. *needs_scope_out: it could not, and did nothing. */
static shoal_status infer_directly(struct shoal_graph *graph, struct arena *lists, const shoal_op *op,
                                   const shoal_arg *args, size_t n_args, shoal_tensor ***values_out,
                                   size_t *n_values_out, bool *needs_scope_out)
{
    struct inference inference = {.graph = graph};
    struct boxing boxing = boxing_of(&inference);
    shoal_value values[OP_MAX_PARAMS];
    shoal_op_call_context call;
    boxing.one = infer_meta;
    boxing.lists = lists;
    shoal_status status = boxing_box(&boxing, op, args, n_args, values);
    *needs_scope_out = inference.needs_scope || (status == SHOAL_OK && boxing.depends_on_rank);
    if (*needs_scope_out) {
        return SHOAL_OK;
    }
    TRY(status);
    TRY(op_infer_begin(op, values, n_args, &graph->shapes, &call));
    *n_values_out = call.n_outputs;
    status = take_outputs(graph, &call, values_out);
    op_infer_end(&call);
    return status;
}

/* All of it -------------------------------------------------------------------------------------------- */

static shoal_status infer_in_scope(struct shoal_graph *graph, const shoal_op *op, const shoal_arg *args,
                                   size_t n_args, shoal_tensor ***values_out, size_t *n_values_out)
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
        (void)scope_fail(status); /* keeps the text while the scope ends */
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
    return SHOAL_OK;
}

/* *values_out is NULL if there is no rule for the call. */
static shoal_status infer_by_rule(struct shoal_graph *graph, const shoal_op *op, const shoal_arg *args,
                                  shoal_tensor ***values_out)
{
    shoal_tensor *tensor;
    *values_out = NULL;
    TRY(infer_view(graph, op, args, &tensor));
    if (!tensor) {
        return SHOAL_OK;
    }
    shoal_tensor **values = arena_take(&graph->arena, 1, sizeof *values);
    if (!values) {
        shoal_tensor_unref(tensor);
        return SHOAL_ERR_NO_MEMORY;
    }
    values[0] = tensor;
    *values_out = values;
    return SHOAL_OK;
}

shoal_status graph_infer(struct shoal_graph *graph, const shoal_op *op, const shoal_arg *args, size_t n_args,
                         shoal_tensor ***values_out, size_t *n_values_out, bool *is_list_out)
{
    bool needs_scope = !op_is_builtin(op) || op->index == OP_permute_tensor;
    shoal_status status = SHOAL_OK;
    *is_list_out = op->returns_list;
    TRY(infer_by_rule(graph, op, args, values_out));
    if (*values_out) {
        *n_values_out = 1;
        return SHOAL_OK;
    }
    if (!needs_scope) {
        int64_t few[32]; /* most lists are short */
        struct arena lists = {.free = (unsigned char *)few, .free_bytes = sizeof(few)};
        status = infer_directly(graph, &lists, op, args, n_args, values_out, n_values_out, &needs_scope);
        arena_free(&lists);
    }
    if (needs_scope) {
        status = infer_in_scope(graph, op, args, n_args, values_out, n_values_out);
    }
    return status;
}
