/* SPDX-License-Identifier: MIT */
/* Rows by index. Rows are bytes on the way out; on the way back they are added in the order of the indices. */
#include <inttypes.h>
#include <string.h>

#include "ops/functions.h"
#include "math/pool.h"
#include "common/try.h"
#include "ops/values.h"

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
        return shoal_fail(SHOAL_ERR_INVALID, "weight has shape %s, which is not a matrix",
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

struct lookup {
    const int64_t *index;
    const char *from;
    const int64_t *strides;
    size_t size;  /* elements of a row */
    size_t bytes; /* of an element */
    char *to;
};

static void look_up(void *context, size_t first, size_t end)
{
    const struct lookup *lookup = context;
    for (size_t i = first; i < end; i++) {
        copy_row(lookup->from + lookup->index[i] * lookup->strides[0] * (int64_t)lookup->bytes,
                 lookup->strides[1], lookup->size, lookup->bytes,
                 lookup->to + i * lookup->size * lookup->bytes);
    }
}

WORKSPACE(embedding)
{
    return nn_values_bytes(arguments[0].as.tensor); /* rows are copied as they are */
}

RUN(embedding)
{
    const shoal_tensor *weight = arguments[1].as.tensor;
    struct nn_values indices = {.data = NULL};
    NN_TRY(nn_load_integers(call, arguments[0].as.tensor, &indices));
    NN_TRY(check_indices(&indices, shoal_tensor_shape(weight)[0]));
    const char *from = shoal_data(weight);
    char *to = shoal_mutable_data(outputs[0]);
    NN_TRY(from && to ? SHOAL_OK : SHOAL_ERR_STATE);
    struct lookup lookup = {.index = indices.data,
                            .from = from,
                            .strides = shoal_tensor_strides(weight),
                            .size = (size_t)nn_last_size(weight),
                            .bytes = shoal_dtype_bytes(shoal_tensor_dtype(weight)),
                            .to = to};
    if (lookup.size > 0) {
        nn_parallel_ranges(indices.count, lookup.size, look_up, &lookup);
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

/* Columns that one thread adds at least: a few lines of cache. */
#define COLUMNS 64

/* Every part has columns of its own and adds them in the order of the indices. */
struct addition {
    const struct nn_loops *loops;
    const int64_t *index;
    size_t n_indices;
    size_t n_rows;
    size_t size;  /* elements of a row */
    size_t bytes; /* of an element */
    const char *gradient;
    char *sums;
};

static void add_columns(void *context, size_t first_block, size_t end_block)
{
    const struct addition *addition = context;
    size_t first = first_block * COLUMNS;
    size_t end = end_block * COLUMNS < addition->size ? end_block * COLUMNS : addition->size;
    size_t row_bytes = addition->size * addition->bytes;
    size_t offset = first * addition->bytes;
    for (size_t i = 0; i < addition->n_rows; i++) {
        addition->loops->fill(end - first, 0, addition->sums + i * row_bytes + offset);
    }
    for (size_t i = 0; i < addition->n_indices; i++) {
        addition->loops->add(end - first, addition->gradient + i * row_bytes + offset,
                             addition->sums + (size_t)addition->index[i] * row_bytes + offset);
    }
}

RUN(embedding_backward)
{
    const struct nn_loops *loops = nn_loops_of(nn_real(shoal_tensor_dtype(outputs[0])));
    struct nn_values gradient = {.data = NULL};
    struct nn_values indices = {.data = NULL};
    struct nn_values result = {.data = NULL};
    NN_TRY(nn_load(call, arguments[0].as.tensor, &gradient));
    NN_TRY(nn_load_integers(call, arguments[1].as.tensor, &indices));
    NN_TRY(check_indices(&indices, arguments[2].as.integer));
    NN_TRY(nn_open(call, outputs[0], /*keeps_values=*/false, &result));
    struct addition addition = {.loops = loops,
                                .index = indices.data,
                                .n_indices = indices.count,
                                .n_rows = (size_t)arguments[2].as.integer,
                                .size = (size_t)nn_last_size(outputs[0]),
                                .bytes = shoal_dtype_bytes(nn_real(shoal_tensor_dtype(outputs[0]))),
                                .gradient = gradient.data,
                                .sums = result.data};
    nn_parallel_ranges((addition.size + COLUMNS - 1) / COLUMNS,
                       COLUMNS * (addition.n_indices + addition.n_rows), add_columns, &addition);
    nn_store(outputs[0], &result);
    return SHOAL_OK;
}
