/* SPDX-License-Identifier: MIT */
/*
 * PyTorch's names (shoal_compat/torch.h). Each function calls an op by its name, with boxed arguments, or the function of
 * libshoal that has another name.
 */
#include "shoal_compat/torch.h"

#include <stdio.h>

#include "shoal/op.h"

/* Boxing ------------------------------------------------------------------------------------------------- */

#define TENSOR(given)                                                \
    {                                                                \
        .kind = SHOAL_VALUE_TENSOR, .count = 1, .as.tensor = (given) \
    }
#define TENSORS(given, n_given)                                                \
    {                                                                          \
        .kind = SHOAL_VALUE_TENSORS, .count = (n_given), .as.tensors = (given) \
    }
#define INT(given)                                     \
    {                                                  \
        .kind = SHOAL_VALUE_INT, .as.integer = (given) \
    }
/* A list that may be left out. */
#define INTS(given, n_given)                                                                       \
    {                                                                                              \
        .kind = SHOAL_VALUE_INTS, .count = (given) ? (size_t)(n_given) : 0, .as.integers = (given) \
    }
/* A list as it is, also NULL with a count, which the op then refuses with a text. */
#define LIST(given, n_given)                                                         \
    {                                                                                \
        .kind = SHOAL_VALUE_INTS, .count = (size_t)(n_given), .as.integers = (given) \
    }
#define FLOAT(given)                                  \
    {                                                 \
        .kind = SHOAL_VALUE_FLOAT, .as.real = (given) \
    }
#define STRING(given)                                    \
    {                                                    \
        .kind = SHOAL_VALUE_STRING, .as.string = (given) \
    }
#define DTYPE(given)                                   \
    {                                                  \
        .kind = SHOAL_VALUE_DTYPE, .as.dtype = (given) \
    }
#define GROUP(given)                                   \
    {                                                  \
        .kind = SHOAL_VALUE_GROUP, .as.group = (given) \
    }
#define REDUCE(given, text) STRING(name_reduce(given, text))

enum {
    REDUCE_TEXT_BYTES = 24
};

/* The name of an operator. A number that is no operator is written to `text`, and the op refuses it. */
static const char *name_reduce(shoal_reduce_op reduce, char text[REDUCE_TEXT_BYTES])
{
    if (reduce >= SHOAL_SUM && reduce <= SHOAL_PREMUL_SUM) {
        return shoal_reduce_op_name(reduce);
    }
    (void)snprintf(text, REDUCE_TEXT_BYTES, "%d", (int)reduce);
    return text;
}

/* Calls the op of that name. Fails if the loaded library does not have it. */
static bool call(const char *name, const shoal_value *boxed, size_t n_boxed, shoal_value *result)
{
    const shoal_op *op = NULL;
    if (shoal_op_find(name, &op) != SHOAL_OK) {
        op = NULL;
    }
    return shoal_op_call_collective(op, boxed, n_boxed, result) == SHOAL_OK;
}

static shoal_tensor *call_one(const char *name, const shoal_value *boxed, size_t n_boxed)
{
    shoal_value result;
    return call(name, boxed, n_boxed, &result) ? result.as.tensor : NULL;
}

/* Gives the length of the list in *count_out, 0 after a failure; count_out may be NULL. */
static shoal_tensor *const *call_many(const char *name, size_t *count_out, const shoal_value *boxed,
                                      size_t n_boxed)
{
    shoal_value result;
    bool is_done = call(name, boxed, n_boxed, &result);
    if (count_out) {
        *count_out = is_done ? result.count : 0;
    }
    return is_done ? result.as.tensors : NULL;
}

#define BOXED(...) \
    (const shoal_value[]){__VA_ARGS__}, sizeof((shoal_value[]){__VA_ARGS__}) / sizeof(shoal_value)
/* Ops whose result is a tensor; a list of known length; a list. */
#define CALL_ONE(name, ...) call_one(name, BOXED(__VA_ARGS__))
#define CALL_MANY(name, ...) call_many(name, NULL, BOXED(__VA_ARGS__))
#define CALL_PIECES(name, count_out, ...) call_many(name, count_out, BOXED(__VA_ARGS__))

/* Operations ------------------------------------------------------------------------------------------- */

shoal_tensor *shoal_flatten(shoal_tensor *self, int64_t first_dim, int64_t last_dim)
{
    return CALL_ONE("flatten", TENSOR(self), INT(first_dim), INT(last_dim));
}

shoal_tensor *shoal_squeeze(shoal_tensor *self, int64_t dim)
{
    return CALL_ONE("squeeze", TENSOR(self), INT(dim));
}

shoal_tensor *shoal_unsqueeze(shoal_tensor *self, int64_t dim)
{
    return CALL_ONE("unsqueeze", TENSOR(self), INT(dim));
}

shoal_tensor *const *shoal_split(shoal_tensor *self, int64_t size, int64_t dim, size_t *count_out)
{
    return CALL_PIECES("split", count_out, TENSOR(self), INT(size), INT(dim));
}

shoal_tensor *shoal_div_(shoal_tensor *self, shoal_tensor *other)
{
    return CALL_ONE("div_", TENSOR(self), TENSOR(other));
}

shoal_tensor *shoal_div_scalar_(shoal_tensor *self, double other)
{
    return CALL_ONE("div_scalar_", TENSOR(self), FLOAT(other));
}

shoal_tensor *shoal_squeeze_all(shoal_tensor *self)
{
    return CALL_ONE("squeeze_all", TENSOR(self));
}

shoal_tensor *const *shoal_chunk(shoal_tensor *self, int64_t chunks, int64_t dim, size_t *count_out)
{
    return CALL_PIECES("chunk", count_out, TENSOR(self), INT(chunks), INT(dim));
}

shoal_tensor *const *shoal_chunk_with_empty(shoal_tensor *self, int64_t chunks, int64_t dim,
                                            size_t *count_out)
{
    return CALL_PIECES("chunk_with_empty", count_out, TENSOR(self), INT(chunks), INT(dim));
}

shoal_tensor *shoal_stack(shoal_tensor *const *tensors, size_t n_tensors, int64_t dim)
{
    return CALL_ONE("stack", TENSORS(tensors, n_tensors), INT(dim));
}

shoal_tensor *shoal_getitem(shoal_tensor *const *tensors, size_t n_tensors, int64_t index)
{
    return CALL_ONE("getitem", TENSORS(tensors, n_tensors), INT(index));
}

shoal_tensor *shoal_control_deps(shoal_tensor *self, shoal_tensor *const *deps, size_t n_deps)
{
    return CALL_ONE("control_deps", TENSOR(self), TENSORS(deps, n_deps));
}

shoal_tensor *shoal_as_strided_scatter(shoal_tensor *self, shoal_tensor *source, const int64_t *shape,
                                       const int64_t *strides, int n_dims, int64_t offset)
{
    return CALL_ONE("as_strided_scatter", TENSOR(self), TENSOR(source), LIST(shape, (size_t)n_dims),
                    LIST(strides, (size_t)n_dims), INT(offset));
}

shoal_tensor *shoal_sub_scalar(shoal_tensor *self, double other)
{
    return CALL_ONE("sub_scalar", TENSOR(self), FLOAT(other));
}

shoal_tensor *shoal_sub_scalar_(shoal_tensor *self, double other)
{
    return CALL_ONE("sub_scalar_", TENSOR(self), FLOAT(other));
}

shoal_tensor *shoal_neg_(shoal_tensor *self)
{
    return CALL_ONE("neg_", TENSOR(self));
}

shoal_tensor *shoal_where_equal(shoal_tensor *self, shoal_tensor *a, shoal_tensor *b)
{
    return CALL_ONE("where_equal", TENSOR(self), TENSOR(a), TENSOR(b));
}

shoal_tensor *const *shoal_foreach_copy_(shoal_tensor *const *self, shoal_tensor *const *source,
                                         size_t n_tensors)
{
    return CALL_MANY("foreach_copy_", TENSORS(self, n_tensors), TENSORS(source, n_tensors));
}

shoal_tensor *const *shoal_foreach_div(shoal_tensor *const *self, size_t n_tensors, double divisor)
{
    return CALL_MANY("foreach_div", TENSORS(self, n_tensors), FLOAT(divisor));
}

shoal_tensor *const *shoal_foreach_add_(shoal_tensor *const *self, shoal_tensor *const *other,
                                        size_t n_tensors)
{
    return CALL_MANY("foreach_add_", TENSORS(self, n_tensors), TENSORS(other, n_tensors));
}

/* Sharding: what FSDP packs and unpacks ---------------------------------------------------------------- */

shoal_tensor *shoal_chunk_cat(shoal_tensor *const *tensors, size_t n_tensors, int64_t dim, int64_t n_chunks,
                              shoal_dtype dtype)
{
    return CALL_ONE("chunk_cat", TENSORS(tensors, n_tensors), INT(n_chunks), DTYPE(dtype), INT(dim));
}

shoal_tensor *shoal_chunk_cat_out(shoal_tensor *const *tensors, size_t n_tensors, int64_t dim,
                                  int64_t n_chunks, shoal_tensor *out)
{
    return CALL_ONE("chunk_cat_out", TENSOR(out), TENSORS(tensors, n_tensors), INT(n_chunks), INT(dim));
}

shoal_tensor *const *shoal_split_with_sizes_copy(shoal_tensor *self, const int64_t *sizes, size_t n_sizes,
                                                 int64_t dim, size_t *count_out)
{
    return CALL_PIECES("split_with_sizes_copy", count_out, TENSOR(self), LIST(sizes, n_sizes), INT(dim));
}

shoal_tensor *const *shoal_split_with_sizes_copy_out(shoal_tensor *self, const int64_t *sizes, size_t n_sizes,
                                                     int64_t dim, shoal_tensor *const *outs)
{
    return CALL_MANY("split_with_sizes_copy_out", TENSORS(outs, n_sizes), TENSOR(self), LIST(sizes, n_sizes),
                     INT(dim));
}

shoal_tensor *const *shoal_all_gather_copy_in(shoal_tensor *output, shoal_tensor *const *inputs,
                                              size_t n_inputs, int64_t n_ranks, int64_t rank)
{
    return CALL_MANY("all_gather_copy_in", TENSOR(output), TENSORS(inputs, n_inputs), INT(n_ranks),
                     INT(rank));
}

shoal_tensor *shoal_all_gather_into_tensor(shoal_tensor *self, shoal_group *group)
{
    return CALL_ONE("all_gather_into_tensor", TENSOR(self), GROUP(group));
}

/* Collectives ------------------------------------------------------------------------------------------ */

shoal_tensor *shoal_all_gather_into_tensor_out(shoal_tensor *self, shoal_group *group, shoal_tensor *out)
{
    return CALL_ONE("all_gather_into_tensor_out", TENSOR(out), TENSOR(self), GROUP(group));
}

shoal_tensor *shoal_reduce_scatter_tensor_out(shoal_tensor *self, shoal_reduce_op reduce, shoal_group *group,
                                              shoal_tensor *out)
{
    char text[REDUCE_TEXT_BYTES];
    return CALL_ONE("reduce_scatter_tensor_out", TENSOR(out), TENSOR(self), REDUCE(reduce, text),
                    GROUP(group));
}

shoal_tensor *const *shoal_all_reduce_coalesced_(shoal_tensor *const *tensors, size_t n_tensors,
                                                 shoal_reduce_op reduce, shoal_group *group)
{
    char text[REDUCE_TEXT_BYTES];
    return CALL_MANY("all_reduce_coalesced_", TENSORS(tensors, n_tensors), REDUCE(reduce, text),
                     GROUP(group));
}

shoal_tensor *shoal_permute_tensor(shoal_tensor *self, const int64_t *destinations, size_t n_destinations,
                                   shoal_group *group)
{
    return CALL_ONE("permute_tensor", TENSOR(self), LIST(destinations, n_destinations), GROUP(group));
}

shoal_tensor *shoal_shard_dim_alltoall(shoal_tensor *self, int64_t gather_dim, int64_t shard_dim,
                                       shoal_group *group)
{
    return CALL_ONE("shard_dim_alltoall", TENSOR(self), INT(gather_dim), INT(shard_dim), GROUP(group));
}

/* Waiting ---------------------------------------------------------------------------------------------- */

shoal_tensor *shoal_wait_tensor(shoal_tensor *self)
{
    return CALL_ONE("wait_tensor", TENSOR(self));
}

shoal_tensor *const *shoal_wait_tensors(shoal_tensor *const *tensors, size_t n_tensors)
{
    return CALL_MANY("wait_tensors", TENSORS(tensors, n_tensors));
}

/* Sums of factor * value ------------------------------------------------------------------------------- */

shoal_tensor *shoal_all_reduce_premul(shoal_tensor *self, double factor, shoal_group *group)
{
    return CALL_ONE("all_reduce", TENSOR(self), STRING("premul_sum"), GROUP(group), FLOAT(factor));
}

shoal_tensor *shoal_all_reduce_premul_(shoal_tensor *self, double factor, shoal_group *group)
{
    return CALL_ONE("all_reduce_", TENSOR(self), STRING("premul_sum"), GROUP(group), FLOAT(factor));
}

shoal_tensor *const *shoal_all_reduce_coalesced_premul(shoal_tensor *const *tensors, size_t n_tensors,
                                                       double factor, shoal_group *group)
{
    return CALL_MANY("all_reduce_coalesced", TENSORS(tensors, n_tensors), STRING("premul_sum"), GROUP(group),
                     FLOAT(factor));
}

shoal_tensor *const *shoal_all_reduce_coalesced_premul_(shoal_tensor *const *tensors, size_t n_tensors,
                                                        double factor, shoal_group *group)
{
    return CALL_MANY("all_reduce_coalesced_", TENSORS(tensors, n_tensors), STRING("premul_sum"), GROUP(group),
                     FLOAT(factor));
}

shoal_tensor *shoal_reduce_premul(shoal_tensor *self, double factor, int root, shoal_group *group)
{
    return CALL_ONE("reduce", TENSOR(self), STRING("premul_sum"), INT(root), GROUP(group), FLOAT(factor));
}

shoal_tensor *shoal_reduce_scatter_tensor_premul(shoal_tensor *self, double factor, int64_t scatter_dim,
                                                 shoal_group *group)
{
    return CALL_ONE("reduce_scatter_tensor", TENSOR(self), STRING("premul_sum"), INT(scatter_dim),
                    GROUP(group), FLOAT(factor));
}

shoal_tensor *shoal_reduce_scatter_tensor_premul_out(shoal_tensor *self, double factor, shoal_group *group,
                                                     shoal_tensor *out)
{
    return CALL_ONE("reduce_scatter_tensor_out", TENSOR(out), TENSOR(self), STRING("premul_sum"),
                    GROUP(group), FLOAT(factor));
}

shoal_tensor *const *shoal_reduce_scatter_tensor_coalesced_premul(shoal_tensor *const *tensors,
                                                                  size_t n_tensors, double factor,
                                                                  const int64_t *scatter_dims,
                                                                  shoal_group *group)
{
    return CALL_MANY("reduce_scatter_tensor_coalesced", TENSORS(tensors, n_tensors), STRING("premul_sum"),
                     INTS(scatter_dims, n_tensors), GROUP(group), FLOAT(factor));
}

/* Into the caller's tensors ---------------------------------------------------------------------------- */

shoal_tensor *shoal_all_reduce_inplace(shoal_tensor *self, shoal_reduce_op reduce, shoal_group *group)
{
    return shoal_all_reduce_(self, reduce, group);
}

shoal_tensor *shoal_all_gather_tensor_inplace(shoal_tensor *out, shoal_tensor *self, int64_t gather_dim,
                                              shoal_group *group)
{
    return CALL_ONE("all_gather_tensor_inplace", TENSOR(out), TENSOR(self), INT(gather_dim), GROUP(group));
}

shoal_tensor *shoal_reduce_scatter_tensor_inplace(shoal_tensor *out, shoal_tensor *self,
                                                  shoal_reduce_op reduce, int64_t scatter_dim,
                                                  shoal_group *group)
{
    char text[REDUCE_TEXT_BYTES];
    return CALL_ONE("reduce_scatter_tensor_inplace", TENSOR(out), TENSOR(self), REDUCE(reduce, text),
                    INT(scatter_dim), GROUP(group));
}

shoal_tensor *shoal_reduce_scatter_tensor_premul_inplace(shoal_tensor *out, shoal_tensor *self, double factor,
                                                         int64_t scatter_dim, shoal_group *group)
{
    return CALL_ONE("reduce_scatter_tensor_inplace", TENSOR(out), TENSOR(self), STRING("premul_sum"),
                    INT(scatter_dim), GROUP(group), FLOAT(factor));
}

shoal_tensor *shoal_all_to_all_inplace(shoal_tensor *out, shoal_tensor *self, const int64_t *output_splits,
                                       const int64_t *input_splits, size_t n_splits, shoal_group *group)
{
    if (n_splits == 0 && (output_splits || input_splits)) {
        /* Refused: boxed, lists without entries would count as absent. */
        return shoal_all_to_all_single(self, output_splits, input_splits, n_splits, group);
    }
    return CALL_ONE("all_to_all_inplace", TENSOR(out), TENSOR(self), INTS(output_splits, n_splits),
                    INTS(input_splits, n_splits), GROUP(group));
}

shoal_tensor *const *shoal_all_gather_inplace(shoal_tensor *const *outs, size_t n_outs, shoal_tensor *self,
                                              shoal_group *group)
{
    return CALL_MANY("all_gather_inplace", TENSORS(outs, n_outs), TENSOR(self), GROUP(group));
}

/* Symmetric memory ------------------------------------------------------------------------------------- */

shoal_tensor *shoal_one_shot_all_reduce(shoal_tensor *self, shoal_reduce_op reduce, shoal_group *group)
{
    char text[REDUCE_TEXT_BYTES];
    return CALL_ONE("one_shot_all_reduce", TENSOR(self), REDUCE(reduce, text), GROUP(group));
}

shoal_tensor *shoal_one_shot_all_reduce_out(shoal_tensor *self, shoal_reduce_op reduce, shoal_group *group,
                                            shoal_tensor *out)
{
    char text[REDUCE_TEXT_BYTES];
    return CALL_ONE("one_shot_all_reduce_out", TENSOR(out), TENSOR(self), REDUCE(reduce, text), GROUP(group));
}

shoal_tensor *shoal_one_shot_all_reduce_copy(shoal_tensor *self, shoal_tensor *source, shoal_reduce_op reduce,
                                             shoal_group *group)
{
    char text[REDUCE_TEXT_BYTES];
    return CALL_ONE("one_shot_all_reduce_copy", TENSOR(self), TENSOR(source), REDUCE(reduce, text),
                    GROUP(group));
}

shoal_tensor *shoal_one_shot_all_reduce_copy_out(shoal_tensor *self, shoal_tensor *source,
                                                 shoal_reduce_op reduce, shoal_group *group,
                                                 shoal_tensor *out)
{
    char text[REDUCE_TEXT_BYTES];
    return CALL_ONE("one_shot_all_reduce_copy_out", TENSOR(out), TENSOR(self), TENSOR(source),
                    REDUCE(reduce, text), GROUP(group));
}

shoal_tensor *shoal_two_shot_all_reduce_(shoal_tensor *self, shoal_reduce_op reduce, shoal_group *group)
{
    char text[REDUCE_TEXT_BYTES];
    return CALL_ONE("two_shot_all_reduce_", TENSOR(self), REDUCE(reduce, text), GROUP(group));
}

shoal_tensor *shoal_two_shot_all_reduce_out(shoal_tensor *self, shoal_reduce_op reduce, shoal_group *group,
                                            shoal_tensor *out)
{
    char text[REDUCE_TEXT_BYTES];
    return CALL_ONE("two_shot_all_reduce_out", TENSOR(out), TENSOR(self), REDUCE(reduce, text), GROUP(group));
}

/* Calls with gradients --------------------------------------------------------------------------------- */

shoal_tensor *shoal_all_gather_tensor_autograd(shoal_tensor *self, int64_t gather_dim, shoal_group *group)
{
    return shoal_all_gather_tensor(self, gather_dim, group);
}

shoal_tensor *shoal_reduce_scatter_tensor_autograd(shoal_tensor *self, shoal_reduce_op reduce,
                                                   int64_t scatter_dim, shoal_group *group)
{
    return shoal_reduce_scatter_tensor(self, reduce, scatter_dim, group);
}

shoal_tensor *shoal_all_to_all_single_autograd(shoal_tensor *self, const int64_t *output_splits,
                                               const int64_t *input_splits, size_t n_splits,
                                               shoal_group *group)
{
    return shoal_all_to_all_single(self, output_splits, input_splits, n_splits, group);
}
