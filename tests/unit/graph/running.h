/* SPDX-License-Identifier: MIT */
/* Graphs from text, inputs that differ from rank to rank, and running a graph beside the calls that it stands for. */
#ifndef TESTS_UNIT_GRAPH_RUNNING_H
#define TESTS_UNIT_GRAPH_RUNNING_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/shoal.h"
#include "tensor/tensor.h"

#define RUN_MAX 256

/* A graph in which "$RANKS" stands for all ranks, "0, 1, 2", and "$TURNED" for "1, 2, 0". NULL, with a failed check, when it cannot be read. */
static inline shoal_graph *run_parse(const char *text, int n_ranks)
{
    char whole[8192];
    size_t length = 0;
    while (*text && length + 64 < sizeof whole) {
        int turn = strncmp(text, "$TURNED", 7) == 0 ? 1 : 0;
        if (turn == 0 && strncmp(text, "$RANKS", 6) != 0) {
            whole[length++] = *text++;
            continue;
        }
        for (int i = 0; i < n_ranks; i++) {
            length += (size_t)snprintf(whole + length, sizeof whole - length, "%s%d", i > 0 ? ", " : "",
                                       (i + turn) % n_ranks);
        }
        text += turn == 1 ? 7 : 6;
    }
    shoal_graph *graph = NULL;
    (void)CHECK_OK(shoal_graph_parse(whole, length, &graph));
    return graph;
}

/* Numbers that need rounding when they are added, and that no two ranks or inputs share. To be unreferenced. */
static inline shoal_tensor *run_input(const shoal_tensor *like, int rank, size_t index)
{
    int64_t count = shoal_tensor_count(like);
    float *numbers = malloc((size_t)(count + 1) * sizeof *numbers);
    shoal_tensor *tensor = NULL;
    for (int64_t i = 0; i < count && numbers; i++) {
        numbers[i] = (float)(1 + (rank * 53 + (int64_t)index * 31 + i * 7) % 97) / 3;
    }
    if (numbers && CHECK_OK(shoal_scope_begin())) {
        shoal_tensor *flat = shoal_from_memory(numbers, &count, 1, SHOAL_F32, NULL, NULL, NULL);
        tensor = shoal_reshape(shoal_to_dtype(shoal_clone(flat), shoal_tensor_dtype(like)),
                               shoal_tensor_shape(like), shoal_tensor_n_dims(like));
        tensor = tensor ? shoal_tensor_ref(tensor) : NULL;
        (void)CHECK_OK(shoal_scope_end());
    }
    free(numbers);
    return tensor;
}

/* One for each placeholder; how many. */
static inline size_t run_inputs(const shoal_graph *graph, int rank, shoal_tensor **inputs)
{
    size_t n_inputs = 0;
    for (const shoal_node *node = shoal_graph_first(graph); node; node = shoal_node_next(node)) {
        if (shoal_node_get_kind(node) == SHOAL_NODE_PLACEHOLDER && n_inputs < RUN_MAX) {
            inputs[n_inputs] = run_input(shoal_node_value(node, 0), rank, n_inputs);
            n_inputs++;
        }
    }
    return n_inputs;
}

static inline void run_unref(shoal_tensor *const *tensors, size_t n_tensors)
{
    for (size_t i = 0; i < n_tensors; i++) {
        shoal_tensor_unref(tensors[i]);
    }
}

/* The same dtype, shape and bits. */
static inline void run_check_same(const char *what, size_t index, shoal_tensor *actual,
                                  shoal_tensor *expected)
{
    if (!actual || !expected || !CHECK_OK(shoal_scope_begin())) {
        test_failed(__FILE__, __LINE__, "%s %zu is NULL", what, index);
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

/* The calls that a graph stands for: they fill outputs, in the innermost scope. */
typedef void (*run_eager)(shoal_group *group, shoal_tensor *const *inputs, shoal_tensor **outputs);

/* Runs the graph, and beside it the calls, on their own inputs: outputs and inputs are the same afterwards. */
static inline void run_check(shoal_world *world, const char *text, size_t n_outputs, run_eager eager)
{
    shoal_tensor *inputs[RUN_MAX] = {NULL};
    shoal_tensor *others[RUN_MAX] = {NULL};
    shoal_tensor *outputs[RUN_MAX] = {NULL};
    shoal_tensor *expected[RUN_MAX] = {NULL};
    shoal_graph *graph = run_parse(text, shoal_world_n_ranks(world));
    REQUIRE(graph != NULL);
    size_t n_inputs = run_inputs(graph, shoal_world_rank(world), inputs);
    (void)run_inputs(graph, shoal_world_rank(world), others);
    bool has_run = CHECK_OK(shoal_graph_run(graph, world, inputs, n_inputs, outputs, n_outputs));
    if (has_run && CHECK_OK(shoal_scope_begin())) {
        eager(shoal_world_group(world), others, expected);
        for (size_t i = 0; i < n_outputs; i++) {
            run_check_same("output", i, outputs[i], expected[i]);
        }
        for (size_t i = 0; i < n_inputs; i++) {
            run_check_same("input", i, inputs[i], others[i]);
        }
        (void)CHECK_OK(shoal_scope_end());
    }
    run_unref(outputs, has_run ? n_outputs : 0);
    run_unref(inputs, n_inputs);
    run_unref(others, n_inputs);
    shoal_graph_free(graph);
}

#endif
