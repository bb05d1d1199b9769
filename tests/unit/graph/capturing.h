/* SPDX-License-Identifier: MIT */
/* A step, captured and run as a graph, beside the same step run as it is: bits, gradients and what is written in place. */
#ifndef TESTS_UNIT_GRAPH_CAPTURING_H
#define TESTS_UNIT_GRAPH_CAPTURING_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/ir/captured.h"
#include "graph/ir/graph.h"
#include "harness/test.h"
#include "op/dispatch.h"
#include "op/tracer.h"
#include "shoal/shoal.h"
#include "tensor/scope.h"
#include "tensor/tensor.h"

#define CAPTURE_MAX 256

/* A tensor outside all scopes, with numbers that need rounding. To be unreferenced. */
static inline shoal_tensor *capture_tensor(const int64_t *shape, int n_dims, shoal_dtype dtype, int seed,
                                           const char *name)
{
    shoal_tensor *tensor = NULL;
    if (!CHECK_OK(shoal_scope_begin())) {
        return NULL;
    }
    shoal_tensor *made = shoal_empty(shape, n_dims, SHOAL_F32);
    float *numbers = shoal_mutable_data(made);
    for (int64_t i = 0; numbers && i < shoal_tensor_count(made); i++) {
        numbers[i] = (float)((seed * 37 + i * 13) % 101 - 50) / 30;
    }
    made = shoal_clone(shoal_to_dtype(made, dtype));
    tensor = made ? shoal_tensor_ref(made) : NULL;
    (void)CHECK_OK(shoal_scope_end());
    if (tensor && name) {
        (void)CHECK_OK(shoal_tensor_set_name(tensor, name));
    }
    return tensor;
}

static inline shoal_tensor *capture_leaf(const int64_t *shape, int n_dims, int seed, const char *name)
{
    shoal_tensor *leaf = capture_tensor(shape, n_dims, SHOAL_F32, seed, name);
    (void)CHECK_OK(shoal_set_requires_grad(leaf, true));
    return leaf;
}

/* Bytes of tensors, one after the other, that are to be as they were. */
struct capture_snapshot {
    unsigned char *bytes[CAPTURE_MAX];
    shoal_tensor *tensors[CAPTURE_MAX];
    size_t count;
};

static inline void snapshot_add(struct capture_snapshot *snapshot, shoal_tensor *tensor)
{
    size_t bytes = tensor_bytes(tensor);
    REQUIRE(snapshot->count < CAPTURE_MAX && shoal_tensor_is_contiguous(tensor));
    unsigned char *copy = malloc(bytes + 1);
    const void *data = shoal_data(tensor);
    REQUIRE(copy && data);
    memcpy(copy, data, bytes);
    snapshot->bytes[snapshot->count] = copy;
    snapshot->tensors[snapshot->count++] = tensor;
}

/* The tensors hold what they held; `other`, if not NULL, gets what they hold now. */
static inline void snapshot_put_back(const struct capture_snapshot *snapshot, struct capture_snapshot *other)
{
    for (size_t i = 0; i < snapshot->count; i++) {
        if (other) {
            snapshot_add(other, snapshot->tensors[i]);
        }
        void *data = shoal_mutable_data(snapshot->tensors[i]);
        REQUIRE(data != NULL);
        memcpy(data, snapshot->bytes[i], tensor_bytes(snapshot->tensors[i]));
    }
}

static inline void snapshot_free(struct capture_snapshot *snapshot)
{
    for (size_t i = 0; i < snapshot->count; i++) {
        free(snapshot->bytes[i]);
    }
    snapshot->count = 0;
}

static inline void capture_check_same(const char *what, size_t index, shoal_tensor *actual,
                                      shoal_tensor *expected)
{
    if (!actual && !expected) {
        return;
    }
    if (!actual || !expected || !CHECK_OK(shoal_scope_begin())) {
        test_failed(__FILE__, __LINE__, "%s %zu: one is NULL", what, index);
        return;
    }
    char a[TENSOR_TEXT_BYTES];
    char b[TENSOR_TEXT_BYTES];
    if (strcmp(tensor_format(a, actual), tensor_format(b, expected)) != 0) {
        test_failed(__FILE__, __LINE__, "%s %zu is %s, not %s", what, index, a, b);
    } else {
        const void *left = shoal_data(shoal_contiguous(actual));
        const void *right = shoal_data(shoal_contiguous(expected));
        if (tensor_bytes(actual) > 0 &&
            !test_check_bytes(__FILE__, __LINE__, what, left, right, tensor_bytes(actual))) {
            test_failed(__FILE__, __LINE__, "that was %s %zu, %s", what, index, a);
        }
    }
    (void)CHECK_OK(shoal_scope_end());
}

struct captured_step {
    shoal_step_function step;
    void *context;
    shoal_tensor **inputs;
    size_t n_inputs;
    size_t n_outputs;
};

static inline size_t capture_n_outputs(const shoal_graph *graph)
{
    size_t count = 0;
    (void)shoal_node_args(shoal_graph_last(graph), &count);
    return count == 1 ? shoal_node_args(shoal_graph_last(graph), NULL)->as.list.count : 0;
}

/* Placeholders with what they are bound to: what the caller gives first, then what the graph keeps. */
static inline size_t capture_bind(const shoal_graph *graph, const struct captured_step *step,
                                  shoal_tensor **inputs)
{
    size_t count = 0;
    for (const shoal_node *node = shoal_graph_first(graph);
         node && shoal_node_get_kind(node) == SHOAL_NODE_PLACEHOLDER; node = shoal_node_next(node)) {
        shoal_tensor *bound = shoal_graph_bound_input(graph, count);
        inputs[count] = bound ? bound : step->inputs[count];
        count++;
    }
    return count;
}

static inline void capture_run_eager(const struct captured_step *step, const shoal_graph *graph,
                                     shoal_tensor *const *graph_outputs)
{
    shoal_tensor *outputs[CAPTURE_MAX] = {NULL};
    REQUIRE_OK(shoal_scope_begin());
    CHECK_OK(step->step(step->context, step->inputs, step->n_inputs, outputs, step->n_outputs));
    for (size_t i = 0; i < step->n_outputs; i++) {
        capture_check_same("output", i, graph_outputs[i], outputs[i]);
    }
    for (size_t i = step->n_outputs; i < capture_n_outputs(graph); i++) {
        shoal_tensor *leaf = shoal_graph_bound_leaf(graph, i);
        capture_check_same("gradient", i, graph_outputs[i], leaf ? shoal_grad(leaf) : NULL);
    }
    CHECK_OK(shoal_scope_end());
}

/* Runs the graph and then the step, from the same beginning: all they give and write is the same. */
static inline void capture_compare(const struct captured_step *step, const shoal_graph *graph,
                                   shoal_world *world)
{
    shoal_tensor *inputs[CAPTURE_MAX] = {NULL};
    shoal_tensor *outputs[CAPTURE_MAX] = {NULL};
    struct capture_snapshot before = {.count = 0};
    struct capture_snapshot after = {.count = 0};
    size_t n_outputs = capture_n_outputs(graph);
    size_t n_inputs = capture_bind(graph, step, inputs);
    REQUIRE(n_outputs <= CAPTURE_MAX);
    for (size_t i = 0; i < n_inputs; i++) {
        snapshot_add(&before, inputs[i]);
    }
    if (!CHECK_OK(shoal_graph_run(graph, world, inputs, n_inputs, outputs, n_outputs))) {
        snapshot_free(&before);
        return;
    }
    snapshot_put_back(&before, &after);
    capture_run_eager(step, graph, outputs);
    for (size_t i = 0; i < n_inputs; i++) {
        test_check_bytes(__FILE__, __LINE__, "input", after.bytes[i], shoal_data(inputs[i]),
                         tensor_bytes(inputs[i]));
    }
    snapshot_put_back(&before, NULL);
    for (size_t i = 0; i < graph->captured->n_leaves; i++) {
        if (graph->captured->leaves[i].output != CAPTURED_NONE) {
            CHECK_OK(shoal_set_grad(graph->captured->leaves[i].leaf, graph->captured->leaves[i].gradient));
        }
    }
    for (size_t i = 0; i < n_outputs; i++) {
        shoal_tensor_unref(outputs[i]);
    }
    snapshot_free(&before);
    snapshot_free(&after);
}

/* Captures the step and compares it twice. The graph is the caller's; NULL after a failure. */
static inline shoal_graph *capture_check(const struct captured_step *step, shoal_world *world)
{
    shoal_graph *graph = NULL;
    if (!CHECK_OK(shoal_capture(step->step, step->context, step->inputs, step->n_inputs, step->n_outputs,
                                &graph))) {
        return NULL;
    }
    CHECK_OK(shoal_graph_lint(graph));
    capture_compare(step, graph, world);
    capture_compare(step, graph, world);
    return graph;
}

/* Text ------------------------------------------------------------------------------------------------- */

struct capture_text {
    char text[16384];
    size_t length;
};

static inline int capture_write(void *context, const char *text, size_t bytes)
{
    struct capture_text *written = context;
    if (written->length + bytes >= sizeof written->text) {
        return 1;
    }
    memcpy(written->text + written->length, text, bytes);
    written->length += bytes;
    written->text[written->length] = '\0';
    return 0;
}

static inline size_t capture_count(const shoal_graph *graph, const char *op)
{
    size_t count = 0;
    for (const shoal_node *node = shoal_graph_first(graph); node; node = shoal_node_next(node)) {
        count += shoal_node_op(node) && strcmp(shoal_op_name(shoal_node_op(node)), op) == 0 ? 1 : 0;
    }
    return count;
}

/* How often a step calls each op -------------------------------------------------------------------------- */

struct capture_counter {
    struct op_tracer tracer; /* first: the tracer's address is the counter's */
    const shoal_op *ops[CAPTURE_MAX];
    size_t counts[CAPTURE_MAX];
    size_t n_ops;
};

static inline shoal_status capture_count_call(struct op_tracer *tracer, const shoal_op *op,
                                              const shoal_value *arguments, shoal_value *result_out)
{
    struct capture_counter *counter = (struct capture_counter *)tracer;
    size_t i = 0;
    while (i < counter->n_ops && counter->ops[i] != op) {
        i++;
    }
    if (i == counter->n_ops && i < CAPTURE_MAX) {
        counter->ops[counter->n_ops++] = op;
    }
    counter->counts[i < CAPTURE_MAX ? i : 0]++;
    return op_execute(op, arguments, result_out);
}

#endif
