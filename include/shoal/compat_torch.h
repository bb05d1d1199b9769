/* SPDX-License-Identifier: MIT */
/*
 * Names of PyTorch's functional collectives and operations that the library itself does not have, for programs and
 * bindings that are written against them. The library has one name for each thing (shoal/collective.h, shoal/ops.h);
 * each function here is one call of it. New programs do not need this header. docs/pytorch.md lists PyTorch's names
 * beside ours.
 *
 *     shoal_tensor *flat = shoal_flatten(x, 0, -1);
 *     shoal_tensor *all = shoal_all_gather_into_tensor(flat, group);
 *
 * All functions are static inline: they are compiled into the program that includes this header, and are no part of the
 * library. Most of them call an op by its name, with boxed arguments (shoal/op.h). G is the number of ranks of the
 * group. A function whose name ends in _, _out or _inplace writes a tensor of the caller and returns it.
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

/* Boxing, for the functions below ---------------------------------------------------------------------- */

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

/* Boxes a list as it is, also NULL with a count, which the op then refuses with a text. */
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

/* Boxes the name of an operator. A number that is no operator is written to `text`, and the op refuses it. */
static inline shoal_value shoal_compat_reduce(shoal_reduce_op reduce, char text[24])
{
    if (reduce >= SHOAL_SUM && reduce <= SHOAL_PREMUL_SUM) {
        return shoal_compat_string(shoal_reduce_op_name(reduce));
    }
    (void)snprintf(text, 24, "%d", (int)reduce);
    return shoal_compat_string(text);
}

/* Call the op of that name, whose result is a tensor (one) or a list (many). If the loaded library does not have the
   op, the call fails. */
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

/* Calls the op of that name, whose result is a list, and gives its length in *count_out: 0 after a failure. count_out
   may be NULL. */
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

/* Joins dimensions first_dim to last_dim, inclusive, into one, as shoal_reshape does. A tensor without dimensions
   becomes one of shape [1]. */
static inline shoal_tensor *shoal_flatten(shoal_tensor *self, int64_t first_dim, int64_t last_dim)
{
    shoal_value boxed[3];
    boxed[0] = shoal_compat_tensor(self);
    boxed[1] = shoal_compat_int(first_dim);
    boxed[2] = shoal_compat_int(last_dim);
    return shoal_compat_one("flatten", boxed, 3);
}

/* Removes dimension `dim`, which must have size 1. A view. */
static inline shoal_tensor *shoal_squeeze(shoal_tensor *self, int64_t dim)
{
    shoal_value boxed[2];
    boxed[0] = shoal_compat_tensor(self);
    boxed[1] = shoal_compat_int(dim);
    return shoal_compat_one("squeeze", boxed, 2);
}

/* Inserts a dimension of size 1 before dimension `dim`. A view. */
static inline shoal_tensor *shoal_unsqueeze(shoal_tensor *self, int64_t dim)
{
    shoal_value boxed[2];
    boxed[0] = shoal_compat_tensor(self);
    boxed[1] = shoal_compat_int(dim);
    return shoal_compat_one("unsqueeze", boxed, 2);
}

/* Gives views of consecutive pieces of a dimension, of `size` indices each; the last one may be shorter. count_out may
   be NULL, as in all functions that return lists. */
static inline shoal_tensor *const *shoal_split(shoal_tensor *self, int64_t size, int64_t dim,
                                               size_t *count_out)
{
    shoal_value boxed[3];
    boxed[0] = shoal_compat_tensor(self);
    boxed[1] = shoal_compat_int(size);
    boxed[2] = shoal_compat_int(dim);
    return shoal_compat_pieces("split", boxed, 3, count_out);
}

/* Divide in place, by a tensor or by a number. */
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

/* Removes all dimensions of size 1. A view. */
static inline shoal_tensor *shoal_squeeze_all(shoal_tensor *self)
{
    shoal_value boxed[1];
    boxed[0] = shoal_compat_tensor(self);
    return shoal_compat_one("squeeze_all", boxed, 1);
}

/* Gives views of at most `chunks` pieces of a dimension, of ceil(n / chunks) indices each. There are fewer if these
   cover the dimension already, and the last one may be shorter. */
static inline shoal_tensor *const *shoal_chunk(shoal_tensor *self, int64_t chunks, int64_t dim,
                                               size_t *count_out)
{
    shoal_value boxed[3];
    boxed[0] = shoal_compat_tensor(self);
    boxed[1] = shoal_compat_int(chunks);
    boxed[2] = shoal_compat_int(dim);
    return shoal_compat_pieces("chunk", boxed, 3, count_out);
}

/* Gives the pieces of shoal_chunk, followed by empty ones if there are fewer than `chunks`. */
static inline shoal_tensor *const *shoal_chunk_with_empty(shoal_tensor *self, int64_t chunks, int64_t dim,
                                                          size_t *count_out)
{
    shoal_value boxed[3];
    boxed[0] = shoal_compat_tensor(self);
    boxed[1] = shoal_compat_int(chunks);
    boxed[2] = shoal_compat_int(dim);
    return shoal_compat_pieces("chunk_with_empty", boxed, 3, count_out);
}

/* Copies tensors of the same shape side by side along a new dimension. */
static inline shoal_tensor *shoal_stack(shoal_tensor *const *tensors, size_t n_tensors, int64_t dim)
{
    shoal_value boxed[2];
    boxed[0] = shoal_compat_tensors(tensors, n_tensors);
    boxed[1] = shoal_compat_int(dim);
    return shoal_compat_one("stack", boxed, 2);
}

/* Gives tensors[index], by an op, so that a captured graph shows it. */
static inline shoal_tensor *shoal_getitem(shoal_tensor *const *tensors, size_t n_tensors, int64_t index)
{
    shoal_value boxed[2];
    boxed[0] = shoal_compat_tensors(tensors, n_tensors);
    boxed[1] = shoal_compat_int(index);
    return shoal_compat_one("getitem", boxed, 2);
}

/* Gives a view of all of `self` that passes over a graph (shoal/compile.h) keep behind the tensors `deps`. */
static inline shoal_tensor *shoal_control_deps(shoal_tensor *self, shoal_tensor *const *deps, size_t n_deps)
{
    shoal_value boxed[2];
    boxed[0] = shoal_compat_tensor(self);
    boxed[1] = shoal_compat_tensors(deps, n_deps);
    return shoal_compat_one("control_deps", boxed, 2);
}

/* Copies `self` and writes `source` into a view of the copy, which is contiguous. Shape, strides and offset (in
   elements) describe that view; `source` has its shape. No gradient. */
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

/* Subtract a number. */
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

/* Negates in place. */
static inline shoal_tensor *shoal_neg_(shoal_tensor *self)
{
    shoal_value boxed[1];
    boxed[0] = shoal_compat_tensor(self);
    return shoal_compat_one("neg_", boxed, 1);
}

/* Gives `self` where a equals b or both are NaN, and 0 elsewhere. All three have the same shape and
   dtype. No gradient. */
static inline shoal_tensor *shoal_where_equal(shoal_tensor *self, shoal_tensor *a, shoal_tensor *b)
{
    shoal_value boxed[3];
    boxed[0] = shoal_compat_tensor(self);
    boxed[1] = shoal_compat_tensor(a);
    boxed[2] = shoal_compat_tensor(b);
    return shoal_compat_one("where_equal", boxed, 3);
}

/* Operate on lists, with one op: shoal_copy_ for each pair, shoal_div_scalar for each tensor, shoal_add_
   for each pair. */
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
 * Gives a tensor [n_chunks, S] of `dtype`. Row w has, one after the other, chunk w of each tensor (cut along dimension
 * 0 as by shoal_chunk, cast, in row-major order), padded with zeros to the size of that tensor's first chunk.
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

/* Gives the pieces of shoal_split_with_sizes as contiguous copies. */
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
 * Copies the inputs, flattened and cast, one after the other into row `rank` of `output`, a tensor of one dimension
 * that consists of n_ranks equal rows. Gives two tensors: that row, and `output`.
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

/* shoal_all_gather_tensor along dimension 0. Tensors without dimensions give one of shape [G]. */
static inline shoal_tensor *shoal_all_gather_into_tensor(shoal_tensor *self, shoal_group *group)
{
    shoal_value boxed[2];
    boxed[0] = shoal_compat_tensor(self);
    boxed[1] = shoal_compat_group(group);
    return shoal_compat_one("all_gather_into_tensor", boxed, 2);
}

/* shoal_all_gather_into_tensor, written into `out`. */
static inline shoal_tensor *shoal_all_gather_into_tensor_out(shoal_tensor *self, shoal_group *group,
                                                             shoal_tensor *out)
{
    shoal_value boxed[3];
    boxed[0] = shoal_compat_tensor(out);
    boxed[1] = shoal_compat_tensor(self);
    boxed[2] = shoal_compat_group(group);
    return shoal_compat_one("all_gather_into_tensor_out", boxed, 3);
}

/* shoal_reduce_scatter_tensor along dimension 0, written into `out`. */
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
 * Sends the tensor of rank m to rank destinations[m]. The list has at most G entries, each rank at most once. A rank to
 * which nobody sends gets a tensor whose dimension 0 has size 0. The gradient is sent the way back.
 * (shoal_all_to_all_single and shoal_batch_p2p_ops can move the same data.)
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

/* Turns shards along gather_dim into shards along shard_dim: the size of gather_dim is multiplied by G, the
   size of shard_dim is divided by G. */
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

/* Wait for the contents of a tensor, or of a list, and return the same. Unlike shoal_wait they are ops, which a
   captured graph shows. */
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

/* Functions that end in _premul sum factor * value over the ranks. All ranks give the same factor. Gradients are
   multiplied by it, too. */
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

/* scatter_dims has an entry for each tensor; NULL: dimension 0 for all. */
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

/* Functions that end in _inplace are the calls without it, with a result that is written into the first argument. */
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

/* Writes the tensor of rank r into outs[r]. n_outs is G. */
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
 * All-reduces of tensors that lie in symmetric memory of the group (shoal/window.h), at any place in it; other memory
 * is an error. The results have the same bits as shoal_all_reduce. The library chooses the algorithm, whatever the name
 * says.
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

/* Copies `source`, which may be in any memory, into `self`, which is in symmetric memory, and reduces that. */
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

/* In PyTorch only these have gradients. Here they are the calls without _autograd, which all have gradients. */
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
