/* SPDX-License-Identifier: MIT */
/*
 * Arithmetic on shapes and strides, without tensors. Everything is counted in elements and checked for overflow: for a
 * layout that layout_extent accepts, all offsets fit int64_t.
 */
#ifndef TENSOR_LAYOUT_H
#define TENSOR_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/tensor.h"

/* A view of a storage. */
struct layout {
    int n_dims;
    int64_t offset;
    int64_t shape[SHOAL_MAX_DIMS];
    int64_t strides[SHOAL_MAX_DIMS];
};

/* Copies only the dimensions that `from` has; the rest of `to` stays as it is. */
static inline void layout_copy(struct layout *to, const struct layout *from)
{
    to->n_dims = from->n_dims;
    to->offset = from->offset;
    for (int i = 0; i < from->n_dims; i++) {
        to->shape[i] = from->shape[i];
        to->strides[i] = from->strides[i];
    }
}

/* Room for "[-9223372036854775808, ...]" of SHOAL_MAX_DIMS numbers. */
#define LAYOUT_TEXT_BYTES 192

/* Writes "[2, 3]" and returns `text`. */
const char *layout_format(char text[LAYOUT_TEXT_BYTES], int n_dims, const int64_t *numbers);

/* Checks the number of dimensions, that no size is negative, and that the number of elements fits; gives that
   number. */
shoal_status layout_count(int n_dims, const int64_t *shape, int64_t *count_out);

/* Row-major strides; dimensions of size 0 count as 1. */
void layout_fill_strides(int n_dims, const int64_t *shape, int64_t *strides_out);

bool layout_is_contiguous(int n_dims, const int64_t *shape, const int64_t *strides);

/* Whether two indices may be the same element: a stride of 0, or dimensions that interleave. "False" is certain. */
bool layout_may_self_overlap(int n_dims, const int64_t *shape, const int64_t *strides);

/* First and one past the last element that the layout touches, relative to its storage; equal when it is empty. */
shoal_status layout_extent(int n_dims, const int64_t *shape, const int64_t *strides, int64_t offset,
                           int64_t *first_out, int64_t *end_out);

/* Adds n_dims to a negative dimension, and checks that it exists. The error names the argument and the range. */
shoal_status layout_normalise_dim(const char *argument, int64_t dim, int n_dims, int *dim_out);

/* The shape with its one -1 replaced so that it has `count` elements. */
shoal_status layout_infer_shape(int64_t count, int n_dims, const int64_t *shape, int64_t *shape_out);

/* Gives the strides of `new_shape`, which has as many elements, over the same memory. Returns false if it needs a
   copy. */
bool layout_view_strides(const struct layout *layout, int n_dims, const int64_t *new_shape,
                         int64_t *strides_out);

bool layout_is_same_shape(int a_dims, const int64_t *a_shape, int b_dims, const int64_t *b_shape);

/* Removes a dimension; elements with index 0 in it stay. */
void layout_remove_dim(struct layout *layout, int dim);

/* NumPy's broadcasting of two shapes. */
shoal_status layout_broadcast(int a_dims, const int64_t *a_shape, int b_dims, const int64_t *b_shape,
                              int *n_dims_out, int64_t *shape_out);

/* Gives the strides of a tensor that is broadcast to a shape: missing dimensions and those of size 1 get 0. */
void layout_broadcast_strides(int n_dims, const int64_t *shape, const int64_t *strides, int target_dims,
                              const int64_t *target_shape, int64_t *strides_out);

#endif
