/* SPDX-License-Identifier: MIT */
/*
 * Other names that PyTorch has for functional collectives and operations, for programs and bindings that are written
 * against them. The library has one name for a thing (shoal/collective.h, shoal/ops.h); each function here is one call
 * of it. docs/pytorch.md lists PyTorch's names beside ours.
 *
 * The functions are static inline: they are compiled into the program that includes this header and are no part of the
 * library. Those that have no function in the library call an op by its name, with boxed arguments (shoal/op.h).
 *
 * Ownership, threads, errors: as in shoal/collective.h and shoal/ops.h.
 */
#ifndef SHOAL_COMPAT_TORCH_H
#define SHOAL_COMPAT_TORCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "shoal/api.h"
#include "shoal/collective.h"
#include "shoal/dtype.h"
#include "shoal/group.h"
#include "shoal/op.h"
#include "shoal/status.h"
#include "shoal/tensor.h"

SHOAL_BEGIN_DECLS

/* Boxing ----------------------------------------------------------------------------------------------- */

static inline shoal_value shoal_compat_tensor(shoal_tensor *tensor)
{
    shoal_value value;
    value.kind = SHOAL_VALUE_TENSOR;
    value.count = 1;
    value.as.tensor = tensor;
    return value;
}

static inline shoal_value shoal_compat_tensors(shoal_tensor *const *tensors, size_t n_tensors)
{
    shoal_value value;
    value.kind = SHOAL_VALUE_TENSORS;
    value.count = n_tensors;
    value.as.tensors = tensors;
    return value;
}

static inline shoal_value shoal_compat_int(int64_t integer)
{
    shoal_value value;
    value.kind = SHOAL_VALUE_INT;
    value.count = 0;
    value.as.integer = integer;
    return value;
}

static inline shoal_value shoal_compat_ints(const int64_t *integers, size_t n_integers)
{
    shoal_value value;
    value.kind = SHOAL_VALUE_INTS;
    value.count = integers ? n_integers : 0;
    value.as.integers = integers;
    return value;
}

/* As it is, NULL with a count too: the op says what is wrong with it. */
static inline shoal_value shoal_compat_ints_of(const int64_t *integers, size_t n_integers)
{
    shoal_value value;
    value.kind = SHOAL_VALUE_INTS;
    value.count = n_integers;
    value.as.integers = integers;
    return value;
}

static inline shoal_value shoal_compat_float(double real)
{
    shoal_value value;
    value.kind = SHOAL_VALUE_FLOAT;
    value.count = 0;
    value.as.real = real;
    return value;
}

static inline shoal_value shoal_compat_string(const char *string)
{
    shoal_value value;
    value.kind = SHOAL_VALUE_STRING;
    value.count = 0;
    value.as.string = string;
    return value;
}

static inline shoal_value shoal_compat_dtype(shoal_dtype dtype)
{
    shoal_value value;
    value.kind = SHOAL_VALUE_DTYPE;
    value.count = 0;
    value.as.dtype = dtype;
    return value;
}

static inline shoal_value shoal_compat_group(shoal_group *group)
{
    shoal_value value;
    value.kind = SHOAL_VALUE_GROUP;
    value.count = 0;
    value.as.group = group;
    return value;
}

/* An operator that does not exist becomes its number, written to `text`, which the op refuses. */
static inline shoal_value shoal_compat_reduce(shoal_reduce_op reduce, char text[24])
{
    if (reduce >= SHOAL_SUM && reduce <= SHOAL_PREMUL_SUM) {
        return shoal_compat_string(shoal_reduce_op_name(reduce));
    }
    (void)snprintf(text, 24, "%d", (int)reduce);
    return shoal_compat_string(text);
}

/* Calls the op of that name. An op that the loaded library does not have is NULL, and the call fails for that
   reason. */
static inline shoal_tensor *shoal_compat_one(const char *name, const shoal_value *boxed, size_t n_boxed)
{
    const shoal_op *op = NULL;
    shoal_value result;
    if (shoal_op_find(name, &op) != SHOAL_OK) {
        op = NULL;
    }
    return shoal_op_call_collective(op, boxed, n_boxed, &result) == SHOAL_OK ? result.as.tensor : NULL;
}

static inline shoal_tensor *const *shoal_compat_many(const char *name, const shoal_value *boxed,
                                                     size_t n_boxed)
{
    const shoal_op *op = NULL;
    shoal_value result;
    if (shoal_op_find(name, &op) != SHOAL_OK) {
        op = NULL;
    }
    return shoal_op_call_collective(op, boxed, n_boxed, &result) == SHOAL_OK ? result.as.tensors : NULL;
}

/* Calls an op whose result is a list of tensors. count_out may be NULL; it is 0 after a failure. */
static inline shoal_tensor *const *shoal_compat_pieces(const char *name, const shoal_value *boxed,
                                                       size_t n_boxed, size_t *count_out)
{
    const shoal_op *op = NULL;
    shoal_value result;
    if (shoal_op_find(name, &op) != SHOAL_OK) {
        op = NULL;
    }
    bool is_done = shoal_op_call_collective(op, boxed, n_boxed, &result) == SHOAL_OK;
    if (count_out) {
        *count_out = is_done ? result.count : 0;
    }
    return is_done ? result.as.tensors : NULL;
}

/* Operations ------------------------------------------------------------------------------------------- */

/* Dimensions first..last, inclusive, become one, as shoal_reshape can do it. A 0-d tensor becomes 1-d. */
static inline shoal_tensor *shoal_flatten(shoal_tensor *self, int64_t first_dim, int64_t last_dim)
{
    shoal_value boxed[3];
    boxed[0] = shoal_compat_tensor(self);
    boxed[1] = shoal_compat_int(first_dim);
    boxed[2] = shoal_compat_int(last_dim);
    return shoal_compat_one("flatten", boxed, 3);
}

/* Removes dimension `dim` if it has size 1, as shoal_view can do it. */
static inline shoal_tensor *shoal_squeeze(shoal_tensor *self, int64_t dim)
{
    shoal_value boxed[2];
    boxed[0] = shoal_compat_tensor(self);
    boxed[1] = shoal_compat_int(dim);
    return shoal_compat_one("squeeze", boxed, 2);
}

/* A new dimension of size 1, likewise. */
static inline shoal_tensor *shoal_unsqueeze(shoal_tensor *self, int64_t dim)
{
    shoal_value boxed[2];
    boxed[0] = shoal_compat_tensor(self);
    boxed[1] = shoal_compat_int(dim);
    return shoal_compat_one("unsqueeze", boxed, 2);
}

/* Pieces of `size`, the last one shorter: shoal_split_with_sizes. */
static inline shoal_tensor *const *shoal_split(shoal_tensor *self, int64_t size, int64_t dim,
                                               size_t *count_out)
{
    shoal_value boxed[3];
    boxed[0] = shoal_compat_tensor(self);
    boxed[1] = shoal_compat_int(size);
    boxed[2] = shoal_compat_int(dim);
    return shoal_compat_pieces("split", boxed, 3, count_out);
}

/* shoal_div and shoal_div_scalar in place. */
static inline shoal_tensor *shoal_div_(shoal_tensor *self, shoal_tensor *other)
{
    shoal_value boxed[2];
    boxed[0] = shoal_compat_tensor(self);
    boxed[1] = shoal_compat_tensor(other);
    return shoal_compat_one("div_", boxed, 2);
}

static inline shoal_tensor *shoal_div_scalar_(shoal_tensor *self, double other)
{
    shoal_value boxed[2];
    boxed[0] = shoal_compat_tensor(self);
    boxed[1] = shoal_compat_float(other);
    return shoal_compat_one("div_scalar_", boxed, 2);
}

/* Removes all dimensions of size 1. */
static inline shoal_tensor *shoal_squeeze_all(shoal_tensor *self)
{
    shoal_value boxed[1];
    boxed[0] = shoal_compat_tensor(self);
    return shoal_compat_one("squeeze_all", boxed, 1);
}

/* At most `chunks` pieces of ceil(n / chunks), fewer when they run out. */
static inline shoal_tensor *const *shoal_chunk(shoal_tensor *self, int64_t chunks, int64_t dim,
                                               size_t *count_out)
{
    shoal_value boxed[3];
    boxed[0] = shoal_compat_tensor(self);
    boxed[1] = shoal_compat_int(chunks);
    boxed[2] = shoal_compat_int(dim);
    return shoal_compat_pieces("chunk", boxed, 3, count_out);
}

/* Exactly `chunks` pieces, empty ones at the end. */
static inline shoal_tensor *const *shoal_chunk_with_empty(shoal_tensor *self, int64_t chunks, int64_t dim,
                                                          size_t *count_out)
{
    shoal_value boxed[3];
    boxed[0] = shoal_compat_tensor(self);
    boxed[1] = shoal_compat_int(chunks);
    boxed[2] = shoal_compat_int(dim);
    return shoal_compat_pieces("chunk_with_empty", boxed, 3, count_out);
}

/* shoal_cat along a new dimension. */
static inline shoal_tensor *shoal_stack(shoal_tensor *const *tensors, size_t n_tensors, int64_t dim)
{
    shoal_value boxed[2];
    boxed[0] = shoal_compat_tensors(tensors, n_tensors);
    boxed[1] = shoal_compat_int(dim);
    return shoal_compat_one("stack", boxed, 2);
}

/* tensors[index], as an op that a trace shows. */
static inline shoal_tensor *shoal_getitem(shoal_tensor *const *tensors, size_t n_tensors, int64_t index)
{
    shoal_value boxed[2];
    boxed[0] = shoal_compat_tensors(tensors, n_tensors);
    boxed[1] = shoal_compat_int(index);
    return shoal_compat_one("getitem", boxed, 2);
}

/* A view of all of self, which no pass over a graph (shoal/compile.h) moves before the others. */
static inline shoal_tensor *shoal_control_deps(shoal_tensor *self, shoal_tensor *const *deps, size_t n_deps)
{
    shoal_value boxed[2];
    boxed[0] = shoal_compat_tensor(self);
    boxed[1] = shoal_compat_tensors(deps, n_deps);
    return shoal_compat_one("control_deps", boxed, 2);
}

/* A contiguous copy of self with the source, which has that shape, in a view of it: strides and offset in elements of
   the copy. No gradient. */
static inline shoal_tensor *shoal_as_strided_scatter(shoal_tensor *self, shoal_tensor *source,
                                                     const int64_t *shape, const int64_t *strides, int n_dims,
                                                     int64_t offset)
{
    shoal_value boxed[5];
    boxed[0] = shoal_compat_tensor(self);
    boxed[1] = shoal_compat_tensor(source);
    boxed[2] = shoal_compat_ints_of(shape, (size_t)n_dims);
    boxed[3] = shoal_compat_ints_of(strides, (size_t)n_dims);
    boxed[4] = shoal_compat_int(offset);
    return shoal_compat_one("as_strided_scatter", boxed, 5);
}

/* shoal_add_scalar of -other. */
static inline shoal_tensor *shoal_sub_scalar(shoal_tensor *self, double other)
{
    shoal_value boxed[2];
    boxed[0] = shoal_compat_tensor(self);
    boxed[1] = shoal_compat_float(other);
    return shoal_compat_one("sub_scalar", boxed, 2);
}

static inline shoal_tensor *shoal_sub_scalar_(shoal_tensor *self, double other)
{
    shoal_value boxed[2];
    boxed[0] = shoal_compat_tensor(self);
    boxed[1] = shoal_compat_float(other);
    return shoal_compat_one("sub_scalar_", boxed, 2);
}

/* shoal_mul_scalar_ by -1. */
static inline shoal_tensor *shoal_neg_(shoal_tensor *self)
{
    shoal_value boxed[1];
    boxed[0] = shoal_compat_tensor(self);
    return shoal_compat_one("neg_", boxed, 1);
}

/* `self` where a equals b, or both are NaN; 0 elsewhere. One shape and dtype for all three. No gradient. */
static inline shoal_tensor *shoal_where_equal(shoal_tensor *self, shoal_tensor *a, shoal_tensor *b)
{
    shoal_value boxed[3];
    boxed[0] = shoal_compat_tensor(self);
    boxed[1] = shoal_compat_tensor(a);
    boxed[2] = shoal_compat_tensor(b);
    return shoal_compat_one("where_equal", boxed, 3);
}

/* One op for a list: shoal_copy_ of each pair, shoal_div_scalar of each, shoal_add_ of each pair. */
static inline shoal_tensor *const *shoal_foreach_copy_(shoal_tensor *const *self, shoal_tensor *const *source,
                                                       size_t n_tensors)
{
    shoal_value boxed[2];
    boxed[0] = shoal_compat_tensors(self, n_tensors);
    boxed[1] = shoal_compat_tensors(source, n_tensors);
    return shoal_compat_many("foreach_copy_", boxed, 2);
}

static inline shoal_tensor *const *shoal_foreach_div(shoal_tensor *const *self, size_t n_tensors,
                                                     double divisor)
{
    shoal_value boxed[2];
    boxed[0] = shoal_compat_tensors(self, n_tensors);
    boxed[1] = shoal_compat_float(divisor);
    return shoal_compat_many("foreach_div", boxed, 2);
}

static inline shoal_tensor *const *shoal_foreach_add_(shoal_tensor *const *self, shoal_tensor *const *other,
                                                      size_t n_tensors)
{
    shoal_value boxed[2];
    boxed[0] = shoal_compat_tensors(self, n_tensors);
    boxed[1] = shoal_compat_tensors(other, n_tensors);
    return shoal_compat_many("foreach_add_", boxed, 2);
}

/* Sharding: what FSDP packs and unpacks ---------------------------------------------------------------- */

/*
 * [n_chunks, S] of `dtype`: row w holds, for each tensor in order, its w-th chunk of dimension 0 in
 * row-major order, padded with zeros to the size of the first chunk.
 */
static inline shoal_tensor *shoal_chunk_cat(shoal_tensor *const *tensors, size_t n_tensors, int64_t n_chunks,
                                            shoal_dtype dtype)
{
    shoal_value boxed[3];
    boxed[0] = shoal_compat_tensors(tensors, n_tensors);
    boxed[1] = shoal_compat_int(n_chunks);
    boxed[2] = shoal_compat_dtype(dtype);
    return shoal_compat_one("chunk_cat", boxed, 3);
}

/* Like shoal_split_with_sizes, copied: contiguous pieces. */
static inline shoal_tensor *const *shoal_split_with_sizes_copy(shoal_tensor *self, const int64_t *sizes,
                                                               size_t n_sizes, int64_t dim, size_t *count_out)
{
    shoal_value boxed[3];
    boxed[0] = shoal_compat_tensor(self);
    boxed[1] = shoal_compat_ints_of(sizes, n_sizes);
    boxed[2] = shoal_compat_int(dim);
    return shoal_compat_pieces("split_with_sizes_copy", boxed, 3, count_out);
}

/*
 * Copies the inputs, flattened and cast, one after the other into row `rank` of `output`, a flat buffer of
 * n_ranks equal rows. Gives {that row, output}.
 */
static inline shoal_tensor *const *shoal_all_gather_copy_in(shoal_tensor *output, shoal_tensor *const *inputs,
                                                            size_t n_inputs, int64_t n_ranks, int64_t rank)
{
    shoal_value boxed[4];
    boxed[0] = shoal_compat_tensor(output);
    boxed[1] = shoal_compat_tensors(inputs, n_inputs);
    boxed[2] = shoal_compat_int(n_ranks);
    boxed[3] = shoal_compat_int(rank);
    return shoal_compat_many("all_gather_copy_in", boxed, 4);
}

/* Collectives ------------------------------------------------------------------------------------------ */

/* shoal_all_gather_tensor along dimension 0; 0-d tensors give [G]. */
static inline shoal_tensor *shoal_all_gather_into_tensor(shoal_tensor *self, shoal_group *group)
{
    shoal_value boxed[2];
    boxed[0] = shoal_compat_tensor(self);
    boxed[1] = shoal_compat_group(group);
    return shoal_compat_one("all_gather_into_tensor", boxed, 2);
}

/* shoal_all_gather_into_tensor with a result that is written into `out`. */
static inline shoal_tensor *shoal_all_gather_into_tensor_out(shoal_tensor *self, shoal_group *group,
                                                             shoal_tensor *out)
{
    shoal_value boxed[3];
    boxed[0] = shoal_compat_tensor(out);
    boxed[1] = shoal_compat_tensor(self);
    boxed[2] = shoal_compat_group(group);
    return shoal_compat_one("all_gather_into_tensor_out", boxed, 3);
}

/* shoal_reduce_scatter_tensor along dimension 0, into `out`. */
static inline shoal_tensor *shoal_reduce_scatter_tensor_out(shoal_tensor *self, shoal_reduce_op reduce,
                                                            shoal_group *group, shoal_tensor *out)
{
    shoal_value boxed[4];
    char text[24];
    boxed[0] = shoal_compat_tensor(out);
    boxed[1] = shoal_compat_tensor(self);
    boxed[2] = shoal_compat_reduce(reduce, text);
    boxed[3] = shoal_compat_group(group);
    return shoal_compat_one("reduce_scatter_tensor_out", boxed, 4);
}

/* shoal_all_reduce_coalesced in place. */
static inline shoal_tensor *const *shoal_all_reduce_coalesced_(shoal_tensor *const *tensors, size_t n_tensors,
                                                               shoal_reduce_op reduce, shoal_group *group)
{
    shoal_value boxed[3];
    char text[24];
    boxed[0] = shoal_compat_tensors(tensors, n_tensors);
    boxed[1] = shoal_compat_reduce(reduce, text);
    boxed[2] = shoal_compat_group(group);
    return shoal_compat_many("all_reduce_coalesced_", boxed, 3);
}

/*
 * destinations[m] is the rank that gets the tensor of rank m; none twice, at most G of them. A rank to which nobody
 * sends gets a tensor whose dimension 0 is 0. shoal_all_to_all_single and shoal_batch_p2p_ops move the same data.
 * Gradient: the way back.
 */
static inline shoal_tensor *shoal_permute_tensor(shoal_tensor *self, const int64_t *destinations,
                                                 size_t n_destinations, shoal_group *group)
{
    shoal_value boxed[3];
    boxed[0] = shoal_compat_tensor(self);
    boxed[1] = shoal_compat_ints_of(destinations, n_destinations);
    boxed[2] = shoal_compat_group(group);
    return shoal_compat_one("permute_tensor", boxed, 3);
}

/* From shards along gather_dim to shards along shard_dim: that one is divided by G, the other multiplied. */
static inline shoal_tensor *shoal_shard_dim_alltoall(shoal_tensor *self, int64_t gather_dim,
                                                     int64_t shard_dim, shoal_group *group)
{
    shoal_value boxed[4];
    boxed[0] = shoal_compat_tensor(self);
    boxed[1] = shoal_compat_int(gather_dim);
    boxed[2] = shoal_compat_int(shard_dim);
    boxed[3] = shoal_compat_group(group);
    return shoal_compat_one("shard_dim_alltoall", boxed, 4);
}

/* Waiting ---------------------------------------------------------------------------------------------- */

/* Waits for the contents and returns the same tensor. Unlike shoal_wait it is an op, which a trace shows. */
static inline shoal_tensor *shoal_wait_tensor(shoal_tensor *self)
{
    shoal_value boxed[1];
    boxed[0] = shoal_compat_tensor(self);
    return shoal_compat_one("wait_tensor", boxed, 1);
}

static inline shoal_tensor *const *shoal_wait_tensors(shoal_tensor *const *tensors, size_t n_tensors)
{
    shoal_value boxed[1];
    boxed[0] = shoal_compat_tensors(tensors, n_tensors);
    return shoal_compat_many("wait_tensors", boxed, 1);
}

/* Sums of factor * value ------------------------------------------------------------------------------- */

/* The sum of factor * value over ranks; all ranks give the same factor. Gradients are multiplied by it too. */
static inline shoal_tensor *shoal_all_reduce_premul(shoal_tensor *self, double factor, shoal_group *group)
{
    shoal_value boxed[4];
    boxed[0] = shoal_compat_tensor(self);
    boxed[1] = shoal_compat_string("premul_sum");
    boxed[2] = shoal_compat_group(group);
    boxed[3] = shoal_compat_float(factor);
    return shoal_compat_one("all_reduce", boxed, 4);
}

static inline shoal_tensor *shoal_all_reduce_premul_(shoal_tensor *self, double factor, shoal_group *group)
{
    shoal_value boxed[4];
    boxed[0] = shoal_compat_tensor(self);
    boxed[1] = shoal_compat_string("premul_sum");
    boxed[2] = shoal_compat_group(group);
    boxed[3] = shoal_compat_float(factor);
    return shoal_compat_one("all_reduce_", boxed, 4);
}

static inline shoal_tensor *const *shoal_all_reduce_coalesced_premul(shoal_tensor *const *tensors,
                                                                     size_t n_tensors, double factor,
                                                                     shoal_group *group)
{
    shoal_value boxed[4];
    boxed[0] = shoal_compat_tensors(tensors, n_tensors);
    boxed[1] = shoal_compat_string("premul_sum");
    boxed[2] = shoal_compat_group(group);
    boxed[3] = shoal_compat_float(factor);
    return shoal_compat_many("all_reduce_coalesced", boxed, 4);
}

static inline shoal_tensor *const *shoal_all_reduce_coalesced_premul_(shoal_tensor *const *tensors,
                                                                      size_t n_tensors, double factor,
                                                                      shoal_group *group)
{
    shoal_value boxed[4];
    boxed[0] = shoal_compat_tensors(tensors, n_tensors);
    boxed[1] = shoal_compat_string("premul_sum");
    boxed[2] = shoal_compat_group(group);
    boxed[3] = shoal_compat_float(factor);
    return shoal_compat_many("all_reduce_coalesced_", boxed, 4);
}

static inline shoal_tensor *shoal_reduce_premul(shoal_tensor *self, double factor, int root,
                                                shoal_group *group)
{
    shoal_value boxed[5];
    boxed[0] = shoal_compat_tensor(self);
    boxed[1] = shoal_compat_string("premul_sum");
    boxed[2] = shoal_compat_int(root);
    boxed[3] = shoal_compat_group(group);
    boxed[4] = shoal_compat_float(factor);
    return shoal_compat_one("reduce", boxed, 5);
}

static inline shoal_tensor *shoal_reduce_scatter_tensor_premul(shoal_tensor *self, double factor,
                                                               int64_t scatter_dim, shoal_group *group)
{
    shoal_value boxed[5];
    boxed[0] = shoal_compat_tensor(self);
    boxed[1] = shoal_compat_string("premul_sum");
    boxed[2] = shoal_compat_int(scatter_dim);
    boxed[3] = shoal_compat_group(group);
    boxed[4] = shoal_compat_float(factor);
    return shoal_compat_one("reduce_scatter_tensor", boxed, 5);
}

static inline shoal_tensor *shoal_reduce_scatter_tensor_premul_out(shoal_tensor *self, double factor,
                                                                   shoal_group *group, shoal_tensor *out)
{
    shoal_value boxed[5];
    boxed[0] = shoal_compat_tensor(out);
    boxed[1] = shoal_compat_tensor(self);
    boxed[2] = shoal_compat_string("premul_sum");
    boxed[3] = shoal_compat_group(group);
    boxed[4] = shoal_compat_float(factor);
    return shoal_compat_one("reduce_scatter_tensor_out", boxed, 5);
}

/* scatter_dims has one entry for each tensor; NULL: dimension 0 for all. */
static inline shoal_tensor *const *shoal_reduce_scatter_tensor_coalesced_premul(shoal_tensor *const *tensors,
                                                                                size_t n_tensors,
                                                                                double factor,
                                                                                const int64_t *scatter_dims,
                                                                                shoal_group *group)
{
    shoal_value boxed[5];
    boxed[0] = shoal_compat_tensors(tensors, n_tensors);
    boxed[1] = shoal_compat_string("premul_sum");
    boxed[2] = shoal_compat_ints(scatter_dims, n_tensors);
    boxed[3] = shoal_compat_group(group);
    boxed[4] = shoal_compat_float(factor);
    return shoal_compat_many("reduce_scatter_tensor_coalesced", boxed, 5);
}

/* Into the caller's tensors ---------------------------------------------------------------------------- */

/* What is written is returned. */
static inline shoal_tensor *shoal_all_reduce_inplace(shoal_tensor *self, shoal_reduce_op reduce,
                                                     shoal_group *group)
{
    return shoal_all_reduce_(self, reduce, group);
}

static inline shoal_tensor *shoal_all_reduce_premul_inplace(shoal_tensor *self, double factor,
                                                            shoal_group *group)
{
    return shoal_all_reduce_premul_(self, factor, group);
}

static inline shoal_tensor *shoal_all_gather_tensor_inplace(shoal_tensor *out, shoal_tensor *self,
                                                            int64_t gather_dim, shoal_group *group)
{
    shoal_value boxed[4];
    boxed[0] = shoal_compat_tensor(out);
    boxed[1] = shoal_compat_tensor(self);
    boxed[2] = shoal_compat_int(gather_dim);
    boxed[3] = shoal_compat_group(group);
    return shoal_compat_one("all_gather_tensor_inplace", boxed, 4);
}

static inline shoal_tensor *shoal_reduce_scatter_tensor_inplace(shoal_tensor *out, shoal_tensor *self,
                                                                shoal_reduce_op reduce, int64_t scatter_dim,
                                                                shoal_group *group)
{
    shoal_value boxed[5];
    char text[24];
    boxed[0] = shoal_compat_tensor(out);
    boxed[1] = shoal_compat_tensor(self);
    boxed[2] = shoal_compat_reduce(reduce, text);
    boxed[3] = shoal_compat_int(scatter_dim);
    boxed[4] = shoal_compat_group(group);
    return shoal_compat_one("reduce_scatter_tensor_inplace", boxed, 5);
}

static inline shoal_tensor *shoal_reduce_scatter_tensor_premul_inplace(shoal_tensor *out, shoal_tensor *self,
                                                                       double factor, int64_t scatter_dim,
                                                                       shoal_group *group)
{
    shoal_value boxed[6];
    boxed[0] = shoal_compat_tensor(out);
    boxed[1] = shoal_compat_tensor(self);
    boxed[2] = shoal_compat_string("premul_sum");
    boxed[3] = shoal_compat_int(scatter_dim);
    boxed[4] = shoal_compat_group(group);
    boxed[5] = shoal_compat_float(factor);
    return shoal_compat_one("reduce_scatter_tensor_inplace", boxed, 6);
}

static inline shoal_tensor *shoal_all_to_all_inplace(shoal_tensor *out, shoal_tensor *self,
                                                     const int64_t *output_splits,
                                                     const int64_t *input_splits, size_t n_splits,
                                                     shoal_group *group)
{
    shoal_value boxed[5];
    if (n_splits == 0 && (output_splits || input_splits)) {
        /* Refused: boxed, lists without entries would count as absent. */
        return shoal_all_to_all_single(self, output_splits, input_splits, n_splits, group);
    }
    boxed[0] = shoal_compat_tensor(out);
    boxed[1] = shoal_compat_tensor(self);
    boxed[2] = shoal_compat_ints(output_splits, n_splits);
    boxed[3] = shoal_compat_ints(input_splits, n_splits);
    boxed[4] = shoal_compat_group(group);
    return shoal_compat_one("all_to_all_inplace", boxed, 5);
}

/* outs[r] gets the tensor of rank r; n_outs is the number of ranks. */
static inline shoal_tensor *const *shoal_all_gather_inplace(shoal_tensor *const *outs, size_t n_outs,
                                                            shoal_tensor *self, shoal_group *group)
{
    shoal_value boxed[3];
    boxed[0] = shoal_compat_tensors(outs, n_outs);
    boxed[1] = shoal_compat_tensor(self);
    boxed[2] = shoal_compat_group(group);
    return shoal_compat_many("all_gather_inplace", boxed, 3);
}

/* Symmetric memory ------------------------------------------------------------------------------------- */

/*
 * All-reduces of tensors that lie in symmetric memory of the group, anywhere in it; other memory is an error. The bits
 * are those of shoal_all_reduce, and the library chooses the algorithm whatever the name says.
 */
static inline shoal_tensor *shoal_one_shot_all_reduce(shoal_tensor *self, shoal_reduce_op reduce,
                                                      shoal_group *group)
{
    shoal_value boxed[3];
    char text[24];
    boxed[0] = shoal_compat_tensor(self);
    boxed[1] = shoal_compat_reduce(reduce, text);
    boxed[2] = shoal_compat_group(group);
    return shoal_compat_one("one_shot_all_reduce", boxed, 3);
}

static inline shoal_tensor *shoal_one_shot_all_reduce_out(shoal_tensor *self, shoal_reduce_op reduce,
                                                          shoal_group *group, shoal_tensor *out)
{
    shoal_value boxed[4];
    char text[24];
    boxed[0] = shoal_compat_tensor(out);
    boxed[1] = shoal_compat_tensor(self);
    boxed[2] = shoal_compat_reduce(reduce, text);
    boxed[3] = shoal_compat_group(group);
    return shoal_compat_one("one_shot_all_reduce_out", boxed, 4);
}

/* Copies `source`, which may lie anywhere, into the symmetric `self` first. */
static inline shoal_tensor *shoal_one_shot_all_reduce_copy(shoal_tensor *self, shoal_tensor *source,
                                                           shoal_reduce_op reduce, shoal_group *group)
{
    shoal_value boxed[4];
    char text[24];
    boxed[0] = shoal_compat_tensor(self);
    boxed[1] = shoal_compat_tensor(source);
    boxed[2] = shoal_compat_reduce(reduce, text);
    boxed[3] = shoal_compat_group(group);
    return shoal_compat_one("one_shot_all_reduce_copy", boxed, 4);
}

static inline shoal_tensor *shoal_one_shot_all_reduce_copy_out(shoal_tensor *self, shoal_tensor *source,
                                                               shoal_reduce_op reduce, shoal_group *group,
                                                               shoal_tensor *out)
{
    shoal_value boxed[5];
    char text[24];
    boxed[0] = shoal_compat_tensor(out);
    boxed[1] = shoal_compat_tensor(self);
    boxed[2] = shoal_compat_tensor(source);
    boxed[3] = shoal_compat_reduce(reduce, text);
    boxed[4] = shoal_compat_group(group);
    return shoal_compat_one("one_shot_all_reduce_copy_out", boxed, 5);
}

static inline shoal_tensor *shoal_two_shot_all_reduce_(shoal_tensor *self, shoal_reduce_op reduce,
                                                       shoal_group *group)
{
    shoal_value boxed[3];
    char text[24];
    boxed[0] = shoal_compat_tensor(self);
    boxed[1] = shoal_compat_reduce(reduce, text);
    boxed[2] = shoal_compat_group(group);
    return shoal_compat_one("two_shot_all_reduce_", boxed, 3);
}

static inline shoal_tensor *shoal_two_shot_all_reduce_out(shoal_tensor *self, shoal_reduce_op reduce,
                                                          shoal_group *group, shoal_tensor *out)
{
    shoal_value boxed[4];
    char text[24];
    boxed[0] = shoal_compat_tensor(out);
    boxed[1] = shoal_compat_tensor(self);
    boxed[2] = shoal_compat_reduce(reduce, text);
    boxed[3] = shoal_compat_group(group);
    return shoal_compat_one("two_shot_all_reduce_out", boxed, 4);
}

/* Calls with gradients --------------------------------------------------------------------------------- */

/* The calls without _autograd: all of them have gradients. */
static inline shoal_tensor *shoal_all_gather_tensor_autograd(shoal_tensor *self, int64_t gather_dim,
                                                             shoal_group *group)
{
    return shoal_all_gather_tensor(self, gather_dim, group);
}

static inline shoal_tensor *shoal_reduce_scatter_tensor_autograd(shoal_tensor *self, shoal_reduce_op reduce,
                                                                 int64_t scatter_dim, shoal_group *group)
{
    return shoal_reduce_scatter_tensor(self, reduce, scatter_dim, group);
}

static inline shoal_tensor *shoal_all_to_all_single_autograd(shoal_tensor *self, const int64_t *output_splits,
                                                             const int64_t *input_splits, size_t n_splits,
                                                             shoal_group *group)
{
    return shoal_all_to_all_single(self, output_splits, input_splits, n_splits, group);
}

SHOAL_END_DECLS

#endif
