/* SPDX-License-Identifier: MIT */
/*
 * Matrix products. Leading dimensions of the left side are rows. A matrix that products cannot take (math/products.h) is
 * copied first; 16-bit floats are widened to f32, unless something multiplies them as they are.
 */
#include <stdlib.h>
#include <string.h>

#include "math/products.h"
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

/* The matrix as it lies in memory, without its data; false when a product cannot take it so. */
static bool describe_matrix(const shoal_tensor *tensor, struct nn_matrix *matrix_out)
{
    struct nn_layout layout = nn_layout_of(tensor);
    *matrix_out = (struct nn_matrix){.rows = nn_count_rows(tensor),
                                     .cols = nn_last_size(tensor),
                                     .col_stride = layout.strides[layout.n_dims - 1]};
    return merge_rows(&layout, &matrix_out->row_stride) && nn_product_takes_matrix(matrix_out);
}

/* A bias as a product takes it: contiguous. */
static bool is_bias_in_place(const shoal_tensor *bias, shoal_dtype dtype)
{
    return shoal_tensor_dtype(bias) == dtype &&
           (nn_last_size(bias) <= 1 || shoal_tensor_strides(bias)[0] == 1);
}

/* What a product is computed in: 16-bit floats as they are, if something takes them, and otherwise f32 or f64. */
static shoal_dtype find_product_dtype(const shoal_tensor *a, const shoal_tensor *b, const shoal_tensor *bias,
                                      const shoal_tensor *output)
{
    const shoal_dtype dtype = shoal_tensor_dtype(output);
    struct nn_matrix left;
    struct nn_matrix right;
    bool is_direct = dtype != nn_real(dtype) && describe_matrix(a, &left) && describe_matrix(b, &right) &&
                     (!bias || is_bias_in_place(bias, dtype)) &&
                     nn_products_take(dtype, left.rows, nn_last_size(output), left.cols);
    return is_direct ? dtype : nn_real(dtype);
}

/* Copies into floats or doubles, in the order of the smaller stride, so that memory is read as it lies. */
static shoal_status copy_matrix(shoal_op_call_context *call, const shoal_tensor *tensor, const void *data,
                                struct nn_matrix *matrix)
{
    struct nn_layout layout = nn_layout_of(tensor);
    void *scratch;
    NN_TRY(nn_scratch(call, (size_t)shoal_tensor_count(tensor),
                      shoal_dtype_bytes(nn_real(shoal_tensor_dtype(tensor))), &scratch));
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

static bool is_in_place(const shoal_tensor *tensor, shoal_dtype dtype, struct nn_matrix *matrix_out)
{
    bool is_taken = describe_matrix(tensor, matrix_out);
    return is_taken && shoal_tensor_dtype(tensor) == dtype;
}

static shoal_status load_matrix(shoal_op_call_context *call, const shoal_tensor *tensor, shoal_dtype dtype,
                                struct nn_matrix *matrix)
{
    const void *data = shoal_data(tensor);
    if (!data) {
        return SHOAL_ERR_STATE; /* the text is there already */
    }
    if (is_in_place(tensor, dtype, matrix)) {
        matrix->data = data;
        return SHOAL_OK;
    }
    return copy_matrix(call, tensor, data, matrix);
}

/* What that takes of the workspace. */
static size_t matrix_bytes(const shoal_tensor *tensor, shoal_dtype dtype)
{
    struct nn_matrix matrix;
    return is_in_place(tensor, dtype, &matrix)
               ? 0
               : nn_scratch_bytes((size_t)shoal_tensor_count(tensor),
                                  shoal_dtype_bytes(nn_real(shoal_tensor_dtype(tensor))));
}

/*
 * A result of 16 bits that was widened is computed in panels of rows, and each panel is rounded when it is complete.
 * So scratch memory for one panel is enough, and the panel is still in a cache when it is rounded. A panel has at least PANEL_ROWS rows,
 * because a BLAS rearranges b again for each panel, and otherwise about PANEL_ELEMENTS elements.
 */
#define PANEL_ROWS 256
#define PANEL_ELEMENTS ((int64_t)1 << 21)

static int64_t panel_rows(const shoal_tensor *output)
{
    int64_t n_rows = nn_count_rows(output);
    int64_t size = nn_last_size(output) > 0 ? nn_last_size(output) : 1;
    int64_t n_wanted = PANEL_ELEMENTS / size > PANEL_ROWS ? PANEL_ELEMENTS / size : PANEL_ROWS;
    return n_rows < n_wanted ? n_rows : n_wanted;
}

/* What a result takes of the workspace. */
static size_t product_bytes(const shoal_tensor *output, shoal_dtype dtype)
{
    return shoal_tensor_dtype(output) == dtype
               ? 0
               : nn_scratch_bytes((size_t)panel_rows(output) * (size_t)nn_last_size(output), sizeof(float));
}

/* output, which is contiguous as results are, = the product, rounded to 16 bits */
static shoal_status multiply_widened(shoal_op_call_context *call, const struct nn_product *product,
                                     shoal_tensor *output)
{
    const shoal_dtype dtype = shoal_tensor_dtype(output);
    const int64_t n_rows = panel_rows(output);
    const int64_t n_cols = product->b.cols;
    void *scratch = NULL;
    NN_TRY(nn_scratch(call, (size_t)(n_rows * n_cols), sizeof(float), &scratch));
    for (int64_t first = 0; first < product->a.rows; first += n_rows) {
        struct nn_product panel = *product;
        panel.a.data = (const char *)product->a.data + first * product->a.row_stride * (int64_t)sizeof(float);
        panel.a.rows = product->a.rows - first < n_rows ? product->a.rows - first : n_rows;
        panel.c = scratch;
        const struct nn_layout layout = {.n_dims = 1, .shape = {panel.a.rows * n_cols}, .strides = {1}};
        NN_TRY(nn_product_run(&panel));
        nn_scatter((char *)product->c + first * n_cols * (int64_t)shoal_dtype_bytes(dtype), dtype, &layout,
                   scratch);
    }
    return SHOAL_OK;
}

static shoal_status multiply_tensors(shoal_op_call_context *call, const shoal_tensor *a,
                                     const shoal_tensor *b, bool transposes_b, const shoal_tensor *bias,
                                     shoal_tensor *output)
{
    struct nn_product product = {.dtype = find_product_dtype(a, b, bias, output)};
    struct nn_values bias_values = {.data = NULL};
    NN_TRY(load_matrix(call, a, product.dtype, &product.a));
    NN_TRY(load_matrix(call, b, product.dtype, &product.b));
    product.b = transposes_b ? transpose(&product.b) : product.b;
    product.c = shoal_mutable_data(output);
    NN_TRY(product.c ? SHOAL_OK : SHOAL_ERR_STATE); /* the text is there already */
    if (bias && is_bias_in_place(bias, product.dtype)) {
        product.bias = shoal_data(bias);
        NN_TRY(product.bias ? SHOAL_OK : SHOAL_ERR_STATE);
    } else if (bias) {
        NN_TRY(nn_load(call, bias, &bias_values));
        product.bias = bias_values.data;
    }
    return product.dtype == shoal_tensor_dtype(output) ? nn_product_run(&product)
                                                       : multiply_widened(call, &product, output);
}

WORKSPACE(matmul)
{
    const shoal_tensor *a = arguments[0].as.tensor;
    const shoal_tensor *b = arguments[1].as.tensor;
    shoal_dtype dtype = find_product_dtype(a, b, NULL, outputs[0]);
    return matrix_bytes(a, dtype) + matrix_bytes(b, dtype) + product_bytes(outputs[0], dtype);
}

WORKSPACE(linear)
{
    const shoal_tensor *a = arguments[0].as.tensor;
    const shoal_tensor *b = arguments[1].as.tensor;
    const shoal_tensor *bias = nn_argument(&arguments[2]);
    shoal_dtype dtype = find_product_dtype(a, b, bias, outputs[0]);
    size_t bias_bytes = bias && is_bias_in_place(bias, dtype) ? 0 : nn_values_bytes(bias);
    return matrix_bytes(a, dtype) + matrix_bytes(b, dtype) + bias_bytes + product_bytes(outputs[0], dtype);
}

WORKSPACE(projection)
{
    return workspace_linear(call, arguments, outputs, n_outputs);
}

/* Shapes ----------------------------------------------------------------------------------------------- */

/* The left side's dimensions, the last one replaced. What computes products is known from here on, because ranks compare
   it before a captured step runs; whether it could be loaded matters when one is computed. */
static shoal_status declare_product(shoal_op_call_context *call, const shoal_tensor *left, int64_t last_size)
{
    (void)nn_products_load();
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
