/* SPDX-License-Identifier: MIT */
/* Layer norm: every row of the last dimension by itself. Nothing is saved but the input; gradients normalize again. */
#include <math.h>
#include <stdlib.h>

#include "ops/functions.h"
#include "math/pool.h"
#include "shoal/ops.h"
#include "common/try.h"
#include "ops/values.h"

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

/* What an element takes, in operations: three passes over it and more, in f64. */
#define NORM_COST 8

/* Gradients of weights are added up in at most so many parts, each in f64 from the first row to the last, and then part
   after part. */
#define MAX_SUMS 16

/* Rows of 16-bit floats up to this size are converted one by one, and so lie in the nearest cache. */
#define MAX_ROW 4096

/* Rows as they are computed with: in place, or 16-bit floats next to each other. */
struct rows {
    char *data;
    shoal_dtype dtype;
    struct nn_values values; /* of others: copied as a whole */
};

struct norm {
    const struct nn_loops *loops;
    double eps;
    size_t size; /* elements of a row */
    size_t n_rows;
    size_t n_parts; /* of sums */
    struct rows gradient;
    struct rows input;
    struct nn_values weight;
    struct nn_values bias;
    struct rows result;
    double *sums; /* a row for each part */
};

static struct norm norm_of(const shoal_tensor *input, double eps)
{
    shoal_dtype real = nn_real(shoal_tensor_dtype(input));
    size_t size = (size_t)nn_last_size(input);
    size_t n_rows = (size_t)nn_count_rows(input);
    size_t n_parts = nn_parts(n_rows, size * NORM_COST);
    return (struct norm){.loops = nn_loops_of(real),
                         .eps = eps,
                         .size = size,
                         .n_rows = n_rows,
                         .n_parts = n_parts < MAX_SUMS ? n_parts : MAX_SUMS};
}

static bool is_by_rows(const shoal_tensor *tensor)
{
    const shoal_dtype dtype = shoal_tensor_dtype(tensor);
    return dtype != nn_real(dtype) && shoal_tensor_is_contiguous(tensor) && nn_last_size(tensor) <= MAX_ROW;
}

static shoal_status load_rows(shoal_op_call_context *call, const shoal_tensor *tensor, struct rows *rows_out)
{
    *rows_out = (struct rows){.dtype = shoal_tensor_dtype(tensor)};
    if (is_by_rows(tensor)) {
        rows_out->data = (char *)(uintptr_t)shoal_data(tensor); /* who loads does not write */
        return rows_out->data ? SHOAL_OK : SHOAL_ERR_STATE;     /* the text is there already */
    }
    NN_TRY(nn_load(call, tensor, &rows_out->values));
    *rows_out = (struct rows){
        .data = rows_out->values.data, .dtype = nn_real(rows_out->dtype), .values = rows_out->values};
    return SHOAL_OK;
}

static shoal_status open_rows(shoal_op_call_context *call, shoal_tensor *tensor, struct rows *rows_out)
{
    *rows_out = (struct rows){.dtype = shoal_tensor_dtype(tensor)};
    if (is_by_rows(tensor)) {
        rows_out->data = shoal_mutable_data(tensor);
        return rows_out->data ? SHOAL_OK : SHOAL_ERR_STATE;
    }
    NN_TRY(nn_open(call, tensor, /*keeps_values=*/false, &rows_out->values));
    *rows_out = (struct rows){
        .data = rows_out->values.data, .dtype = nn_real(rows_out->dtype), .values = rows_out->values};
    return SHOAL_OK;
}

/* What these take of the workspace. */
static size_t rows_bytes(const shoal_tensor *tensor)
{
    return is_by_rows(tensor) ? 0 : nn_values_bytes(tensor);
}

static char *address_of(const struct norm *norm, const struct rows *rows, size_t row)
{
    return rows->data + row * norm->size * shoal_dtype_bytes(rows->dtype);
}

/* The row of that number, converted into `floats` if it must be. */
static const void *read_row(const struct norm *norm, const struct rows *rows, size_t row, float *floats)
{
    char *data = address_of(norm, rows, row);
    if (rows->dtype == nn_real(rows->dtype)) {
        return data;
    }
    nn_read_row(data, rows->dtype, (int64_t)norm->size, 1, floats);
    return floats;
}

static void *open_row(const struct norm *norm, const struct rows *rows, size_t row, float *floats)
{
    return rows->dtype == nn_real(rows->dtype) ? (void *)address_of(norm, rows, row) : floats;
}

static void store_row(const struct norm *norm, const struct rows *rows, size_t row, const void *values)
{
    if (rows->dtype != nn_real(rows->dtype)) {
        nn_write_row(address_of(norm, rows, row), rows->dtype, (int64_t)norm->size, 1, values);
    }
}

static void normalise_rows(void *context, size_t first, size_t end)
{
    const struct norm *norm = context;
    float floats[2][MAX_ROW];
    for (size_t i = first; i < end; i++) {
        const void *input = read_row(norm, &norm->input, i, floats[0]);
        void *result = open_row(norm, &norm->result, i, floats[1]);
        norm->loops->norm(norm->size, norm->eps, input, norm->weight.data, norm->bias.data, result);
        store_row(norm, &norm->result, i, result);
    }
}

static void go_back_rows(void *context, size_t first, size_t end)
{
    const struct norm *norm = context;
    float floats[3][MAX_ROW];
    for (size_t i = first; i < end; i++) {
        const void *gradient = read_row(norm, &norm->gradient, i, floats[0]);
        const void *input = read_row(norm, &norm->input, i, floats[1]);
        void *result = open_row(norm, &norm->result, i, floats[2]);
        norm->loops->norm_backward(norm->size, norm->eps, gradient, input, norm->weight.data, result);
        store_row(norm, &norm->result, i, result);
    }
}

static void sum_part(void *context, size_t part)
{
    const struct norm *norm = context;
    double *sums = norm->sums + part * norm->size;
    size_t end = nn_part_first(norm->n_rows, norm->n_parts, part + 1);
    float floats[2][MAX_ROW];
    nn_loops_of(SHOAL_F64)->fill(norm->size, 0, sums);
    for (size_t i = nn_part_first(norm->n_rows, norm->n_parts, part); i < end; i++) {
        const void *gradient = read_row(norm, &norm->gradient, i, floats[0]);
        const void *input = read_row(norm, &norm->input, i, floats[1]);
        norm->loops->norm_weight_backward(norm->size, norm->eps, gradient, input, sums);
    }
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

WORKSPACE(layer_norm)
{
    return rows_bytes(arguments[0].as.tensor) + nn_values_bytes(nn_argument(&arguments[1])) +
           nn_values_bytes(nn_argument(&arguments[2])) + rows_bytes(outputs[0]);
}

RUN(layer_norm)
{
    const shoal_tensor *tensor = arguments[0].as.tensor;
    struct norm norm = norm_of(tensor, arguments[3].as.real);
    NN_TRY(load_rows(call, tensor, &norm.input));
    NN_TRY(load_optional(call, nn_argument(&arguments[1]), &norm.weight));
    NN_TRY(load_optional(call, nn_argument(&arguments[2]), &norm.bias));
    NN_TRY(open_rows(call, outputs[0], &norm.result));
    nn_parallel_ranges(norm.n_rows, norm.size * NORM_COST, normalise_rows, &norm);
    nn_store(outputs[0], &norm.result.values);
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

WORKSPACE(layer_norm_backward)
{
    return rows_bytes(arguments[0].as.tensor) + rows_bytes(arguments[1].as.tensor) +
           nn_values_bytes(nn_argument(&arguments[3])) + rows_bytes(outputs[0]);
}

RUN(layer_norm_backward)
{
    const shoal_tensor *tensor = arguments[1].as.tensor;
    struct norm norm = norm_of(tensor, arguments[2].as.real);
    NN_TRY(load_rows(call, arguments[0].as.tensor, &norm.gradient));
    NN_TRY(load_rows(call, tensor, &norm.input));
    NN_TRY(load_optional(call, nn_argument(&arguments[3]), &norm.weight));
    NN_TRY(open_rows(call, outputs[0], &norm.result));
    nn_parallel_ranges(norm.n_rows, norm.size * NORM_COST, go_back_rows, &norm);
    nn_store(outputs[0], &norm.result.values);
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
    const struct norm norm = norm_of(arguments[1].as.tensor, 0);
    return rows_bytes(arguments[0].as.tensor) + rows_bytes(arguments[1].as.tensor) +
           nn_values_bytes(outputs[0]) + nn_scratch_bytes(norm.n_parts * norm.size, sizeof(double));
}

RUN(layer_norm_weight_backward)
{
    const shoal_tensor *tensor = arguments[1].as.tensor;
    struct norm norm = norm_of(tensor, arguments[2].as.real);
    void *scratch = NULL;
    NN_TRY(load_rows(call, arguments[0].as.tensor, &norm.gradient));
    NN_TRY(load_rows(call, tensor, &norm.input));
    NN_TRY(nn_scratch(call, norm.n_parts * norm.size, sizeof(double), &scratch));
    struct nn_values result;
    NN_TRY(nn_open(call, outputs[0], /*keeps_values=*/false, &result));
    norm.sums = scratch;
    nn_parallel(norm.n_parts, sum_part, &norm);
    for (size_t i = 1; i < norm.n_parts; i++) {
        nn_loops_of(SHOAL_F64)->add(norm.size, norm.sums + i * norm.size, norm.sums);
    }
    norm.loops->from_doubles(norm.size, norm.sums, result.data);
    nn_store(outputs[0], &result);
    return SHOAL_OK;
}
