/* SPDX-License-Identifier: MIT */
/*
 * Batched matrix products: one product after the other. A matrix that a BLAS takes as it lies is used in place, with
 * any strides of the leading dimensions; any other is copied when its turn comes, into memory for one matrix.
 */
#include "blas.h"
#include "functions.h"
#include "rows.h"
#include "shoal/ops.h"
#include "try.h"
#include "values.h"

/* One side of the products, or their results. */
struct side {
    struct nn_rows batch;    /* the matrices; only data, dtype, count and outer are used */
    struct nn_row at;        /* the present one */
    struct nn_matrix matrix; /* as a product sees it */
    struct nn_layout layout; /* of one matrix, in the order in which it is copied */
    bool is_in_place;
    void *scratch;
};

static size_t real_bytes(shoal_dtype dtype)
{
    return shoal_dtype_bytes(nn_real(dtype));
}

static struct side describe(const shoal_tensor *tensor)
{
    struct nn_layout layout = nn_layout_of(tensor);
    const int row = layout.n_dims - 2;
    struct side side = {.batch = {.dtype = shoal_tensor_dtype(tensor), .count = 1, .outer = {.n_dims = row}},
                        .matrix = {.rows = layout.shape[row],
                                   .cols = layout.shape[row + 1],
                                   .row_stride = layout.strides[row],
                                   .col_stride = layout.strides[row + 1]},
                        .layout = {.n_dims = 2,
                                   .shape = {layout.shape[row], layout.shape[row + 1]},
                                   .strides = {layout.strides[row], layout.strides[row + 1]}}};
    for (int i = 0; i < row; i++) {
        side.batch.outer.shape[i] = layout.shape[i];
        side.batch.outer.strides[i] = layout.strides[i];
        side.batch.count *= layout.shape[i];
    }
    side.is_in_place = side.batch.dtype == nn_real(side.batch.dtype) && nn_blas_takes(&side.matrix);
    if (!side.is_in_place) {
        side.matrix.row_stride = side.matrix.cols;
        side.matrix.col_stride = 1;
        if (layout.strides[row] < layout.strides[row + 1]) {
            side.layout = (struct nn_layout){.n_dims = 2,
                                             .shape = {layout.shape[row + 1], layout.shape[row]},
                                             .strides = {layout.strides[row + 1], layout.strides[row]}};
            side.matrix.row_stride = 1;
            side.matrix.col_stride = side.matrix.rows;
        }
    }
    return side;
}

static size_t side_bytes(const shoal_tensor *tensor)
{
    struct side side = describe(tensor);
    return side.is_in_place ? 0
                            : nn_scratch_bytes((size_t)(side.matrix.rows * side.matrix.cols),
                                               real_bytes(side.batch.dtype));
}

static shoal_status open_side(shoal_op_call_context *call, const shoal_tensor *tensor, const void *data,
                              struct side *side_out)
{
    *side_out = describe(tensor);
    side_out->batch.data = (char *)(uintptr_t)data;
    NN_TRY(data ? SHOAL_OK : SHOAL_ERR_STATE); /* the text is there already */
    if (!side_out->is_in_place) {
        NN_TRY(nn_scratch(call, (size_t)(side_out->matrix.rows * side_out->matrix.cols),
                          real_bytes(side_out->batch.dtype), &side_out->scratch));
    }
    side_out->at = nn_row_at(&side_out->batch, 0);
    return SHOAL_OK;
}

static char *present(const struct side *side)
{
    return side->batch.data + side->at.offset * (int64_t)shoal_dtype_bytes(side->batch.dtype);
}

/* The present matrix to read; the next one is present afterwards. */
static const struct nn_matrix *load_next(struct side *side)
{
    side->matrix.data = side->is_in_place ? present(side) : side->scratch;
    if (!side->is_in_place) {
        nn_gather(present(side), side->batch.dtype, &side->layout, side->scratch);
    }
    nn_row_next(&side->batch, &side->at);
    return &side->matrix;
}

static shoal_status check_sides(const shoal_tensor *a, const shoal_tensor *b)
{
    NN_TRY(nn_check_floating(a, "a"));
    NN_TRY(nn_check_dtype(b, "b", shoal_tensor_dtype(a), "a"));
    int n_dims = shoal_tensor_n_dims(a);
    bool does_fit = n_dims >= 2 && n_dims == shoal_tensor_n_dims(b);
    for (int i = 0; does_fit && i < n_dims - 2; i++) {
        does_fit = shoal_tensor_shape(a)[i] == shoal_tensor_shape(b)[i];
    }
    if (!does_fit) {
        return shoal_fail(
            SHOAL_ERR_INVALID,
            "a has shape %s, b %s: both need two dimensions or more, and the same ones before them",
            nn_shape_text(a).text, nn_shape_text(b).text);
    }
    if (nn_last_size(a) != shoal_tensor_shape(b)[n_dims - 2]) {
        return shoal_fail(SHOAL_ERR_INVALID, "a has shape %s, b %s: %lld columns do not fit %lld rows",
                          nn_shape_text(a).text, nn_shape_text(b).text, (long long)nn_last_size(a),
                          (long long)shoal_tensor_shape(b)[n_dims - 2]);
    }
    return SHOAL_OK;
}

META(bmm)
{
    const shoal_tensor *a = arguments[0].as.tensor;
    const shoal_tensor *b = arguments[1].as.tensor;
    int64_t shape[SHOAL_MAX_DIMS];
    NN_TRY(check_sides(a, b));
    int n_dims = shoal_tensor_n_dims(a);
    for (int i = 0; i < n_dims; i++) {
        shape[i] = i == n_dims - 1 ? nn_last_size(b) : shoal_tensor_shape(a)[i];
    }
    return shoal_op_output(call, shape, n_dims, shoal_tensor_dtype(a));
}

WORKSPACE(bmm)
{
    return side_bytes(arguments[0].as.tensor) + side_bytes(arguments[1].as.tensor) + side_bytes(outputs[0]);
}

RUN(bmm)
{
    const shoal_tensor *a_tensor = arguments[0].as.tensor;
    const shoal_tensor *b_tensor = arguments[1].as.tensor;
    shoal_dtype dtype = shoal_tensor_dtype(outputs[0]);
    struct side a;
    struct side b;
    struct side c;
    NN_TRY(open_side(call, a_tensor, shoal_data(a_tensor), &a));
    NN_TRY(open_side(call, b_tensor, shoal_data(b_tensor), &b));
    NN_TRY(open_side(call, outputs[0], shoal_mutable_data(outputs[0]), &c));
    int64_t count = c.matrix.rows * c.matrix.cols;
    for (int64_t i = 0; count > 0 && i < c.batch.count; i++) {
        const struct nn_matrix *left = load_next(&a);
        const struct nn_matrix *right = load_next(&b);
        NN_TRY(nn_blas_product(nn_real(dtype), left, right, /*adds=*/false,
                               c.is_in_place ? present(&c) : c.scratch));
        if (!c.is_in_place) {
            nn_write_row(present(&c), dtype, count, 1, c.scratch);
        }
        nn_row_next(&c.batch, &c.at);
    }
    return SHOAL_OK;
}

static shoal_tensor *call_bmm(shoal_tensor *a, shoal_tensor *b)
{
    const shoal_value arguments[] = {nn_tensor(a), nn_tensor(b)};
    return a && b ? nn_call(NN_OP_bmm, arguments, 2) : NULL;
}

GRADIENT(bmm)
{
    shoal_tensor *gradient = output_gradients[0];
    if (shoal_op_needs_gradient(call, 0)) {
        input_gradients[0] = call_bmm(gradient, shoal_transpose(arguments[1].as.tensor, -1, -2));
    }
    if (shoal_op_needs_gradient(call, 1)) {
        input_gradients[1] = call_bmm(shoal_transpose(arguments[0].as.tensor, -1, -2), gradient);
    }
    return shoal_scope_error();
}
