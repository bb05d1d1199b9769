/* SPDX-License-Identifier: MIT */
/*
 * Tensors as rows along one of their dimensions, with any strides. A row that is already an array of floats or doubles
 * is used in place; any other row is copied through scratch memory for one row. So an op on rows needs scratch memory
 * for a few rows, however large its tensors are.
 */
#ifndef NN_OPS_ROWS_H
#define NN_OPS_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "math/loops.h"
#include "ops/values.h"

struct nn_rows {
    char *data;
    shoal_dtype dtype;
    int64_t size;           /* elements of a row */
    int64_t stride;         /* between them */
    int64_t count;          /* how many rows */
    bool is_in_place;       /* rows are floats or doubles, one after the other */
    struct nn_layout outer; /* the other dimensions, in their order */
};

/* A row: where it begins, and its indices in the other dimensions. */
struct nn_row {
    int64_t offset;
    int64_t index[SHOAL_MAX_DIMS];
};

/* dim counts from 0; of a tensor without dimensions it is 0, and there is one row of one element. */
struct nn_rows nn_rows_of(const shoal_tensor *tensor, const void *data, int dim);

/* The row of that number, in row-major order of the other dimensions; then the one after it. */
struct nn_row nn_row_at(const struct nn_rows *rows, int64_t number);
void nn_row_next(const struct nn_rows *rows, struct nn_row *row);

/* To read: in place, or read into the scratch memory of a row. */
const void *nn_row_read(const struct nn_rows *rows, const struct nn_row *row, void *scratch);
/* To write: in place or the scratch memory, which nn_row_store writes to the tensor. */
void *nn_row_open(const struct nn_rows *rows, const struct nn_row *row, void *scratch);
void nn_row_store(const struct nn_rows *rows, const struct nn_row *row, const void *values);

/* Into how many parts the rows are cut for nn_parallel; 0 when there are no elements. */
size_t nn_row_parts(const struct nn_rows *rows);

enum {
    NN_MAP_MAX_INPUTS = 3
};

/* One row of the result from one row of each input. The loops are those of the dtype that is computed in. */
typedef void (*nn_map_function)(const struct nn_loops *loops, size_t n, const void *const *inputs,
                                void *result, const void *context);

/*
 * Calls the function for every row along the dimension, from several threads at once. Inputs and output have the same
 * shape and are computed in the same dtype.
 */
shoal_status nn_map_rows(shoal_op_call_context *call, shoal_tensor *const *inputs, size_t n_inputs, int dim,
                         shoal_tensor *output, nn_map_function function, const void *context);
/* What that takes of the workspace. */
size_t nn_map_rows_bytes(shoal_tensor *const *inputs, size_t n_inputs, int dim, const shoal_tensor *output);

#endif
