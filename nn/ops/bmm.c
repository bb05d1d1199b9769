/* SPDX-License-Identifier: MIT */
/*
 * Batched matrix products. Many or small matrices are computed in parallel, each on one thread; a few large ones are
 * computed one after the other, each on all threads. The choice depends on sizes only. A matrix whose
 * layout products accept is used in place, whatever the strides of its leading dimensions. Any other matrix is copied
 * when its turn comes; each part of the work has scratch memory for one matrix.
 */
#include <stdatomic.h>
#include <stdio.h>

#include "math/products.h"
#include "ops/functions.h"
#include "math/pool.h"
#include "ops/rows.h"
#include "shoal/ops.h"
#include "common/try.h"
#include "ops/values.h"

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

/* One matrix, as it lies. */
static struct nn_matrix describe_matrix(const shoal_tensor *tensor)
{
    const struct nn_layout layout = nn_layout_of(tensor);
    const int row = layout.n_dims - 2;
    return (struct nn_matrix){.rows = layout.shape[row],
                              .cols = layout.shape[row + 1],
                              .row_stride = layout.strides[row],
                              .col_stride = layout.strides[row + 1]};
}

/* What the products are computed in: 16-bit floats as they are, if something takes them, and otherwise f32. */
static shoal_dtype find_dtype(const shoal_tensor *a, const shoal_tensor *b)
{
    const shoal_dtype dtype = shoal_tensor_dtype(a);
    const struct nn_matrix left = describe_matrix(a);
    const struct nn_matrix right = describe_matrix(b);
    bool is_direct = dtype != nn_real(dtype) && nn_product_takes_matrix(&left) &&
                     nn_product_takes_matrix(&right) &&
                     nn_products_take(dtype, left.rows, right.cols, left.cols);
    return is_direct ? dtype : nn_real(dtype);
}

static struct side describe(const shoal_tensor *tensor, shoal_dtype dtype)
{
    struct nn_layout layout = nn_layout_of(tensor);
    const int row = layout.n_dims - 2;
    struct side side = {.batch = {.dtype = shoal_tensor_dtype(tensor), .count = 1, .outer = {.n_dims = row}},
                        .matrix = describe_matrix(tensor),
                        .layout = {.n_dims = 2,
                                   .shape = {layout.shape[row], layout.shape[row + 1]},
                                   .strides = {layout.strides[row], layout.strides[row + 1]}}};
    for (int i = 0; i < row; i++) {
        side.batch.outer.shape[i] = layout.shape[i];
        side.batch.outer.strides[i] = layout.strides[i];
        side.batch.count *= layout.shape[i];
    }
    side.is_in_place = side.batch.dtype == dtype && nn_product_takes_matrix(&side.matrix);
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

enum {
    MANY = 8,                  /* matrices that are worth a thread each, however large they are */
    SMALL = 1 << 20,           /* products of elements: what a BLAS computes on one thread, too */
    MAX_PARTS_WITH_COPIES = 16 /* which have memory of their own */
};

/* The products. */
struct batch {
    shoal_dtype dtype; /* of the products: that of the sides, or f32 */
    struct side a;
    struct side b;
    struct side c;
    int64_t n_elements; /* of a result */
    bool is_in_turn;
    size_t n_parts;
    size_t part_bytes; /* of copies of a, b and c */
    char *scratch;
    _Atomic int status; /* of the first part that failed */
    char error[256];    /* written by that part */
};

static size_t side_bytes(const struct side *side)
{
    return side->is_in_place ? 0
                             : nn_scratch_bytes((size_t)(side->matrix.rows * side->matrix.cols),
                                                real_bytes(side->batch.dtype));
}

static struct batch describe_batch(const shoal_tensor *a, const shoal_tensor *b, const shoal_tensor *c)
{
    const shoal_dtype dtype = find_dtype(a, b);
    struct batch batch = {
        .dtype = dtype, .a = describe(a, dtype), .b = describe(b, dtype), .c = describe(c, dtype)};
    const size_t count = (size_t)batch.c.batch.count;
    batch.n_elements = batch.c.matrix.rows * batch.c.matrix.cols;
    const double work = (double)batch.n_elements * (double)batch.a.matrix.cols;
    batch.part_bytes = side_bytes(&batch.a) + side_bytes(&batch.b) + side_bytes(&batch.c);
    batch.is_in_turn = count < MANY && work > SMALL;
    if (batch.is_in_turn || batch.n_elements == 0) {
        batch.n_parts = batch.n_elements == 0 ? 0 : 1;
        return batch;
    }
    batch.n_parts = nn_parts(count, work < SMALL ? (size_t)work + 1 : SMALL);
    if (batch.part_bytes > 0 && batch.n_parts > MAX_PARTS_WITH_COPIES) {
        batch.n_parts = MAX_PARTS_WITH_COPIES;
    }
    return batch;
}

static char *present(const struct side *side)
{
    return side->batch.data + side->at.offset * (int64_t)shoal_dtype_bytes(side->batch.dtype);
}

/* The present matrix to read; the next one is present afterwards. */
static struct nn_matrix load_next(struct side *side)
{
    side->matrix.data = side->is_in_place ? present(side) : side->scratch;
    if (!side->is_in_place) {
        nn_gather(present(side), side->batch.dtype, &side->layout, side->scratch);
    }
    nn_row_next(&side->batch, &side->at);
    return side->matrix;
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
    (void)nn_products_load(); /* as other products (matmul.c) */
    int n_dims = shoal_tensor_n_dims(a);
    for (int i = 0; i < n_dims; i++) {
        shape[i] = i == n_dims - 1 ? nn_last_size(b) : shoal_tensor_shape(a)[i];
    }
    return shoal_op_output(call, shape, n_dims, shoal_tensor_dtype(a));
}

WORKSPACE(bmm)
{
    struct batch batch = describe_batch(arguments[0].as.tensor, arguments[1].as.tensor, outputs[0]);
    return batch.n_parts * batch.part_bytes;
}

/* A side at one of its matrices, with the copies' memory, which then begins behind it. */
static struct side begin_side(const struct side *from, size_t first, char **scratch)
{
    struct side side = *from;
    side.scratch = *scratch;
    side.at = nn_row_at(&side.batch, (int64_t)first);
    *scratch += side_bytes(&side);
    return side;
}

static shoal_status multiply_range(const struct batch *batch, size_t part)
{
    const size_t count = (size_t)batch->c.batch.count;
    const size_t first = nn_part_first(count, batch->n_parts, part);
    const size_t end = nn_part_first(count, batch->n_parts, part + 1);
    const shoal_dtype dtype = batch->c.batch.dtype;
    char *scratch = batch->scratch + part * batch->part_bytes;
    struct side a = begin_side(&batch->a, first, &scratch);
    struct side b = begin_side(&batch->b, first, &scratch);
    struct side c = begin_side(&batch->c, first, &scratch);
    for (size_t i = first; i < end; i++) {
        const struct nn_product product = {.dtype = batch->dtype,
                                           .a = load_next(&a),
                                           .b = load_next(&b),
                                           .c = c.is_in_place ? present(&c) : c.scratch};
        NN_TRY(batch->is_in_turn ? nn_product_run(&product) : nn_product_run_alone(&product));
        if (!c.is_in_place) {
            nn_write_row(present(&c), dtype, batch->n_elements, 1, c.scratch);
        }
        nn_row_next(&c.batch, &c.at);
    }
    return SHOAL_OK;
}

static void multiply_part(void *context, size_t part)
{
    struct batch *batch = context;
    int none = SHOAL_OK;
    shoal_status status = multiply_range(batch, part);
    if (status != SHOAL_OK && atomic_compare_exchange_strong(&batch->status, &none, (int)status)) {
        (void)snprintf(batch->error, sizeof(batch->error), "%s", shoal_error_text());
    }
}

RUN(bmm)
{
    const shoal_tensor *tensors[] = {arguments[0].as.tensor, arguments[1].as.tensor, outputs[0]};
    struct batch batch = describe_batch(tensors[0], tensors[1], tensors[2]);
    struct side *const sides[] = {&batch.a, &batch.b, &batch.c};
    void *scratch = NULL;
    NN_TRY(nn_products_load());
    for (int i = 0; i < 3; i++) {
        const void *data = i < 2 ? shoal_data(tensors[i]) : shoal_mutable_data(outputs[0]);
        sides[i]->batch.data = (char *)(uintptr_t)data;
        NN_TRY(data ? SHOAL_OK : SHOAL_ERR_STATE); /* the text is there already */
    }
    if (batch.n_parts * batch.part_bytes > 0) {
        NN_TRY(nn_scratch(call, batch.n_parts, batch.part_bytes, &scratch));
    }
    batch.scratch = scratch;
    nn_parallel(batch.n_parts, multiply_part, &batch);
    int status = atomic_load(&batch.status);
    return status == SHOAL_OK ? SHOAL_OK : shoal_fail((shoal_status)status, "%s", batch.error);
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
