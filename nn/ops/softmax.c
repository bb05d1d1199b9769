/* SPDX-License-Identifier: MIT */
/* softmax and log_softmax along a dimension: functions of rows, told apart by the op's context. */
#include <string.h>

#include "ops/functions.h"
#include "ops/rows.h"
#include "common/try.h"

META(softmax)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    int dim = 0;
    NN_TRY(nn_check_floating(self, "self"));
    NN_TRY(nn_check_dim(arguments[1].as.integer, self, "self", &dim));
    return shoal_op_output(call, shoal_tensor_shape(self), shoal_tensor_n_dims(self),
                           shoal_tensor_dtype(self));
}

static void map_forward(const struct nn_loops *loops, size_t n, const void *const *inputs, void *result,
                        const void *context)
{
    const struct nn_activation *activation = context;
    nn_forward_loop forward;
    memcpy(&forward, (const char *)loops + activation->forward, sizeof(forward));
    forward(n, inputs[0], result);
}

static void map_backward(const struct nn_loops *loops, size_t n, const void *const *inputs, void *result,
                         const void *context)
{
    const struct nn_activation *activation = context;
    nn_backward_loop backward;
    memcpy(&backward, (const char *)loops + activation->backward, sizeof(backward));
    backward(n, inputs[0], inputs[1], result);
}

WORKSPACE(softmax)
{
    shoal_tensor *self = arguments[0].as.tensor;
    return nn_map_rows_bytes(&self, 1, nn_dim(arguments[1].as.integer, self), outputs[0]);
}

RUN(softmax)
{
    shoal_tensor *self = arguments[0].as.tensor;
    return nn_map_rows(call, &self, 1, nn_dim(arguments[1].as.integer, self), outputs[0], map_forward,
                       shoal_op_context(call));
}

GRADIENT(softmax)
{
    const struct nn_activation *activation = shoal_op_context(call);
    const shoal_value values[] = {nn_tensor(output_gradients[0]), nn_tensor(outputs[0]), arguments[1]};
    input_gradients[0] = nn_call(activation->gradient, values, 3);
    return shoal_scope_error();
}

META(softmax_backward)
{
    const shoal_tensor *gradient = arguments[0].as.tensor;
    const shoal_tensor *result = arguments[1].as.tensor;
    int dim = 0;
    NN_TRY(nn_check_floating(result, "result"));
    NN_TRY(nn_check_dtype(gradient, "gradient", shoal_tensor_dtype(result), "result"));
    NN_TRY(nn_check_same_shape(gradient, "gradient", result, "result"));
    NN_TRY(nn_check_dim(arguments[2].as.integer, result, "result", &dim));
    return shoal_op_output(call, shoal_tensor_shape(result), shoal_tensor_n_dims(result),
                           shoal_tensor_dtype(result));
}

WORKSPACE(softmax_backward)
{
    shoal_tensor *const inputs[] = {arguments[0].as.tensor, arguments[1].as.tensor};
    return nn_map_rows_bytes(inputs, 2, nn_dim(arguments[2].as.integer, inputs[1]), outputs[0]);
}

RUN(softmax_backward)
{
    shoal_tensor *const inputs[] = {arguments[0].as.tensor, arguments[1].as.tensor};
    return nn_map_rows(call, inputs, 2, nn_dim(arguments[2].as.integer, inputs[1]), outputs[0], map_backward,
                       shoal_op_context(call));
}
