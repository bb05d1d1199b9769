/* SPDX-License-Identifier: MIT */
/* Captured steps that do what no graph can do, or fail: what they say, and what is left. */
#include "unit/graph/capturing.h"

#define SHAPE(...) ((int64_t[]){__VA_ARGS__})

/* Places of modules -------------------------------------------------------------------------------------- */

static shoal_status forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                            shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = shoal_mul(inputs[0], shoal_module_parameter(module, "weight"));
    return SHOAL_OK;
}

static shoal_status replace(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                            shoal_tensor **outputs, size_t n_outputs)
{
    shoal_module *module = context;
    shoal_tensor *other = shoal_full(SHAPE(3), 1, 2.0, SHOAL_F32);
    (void)n_inputs;
    (void)n_outputs;
    shoal_status status = shoal_module_set_buffer(module, "mean", other);
    if (status != SHOAL_ERR_STATE) {
        return status;
    }
    outputs[0] = shoal_module_call_one(module, inputs[0]);
    status = shoal_set_requires_grad(other, true);
    return status == SHOAL_OK ? shoal_module_set_parameter(module, "weight", other) : status;
}

TEST(modules_keep_their_tensors)
{
    shoal_module *module = NULL;
    shoal_graph *graph = NULL;
    shoal_module_definition definition = SHOAL_MODULE_DEFINITION_INIT;
    definition.type = "scale";
    definition.forward = forward;
    shoal_tensor *x = capture_tensor(SHAPE(3), 1, SHOAL_F32, 1, NULL);
    shoal_tensor *weight = capture_leaf(SHAPE(3), 1, 2, NULL);
    shoal_tensor *mean = capture_tensor(SHAPE(3), 1, SHOAL_F32, 3, NULL);
    REQUIRE_OK(shoal_module_create(&definition, &module));
    REQUIRE_OK(shoal_module_add_parameter(module, "weight", weight));
    REQUIRE_OK(shoal_module_add_buffer(module, "mean", mean));
    CHECK_STATUS(shoal_capture(replace, module, &x, 1, 1, &graph), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("module_set_parameter: a captured step cannot change which parameter a module has");
    CHECK(graph == NULL);
    CHECK(shoal_module_parameter(module, "weight") == weight);
    CHECK(shoal_module_buffer(module, "mean") == mean);
    CHECK_OK(shoal_module_set_parameter(module, "weight", weight)); /* and afterwards it is allowed */
    shoal_module_unref(module);
    shoal_tensor_unref(mean);
    shoal_tensor_unref(weight);
    shoal_tensor_unref(x);
}

/* Reasons ------------------------------------------------------------------------------------------------ */

/* A backward pass fails, and a call that goes well clears the thread's error text. */
static shoal_status go_on(void *context, shoal_tensor *const *inputs, size_t n_inputs, shoal_tensor **outputs,
                          size_t n_outputs)
{
    shoal_tensor *leaf = context;
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = inputs[0];
    shoal_status status = shoal_backward(inputs[0], NULL);
    CHECK(status != SHOAL_OK);
    CHECK_OK(shoal_set_grad(leaf, NULL));
    CHECK_STRING(shoal_error_text(), "");
    return status;
}

TEST(a_reason_outlives_calls_that_go_well)
{
    shoal_graph *graph = NULL;
    shoal_tensor *x = capture_tensor(SHAPE(1), 1, SHOAL_F32, 1, NULL);
    shoal_tensor *leaf = capture_leaf(SHAPE(1), 1, 2, NULL);
    CHECK(shoal_capture(go_on, leaf, &x, 1, 1, &graph) != SHOAL_OK);
    CHECK_ERROR_TEXT("backward: ");
    CHECK(graph == NULL);
    shoal_tensor_unref(leaf);
    shoal_tensor_unref(x);
}
