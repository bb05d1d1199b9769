/* SPDX-License-Identifier: MIT */
/* Rows of tensors, and functions of each row; see rows.h. */
#include "ops/rows.h"

#include <string.h>

#include "math/pool.h"
#include "common/try.h"

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

/* Several rows ----------------------------------------------------------------------------------------- */

/*
 * Rows along a dimension other than the last are interleaved in memory. Reading them one by one would fetch a whole
 * cache line for each element. So TOGETHER of them are read and written at a time.
 */
enum {
    TOGETHER = 16,
    MAX_PARTS_TOGETHER = 16 /* parts of the work then have memory for so many rows each */
};

static bool are_beside_each_other(const struct nn_rows *rows)
{
    int last = rows->outer.n_dims - 1;
    return !rows->is_in_place && last >= 0 && rows->stride != 1 && rows->outer.strides[last] == 1;
}

/* How many rows from this one on, at most n, are neighbours in the last of the other dimensions. */
static int64_t count_neighbours(const struct nn_rows *rows, const struct nn_row *row, int64_t n)
{
    int last = rows->outer.n_dims - 1;
    int64_t n_left = last < 0 ? 1 : rows->outer.shape[last] - row->index[last];
    n = n < n_left ? n : n_left;
    return n < TOGETHER ? n : TOGETHER;
}

static void read_together(const struct nn_rows *rows, const struct nn_row *row, int64_t n, char *scratch,
                          size_t row_bytes)
{
    const size_t bytes = shoal_dtype_bytes(nn_real(rows->dtype));
    const char *from = address(rows, row);
    for (int64_t i = 0; i < rows->size; i++) {
        double values[TOGETHER]; /* or floats */
        nn_read_row(from, rows->dtype, n, 1, values);
        for (int64_t k = 0; k < n; k++) {
            char *to = scratch + (size_t)k * row_bytes + (size_t)i * bytes;
            memcpy(to, (const char *)values + (size_t)k * bytes, bytes == 4 ? 4 : 8);
        }
        from += rows->stride * (int64_t)shoal_dtype_bytes(rows->dtype);
    }
}

static void write_together(const struct nn_rows *rows, const struct nn_row *row, int64_t n,
                           const char *scratch, size_t row_bytes)
{
    const size_t bytes = shoal_dtype_bytes(nn_real(rows->dtype));
    char *to = address(rows, row);
    for (int64_t i = 0; i < rows->size; i++) {
        double values[TOGETHER];
        for (int64_t k = 0; k < n; k++) {
            const char *from = scratch + (size_t)k * row_bytes + (size_t)i * bytes;
            memcpy((char *)values + (size_t)k * bytes, from, bytes == 4 ? 4 : 8);
        }
        nn_write_row(to, rows->dtype, n, 1, values);
        to += rows->stride * (int64_t)shoal_dtype_bytes(rows->dtype);
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
    char *scratch; /* for each part and each tensor `n_together` rows */
    size_t row_bytes;
    size_t n_together;
    size_t n_parts;
};

/* Memory of a part for rows of a tensor; the output is the last one. */
static char *scratch_of(const struct map *map, size_t part, size_t tensor)
{
    return map->scratch + (part * (map->n_inputs + 1) + tensor) * map->n_together * map->row_bytes;
}

/* The rows from `rows` on, n of them; they are those behind afterwards. */
static void map_some(const struct map *map, size_t part, struct nn_row *rows, struct nn_row *to, int64_t n)
{
    const void *values[NN_MAP_MAX_INPUTS];
    char *results = scratch_of(map, part, map->n_inputs);
    const struct nn_row first = *to;
    const bool writes_together = n > 1 && are_beside_each_other(&map->output);
    for (size_t k = 0; k < map->n_inputs && n > 1; k++) {
        if (are_beside_each_other(&map->inputs[k])) {
            read_together(&map->inputs[k], &rows[k], n, scratch_of(map, part, k), map->row_bytes);
        }
    }
    for (int64_t i = 0; i < n; i++) {
        for (size_t k = 0; k < map->n_inputs; k++) {
            char *scratch = scratch_of(map, part, k) + (size_t)i * map->row_bytes;
            bool is_read = n > 1 && are_beside_each_other(&map->inputs[k]);
            values[k] = is_read ? scratch : nn_row_read(&map->inputs[k], &rows[k], scratch);
            nn_row_next(&map->inputs[k], &rows[k]);
        }
        void *result = nn_row_open(&map->output, to, results + (size_t)i * map->row_bytes);
        map->function(map->loops, (size_t)map->output.size, values, result, map->context);
        if (!writes_together) {
            nn_row_store(&map->output, to, result);
        }
        nn_row_next(&map->output, to);
    }
    if (writes_together) {
        write_together(&map->output, &first, n, results, map->row_bytes);
    }
}

static void map_part(void *context, size_t part)
{
    const struct map *map = context;
    int64_t at = (int64_t)nn_part_first((size_t)map->output.count, map->n_parts, part);
    int64_t end = (int64_t)nn_part_first((size_t)map->output.count, map->n_parts, part + 1);
    struct nn_row rows[NN_MAP_MAX_INPUTS];
    struct nn_row to = nn_row_at(&map->output, at);
    for (size_t k = 0; k < map->n_inputs; k++) {
        rows[k] = nn_row_at(&map->inputs[k], at);
    }
    while (at < end) {
        int64_t n = map->n_together > 1 ? count_neighbours(&map->output, &to, end - at) : 1;
        map_some(map, part, rows, &to, n);
        at += n;
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
    bool is_beside = are_beside_each_other(&map->output);
    for (size_t i = 0; i < n_inputs; i++) {
        map->inputs[i] = nn_rows_of(inputs[i], NULL, dim);
        is_in_place = is_in_place && map->inputs[i].is_in_place;
        is_beside = is_beside || are_beside_each_other(&map->inputs[i]);
    }
    map->n_together = is_beside ? TOGETHER : 1;
    if (is_beside && map->n_parts > MAX_PARTS_TOGETHER) {
        map->n_parts = MAX_PARTS_TOGETHER;
    }
    return is_in_place || map->n_parts == 0;
}

size_t nn_map_rows_bytes(shoal_tensor *const *inputs, size_t n_inputs, int dim, const shoal_tensor *output)
{
    struct map map;
    return describe(inputs, n_inputs, dim, output, &map)
               ? 0
               : map.n_parts * (n_inputs + 1) * map.n_together * map.row_bytes;
}

shoal_status nn_map_rows(shoal_op_call_context *call, shoal_tensor *const *inputs, size_t n_inputs, int dim,
                         shoal_tensor *output, nn_map_function function, const void *context)
{
    struct map map = {
        .loops = nn_loops_of(nn_real(shoal_tensor_dtype(output))), .function = function, .context = context};
    if (!describe(inputs, n_inputs, dim, output, &map)) {
        void *scratch;
        NN_TRY(nn_scratch(call, map.n_parts * (n_inputs + 1) * map.n_together, map.row_bytes, &scratch));
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
