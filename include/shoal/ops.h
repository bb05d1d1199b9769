/* SPDX-License-Identifier: MIT */
/*
 * The built-in operations on tensors, as functions: making, copying, viewing and joining tensors, and arithmetic. Their
 * names and meanings are PyTorch's; a name that ends in "_" works in place. Matrix products and layers are in
 * shoal_nn/nn.h. Further operations, which these can express (flatten, split, stack, operations on lists), have
 * functions in shoal_compat/torch.h, and every operation can be called by its name (shoal/op.h). Operations record
 * gradients (shoal/autograd.h), except where it says that they have none.
 *
 * Dimensions are counted from 0, or from the end by negative numbers: -1 is the last. Shapes broadcast as in NumPy.
 * Tensors in one call have the same dtype and device; cast with shoal_to_dtype. A view shares the memory of its tensor;
 * a copy is contiguous.
 *
 * Ownership: results belong to the innermost scope, and so do returned lists.
 * Threads: any, each in its own scope.
 * Errors: NULL, with the reason in the scope (shoal/scope.h). Shapes, dtypes or numbers that do not fit are
 * SHOAL_ERR_INVALID; an operation that a dtype does not have is SHOAL_ERR_UNSUPPORTED.
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

/* Make a tensor with undefined contents: on the CPU, or on `device`. */
SHOAL_API shoal_tensor *shoal_empty(const int64_t *shape, int n_dims, shoal_dtype dtype);
SHOAL_API shoal_tensor *shoal_empty_on(const int64_t *shape, int n_dims, shoal_dtype dtype,
                                       shoal_device device);
/* Make a tensor on the CPU whose elements are all 0, or all `value`. */
SHOAL_API shoal_tensor *shoal_zeros(const int64_t *shape, int n_dims, shoal_dtype dtype);
SHOAL_API shoal_tensor *shoal_full(const int64_t *shape, int n_dims, double value, shoal_dtype dtype);

/* Copying ---------------------------------------------------------------------------------------------- */

/* Copies the tensor, always. */
SHOAL_API shoal_tensor *shoal_clone(shoal_tensor *self);
/* Returns the tensor itself if it is contiguous, otherwise a copy. */
SHOAL_API shoal_tensor *shoal_contiguous(shoal_tensor *self);
/* Writes `source`, broadcast and cast, into `self`, and returns `self`. They may overlap in memory. */
SHOAL_API shoal_tensor *shoal_copy_(shoal_tensor *self, shoal_tensor *source);
/* Returns the tensor itself if it has that dtype, otherwise a cast copy. */
SHOAL_API shoal_tensor *shoal_to_dtype(shoal_tensor *self, shoal_dtype dtype);
/* Returns the tensor itself if it is on that device, otherwise a contiguous copy there. To the CPU, it waits until the
   copy is made. */
SHOAL_API shoal_tensor *shoal_to_device(shoal_tensor *self, shoal_device device);

/* Views ------------------------------------------------------------------------------------------------ */

/* Gives a view with another shape and the same number of elements. One entry of `shape` may be -1; it is computed from
   the others. SHOAL_ERR_INVALID: the strides do not allow a view (use shoal_reshape). */
SHOAL_API shoal_tensor *shoal_view(shoal_tensor *self, const int64_t *shape, int n_dims);
/*
 * Gives a view of the same bytes as another dtype; the tensor itself if it has that dtype. If the elements have another
 * size, the size of the last dimension changes accordingly. That dimension must then exist and be contiguous, and for
 * larger elements its size, the other strides and the offset must be whole numbers of them. Has no gradient: detach a
 * tensor that requires one first (shoal_detach).
 */
SHOAL_API shoal_tensor *shoal_view_dtype(shoal_tensor *self, shoal_dtype dtype);
/* Gives another shape, as shoal_view does: a view if the strides allow it, otherwise a copy. */
SHOAL_API shoal_tensor *shoal_reshape(shoal_tensor *self, const int64_t *shape, int n_dims);
/* Gives a view of `length` indices of a dimension, from `start` on. */
SHOAL_API shoal_tensor *shoal_narrow(shoal_tensor *self, int64_t dim, int64_t start, int64_t length);
/* Gives a view of start:stop:step of a dimension, as in NumPy: negative indices count from the end, and
   indices out of range are clamped. step is at least 1. */
SHOAL_API shoal_tensor *shoal_slice(shoal_tensor *self, int64_t dim, int64_t start, int64_t stop,
                                    int64_t step);
/* Gives a view of one index of a dimension, which disappears. A negative index counts from the end. */
SHOAL_API shoal_tensor *shoal_select(shoal_tensor *self, int64_t dim, int64_t index);
/* Gives a view with the dimensions in the order of `dims`, or with two of them exchanged. */
SHOAL_API shoal_tensor *shoal_permute(shoal_tensor *self, const int64_t *dims, int n_dims);
SHOAL_API shoal_tensor *shoal_transpose(shoal_tensor *self, int64_t dim_a, int64_t dim_b);
/* Gives a view that repeats dimensions of size 1, and new ones in front, to a larger shape, without copying. -1 keeps a
   size. */
SHOAL_API shoal_tensor *shoal_expand(shoal_tensor *self, const int64_t *shape, int n_dims);
/* Gives any view of the tensor's storage that stays inside it. Strides and offset are in elements, the offset from the
   start of the storage. */
SHOAL_API shoal_tensor *shoal_as_strided(shoal_tensor *self, const int64_t *shape, const int64_t *strides,
                                         int n_dims, int64_t offset);

/* Splitting and joining -------------------------------------------------------------------------------- */

/* Gives a list of views: consecutive pieces of a dimension, sizes[i] long. The sizes add up to the size of the
   dimension. *count_out becomes n_sizes; count_out may be NULL. */
SHOAL_API shoal_tensor *const *shoal_split_with_sizes(shoal_tensor *self, const int64_t *sizes,
                                                      size_t n_sizes, int64_t dim, size_t *count_out);
/* Copies tensors one after the other along a dimension. Their other dimensions are equal. */
SHOAL_API shoal_tensor *shoal_cat(shoal_tensor *const *tensors, size_t n_tensors, int64_t dim);

/* Arithmetic ------------------------------------------------------------------------------------------- */

/* Compute element by element, into a new tensor. Integers wrap; their quotients are cut towards zero, and division by
   zero gives 0. sub, div and neg are not offered for bool. */
SHOAL_API shoal_tensor *shoal_add(shoal_tensor *self, shoal_tensor *other);
SHOAL_API shoal_tensor *shoal_sub(shoal_tensor *self, shoal_tensor *other);
SHOAL_API shoal_tensor *shoal_mul(shoal_tensor *self, shoal_tensor *other);
SHOAL_API shoal_tensor *shoal_div(shoal_tensor *self, shoal_tensor *other);
SHOAL_API shoal_tensor *shoal_neg(shoal_tensor *self);

/* Combine each element with a number. For a floating dtype the number is rounded to it. For an integer dtype it must be
   a whole number of at most 64 bits, and wraps: shoal_add_scalar(x, -1) subtracts 1 from a u8. Whole numbers beyond
   2^53 are exact only as boxed ints (shoal/op.h). */
SHOAL_API shoal_tensor *shoal_add_scalar(shoal_tensor *self, double other);
SHOAL_API shoal_tensor *shoal_mul_scalar(shoal_tensor *self, double other);
SHOAL_API shoal_tensor *shoal_div_scalar(shoal_tensor *self, double other);

/* Compute in place: write `self`, whose shape does not change, and return it. */
SHOAL_API shoal_tensor *shoal_add_(shoal_tensor *self, shoal_tensor *other);
SHOAL_API shoal_tensor *shoal_sub_(shoal_tensor *self, shoal_tensor *other);
SHOAL_API shoal_tensor *shoal_mul_(shoal_tensor *self, shoal_tensor *other);
SHOAL_API shoal_tensor *shoal_add_scalar_(shoal_tensor *self, double other);
SHOAL_API shoal_tensor *shoal_mul_scalar_(shoal_tensor *self, double other);

/* Sum or average over the dimensions `dims`, or over all if n_dims is 0. These dimensions disappear, or have size 1
   with keeps_dims. Floats are added in f64 and rounded once. bool has no sum; integers have no mean. */
SHOAL_API shoal_tensor *shoal_sum(shoal_tensor *self, const int64_t *dims, int n_dims, bool keeps_dims);
SHOAL_API shoal_tensor *shoal_mean(shoal_tensor *self, const int64_t *dims, int n_dims, bool keeps_dims);

SHOAL_END_DECLS

#endif
