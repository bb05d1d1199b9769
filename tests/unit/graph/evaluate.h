/* SPDX-License-Identifier: MIT */
/*
 * Runs a graph on real tensors, as one of several ranks that all have the same data: the sum over n ranks is n times the tensor.
 * It is as unforgiving as communication can be: what is reduced is read when its wait comes, not before, and until then the result
 * is NaN. So a pass that moves a node past another one that touches the same memory gives other bits.
 */
#ifndef TESTS_UNIT_GRAPH_EVALUATE_H
#define TESTS_UNIT_GRAPH_EVALUATE_H

#include <math.h>

#include "unit/graph/passes/ddp_graph.h"
#include "op/op.h"
#include "shoal/ops.h"
#include "shoal/scope.h"
#include "tensor/tensor.h"

#define EVALUATE_MAX_LIST 4096
#define EVALUATE_MAX_INTS 65536

struct evaluation {
    const shoal_graph *graph;
    shoal_tensor ***values;  /* by id: the tensors that a node gives */
    shoal_node **started_by; /* by id: the start whose result it is */
    bool *is_over;           /* by id of a start */
    shoal_tensor ***kept;    /* by id of a start: what it reduces */
    int64_t *integers;
    size_t n_integers;
};

static inline shoal_value evaluate_list(struct evaluation *e, const shoal_arg *arg, enum op_param_type type)
{
    size_t count = arg->as.list.count;
    if (type == OP_PARAM_INTS) {
        int64_t *integers = e->integers + e->n_integers;
        for (size_t i = 0; i < count; i++) {
            integers[i] = arg->as.list.items[i].as.integer;
        }
        e->n_integers += count;
        return (shoal_value){.kind = SHOAL_VALUE_INTS, .count = count, .as.integers = integers};
    }
    shoal_tensor **tensors = calloc(count + 1, sizeof *tensors); /* freed by evaluate_call */
    for (size_t i = 0; i < count; i++) {
        tensors[i] = e->values[arg->as.list.items[i].as.node->id][0];
    }
    return (shoal_value){.kind = SHOAL_VALUE_TENSORS, .count = count, .as.tensors = tensors};
}

static inline shoal_value evaluate_arg(struct evaluation *e, const shoal_arg *arg, enum op_param_type type)
{
    switch (arg->kind) {
    case SHOAL_ARG_NODE:
        if (type == OP_PARAM_TENSORS) {
            shoal_tensor **tensors = calloc(arg->as.node->n_values + 1, sizeof *tensors);
            memcpy(tensors, e->values[arg->as.node->id], arg->as.node->n_values * sizeof *tensors);
            return (shoal_value){
                .kind = SHOAL_VALUE_TENSORS, .count = arg->as.node->n_values, .as.tensors = tensors};
        }
        return (shoal_value){.kind = SHOAL_VALUE_TENSOR, .as.tensor = e->values[arg->as.node->id][0]};
    case SHOAL_ARG_INT:
        return (shoal_value){.kind = SHOAL_VALUE_INT, .as.integer = arg->as.integer};
    case SHOAL_ARG_FLOAT:
        return (shoal_value){.kind = SHOAL_VALUE_FLOAT, .as.real = arg->as.real};
    case SHOAL_ARG_BOOL:
        return (shoal_value){.kind = SHOAL_VALUE_BOOL, .as.boolean = arg->as.boolean};
    case SHOAL_ARG_DTYPE:
        return (shoal_value){.kind = SHOAL_VALUE_DTYPE, .as.dtype = arg->as.dtype};
    case SHOAL_ARG_STRING:
        return (shoal_value){.kind = SHOAL_VALUE_STRING, .as.string = arg->as.string};
    case SHOAL_ARG_LIST:
        return evaluate_list(e, arg, type);
    case SHOAL_ARG_NONE:
    case SHOAL_ARG_RANK:
    case SHOAL_ARG_GROUP:
        break;
    }
    return (shoal_value){.kind = SHOAL_VALUE_NONE};
}

/* Communication ------------------------------------------------------------------------------------------ */

static inline double evaluate_factor(const shoal_graph *graph, const shoal_node *start)
{
    const struct graph_group *group = graph_find_group(graph, start->args[2].as.string);
    return strcmp(start->args[1].as.string, "avg") == 0 ? 1 : (double)group->size;
}

static inline void evaluate_fill(shoal_tensor *tensor, double value)
{
    (void)shoal_copy_(tensor, shoal_full(NULL, 0, value, shoal_tensor_dtype(tensor)));
}

static inline void evaluate_start(struct evaluation *e, shoal_node *node)
{
    const shoal_arg *arg = &node->args[0];
    bool is_in_place = (node->op->flags & SHOAL_OP_IN_PLACE) != 0;
    shoal_value value = evaluate_arg(e, arg, node->op->params[0].type);
    size_t count = value.kind == SHOAL_VALUE_TENSOR ? 1 : value.count;
    e->kept[node->id] = calloc(count + 1, sizeof(shoal_tensor *));
    for (size_t i = 0; i < count; i++) {
        shoal_tensor *input = value.kind == SHOAL_VALUE_TENSOR ? value.as.tensor : value.as.tensors[i];
        e->kept[node->id][i] = is_in_place ? shoal_clone(input) : input;
        e->values[node->id][i] = is_in_place ? input : shoal_clone(input);
        evaluate_fill(e->values[node->id][i], (double)NAN);
    }
    if (value.kind == SHOAL_VALUE_TENSORS) {
        free((void *)value.as.tensors);
    }
    e->started_by[node->id] = node;
}

static inline void evaluate_wait(struct evaluation *e, const shoal_node *node)
{
    shoal_node *start = e->started_by[node->inputs[0]->id];
    memcpy(e->values[node->id], e->values[node->inputs[0]->id], node->n_values * sizeof(shoal_tensor *));
    if (!start || e->is_over[start->id]) {
        return;
    }
    e->is_over[start->id] = true;
    for (size_t i = 0; i < start->n_values; i++) {
        (void)shoal_copy_(e->values[start->id][i],
                          shoal_mul_scalar(e->kept[start->id][i], evaluate_factor(e->graph, start)));
    }
}

/* Calls -------------------------------------------------------------------------------------------------- */

static inline bool evaluate_call(struct evaluation *e, shoal_node *node)
{
    shoal_value values[OP_MAX_PARAMS];
    shoal_value result;
    if ((node->op->flags & SHOAL_OP_COLLECTIVE) != 0) {
        evaluate_start(e, node);
        return true;
    }
    if ((node->op->flags & SHOAL_OP_WAIT) != 0) {
        evaluate_wait(e, node);
        return true;
    }
    for (size_t i = 0; i < node->n_args; i++) {
        values[i] = evaluate_arg(e, &node->args[i], node->op->params[i].type);
    }
    bool is_ok = CHECK_OK(shoal_op_call(node->op, values, node->n_args, &result));
    if (is_ok && result.kind == SHOAL_VALUE_TENSORS) {
        memcpy(e->values[node->id], result.as.tensors, result.count * sizeof(shoal_tensor *));
    } else if (is_ok) {
        e->values[node->id][0] = result.as.tensor;
    }
    if (node->n_inputs > 0 && strcmp(node->target, "getitem") == 0) {
        e->started_by[node->id] = e->started_by[node->inputs[0]->id];
    }
    for (size_t i = 0; i < node->n_args; i++) {
        if (values[i].kind == SHOAL_VALUE_TENSORS) {
            free((void *)values[i].as.tensors);
        }
    }
    return is_ok;
}

/* Adds the bytes of a tensor. */
static inline size_t evaluate_append(char *bytes, size_t n_bytes, size_t capacity, shoal_tensor *tensor)
{
    shoal_tensor *whole = shoal_contiguous(tensor);
    size_t count = (size_t)shoal_tensor_count(whole) * shoal_dtype_bytes(shoal_tensor_dtype(whole));
    const void *data = shoal_data(whole);
    if (!data || n_bytes + count > capacity) {
        test_failed(__FILE__, __LINE__, "no data, or more than %zu bytes", capacity);
        return n_bytes;
    }
    memcpy(bytes + n_bytes, data, count);
    return n_bytes + count;
}

static inline size_t evaluate_append_arg(struct evaluation *e, const shoal_arg *arg, char *bytes,
                                         size_t n_bytes, size_t capacity)
{
    if (arg->kind == SHOAL_ARG_NODE) {
        return evaluate_append(bytes, n_bytes, capacity, e->values[arg->as.node->id][0]);
    }
    for (size_t i = 0; arg->kind == SHOAL_ARG_LIST && i < arg->as.list.count; i++) {
        n_bytes = evaluate_append_arg(e, &arg->as.list.items[i], bytes, n_bytes, capacity);
    }
    return n_bytes;
}

static inline shoal_tensor *evaluate_input(const shoal_node *node, int *n_inputs)
{
    const shoal_tensor *like = node->values[0];
    int64_t count = like->count;
    float numbers[4096];
    for (int64_t i = 0; i < count && i < 4096; i++) {
        numbers[i] = (float)(1 + (*n_inputs * 31 + i * 7) % 97) / 3;
    }
    (*n_inputs)++;
    shoal_tensor *flat = shoal_from_memory(numbers, &count, 1, SHOAL_F32, NULL, NULL, NULL);
    return shoal_reshape(shoal_to_dtype(shoal_clone(flat), like->dtype), like->layout.shape,
                         like->layout.n_dims);
}

/* What the graph gives, and what its inputs are afterwards. Returns the number of bytes. */
static inline size_t evaluate(const shoal_graph *graph, char *bytes, size_t capacity)
{
    struct evaluation e = {.graph = graph};
    size_t n_bytes = 0;
    int n_inputs = 0;
    e.values = calloc(graph->n_ids + 1, sizeof *e.values);
    e.kept = calloc(graph->n_ids + 1, sizeof *e.kept);
    e.started_by = calloc(graph->n_ids + 1, sizeof *e.started_by);
    e.is_over = calloc(graph->n_ids + 1, sizeof *e.is_over);
    e.integers = calloc(EVALUATE_MAX_INTS, sizeof *e.integers);
    (void)CHECK_OK(shoal_scope_begin());
    bool is_ok = true;
    for (shoal_node *node = graph->first; node && is_ok; node = node->next) {
        e.n_integers = 0;
        e.values[node->id] = calloc(node->n_values + 1, sizeof(shoal_tensor *));
        if (node->kind == SHOAL_NODE_PLACEHOLDER) {
            e.values[node->id][0] = evaluate_input(node, &n_inputs);
        } else if (node->kind == SHOAL_NODE_CALL) {
            is_ok = evaluate_call(&e, node);
        } else if (node->kind == SHOAL_NODE_OUTPUT) {
            n_bytes = evaluate_append_arg(&e, &node->args[0], bytes, n_bytes, capacity);
        }
    }
    for (const shoal_node *node = graph->first; node && is_ok; node = node->next) {
        if (node->kind == SHOAL_NODE_PLACEHOLDER) {
            n_bytes = evaluate_append(bytes, n_bytes, capacity, e.values[node->id][0]);
        }
    }
    (void)CHECK_OK(shoal_scope_end());
    for (uint32_t id = 0; id < graph->n_ids; id++) {
        free(e.values[id]);
        free(e.kept[id]);
    }
    free(e.values);
    free(e.kept);
    free(e.started_by);
    free(e.is_over);
    free(e.integers);
    return n_bytes;
}

#endif
