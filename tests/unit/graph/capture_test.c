/* SPDX-License-Identifier: MIT */
/* Capturing steps of built-in ops: what the graph is, what it computes, and that nothing else changes. */
#include "unit/graph/capturing.h"

#include "base/error.h"

#define SHAPE(...) ((int64_t[]){__VA_ARGS__})

/* y = mean((x * w + b)^2), backward */
struct linear {
    shoal_tensor *w;
    shoal_tensor *b;
};

static shoal_status run_linear(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                               shoal_tensor **outputs, size_t n_outputs)
{
    struct linear *model = context;
    shoal_tensor *y = shoal_add(shoal_mul(inputs[0], model->w), model->b);
    shoal_tensor *loss = shoal_mean(shoal_mul(y, y), NULL, 0, false);
    outputs[0] = loss;
    return shoal_backward(loss, NULL);
}

static struct linear make_linear(void)
{
    return (struct linear){.w = capture_leaf(SHAPE(4, 3), 2, 1, "w"), .b = capture_leaf(SHAPE(3), 1, 2, "b")};
}

static void free_linear(struct linear *model)
{
    shoal_tensor_unref(model->w);
    shoal_tensor_unref(model->b);
}

TEST(a_step_is_captured)
{
    struct linear model = make_linear();
    shoal_tensor *x = capture_tensor(SHAPE(4, 3), 2, SHOAL_F32, 3, "x");
    struct captured_step step = {
        .step = run_linear, .context = &model, .inputs = &x, .n_inputs = 1, .n_outputs = 1};
    shoal_graph *graph = capture_check(&step, NULL);
    struct capture_text text = {.length = 0};
    REQUIRE(graph != NULL);
    CHECK_OK(shoal_graph_print(graph, capture_write, &text));
    CHECK(shoal_graph_bound_input(graph, 0) == NULL);
    CHECK(shoal_graph_bound_input(graph, 1) == model.w);
    CHECK(shoal_graph_bound_input(graph, 2) == model.b);
    CHECK(shoal_graph_bound_input(graph, 3) == NULL);
    CHECK(shoal_graph_bound_leaf(graph, 0) == NULL);
    CHECK(shoal_graph_bound_leaf(graph, 1) == model.b);
    CHECK(shoal_graph_bound_leaf(graph, 2) == model.w);
    CHECK(shoal_grad(model.w) == NULL);
    shoal_graph_free(graph);
    shoal_tensor_unref(x);
    free_linear(&model);
}
