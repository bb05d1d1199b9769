/* SPDX-License-Identifier: MIT */
/* Slices of a dimension by index: copied as bytes; their gradients are added in the order of the indices. */
#include <inttypes.h>
#include <string.h>

#include "ops/functions.h"
#include "ops/rows.h"
#include "common/try.h"
#include "ops/values.h"

static shoal_status check_values(const struct nn_values *indices, int64_t size)
{
    const int64_t *index = indices->data;
    for (size_t i = 0; i < indices->count; i++) {
        if (index[i] < 0 || index[i] >= size) {
            return shoal_fail(SHOAL_ERR_INVALID,
                              "indices: element %zu is %" PRId64 ", not one of %" PRId64 " places", i,
                              index[i], size);
        }
    }
    return SHOAL_OK;
}

static shoal_status check_indices(const shoal_tensor *indices)
{
    NN_TRY(nn_check_integer(indices, "indices"));
    if (shoal_tensor_n_dims(indices) != 1) {
        return shoal_fail(SHOAL_ERR_INVALID, "indices has shape %s, not one dimension",
                          nn_shape_text(indices).text);
    }
    return SHOAL_OK;
}

/* The shape of a tensor with another size along a dimension. */
static shoal_status declare(shoal_op_call_context *call, const shoal_tensor *like, int dim, int64_t size)
{
    int64_t shape[SHOAL_MAX_DIMS];
    for (int i = 0; i < shoal_tensor_n_dims(like); i++) {
        shape[i] = i == dim ? size : shoal_tensor_shape(like)[i];
    }
    return shoal_op_output(call, shape, shoal_tensor_n_dims(like), shoal_tensor_dtype(like));
}

static shoal_status check_dim(const shoal_tensor *tensor, const char *name, int64_t dim, int *dim_out)
{
    if (shoal_tensor_n_dims(tensor) < 1) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s has no dimensions", name);
    }
    return nn_check_dim(dim, tensor, name, dim_out);
}

META(index_select)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    const shoal_tensor *indices = arguments[2].as.tensor;
    int dim = 0;
    NN_TRY(check_dim(self, "self", arguments[1].as.integer, &dim));
    NN_TRY(check_indices(indices));
    return declare(call, self, dim, shoal_tensor_shape(indices)[0]);
}

/* Where a row of the selected tensor begins in the other one, in elements. */
static int64_t offset_of(const struct nn_row *row, int n_outer, const int64_t *strides, int dim,
                         const int64_t *index)
{
    int64_t offset = 0;
    for (int i = 0; i < n_outer; i++) {
        offset += (i == dim ? index[row->index[i]] : row->index[i]) * strides[i];
    }
    return offset;
}

/* A row from a strided one: its elements in order, or those that the indices name. */
static void copy_row(const char *from, int64_t stride, size_t count, const int64_t *index, size_t bytes,
                     char *to)
{
    if (!index && stride == 1) {
        memcpy(to, from, count * bytes);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        int64_t place = (index ? index[i] : (int64_t)i) * stride;
        memcpy(to + i * bytes, from + place * (int64_t)bytes, bytes);
    }
}

WORKSPACE(index_select)
{
    return nn_values_bytes(arguments[2].as.tensor); /* slices are copied as they are */
}

RUN(index_select)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    int dim = nn_dim(arguments[1].as.integer, self);
    int last = shoal_tensor_n_dims(self) - 1;
    size_t bytes = shoal_dtype_bytes(shoal_tensor_dtype(self));
    const int64_t *strides = shoal_tensor_strides(self);
    struct nn_values indices = {.data = NULL};
    NN_TRY(nn_load_integers(call, arguments[2].as.tensor, &indices));
    NN_TRY(check_values(&indices, shoal_tensor_shape(self)[dim]));
    const char *from = shoal_data(self);
    char *to = shoal_mutable_data(outputs[0]);
    NN_TRY(from && to ? SHOAL_OK : SHOAL_ERR_STATE);
    const struct nn_rows rows = nn_rows_of(outputs[0], to, last);
    struct nn_row row = nn_row_at(&rows, 0);
    for (int64_t i = 0; rows.size > 0 && i < rows.count; i++) {
        int64_t offset = offset_of(&row, last, strides, dim, indices.data);
        copy_row(from + offset * (int64_t)bytes, strides[last], (size_t)rows.size,
                 dim == last ? indices.data : NULL, bytes, to + (size_t)(i * rows.size) * bytes);
        nn_row_next(&rows, &row);
    }
    return SHOAL_OK;
}

GRADIENT(index_select)
{
    if (shoal_op_needs_gradient(call, 0)) {
        const shoal_tensor *self = arguments[0].as.tensor;
        int dim = nn_dim(arguments[1].as.integer, self);
        const shoal_value values[] = {nn_tensor(output_gradients[0]), arguments[1], arguments[2],
                                      nn_int(shoal_tensor_shape(self)[dim])};
        input_gradients[0] = nn_call(NN_OP_index_select_backward, values, 4);
    }
    return shoal_scope_error();
}

META(index_select_backward)
{
    const shoal_tensor *gradient = arguments[0].as.tensor;
    const shoal_tensor *indices = arguments[2].as.tensor;
    int64_t size = arguments[3].as.integer;
    int dim = 0;
    NN_TRY(nn_check_floating(gradient, "gradient"));
    NN_TRY(check_dim(gradient, "gradient", arguments[1].as.integer, &dim));
    NN_TRY(check_indices(indices));
    if (size < 0) {
        return shoal_fail(SHOAL_ERR_INVALID, "size: %" PRId64 " is negative", size);
    }
    if (shoal_tensor_shape(gradient)[dim] != shoal_tensor_shape(indices)[0]) {
        return shoal_fail(SHOAL_ERR_INVALID, "gradient has shape %s, which does not fit indices of %s",
                          nn_shape_text(gradient).text, nn_shape_text(indices).text);
    }
    return declare(call, gradient, dim, size);
}

static size_t row_bytes(const shoal_tensor *gradient)
{
    return nn_scratch_bytes((size_t)nn_last_size(gradient),
                            shoal_dtype_bytes(nn_real(shoal_tensor_dtype(gradient))));
}

WORKSPACE(index_select_backward)
{
    return nn_values_bytes(arguments[2].as.tensor) + row_bytes(arguments[0].as.tensor) +
           nn_values_bytes(outputs[0]);
}

RUN(index_select_backward)
{
    const shoal_tensor *gradient = arguments[0].as.tensor;
    const struct nn_loops *loops = nn_loops_of(nn_real(shoal_tensor_dtype(gradient)));
    size_t bytes = shoal_dtype_bytes(nn_real(shoal_tensor_dtype(gradient)));
    int dim = nn_dim(arguments[1].as.integer, gradient);
    int last = shoal_tensor_n_dims(gradient) - 1;
    struct nn_values indices = {.data = NULL};
    struct nn_values result = {.data = NULL};
    void *scratch = NULL;
    NN_TRY(nn_load_integers(call, arguments[2].as.tensor, &indices));
    NN_TRY(check_values(&indices, arguments[3].as.integer));
    NN_TRY(nn_scratch(call, 1, row_bytes(gradient), &scratch));
    NN_TRY(nn_open(call, outputs[0], /*keeps_values=*/false, &result));
    const void *data = shoal_data(gradient);
    NN_TRY(data ? SHOAL_OK : SHOAL_ERR_STATE);
    loops->fill(result.count, 0, result.data);
    const struct nn_rows rows = nn_rows_of(gradient, data, last);
    struct nn_row row = nn_row_at(&rows, 0);
    for (int64_t i = 0; rows.size > 0 && i < rows.count; i++) {
        const char *from = nn_row_read(&rows, &row, scratch);
        int64_t offset = offset_of(&row, last, shoal_tensor_strides(outputs[0]), dim, indices.data);
        char *to = (char *)result.data + (size_t)offset * bytes;
        const int64_t *index = indices.data;
        for (int64_t k = 0; dim == last && k < rows.size; k++) {
            loops->add(1, from + (size_t)k * bytes, to + (size_t)index[k] * bytes);
        }
        if (dim != last) {
            loops->add((size_t)rows.size, from, to);
        }
        nn_row_next(&rows, &row);
    }
    nn_store(outputs[0], &result);
    return SHOAL_OK;
}
