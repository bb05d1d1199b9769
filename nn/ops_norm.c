/* SPDX-License-Identifier: MIT */
/* Layer norm: every row of the last dimension by itself. Nothing is saved but the input; gradients normalise again. */
#include <math.h>
#include <stdlib.h>

#include "functions.h"
#include "shoal/ops.h"
#include "try.h"
#include "values.h"

static shoal_status check_input(const shoal_tensor *input, double eps)
{
    NN_TRY(nn_check_floating(input, "input"));
    if (shoal_tensor_n_dims(input) < 1) {
        return shoal_fail(SHOAL_ERR_INVALID, "input has no dimensions");
    }
    if (!(eps >= 0) || isinf(eps)) {
        return shoal_fail(SHOAL_ERR_INVALID, "eps: %g is not a number from 0 up", eps);
    }
    return SHOAL_OK;
}

static shoal_status check_factor(const shoal_tensor *factor, const char *name, const shoal_tensor *input)
{
    if (!factor) {
        return SHOAL_OK;
    }
    NN_TRY(nn_check_dtype(factor, name, shoal_tensor_dtype(input), "input"));
    return nn_check_vector(factor, name, nn_last_size(input), "the last dimension of input");
}

static shoal_status load_optional(shoal_op_call_context *call, const shoal_tensor *tensor,
                                  struct nn_values *values_out)
{
    return tensor ? nn_load(call, tensor, values_out) : SHOAL_OK;
}

/* The row of that number. */
static void *row_of(const struct nn_values *values, int64_t row, size_t row_bytes)
{
    return (char *)values->data + (size_t)row * row_bytes;
}

META(layer_norm)
{
    const shoal_tensor *input = arguments[0].as.tensor;
    NN_TRY(check_input(input, arguments[3].as.real));
    NN_TRY(check_factor(nn_argument(&arguments[1]), "weight", input));
    NN_TRY(check_factor(nn_argument(&arguments[2]), "bias", input));
    return shoal_op_output(call, shoal_tensor_shape(input), shoal_tensor_n_dims(input),
                           shoal_tensor_dtype(input));
}

RUN(layer_norm)
{
    const shoal_tensor *tensor = arguments[0].as.tensor;
    shoal_dtype real = nn_real(shoal_tensor_dtype(tensor));
    size_t size = (size_t)nn_last_size(tensor);
    size_t row_bytes = size * shoal_dtype_bytes(real);
    struct nn_values input = {.data = NULL};
    struct nn_values weight = {.data = NULL};
    struct nn_values bias = {.data = NULL};
    struct nn_values result = {.data = NULL};
    NN_TRY(nn_load(call, tensor, &input));
    NN_TRY(load_optional(call, nn_argument(&arguments[1]), &weight));
    NN_TRY(load_optional(call, nn_argument(&arguments[2]), &bias));
    NN_TRY(nn_open(call, outputs[0], /*keeps_values=*/false, &result));
    for (int64_t i = 0; i < nn_count_rows(tensor); i++) {
        nn_loops_of(real)->norm(size, arguments[3].as.real, row_of(&input, i, row_bytes), weight.data,
                                bias.data, row_of(&result, i, row_bytes));
    }
    nn_store(outputs[0], &result);
    return SHOAL_OK;
}

/* What a bias of the last dimension gets. */
static shoal_tensor *sum_rows(shoal_tensor *gradient)
{
    const int64_t shape[] = {nn_count_rows(gradient), nn_last_size(gradient)};
    const int64_t rows = 0;
    return shoal_sum(shoal_reshape(gradient, shape, 2), &rows, 1, /*keeps_dims=*/false);
}

GRADIENT(layer_norm)
{
    shoal_tensor *gradient = output_gradients[0];
    if (shoal_op_needs_gradient(call, 0)) {
        const shoal_value values[] = {nn_tensor(gradient), arguments[0], arguments[3], arguments[1]};
        input_gradients[0] = nn_call(NN_OP_layer_norm_backward, values, 4);
    }
    if (shoal_op_needs_gradient(call, 1)) {
        const shoal_value values[] = {nn_tensor(gradient), arguments[0], arguments[3]};
        input_gradients[1] = nn_call(NN_OP_layer_norm_weight_backward, values, 3);
    }
    if (shoal_op_needs_gradient(call, 2)) {
        input_gradients[2] = sum_rows(gradient);
    }
    return shoal_scope_error();
}

static shoal_status check_gradient(const shoal_tensor *gradient, const shoal_tensor *input, double eps)
{
    NN_TRY(check_input(input, eps));
    NN_TRY(nn_check_dtype(gradient, "gradient", shoal_tensor_dtype(input), "input"));
    return nn_check_same_shape(gradient, "gradient", input, "input");
}

META(layer_norm_backward)
{
    const shoal_tensor *input = arguments[1].as.tensor;
    NN_TRY(check_gradient(arguments[0].as.tensor, input, arguments[2].as.real));
    NN_TRY(check_factor(nn_argument(&arguments[3]), "weight", input));
    return shoal_op_output(call, shoal_tensor_shape(input), shoal_tensor_n_dims(input),
                           shoal_tensor_dtype(input));
}

RUN(layer_norm_backward)
{
    const shoal_tensor *tensor = arguments[1].as.tensor;
    shoal_dtype real = nn_real(shoal_tensor_dtype(tensor));
    size_t size = (size_t)nn_last_size(tensor);
    size_t row_bytes = size * shoal_dtype_bytes(real);
    struct nn_values gradient = {.data = NULL};
    struct nn_values input = {.data = NULL};
    struct nn_values weight = {.data = NULL};
    struct nn_values result = {.data = NULL};
    NN_TRY(nn_load(call, arguments[0].as.tensor, &gradient));
    NN_TRY(nn_load(call, tensor, &input));
    NN_TRY(load_optional(call, nn_argument(&arguments[3]), &weight));
    NN_TRY(nn_open(call, outputs[0], /*keeps_values=*/false, &result));
    for (int64_t i = 0; i < nn_count_rows(tensor); i++) {
        nn_loops_of(real)->norm_backward(size, arguments[2].as.real, row_of(&gradient, i, row_bytes),
                                         row_of(&input, i, row_bytes), weight.data,
                                         row_of(&result, i, row_bytes));
    }
    nn_store(outputs[0], &result);
    return SHOAL_OK;
}

META(layer_norm_weight_backward)
{
    const shoal_tensor *input = arguments[1].as.tensor;
    NN_TRY(check_gradient(arguments[0].as.tensor, input, arguments[2].as.real));
    const int64_t size = nn_last_size(input);
    return shoal_op_output(call, &size, 1, shoal_tensor_dtype(input));
}

WORKSPACE(layer_norm_weight_backward)
{
    return nn_values_of_call(arguments, 2, outputs[0]) +
           nn_scratch_bytes((size_t)nn_last_size(arguments[1].as.tensor), sizeof(double));
}

RUN(layer_norm_weight_backward)
{
    const shoal_tensor *tensor = arguments[1].as.tensor;
    const struct nn_loops *loops = nn_loops_of(nn_real(shoal_tensor_dtype(tensor)));
    size_t size = (size_t)nn_last_size(tensor);
    size_t row_bytes = size * shoal_dtype_bytes(nn_real(shoal_tensor_dtype(tensor)));
    struct nn_values gradient = {.data = NULL};
    struct nn_values input = {.data = NULL};
    struct nn_values result = {.data = NULL};
    void *scratch = NULL;
    NN_TRY(nn_load(call, arguments[0].as.tensor, &gradient));
    NN_TRY(nn_load(call, tensor, &input));
    NN_TRY(nn_scratch(call, size, sizeof(double), &scratch));
    NN_TRY(nn_open(call, outputs[0], /*keeps_values=*/false, &result));
    double *sums = scratch;
    nn_loops_of(SHOAL_F64)->fill(size, 0, sums);
    for (int64_t i = 0; i < nn_count_rows(tensor); i++) {
        loops->norm_weight_backward(size, arguments[2].as.real, row_of(&gradient, i, row_bytes),
                                    row_of(&input, i, row_bytes), sums);
    }
    loops->from_doubles(size, sums, result.data);
    nn_store(outputs[0], &result);
    return SHOAL_OK;
}
