/* SPDX-License-Identifier: MIT */
/* Captured steps that write memory of their own. */
#include "unit/graph/capturing.h"

/* A call that gives no tensor ends the step. */
#define TRY_STEP(call)                  \
    do {                                \
        if (!(call)) {                  \
            return shoal_scope_error(); \
        }                               \
    } while (0)

#define SHAPE(...) ((int64_t[]){__VA_ARGS__})

static shoal_status fill_own(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                             shoal_tensor **outputs, size_t n_outputs)
{
    shoal_tensor *rows = shoal_empty(SHAPE(4, 3), 2, SHOAL_F32);
    shoal_tensor *sums = shoal_zeros(SHAPE(3), 1, SHOAL_F32);
    shoal_tensor *flat = shoal_empty(SHAPE(3), 1, SHOAL_BF16);
    TRY_STEP(shoal_copy_(flat, sums));
    for (int64_t i = 0; i < 4; i++) {
        shoal_tensor *row = shoal_select(inputs[0], 0, 3 - i);
        TRY_STEP(shoal_copy_(shoal_select(rows, 0, i), row));
        TRY_STEP(shoal_add_(sums, row));
        TRY_STEP(shoal_copy_(flat, row)); /* all of it, cast */
    }
    TRY_STEP(shoal_mul_scalar_(shoal_narrow(sums, 0, 0, 2), 0.5));
    shoal_tensor *words = shoal_view_dtype(sums, SHOAL_I32);
    TRY_STEP(shoal_copy_(shoal_narrow(words, 0, 1, 1), shoal_full(SHAPE(1), 1, 7.0, SHOAL_I32)));
    TRY_STEP(shoal_copy_(shoal_narrow(sums, 0, 0, 0), shoal_zeros(SHAPE(0), 1, SHOAL_F32))); /* nothing */
    outputs[0] = rows;
    outputs[1] = sums;
    outputs[2] = shoal_add_scalar(flat, 1.0);
    return shoal_scope_error();
}

TEST(a_step_writes_what_its_factories_made)
{
    shoal_tensor *x = capture_tensor(SHAPE(4, 3), 2, SHOAL_F32, 6, NULL);
    struct captured_step step = {.step = fill_own, .inputs = &x, .n_inputs = 1, .n_outputs = 3};
    shoal_graph *graph = capture_check(&step, NULL);
    REQUIRE(graph != NULL);
    CHECK_INT(capture_count(graph, "copy_") + capture_count(graph, "add_"), 0);
    shoal_graph_free(graph);
    shoal_tensor_unref(x);
}

static void free_memory(void *context, void *data)
{
    (void)context;
    free(data);
}

static shoal_status fill_handed_over(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                     shoal_tensor **outputs, size_t n_outputs)
{
    float *memory = malloc(6 * sizeof *memory);
    for (int i = 0; memory && i < 6; i++) {
        memory[i] = (float)i;
    }
    shoal_tensor *mine = shoal_from_memory(memory, SHAPE(2, 3), 2, SHOAL_F32, NULL, free_memory, NULL);
    shoal_tensor *row = shoal_select(mine, 0, 1);
    TRY_STEP(shoal_add_(row, inputs[0]));
    const shoal_value lists[] = {{.kind = SHOAL_VALUE_TENSORS, .count = 1, .as.tensors = &mine},
                                 {.kind = SHOAL_VALUE_TENSORS, .count = 1, .as.tensors = inputs}};
    shoal_value result;
    shoal_status status = shoal_op_call(op_get(OP_foreach_add_), lists, 2, &result); /* which has no twin */
    TRY_STEP(shoal_mul_(mine, inputs[0]));
    outputs[0] = mine;
    outputs[1] = shoal_neg(row);
    return status == SHOAL_OK ? shoal_scope_error() : status;
}

/* Each run begins with what the memory held when the step was captured. */
TEST(a_step_writes_memory_that_was_handed_over)
{
    shoal_tensor *x = capture_tensor(SHAPE(3), 1, SHOAL_F32, 6, NULL);
    struct captured_step step = {.step = fill_handed_over, .inputs = &x, .n_inputs = 1, .n_outputs = 2};
    shoal_graph_free(capture_check(&step, NULL));
    shoal_tensor_unref(x);
}
