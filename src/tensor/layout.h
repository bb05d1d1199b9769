/* SPDX-License-Identifier: MIT */
/*
 * Arithmetic on shapes and strides, without tensors. Everything counts in elements and is checked for
 * overflow: a layout that passed layout_check can be walked with int64_t.
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

/* Only the dims that there are: the rest of `to` stays as it is. */
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

/* Number of dimensions within bounds, sizes not negative, and the product fits: the element count. */
shoal_status layout_count(int n_dims, const int64_t *shape, int64_t *count_out);

/* Row-major strides; dimensions of size 0 count as 1. */
void layout_fill_strides(int n_dims, const int64_t *shape, int64_t *strides_out);

bool layout_is_contiguous(int n_dims, const int64_t *shape, const int64_t *strides);

/* True when two indices may name one element: a stride of 0, or dimensions that interleave. Never wrong about
   "false". */
bool layout_may_self_overlap(int n_dims, const int64_t *shape, const int64_t *strides);

/* First and one past the last element that the layout touches, relative to its storage; equal when it is empty. */
shoal_status layout_extent(int n_dims, const int64_t *shape, const int64_t *strides, int64_t offset,
                           int64_t *first_out, int64_t *end_out);

/* 0 <= dim < n_dims after adding n_dims to a negative one; the error names the argument and the range. */
shoal_status layout_normalise_dim(const char *argument, int64_t dim, int n_dims, int *dim_out);

/* The shape with its one -1 replaced so that it has `count` elements. */
shoal_status layout_infer_shape(int64_t count, int n_dims, const int64_t *shape, int64_t *shape_out);

/* Strides of `new_shape` (same count) over the same elements; false when only a copy could do it. */
bool layout_view_strides(const struct layout *layout, int n_dims, const int64_t *new_shape,
                         int64_t *strides_out);

bool layout_is_same_shape(int a_dims, const int64_t *a_shape, int b_dims, const int64_t *b_shape);

/* The layout without that dimension, whose first index stays. */
void layout_remove_dim(struct layout *layout, int dim);

/* NumPy's broadcasting of two shapes. */
shoal_status layout_broadcast(int a_dims, const int64_t *a_shape, int b_dims, const int64_t *b_shape,
                              int *n_dims_out, int64_t *shape_out);

/* Strides that walk a tensor over a shape it broadcasts to: missing and size-1 dimensions get 0. */
void layout_broadcast_strides(int n_dims, const int64_t *shape, const int64_t *strides, int target_dims,
                              const int64_t *target_shape, int64_t *strides_out);

#endif
