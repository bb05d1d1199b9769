/* SPDX-License-Identifier: MIT */
/* Matrix products. Leading dimensions of the left side are rows; a matrix that a BLAS cannot take is copied first. */
#include <stdlib.h>
#include <string.h>

#include "math/blas.h"
#include "ops/functions.h"
#include "shoal/ops.h"
#include "common/try.h"
#include "ops/values.h"

/* Matrices --------------------------------------------------------------------------------------------- */

/* All dimensions but the last as one, whose stride is written; false when the strides do not allow that. */
static bool merge_rows(const struct nn_layout *layout, int64_t *stride_out)
{
    int64_t stride = 0;
    int64_t expected = -1; /* of the next dimension outward; -1 if any will do */
    for (int i = layout->n_dims - 2; i >= 0; i--) {
        if (layout->shape[i] == 1) {
            continue;
        }
        if (expected == -1) {
            stride = layout->strides[i];
        } else if (layout->strides[i] != expected) {
            return false;
        }
        expected = layout->strides[i] * layout->shape[i];
    }
    *stride_out = stride;
    return true;
}

static struct nn_matrix transpose(const struct nn_matrix *matrix)
{
    return (struct nn_matrix){.data = matrix->data,
                              .rows = matrix->cols,
                              .cols = matrix->rows,
                              .row_stride = matrix->col_stride,
                              .col_stride = matrix->row_stride};
}

static size_t real_bytes(const shoal_tensor *tensor)
{
    return nn_real(shoal_tensor_dtype(tensor)) == SHOAL_F64 ? sizeof(double) : sizeof(float);
}

/* The matrix as it lies in memory, without its data; false when a BLAS cannot take it so. */
static bool describe_matrix(const shoal_tensor *tensor, struct nn_matrix *matrix_out)
{
    struct nn_layout layout = nn_layout_of(tensor);
    *matrix_out = (struct nn_matrix){.rows = nn_count_rows(tensor),
                                     .cols = nn_last_size(tensor),
                                     .col_stride = layout.strides[layout.n_dims - 1]};
    bool is_real = shoal_tensor_dtype(tensor) == nn_real(shoal_tensor_dtype(tensor));
    return is_real && merge_rows(&layout, &matrix_out->row_stride) && nn_blas_takes(matrix_out);
}

/* Copies into floats or doubles, in the order of the smaller stride, so that memory is read as it lies. */
static shoal_status copy_matrix(shoal_op_call_context *call, const shoal_tensor *tensor, const void *data,
                                struct nn_matrix *matrix)
{
    struct nn_layout layout = nn_layout_of(tensor);
    void *scratch;
    NN_TRY(nn_scratch(call, (size_t)shoal_tensor_count(tensor), real_bytes(tensor), &scratch));
    matrix->data = scratch;
    matrix->row_stride = matrix->cols;
    matrix->col_stride = 1;
    if (layout.n_dims == 2 && layout.strides[0] < layout.strides[1]) {
        layout = (struct nn_layout){.n_dims = 2,
                                    .shape = {layout.shape[1], layout.shape[0]},
                                    .strides = {layout.strides[1], layout.strides[0]}};
        matrix->row_stride = 1;
        matrix->col_stride = matrix->rows;
    }
    nn_gather(data, shoal_tensor_dtype(tensor), &layout, scratch);
    return SHOAL_OK;
}

static shoal_status load_matrix(shoal_op_call_context *call, const shoal_tensor *tensor,
                                struct nn_matrix *matrix)
{
    const void *data = shoal_data(tensor);
    if (!data) {
        return SHOAL_ERR_STATE; /* the text is there already */
    }
    if (describe_matrix(tensor, matrix)) {
        matrix->data = data;
        return SHOAL_OK;
    }
    return copy_matrix(call, tensor, data, matrix);
}

/* What that takes of the workspace. */
static size_t matrix_bytes(const shoal_tensor *tensor)
{
    struct nn_matrix matrix;
    return describe_matrix(tensor, &matrix)
               ? 0
               : nn_scratch_bytes((size_t)shoal_tensor_count(tensor), real_bytes(tensor));
}

/*
 * A result of 16 bits is computed in panels of rows, and each panel is rounded when it is complete. So scratch memory
 * for one panel is enough, and the panel is still in a cache when it is rounded. A panel has at least PANEL_ROWS rows,
 * because a BLAS rearranges b again for each panel, and otherwise about PANEL_ELEMENTS elements.
 */
#define PANEL_ROWS 256
#define PANEL_ELEMENTS ((int64_t)1 << 21)

static int64_t panel_rows(const shoal_tensor *output)
{
    int64_t n_rows = nn_count_rows(output);
    int64_t size = nn_last_size(output) > 0 ? nn_last_size(output) : 1;
    int64_t n_wanted = PANEL_ELEMENTS / size > PANEL_ROWS ? PANEL_ELEMENTS / size : PANEL_ROWS;
    return shoal_tensor_dtype(output) == nn_real(shoal_tensor_dtype(output)) || n_rows < n_wanted ? n_rows
                                                                                                  : n_wanted;
}

/* What a result takes of the workspace. */
static size_t product_bytes(const shoal_tensor *output)
{
    bool is_real = shoal_tensor_dtype(output) == nn_real(shoal_tensor_dtype(output));
    return is_real
               ? 0
               : nn_scratch_bytes((size_t)panel_rows(output) * (size_t)nn_last_size(output), sizeof(float));
}

/* c = a b, or a b plus a bias in every row */
static shoal_status multiply_panel(shoal_dtype real, const struct nn_matrix *a, const struct nn_matrix *b,
                                   const void *bias, char *c)
{
    size_t row_bytes = (size_t)b->cols * (real == SHOAL_F64 ? sizeof(double) : sizeof(float));
    for (int64_t i = 0; bias && row_bytes > 0 && i < a->rows; i++) {
        memcpy(c + (size_t)i * row_bytes, bias, row_bytes);
    }
    return nn_blas_product(real, a, b, /*adds=*/bias != NULL, c);
}

/* output, which is contiguous as results are, = a b, or a b plus a bias in every row */
static shoal_status multiply(shoal_op_call_context *call, const struct nn_matrix *a,
                             const struct nn_matrix *b, const shoal_tensor *bias, shoal_tensor *output)
{
    shoal_dtype dtype = shoal_tensor_dtype(output);
    shoal_dtype real = nn_real(dtype);
    struct nn_values bias_values = {.data = NULL};
    void *scratch = NULL;
    char *to = shoal_mutable_data(output);
    NN_TRY(to ? SHOAL_OK : SHOAL_ERR_STATE); /* the text is there already */
    if (bias) {
        NN_TRY(nn_load(call, bias, &bias_values));
    }
    if (dtype == real) {
        return multiply_panel(real, a, b, bias_values.data, to);
    }
    int64_t n_rows = panel_rows(output);
    NN_TRY(nn_scratch(call, (size_t)(n_rows * b->cols), sizeof(float), &scratch));
    for (int64_t first = 0; first < a->rows; first += n_rows) {
        struct nn_matrix panel = *a;
        panel.data = (const char *)a->data + first * a->row_stride * (int64_t)sizeof(float);
        panel.rows = a->rows - first < n_rows ? a->rows - first : n_rows;
        const struct nn_layout layout = {.n_dims = 1, .shape = {panel.rows * b->cols}, .strides = {1}};
        NN_TRY(multiply_panel(real, &panel, b, bias_values.data, scratch));
        nn_scatter(to + first * b->cols * (int64_t)shoal_dtype_bytes(dtype), dtype, &layout, scratch);
    }
    return SHOAL_OK;
}

static shoal_status multiply_tensors(shoal_op_call_context *call, const shoal_tensor *a,
                                     const shoal_tensor *b, bool transposes_b, const shoal_tensor *bias,
                                     shoal_tensor *output)
{
    struct nn_matrix left;
    struct nn_matrix right;
    NN_TRY(load_matrix(call, a, &left));
    NN_TRY(load_matrix(call, b, &right));
    if (transposes_b) {
        right = transpose(&right);
    }
    return multiply(call, &left, &right, bias, output);
}

WORKSPACE(matmul)
{
    return matrix_bytes(arguments[0].as.tensor) + matrix_bytes(arguments[1].as.tensor) +
           product_bytes(outputs[0]);
}

WORKSPACE(linear)
{
    return matrix_bytes(arguments[0].as.tensor) + matrix_bytes(arguments[1].as.tensor) +
           nn_values_bytes(nn_argument(&arguments[2])) + product_bytes(outputs[0]);
}

WORKSPACE(projection)
{
    return workspace_linear(call, arguments, outputs, n_outputs);
}

/* Shapes ----------------------------------------------------------------------------------------------- */

/* The left side's dimensions, the last one replaced. */
static shoal_status declare_product(shoal_op_call_context *call, const shoal_tensor *left, int64_t last_size)
{
    int64_t shape[SHOAL_MAX_DIMS];
    int n_dims = shoal_tensor_n_dims(left);
    for (int i = 0; i < n_dims; i++) {
        shape[i] = i == n_dims - 1 ? last_size : shoal_tensor_shape(left)[i];
    }
    return shoal_op_output(call, shape, n_dims, shoal_tensor_dtype(left));
}

static shoal_status check_sides(const shoal_tensor *left, const char *left_name, const shoal_tensor *right,
                                const char *right_name, int common_dim)
{
    NN_TRY(nn_check_floating(left, left_name));
    NN_TRY(nn_check_dtype(right, right_name, shoal_tensor_dtype(left), left_name));
    if (shoal_tensor_n_dims(left) < 1) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s has no dimensions", left_name);
    }
    if (shoal_tensor_n_dims(right) != 2) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s has shape %s, which is not a matrix", right_name,
                          nn_shape_text(right).text);
    }
    if (shoal_tensor_shape(right)[common_dim] != nn_last_size(left)) {
        return shoal_fail(SHOAL_ERR_INVALID,
                          "%s has shape %s, %s %s: dimension %d of size %lld is not the last one of %s, %lld",
                          left_name, nn_shape_text(left).text, right_name, nn_shape_text(right).text,
                          common_dim, (long long)shoal_tensor_shape(right)[common_dim], left_name,
                          (long long)nn_last_size(left));
    }
    return SHOAL_OK;
}

/* matmul ----------------------------------------------------------------------------------------------- */

META(matmul)
{
    const shoal_tensor *a = arguments[0].as.tensor;
    const shoal_tensor *b = arguments[1].as.tensor;
    NN_TRY(check_sides(a, "a", b, "b", 0));
    return declare_product(call, a, shoal_tensor_shape(b)[1]);
}

RUN(matmul)
{
    return multiply_tensors(call, arguments[0].as.tensor, arguments[1].as.tensor, /*transposes_b=*/false,
                            NULL, outputs[0]);
}

static shoal_tensor *call_matmul(shoal_tensor *a, shoal_tensor *b)
{
    const shoal_value arguments[] = {nn_tensor(a), nn_tensor(b)};
    return nn_call(NN_OP_matmul, arguments, 2);
}

/* As a matrix of rows. */
static shoal_tensor *flatten_rows(shoal_tensor *tensor)
{
    const int64_t shape[] = {nn_count_rows(tensor), nn_last_size(tensor)};
    return shoal_tensor_n_dims(tensor) == 2 ? tensor : shoal_reshape(tensor, shape, 2);
}

/* The product of the transposed a and b, both as matrices of rows: what a weight gets. */
static shoal_tensor *multiply_over_rows(shoal_tensor *a, shoal_tensor *b)
{
    shoal_tensor *left = flatten_rows(a);
    shoal_tensor *right = flatten_rows(b);
    return left && right ? call_matmul(shoal_transpose(left, 0, 1), right) : NULL;
}

GRADIENT(matmul)
{
    shoal_tensor *gradient = output_gradients[0];
    if (shoal_op_needs_gradient(call, 0)) {
        input_gradients[0] = call_matmul(gradient, shoal_transpose(arguments[1].as.tensor, 0, 1));
    }
    if (shoal_op_needs_gradient(call, 1)) {
        input_gradients[1] = multiply_over_rows(arguments[0].as.tensor, gradient);
    }
    return shoal_scope_error();
}

/* linear ----------------------------------------------------------------------------------------------- */

/* Of a weight whose rows, or columns, are outputs. */
static shoal_status declare_layer(shoal_op_call_context *call, const shoal_value *arguments, int out_dim)
{
    const shoal_tensor *input = arguments[0].as.tensor;
    const shoal_tensor *weight = arguments[1].as.tensor;
    const shoal_tensor *bias = nn_argument(&arguments[2]);
    NN_TRY(check_sides(input, "input", weight, "weight", 1 - out_dim));
    int64_t n_out = shoal_tensor_shape(weight)[out_dim];
    NN_TRY(nn_check_vector(bias, "bias", n_out,
                           out_dim == 0 ? "the first dimension of weight" : "the last dimension of weight"));
    if (bias) {
        NN_TRY(nn_check_dtype(bias, "bias", shoal_tensor_dtype(input), "input"));
    }
    return declare_product(call, input, n_out);
}

META(linear)
{
    return declare_layer(call, arguments, 0);
}

RUN(linear)
{
    return multiply_tensors(call, arguments[0].as.tensor, arguments[1].as.tensor, /*transposes_b=*/true,
                            nn_argument(&arguments[2]), outputs[0]);
}

/* What a bias gets. */
static shoal_tensor *sum_rows(shoal_tensor *gradient)
{
    const int64_t rows = 0;
    return shoal_sum(flatten_rows(gradient), &rows, 1, /*keeps_dims=*/false);
}

GRADIENT(linear)
{
    shoal_tensor *gradient = output_gradients[0];
    if (shoal_op_needs_gradient(call, 0)) {
        input_gradients[0] = call_matmul(gradient, arguments[1].as.tensor);
    }
    if (shoal_op_needs_gradient(call, 1)) {
        input_gradients[1] = multiply_over_rows(gradient, arguments[0].as.tensor);
    }
    if (shoal_op_needs_gradient(call, 2)) {
        input_gradients[2] = sum_rows(gradient);
    }
    return shoal_scope_error();
}

/* projection: the weight lies as [in, out] -------------------------------------------------------------- */

META(projection)
{
    return declare_layer(call, arguments, 1);
}

RUN(projection)
{
    return multiply_tensors(call, arguments[0].as.tensor, arguments[1].as.tensor, /*transposes_b=*/false,
                            nn_argument(&arguments[2]), outputs[0]);
}

GRADIENT(projection)
{
    shoal_tensor *gradient = output_gradients[0];
    if (shoal_op_needs_gradient(call, 0)) {
        input_gradients[0] = call_matmul(gradient, shoal_transpose(arguments[1].as.tensor, 0, 1));
    }
    if (shoal_op_needs_gradient(call, 1)) {
        input_gradients[1] = multiply_over_rows(arguments[0].as.tensor, gradient);
    }
    if (shoal_op_needs_gradient(call, 2)) {
        input_gradients[2] = sum_rows(gradient);
    }
    return shoal_scope_error();
}
