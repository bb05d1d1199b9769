/* SPDX-License-Identifier: MIT */
/*
 * Names of PyTorch's functional collectives and operations that the library itself does not have, for programs and
 * bindings that are written against them. The library has one name for each thing (shoal/collective.h, shoal/ops.h);
 * each function here is one call of it. New programs do not need them. docs/pytorch.md lists PyTorch's names beside
 * ours.
 *
 *     shoal_tensor *flat = shoal_flatten(x, 0, -1);
 *     shoal_tensor *all = shoal_all_gather_into_tensor(flat, group);
 *
 * They are in a library of their own: link libshoal_compat beside libshoal. Most of them call an op by its name, with
 * boxed arguments (shoal/op.h). G is the number of ranks of the group. A function whose name ends in _, _out or
 * _inplace writes a tensor of the caller and returns it.
 *
 * Ownership, threads, errors: as in shoal/collective.h and shoal/ops.h.
 */
#ifndef SHOAL_COMPAT_TORCH_H
#define SHOAL_COMPAT_TORCH_H

#include <stddef.h>
#include <stdint.h>

#include "shoal/api.h"
#include "shoal/collective.h"
#include "shoal/dtype.h"
#include "shoal/tensor.h"

SHOAL_BEGIN_DECLS

/* Operations ------------------------------------------------------------------------------------------- */

/* Joins dimensions first_dim to last_dim, inclusive, into one, as shoal_reshape does. A tensor without dimensions
   becomes one of shape [1]. */
SHOAL_API shoal_tensor *shoal_flatten(shoal_tensor *self, int64_t first_dim, int64_t last_dim);

/* Removes dimension `dim`, which must have size 1. A view. */
SHOAL_API shoal_tensor *shoal_squeeze(shoal_tensor *self, int64_t dim);

/* Inserts a dimension of size 1 before dimension `dim`. A view. */
SHOAL_API shoal_tensor *shoal_unsqueeze(shoal_tensor *self, int64_t dim);

/* Gives views of consecutive pieces of a dimension, of `size` indices each; the last one may be shorter. count_out may
   be NULL, as in all functions that return lists. */
SHOAL_API shoal_tensor *const *shoal_split(shoal_tensor *self, int64_t size, int64_t dim, size_t *count_out);

/* Divide in place, by a tensor or by a number. */
SHOAL_API shoal_tensor *shoal_div_(shoal_tensor *self, shoal_tensor *other);
SHOAL_API shoal_tensor *shoal_div_scalar_(shoal_tensor *self, double other);

/* Removes all dimensions of size 1. A view. */
SHOAL_API shoal_tensor *shoal_squeeze_all(shoal_tensor *self);

/* Gives views of at most `chunks` pieces of a dimension, of ceil(n / chunks) indices each. There are fewer if these
   cover the dimension already, and the last one may be shorter. */
SHOAL_API shoal_tensor *const *shoal_chunk(shoal_tensor *self, int64_t chunks, int64_t dim,
                                           size_t *count_out);

/* Gives the pieces of shoal_chunk, followed by empty ones if there are fewer than `chunks`. */
SHOAL_API shoal_tensor *const *shoal_chunk_with_empty(shoal_tensor *self, int64_t chunks, int64_t dim,
                                                      size_t *count_out);

/* Copies tensors of the same shape side by side along a new dimension. */
SHOAL_API shoal_tensor *shoal_stack(shoal_tensor *const *tensors, size_t n_tensors, int64_t dim);

/* Gives tensors[index], by an op, so that a captured graph shows it. */
SHOAL_API shoal_tensor *shoal_getitem(shoal_tensor *const *tensors, size_t n_tensors, int64_t index);

/* Gives a view of all of `self` that passes over a graph (shoal/compile.h) keep behind the tensors `deps`. */
SHOAL_API shoal_tensor *shoal_control_deps(shoal_tensor *self, shoal_tensor *const *deps, size_t n_deps);

/* Copies `self` and writes `source` into a view of the copy, which is contiguous. Shape, strides and offset (in
   elements) describe that view; `source` has its shape. No gradient. */
SHOAL_API shoal_tensor *shoal_as_strided_scatter(shoal_tensor *self, shoal_tensor *source,
                                                 const int64_t *shape, const int64_t *strides, int n_dims,
                                                 int64_t offset);

/* Subtract a number. */
SHOAL_API shoal_tensor *shoal_sub_scalar(shoal_tensor *self, double other);
SHOAL_API shoal_tensor *shoal_sub_scalar_(shoal_tensor *self, double other);

/* Negates in place. */
SHOAL_API shoal_tensor *shoal_neg_(shoal_tensor *self);

/* Gives `self` where a equals b or both are NaN, and 0 elsewhere. All three have the same shape and
   dtype. No gradient. */
SHOAL_API shoal_tensor *shoal_where_equal(shoal_tensor *self, shoal_tensor *a, shoal_tensor *b);

/* Operate on lists, with one op: shoal_copy_ for each pair, shoal_div_scalar for each tensor, shoal_add_
   for each pair. */
SHOAL_API shoal_tensor *const *shoal_foreach_copy_(shoal_tensor *const *self, shoal_tensor *const *source,
                                                   size_t n_tensors);
SHOAL_API shoal_tensor *const *shoal_foreach_div(shoal_tensor *const *self, size_t n_tensors, double divisor);
SHOAL_API shoal_tensor *const *shoal_foreach_add_(shoal_tensor *const *self, shoal_tensor *const *other,
                                                  size_t n_tensors);

/* Sharding: what FSDP packs and unpacks ---------------------------------------------------------------- */

/*
 * Cuts each tensor along `dim` into n_chunks, as shoal_chunk does, and packs the chunks. The result has the dimensions
 * before `dim`, which must be equal in all tensors, then n_chunks rows. Row w has, one after the other, chunk w of each
 * tensor (cast to `dtype`, in row-major order), padded with zeros to the size of that tensor's first chunk. The form
 * with `_out` writes it into `out`, in the dtype of `out`, which is contiguous and shares no memory with a tensor. It
 * has no gradient.
 */
SHOAL_API shoal_tensor *shoal_chunk_cat(shoal_tensor *const *tensors, size_t n_tensors, int64_t dim,
                                        int64_t n_chunks, shoal_dtype dtype);
SHOAL_API shoal_tensor *shoal_chunk_cat_out(shoal_tensor *const *tensors, size_t n_tensors, int64_t dim,
                                            int64_t n_chunks, shoal_tensor *out);

/* Gives the pieces of shoal_split_with_sizes as contiguous copies. The form with `_out` writes them into outs, n_sizes
   tensors of the dtype of `self` and of any strides that share no memory with it or each other. It has no gradient. */
SHOAL_API shoal_tensor *const *shoal_split_with_sizes_copy(shoal_tensor *self, const int64_t *sizes,
                                                           size_t n_sizes, int64_t dim, size_t *count_out);
SHOAL_API shoal_tensor *const *shoal_split_with_sizes_copy_out(shoal_tensor *self, const int64_t *sizes,
                                                               size_t n_sizes, int64_t dim,
                                                               shoal_tensor *const *outs);

/*
 * Copies the inputs, flattened and cast, one after the other into row `rank` of `output`, a tensor of one dimension
 * that consists of n_ranks equal rows. Gives two tensors: that row, and `output`.
 */
SHOAL_API shoal_tensor *const *shoal_all_gather_copy_in(shoal_tensor *output, shoal_tensor *const *inputs,
                                                        size_t n_inputs, int64_t n_ranks, int64_t rank);

/* Collectives ------------------------------------------------------------------------------------------ */

/* shoal_all_gather_tensor along dimension 0. Tensors without dimensions give one of shape [G]. */
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *shoal_all_gather_into_tensor(shoal_tensor *self, shoal_group *group);

/* shoal_all_gather_into_tensor, written into `out`. */
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *shoal_all_gather_into_tensor_out(shoal_tensor *self,
                                                                          shoal_group *group,
                                                                          shoal_tensor *out);

/* shoal_reduce_scatter_tensor along dimension 0, written into `out`. */
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *shoal_reduce_scatter_tensor_out(shoal_tensor *self,
                                                                         shoal_reduce_op reduce,
                                                                         shoal_group *group,
                                                                         shoal_tensor *out);

/* shoal_all_reduce_coalesced in place. */
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *const *shoal_all_reduce_coalesced_(shoal_tensor *const *tensors,
                                                                            size_t n_tensors,
                                                                            shoal_reduce_op reduce,
                                                                            shoal_group *group);

/*
 * Sends the tensor of rank m to rank destinations[m]. The list has at most G entries, each rank at most once. A rank to
 * which nobody sends gets a tensor whose dimension 0 has size 0. The gradient is sent the way back.
 * (shoal_all_to_all_single and shoal_batch_p2p_ops can move the same data.)
 */
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *shoal_permute_tensor(shoal_tensor *self, const int64_t *destinations,
                                                              size_t n_destinations, shoal_group *group);

/* Turns shards along gather_dim into shards along shard_dim: the size of gather_dim is multiplied by G, the
   size of shard_dim is divided by G. */
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *shoal_shard_dim_alltoall(shoal_tensor *self, int64_t gather_dim,
                                                                  int64_t shard_dim, shoal_group *group);

/* Waiting ---------------------------------------------------------------------------------------------- */

/* Wait for the contents of a tensor, or of a list, and return the same. Unlike shoal_wait they are ops, which a
   captured graph shows. */
SHOAL_API shoal_tensor *shoal_wait_tensor(shoal_tensor *self);
SHOAL_API shoal_tensor *const *shoal_wait_tensors(shoal_tensor *const *tensors, size_t n_tensors);

/* Sums of factor * value ------------------------------------------------------------------------------- */

/* Functions that end in _premul sum factor * value over the ranks. All ranks give the same factor. Gradients are
   multiplied by it, too. */
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *shoal_all_reduce_premul(shoal_tensor *self, double factor,
                                                                 shoal_group *group);
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *shoal_all_reduce_premul_(shoal_tensor *self, double factor,
                                                                  shoal_group *group);
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *const *shoal_all_reduce_coalesced_premul(
    shoal_tensor *const *tensors, size_t n_tensors, double factor, shoal_group *group);
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *const *shoal_all_reduce_coalesced_premul_(
    shoal_tensor *const *tensors, size_t n_tensors, double factor, shoal_group *group);
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *shoal_reduce_premul(shoal_tensor *self, double factor, int root,
                                                             shoal_group *group);
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *shoal_reduce_scatter_tensor_premul(shoal_tensor *self, double factor,
                                                                            int64_t scatter_dim,
                                                                            shoal_group *group);
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *shoal_reduce_scatter_tensor_premul_out(shoal_tensor *self,
                                                                                double factor,
                                                                                shoal_group *group,
                                                                                shoal_tensor *out);

/* scatter_dims has an entry for each tensor; NULL means dimension 0 for all. */
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *const *shoal_reduce_scatter_tensor_coalesced_premul(
    shoal_tensor *const *tensors, size_t n_tensors, double factor, const int64_t *scatter_dims,
    shoal_group *group);

/* Into the caller's tensors ---------------------------------------------------------------------------- */

/* Functions that end in _inplace are the calls without it, with a result that is written into the first argument. */
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *shoal_all_reduce_inplace(shoal_tensor *self, shoal_reduce_op reduce,
                                                                  shoal_group *group);
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *shoal_all_gather_tensor_inplace(shoal_tensor *out,
                                                                         shoal_tensor *self,
                                                                         int64_t gather_dim,
                                                                         shoal_group *group);
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *shoal_reduce_scatter_tensor_inplace(
    shoal_tensor *out, shoal_tensor *self, shoal_reduce_op reduce, int64_t scatter_dim, shoal_group *group);
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *shoal_reduce_scatter_tensor_premul_inplace(
    shoal_tensor *out, shoal_tensor *self, double factor, int64_t scatter_dim, shoal_group *group);
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *shoal_all_to_all_inplace(shoal_tensor *out, shoal_tensor *self,
                                                                  const int64_t *output_splits,
                                                                  const int64_t *input_splits,
                                                                  size_t n_splits, shoal_group *group);

/* Writes the tensor of rank r into outs[r]. n_outs is G. */
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *const *shoal_all_gather_inplace(shoal_tensor *const *outs,
                                                                         size_t n_outs, shoal_tensor *self,
                                                                         shoal_group *group);

/* Symmetric memory ------------------------------------------------------------------------------------- */

/*
 * All-reduces of tensors that lie in symmetric memory of the group (shoal/window.h), at any place in it; other memory
 * is an error. The results have the same bits as shoal_all_reduce. The library chooses the algorithm, whatever the name
 * says.
 */
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *shoal_one_shot_all_reduce(shoal_tensor *self, shoal_reduce_op reduce,
                                                                   shoal_group *group);
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *shoal_one_shot_all_reduce_out(shoal_tensor *self,
                                                                       shoal_reduce_op reduce,
                                                                       shoal_group *group, shoal_tensor *out);

/* Copies `source`, which may be in any memory, into `self`, which is in symmetric memory, and reduces that. */
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *shoal_one_shot_all_reduce_copy(shoal_tensor *self,
                                                                        shoal_tensor *source,
                                                                        shoal_reduce_op reduce,
                                                                        shoal_group *group);
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *shoal_one_shot_all_reduce_copy_out(
    shoal_tensor *self, shoal_tensor *source, shoal_reduce_op reduce, shoal_group *group, shoal_tensor *out);
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *shoal_two_shot_all_reduce_(shoal_tensor *self,
                                                                    shoal_reduce_op reduce,
                                                                    shoal_group *group);
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *shoal_two_shot_all_reduce_out(shoal_tensor *self,
                                                                       shoal_reduce_op reduce,
                                                                       shoal_group *group, shoal_tensor *out);

/* Calls with gradients --------------------------------------------------------------------------------- */

/* In PyTorch only these have gradients. Here they are the calls without _autograd, which all have gradients. */
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *shoal_all_gather_tensor_autograd(shoal_tensor *self,
                                                                          int64_t gather_dim,
                                                                          shoal_group *group);
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *shoal_reduce_scatter_tensor_autograd(shoal_tensor *self,
                                                                              shoal_reduce_op reduce,
                                                                              int64_t scatter_dim,
                                                                              shoal_group *group);
SHOAL_API SHOAL_COLLECTIVE shoal_tensor *shoal_all_to_all_single_autograd(shoal_tensor *self,
                                                                          const int64_t *output_splits,
                                                                          const int64_t *input_splits,
                                                                          size_t n_splits,
                                                                          shoal_group *group);

SHOAL_END_DECLS

#endif
