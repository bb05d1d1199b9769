/* SPDX-License-Identifier: MIT */
/*
 * The built-in operations as typed functions. Operations that others of them express (flatten, split, stack, lists),
 * and those with which FSDP packs and unpacks, have functions in shoal/compat_torch.h; every one can be called by its
 * name (shoal/op.h).
 *
 * Dimensions may be negative (-1 is the last). Shapes broadcast as in NumPy. Two tensors in one call have
 * the same dtype: casts are explicit (shoal_to_dtype). Integer division truncates; by zero it gives zero.
 *
 * Ownership: results belong to the innermost scope. Lists are arrays owned by the scope.
 * Threads: any, each in its own scope.
 * Errors: NULL, with the reason in the scope (shoal/scope.h).
 */
#ifndef SHOAL_OPS_H
#define SHOAL_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/api.h"
#include "shoal/dtype.h"
#include "shoal/tensor.h"

SHOAL_BEGIN_DECLS

/* Making ----------------------------------------------------------------------------------------------- */

/* Contents undefined. */
SHOAL_API shoal_tensor *shoal_empty(const int64_t *shape, int n_dims, shoal_dtype dtype);
SHOAL_API shoal_tensor *shoal_empty_on(const int64_t *shape, int n_dims, shoal_dtype dtype,
                                       shoal_device device);
/* Every element 0, or `value`. */
SHOAL_API shoal_tensor *shoal_zeros(const int64_t *shape, int n_dims, shoal_dtype dtype);
SHOAL_API shoal_tensor *shoal_full(const int64_t *shape, int n_dims, double value, shoal_dtype dtype);

/* Copying ---------------------------------------------------------------------------------------------- */

/* Always a copy, contiguous. */
SHOAL_API shoal_tensor *shoal_clone(shoal_tensor *self);
/* The tensor itself when it is contiguous, otherwise a copy. */
SHOAL_API shoal_tensor *shoal_contiguous(shoal_tensor *self);
/* Writes `source`, broadcast and cast, into `self`. They may overlap. */
SHOAL_API shoal_tensor *shoal_copy_(shoal_tensor *self, shoal_tensor *source);
/* The tensor itself when the dtype is its own, otherwise a cast copy. */
SHOAL_API shoal_tensor *shoal_to_dtype(shoal_tensor *self, shoal_dtype dtype);

/* Views ------------------------------------------------------------------------------------------------ */

/* One entry of `shape` may be -1. An error when the strides do not allow a view. */
SHOAL_API shoal_tensor *shoal_view(shoal_tensor *self, const int64_t *shape, int n_dims);
/*
 * A view of the same bytes as another dtype; the tensor itself when the dtype is its own. Sizes of elements that differ
 * scale the last dimension, which must then be there and lie densely; for larger elements its size, the other strides
 * and the offset must be whole in them. No gradient flows through: refused where one is needed, detach first.
 */
SHOAL_API shoal_tensor *shoal_view_dtype(shoal_tensor *self, shoal_dtype dtype);
/* A view where the strides allow it, otherwise a copy. */
SHOAL_API shoal_tensor *shoal_reshape(shoal_tensor *self, const int64_t *shape, int n_dims);
SHOAL_API shoal_tensor *shoal_narrow(shoal_tensor *self, int64_t dim, int64_t start, int64_t length);
/* start:stop:step as in NumPy: negative counts from the end, out of range is clamped; step > 0. */
SHOAL_API shoal_tensor *shoal_slice(shoal_tensor *self, int64_t dim, int64_t start, int64_t stop,
                                    int64_t step);
SHOAL_API shoal_tensor *shoal_select(shoal_tensor *self, int64_t dim, int64_t index);
SHOAL_API shoal_tensor *shoal_permute(shoal_tensor *self, const int64_t *dims, int n_dims);
SHOAL_API shoal_tensor *shoal_transpose(shoal_tensor *self, int64_t dim_a, int64_t dim_b);
/* Broadcast to a larger shape without copying; -1 keeps a size. */
SHOAL_API shoal_tensor *shoal_expand(shoal_tensor *self, const int64_t *shape, int n_dims);
/* Any view of the storage that stays inside it; the offset counts from the storage's start. */
SHOAL_API shoal_tensor *shoal_as_strided(shoal_tensor *self, const int64_t *shape, const int64_t *strides,
                                         int n_dims, int64_t offset);

/* Splitting and joining -------------------------------------------------------------------------------- */

/* Views of consecutive pieces along a dimension, sizes[i] long, which add up to its size; *count_out is n_sizes. */
SHOAL_API shoal_tensor *const *shoal_split_with_sizes(shoal_tensor *self, const int64_t *sizes,
                                                      size_t n_sizes, int64_t dim, size_t *count_out);
/* The tensors one after the other along a dimension; a copy. */
SHOAL_API shoal_tensor *shoal_cat(shoal_tensor *const *tensors, size_t n_tensors, int64_t dim);

/* Arithmetic ------------------------------------------------------------------------------------------- */

/* Element by element, into a new tensor. */
SHOAL_API shoal_tensor *shoal_add(shoal_tensor *self, shoal_tensor *other);
SHOAL_API shoal_tensor *shoal_sub(shoal_tensor *self, shoal_tensor *other);
SHOAL_API shoal_tensor *shoal_mul(shoal_tensor *self, shoal_tensor *other);
SHOAL_API shoal_tensor *shoal_div(shoal_tensor *self, shoal_tensor *other);
SHOAL_API shoal_tensor *shoal_neg(shoal_tensor *self);

/* The number is rounded to a floating dtype. To an integer dtype it must be whole and within 64 bits, and wraps:
   shoal_add_scalar(u8, -1) subtracts 1. Whole numbers beyond 2^53 are exact as boxed ints only (shoal/op.h). */
SHOAL_API shoal_tensor *shoal_add_scalar(shoal_tensor *self, double other);
SHOAL_API shoal_tensor *shoal_mul_scalar(shoal_tensor *self, double other);
SHOAL_API shoal_tensor *shoal_div_scalar(shoal_tensor *self, double other);

/* In place; the result is `self`, whose shape does not change. */
SHOAL_API shoal_tensor *shoal_add_(shoal_tensor *self, shoal_tensor *other);
SHOAL_API shoal_tensor *shoal_sub_(shoal_tensor *self, shoal_tensor *other);
SHOAL_API shoal_tensor *shoal_mul_(shoal_tensor *self, shoal_tensor *other);
SHOAL_API shoal_tensor *shoal_add_scalar_(shoal_tensor *self, double other);
SHOAL_API shoal_tensor *shoal_mul_scalar_(shoal_tensor *self, double other);

/* Over `dims`, or over all when n_dims is 0. Small floats are added in f64 and rounded once. */
SHOAL_API shoal_tensor *shoal_sum(shoal_tensor *self, const int64_t *dims, int n_dims, bool keeps_dims);
SHOAL_API shoal_tensor *shoal_mean(shoal_tensor *self, const int64_t *dims, int n_dims, bool keeps_dims);

SHOAL_END_DECLS

#endif
