/* SPDX-License-Identifier: MIT */
/* Rows by index. Rows are bytes on the way out; on the way back they are added in the order of the indices. */
#include <inttypes.h>
#include <string.h>

#include "functions.h"
#include "try.h"
#include "values.h"

static shoal_status check_indices(const struct nn_values *indices, int64_t n_rows)
{
    const int64_t *index = indices->data;
    for (size_t i = 0; i < indices->count; i++) {
        if (index[i] < 0 || index[i] >= n_rows) {
            return shoal_fail(SHOAL_ERR_INVALID,
                              "indices: element %zu is %" PRId64 ", not one of %" PRId64 " rows", i, index[i],
                              n_rows);
        }
    }
    return SHOAL_OK;
}

META(embedding)
{
    const shoal_tensor *indices = arguments[0].as.tensor;
    const shoal_tensor *weight = arguments[1].as.tensor;
    int n_dims = shoal_tensor_n_dims(indices);
    int64_t shape[SHOAL_MAX_DIMS + 1];
    NN_TRY(nn_check_integer(indices, "indices"));
    NN_TRY(nn_check_floating(weight, "weight"));
    if (shoal_tensor_n_dims(weight) != 2) {
        return shoal_fail(SHOAL_ERR_INVALID, "weight has shape %s, which is no matrix",
                          nn_shape_text(weight).text);
    }
    for (int i = 0; i < n_dims; i++) {
        shape[i] = shoal_tensor_shape(indices)[i];
    }
    shape[n_dims] = nn_last_size(weight);
    return shoal_op_output(call, shape, n_dims + 1, shoal_tensor_dtype(weight));
}

/* A row of strided elements into contiguous ones. */
static void copy_row(const char *from, int64_t stride, size_t count, size_t bytes, char *to)
{
    if (stride == 1) {
        memcpy(to, from, count * bytes);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        memcpy(to + i * bytes, from + (int64_t)i * stride * (int64_t)bytes, bytes);
    }
}

WORKSPACE(embedding)
{
    return nn_values_bytes(arguments[0].as.tensor); /* rows are copied as they are */
}

RUN(embedding)
{
    const shoal_tensor *weight = arguments[1].as.tensor;
    size_t bytes = shoal_dtype_bytes(shoal_tensor_dtype(weight));
    size_t size = (size_t)nn_last_size(weight);
    const int64_t *strides = shoal_tensor_strides(weight);
    struct nn_values indices = {.data = NULL};
    NN_TRY(nn_load_integers(call, arguments[0].as.tensor, &indices));
    NN_TRY(check_indices(&indices, shoal_tensor_shape(weight)[0]));
    const char *from = shoal_data(weight);
    char *to = shoal_mutable_data(outputs[0]);
    NN_TRY(from && to ? SHOAL_OK : SHOAL_ERR_STATE);
    const int64_t *index = indices.data;
    for (size_t i = 0; size > 0 && i < indices.count; i++) {
        copy_row(from + index[i] * strides[0] * (int64_t)bytes, strides[1], size, bytes,
                 to + i * size * bytes);
    }
    return SHOAL_OK;
}

GRADIENT(embedding)
{
    if (shoal_op_needs_gradient(call, 1)) {
        const shoal_value values[] = {nn_tensor(output_gradients[0]), arguments[0],
                                      nn_int(shoal_tensor_shape(arguments[1].as.tensor)[0])};
        input_gradients[1] = nn_call(NN_OP_embedding_backward, values, 3);
    }
    return shoal_scope_error();
}

META(embedding_backward)
{
    const shoal_tensor *gradient = arguments[0].as.tensor;
    const shoal_tensor *indices = arguments[1].as.tensor;
    int64_t n_rows = arguments[2].as.integer;
    NN_TRY(nn_check_floating(gradient, "gradient"));
    NN_TRY(nn_check_integer(indices, "indices"));
    if (n_rows < 0) {
        return shoal_fail(SHOAL_ERR_INVALID, "n_rows: %" PRId64 " is negative", n_rows);
    }
    if (shoal_tensor_n_dims(gradient) != shoal_tensor_n_dims(indices) + 1 ||
        nn_count_rows(gradient) != shoal_tensor_count(indices)) {
        return shoal_fail(SHOAL_ERR_INVALID, "gradient has shape %s, which does not fit indices of %s",
                          nn_shape_text(gradient).text, nn_shape_text(indices).text);
    }
    const int64_t shape[] = {n_rows, nn_last_size(gradient)};
    return shoal_op_output(call, shape, 2, shoal_tensor_dtype(gradient));
}

RUN(embedding_backward)
{
    const struct nn_loops *loops = nn_loops_of(nn_real(shoal_tensor_dtype(outputs[0])));
    size_t row_bytes =
        (size_t)nn_last_size(outputs[0]) * shoal_dtype_bytes(nn_real(shoal_tensor_dtype(outputs[0])));
    struct nn_values gradient = {.data = NULL};
    struct nn_values indices = {.data = NULL};
    struct nn_values result = {.data = NULL};
    NN_TRY(nn_load(call, arguments[0].as.tensor, &gradient));
    NN_TRY(nn_load_integers(call, arguments[1].as.tensor, &indices));
    NN_TRY(check_indices(&indices, arguments[2].as.integer));
    NN_TRY(nn_open(call, outputs[0], /*keeps_values=*/false, &result));
    loops->fill(result.count, 0, result.data);
    const int64_t *index = indices.data;
    for (size_t i = 0; i < indices.count; i++) {
        loops->add((size_t)nn_last_size(outputs[0]), (const char *)gradient.data + i * row_bytes,
                   (char *)result.data + (size_t)index[i] * row_bytes);
    }
    nn_store(outputs[0], &result);
    return SHOAL_OK;
}
