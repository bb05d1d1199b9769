/* SPDX-License-Identifier: MIT */
/* Rows of tensors, and functions of each row; see rows.h. */
#include "rows.h"

#include "pool.h"
#include "try.h"

struct nn_rows nn_rows_of(const shoal_tensor *tensor, const void *data, int dim)
{
    struct nn_layout layout = nn_layout_of(tensor);
    struct nn_rows rows = {.data = (char *)(uintptr_t)data,
                           .dtype = shoal_tensor_dtype(tensor),
                           .size = layout.n_dims > 0 ? layout.shape[dim] : 1,
                           .stride = layout.n_dims > 0 ? layout.strides[dim] : 1,
                           .count = 1};
    for (int i = 0; i < layout.n_dims; i++) {
        if (i != dim) {
            rows.outer.shape[rows.outer.n_dims] = layout.shape[i];
            rows.outer.strides[rows.outer.n_dims++] = layout.strides[i];
            rows.count *= layout.shape[i];
        }
    }
    rows.is_in_place = rows.dtype == nn_real(rows.dtype) && (rows.stride == 1 || rows.size == 1);
    return rows;
}

struct nn_row nn_row_at(const struct nn_rows *rows, int64_t number)
{
    struct nn_row row = {.offset = 0};
    for (int i = rows->outer.n_dims - 1; i >= 0; i--) {
        int64_t size = rows->outer.shape[i] > 0 ? rows->outer.shape[i] : 1;
        row.index[i] = number % size;
        row.offset += row.index[i] * rows->outer.strides[i];
        number /= size;
    }
    return row;
}

void nn_row_next(const struct nn_rows *rows, struct nn_row *row)
{
    for (int i = rows->outer.n_dims - 1; i >= 0; i--) {
        row->offset += rows->outer.strides[i];
        if (++row->index[i] < rows->outer.shape[i]) {
            return;
        }
        row->offset -= rows->outer.shape[i] * rows->outer.strides[i];
        row->index[i] = 0;
    }
}

static char *address(const struct nn_rows *rows, const struct nn_row *row)
{
    return rows->data + row->offset * (int64_t)shoal_dtype_bytes(rows->dtype);
}

const void *nn_row_read(const struct nn_rows *rows, const struct nn_row *row, void *scratch)
{
    if (rows->is_in_place) {
        return address(rows, row);
    }
    nn_read_row(address(rows, row), rows->dtype, rows->size, rows->stride, scratch);
    return scratch;
}

void *nn_row_open(const struct nn_rows *rows, const struct nn_row *row, void *scratch)
{
    return rows->is_in_place ? address(rows, row) : scratch;
}

void nn_row_store(const struct nn_rows *rows, const struct nn_row *row, const void *values)
{
    if (!rows->is_in_place) {
        nn_write_row(address(rows, row), rows->dtype, rows->size, rows->stride, values);
    }
}

/* A function of each row ------------------------------------------------------------------------------- */

struct map {
    struct nn_rows inputs[NN_MAP_MAX_INPUTS];
    size_t n_inputs;
    struct nn_rows output;
    const struct nn_loops *loops;
    nn_map_function function;
    const void *context;
    char *scratch; /* for each part and each tensor a row */
    size_t row_bytes;
    size_t n_parts;
};

static void map_part(void *context, size_t part)
{
    const struct map *map = context;
    int64_t first = (int64_t)nn_part_first((size_t)map->output.count, map->n_parts, part);
    int64_t end = (int64_t)nn_part_first((size_t)map->output.count, map->n_parts, part + 1);
    char *scratch = map->scratch + part * (map->n_inputs + 1) * map->row_bytes;
    char *result_scratch = scratch + map->n_inputs * map->row_bytes;
    struct nn_row rows[NN_MAP_MAX_INPUTS];
    const void *values[NN_MAP_MAX_INPUTS];
    struct nn_row to = nn_row_at(&map->output, first);
    for (size_t k = 0; k < map->n_inputs; k++) {
        rows[k] = nn_row_at(&map->inputs[k], first);
    }
    for (int64_t i = first; i < end; i++) {
        for (size_t k = 0; k < map->n_inputs; k++) {
            values[k] = nn_row_read(&map->inputs[k], &rows[k], scratch + k * map->row_bytes);
            nn_row_next(&map->inputs[k], &rows[k]);
        }
        void *result = nn_row_open(&map->output, &to, result_scratch);
        map->function(map->loops, (size_t)map->output.size, values, result, map->context);
        nn_row_store(&map->output, &to, result);
        nn_row_next(&map->output, &to);
    }
}

size_t nn_row_parts(const struct nn_rows *rows)
{
    return rows->count > 0 && rows->size > 0 ? nn_parts((size_t)rows->count, (size_t)rows->size) : 0;
}

/* True when nothing goes through scratch memory. */
static bool describe(shoal_tensor *const *inputs, size_t n_inputs, int dim, const shoal_tensor *output,
                     struct map *map)
{
    map->output = nn_rows_of(output, NULL, dim);
    map->n_inputs = n_inputs;
    map->n_parts = nn_row_parts(&map->output);
    map->row_bytes =
        nn_scratch_bytes((size_t)map->output.size, shoal_dtype_bytes(nn_real(map->output.dtype)));
    bool is_in_place = map->output.is_in_place;
    for (size_t i = 0; i < n_inputs; i++) {
        map->inputs[i] = nn_rows_of(inputs[i], NULL, dim);
        is_in_place = is_in_place && map->inputs[i].is_in_place;
    }
    return is_in_place || map->n_parts == 0;
}

size_t nn_map_rows_bytes(shoal_tensor *const *inputs, size_t n_inputs, int dim, const shoal_tensor *output)
{
    struct map map;
    return describe(inputs, n_inputs, dim, output, &map) ? 0 : map.n_parts * (n_inputs + 1) * map.row_bytes;
}

shoal_status nn_map_rows(shoal_op_call_context *call, shoal_tensor *const *inputs, size_t n_inputs, int dim,
                         shoal_tensor *output, nn_map_function function, const void *context)
{
    struct map map = {
        .loops = nn_loops_of(nn_real(shoal_tensor_dtype(output))), .function = function, .context = context};
    if (!describe(inputs, n_inputs, dim, output, &map)) {
        void *scratch;
        NN_TRY(nn_scratch(call, map.n_parts * (n_inputs + 1), map.row_bytes, &scratch));
        map.scratch = scratch;
    }
    for (size_t i = 0; i < n_inputs; i++) {
        map.inputs[i].data = (char *)(uintptr_t)shoal_data(inputs[i]);
        NN_TRY(map.inputs[i].data ? SHOAL_OK : SHOAL_ERR_STATE); /* the text is there already */
    }
    map.output.data = shoal_mutable_data(output);
    NN_TRY(map.output.data ? SHOAL_OK : SHOAL_ERR_STATE);
    nn_parallel(map.n_parts, map_part, &map);
    return SHOAL_OK;
}
