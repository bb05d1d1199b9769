/* SPDX-License-Identifier: MIT */
/* RMS norm over the last dimension. Nothing is saved but the input; gradients compute its scale again. */
#include <math.h>
#include <string.h>

#include "ops/functions.h"
#include "math/pool.h"
#include "ops/rows.h"
#include "common/try.h"
#include "ops/values.h"

struct rms {
    double eps;
    const void *weight; /* NULL if there is none */
};

static shoal_status check_input(const shoal_tensor *input, const shoal_tensor *weight, double eps)
{
    NN_TRY(nn_check_floating(input, "input"));
    if (shoal_tensor_n_dims(input) < 1) {
        return shoal_fail(SHOAL_ERR_INVALID, "input has no dimensions");
    }
    if (!(eps >= 0) || isinf(eps)) {
        return shoal_fail(SHOAL_ERR_INVALID, "eps: %g is not a number from 0 up", eps);
    }
    if (weight) {
        NN_TRY(nn_check_dtype(weight, "weight", shoal_tensor_dtype(input), "input"));
    }
    return nn_check_vector(weight, "weight", nn_last_size(input), "the last dimension of input");
}

static int last_dim(const shoal_tensor *tensor)
{
    return shoal_tensor_n_dims(tensor) - 1;
}

static shoal_status load_weight(shoal_op_call_context *call, const shoal_tensor *weight, struct rms *rms)
{
    struct nn_values values = {.data = NULL};
    if (weight) {
        NN_TRY(nn_load(call, weight, &values));
    }
    rms->weight = values.data;
    return SHOAL_OK;
}

META(rms_norm)
{
    const shoal_tensor *input = arguments[0].as.tensor;
    NN_TRY(check_input(input, nn_argument(&arguments[1]), arguments[2].as.real));
    return shoal_op_output(call, shoal_tensor_shape(input), shoal_tensor_n_dims(input),
                           shoal_tensor_dtype(input));
}

static void map_forward(const struct nn_loops *loops, size_t n, const void *const *inputs, void *result,
                        const void *context)
{
    const struct rms *rms = context;
    loops->rms_norm(n, rms->eps, inputs[0], rms->weight, result);
}

WORKSPACE(rms_norm)
{
    shoal_tensor *input = arguments[0].as.tensor;
    return nn_map_rows_bytes(&input, 1, last_dim(input), outputs[0]) +
           nn_values_bytes(nn_argument(&arguments[1]));
}

RUN(rms_norm)
{
    shoal_tensor *input = arguments[0].as.tensor;
    struct rms rms = {.eps = arguments[2].as.real};
    NN_TRY(load_weight(call, nn_argument(&arguments[1]), &rms));
    return nn_map_rows(call, &input, 1, last_dim(input), outputs[0], map_forward, &rms);
}

GRADIENT(rms_norm)
{
    shoal_value gradient = nn_tensor(output_gradients[0]);
    if (shoal_op_needs_gradient(call, 0)) {
        const shoal_value values[] = {gradient, arguments[0], arguments[2], arguments[1]};
        input_gradients[0] = nn_call(NN_OP_rms_norm_backward, values, 4);
    }
    if (shoal_op_needs_gradient(call, 1)) {
        const shoal_value values[] = {gradient, arguments[0], arguments[2]};
        input_gradients[1] = nn_call(NN_OP_rms_norm_weight_backward, values, 3);
    }
    return shoal_scope_error();
}

static shoal_status check_gradient(const shoal_tensor *gradient, const shoal_tensor *input)
{
    NN_TRY(nn_check_dtype(gradient, "gradient", shoal_tensor_dtype(input), "input"));
    return nn_check_same_shape(gradient, "gradient", input, "input");
}

META(rms_norm_backward)
{
    const shoal_tensor *input = arguments[1].as.tensor;
    NN_TRY(check_input(input, nn_argument(&arguments[3]), arguments[2].as.real));
    NN_TRY(check_gradient(arguments[0].as.tensor, input));
    return shoal_op_output(call, shoal_tensor_shape(input), shoal_tensor_n_dims(input),
                           shoal_tensor_dtype(input));
}

static void map_backward(const struct nn_loops *loops, size_t n, const void *const *inputs, void *result,
                         const void *context)
{
    const struct rms *rms = context;
    loops->rms_norm_backward(n, rms->eps, inputs[0], inputs[1], rms->weight, result);
}

WORKSPACE(rms_norm_backward)
{
    shoal_tensor *const inputs[] = {arguments[0].as.tensor, arguments[1].as.tensor};
    return nn_map_rows_bytes(inputs, 2, last_dim(inputs[1]), outputs[0]) +
           nn_values_bytes(nn_argument(&arguments[3]));
}

RUN(rms_norm_backward)
{
    shoal_tensor *const inputs[] = {arguments[0].as.tensor, arguments[1].as.tensor};
    struct rms rms = {.eps = arguments[2].as.real};
    NN_TRY(load_weight(call, nn_argument(&arguments[3]), &rms));
    return nn_map_rows(call, inputs, 2, last_dim(inputs[1]), outputs[0], map_backward, &rms);
}

/* The gradient of the weight ---------------------------------------------------------------------------- */

enum {
    MAX_SUMS = 32 /* parts of the rows, each with sums of its own */
};

struct sums {
    struct nn_rows gradient;
    struct nn_rows input;
    const struct nn_loops *loops;
    double eps;
    double *sums;  /* [n_parts, size] */
    char *scratch; /* of each part a row of the gradient and one of the input */
    size_t row_bytes;
    size_t n_parts;
};

META(rms_norm_weight_backward)
{
    const shoal_tensor *input = arguments[1].as.tensor;
    NN_TRY(check_input(input, NULL, arguments[2].as.real));
    NN_TRY(check_gradient(arguments[0].as.tensor, input));
    const int64_t size = nn_last_size(input);
    return shoal_op_output(call, &size, 1, shoal_tensor_dtype(input));
}

static void sum_part(void *context, size_t part)
{
    const struct sums *sums = context;
    size_t size = (size_t)sums->input.size;
    size_t first = nn_part_first((size_t)sums->input.count, sums->n_parts, part);
    size_t end = nn_part_first((size_t)sums->input.count, sums->n_parts, part + 1);
    double *own = sums->sums + part * size;
    char *scratch = sums->scratch + part * 2 * sums->row_bytes;
    struct nn_row gradient = nn_row_at(&sums->gradient, (int64_t)first);
    struct nn_row input = nn_row_at(&sums->input, (int64_t)first);
    memset(own, 0, size * sizeof(double));
    for (size_t i = first; i < end; i++) {
        const void *g = nn_row_read(&sums->gradient, &gradient, scratch);
        const void *x = nn_row_read(&sums->input, &input, scratch + sums->row_bytes);
        sums->loops->rms_norm_weight_backward(size, sums->eps, g, x, own);
        nn_row_next(&sums->gradient, &gradient);
        nn_row_next(&sums->input, &input);
    }
}

static void describe_sums(const shoal_value *arguments, struct sums *sums)
{
    const shoal_tensor *gradient = arguments[0].as.tensor;
    const shoal_tensor *input = arguments[1].as.tensor;
    sums->gradient = nn_rows_of(gradient, NULL, last_dim(gradient));
    sums->input = nn_rows_of(input, NULL, last_dim(input));
    sums->n_parts = nn_row_parts(&sums->input);
    sums->n_parts = sums->n_parts < MAX_SUMS ? sums->n_parts : MAX_SUMS;
    sums->row_bytes =
        nn_scratch_bytes((size_t)sums->input.size, shoal_dtype_bytes(nn_real(sums->input.dtype)));
}

WORKSPACE(rms_norm_weight_backward)
{
    struct sums sums;
    describe_sums(arguments, &sums);
    return nn_scratch_bytes(sums.n_parts * (size_t)sums.input.size, sizeof(double)) +
           sums.n_parts * 2 * sums.row_bytes + nn_values_bytes(outputs[0]);
}

RUN(rms_norm_weight_backward)
{
    struct sums sums = {.eps = arguments[2].as.real};
    struct nn_values result = {.data = NULL};
    void *memory = NULL;
    void *scratch = NULL;
    describe_sums(arguments, &sums);
    sums.loops = nn_loops_of(nn_real(sums.input.dtype));
    size_t size = (size_t)sums.input.size;
    sums.gradient.data = (char *)(uintptr_t)shoal_data(arguments[0].as.tensor);
    sums.input.data = (char *)(uintptr_t)shoal_data(arguments[1].as.tensor);
    NN_TRY(sums.gradient.data && sums.input.data ? SHOAL_OK : SHOAL_ERR_STATE);
    NN_TRY(nn_open(call, outputs[0], /*keeps_values=*/false, &result));
    if (sums.n_parts == 0) {
        sums.loops->fill(size, 0, result.data);
        nn_store(outputs[0], &result);
        return SHOAL_OK;
    }
    NN_TRY(nn_scratch(call, sums.n_parts * size, sizeof(double), &memory));
    NN_TRY(nn_scratch(call, sums.n_parts * 2, sums.row_bytes, &scratch));
    sums.sums = memory;
    sums.scratch = scratch;
    nn_parallel(sums.n_parts, sum_part, &sums);
    for (size_t i = 1; i < sums.n_parts; i++) {
        nn_loops_of(SHOAL_F64)->add(size, sums.sums + i * size, sums.sums);
    }
    sums.loops->from_doubles(size, sums.sums, result.data);
    nn_store(outputs[0], &result);
    return SHOAL_OK;
}
