/* SPDX-License-Identifier: MIT */
/*
 * One random valid call of a row OP_OF_RANKS of ops.def: its tensors and boxed arguments, and what its outputs must look
 * like. The same random numbers on another device make the same call there. row_cases.h has the rows.
 *
 * Nothing here looks at what the op says: shapes of outputs follow from the header's words alone.
 */
#ifndef CONFORMANCE_ROW_CASE_H
#define CONFORMANCE_ROW_CASE_H

#include <math.h>
#include <string.h>

#include "harness/test.h"
#include "op/box.h"
#include "op/op.h"
#include "shoal/collective.h"
#include "shoal_compat/torch.h"
#include "shoal/op.h"
#include "shoal/ops.h"
#include "shoal/scope.h"
#include "tensor/dtype.h"

enum {
    ROW_MAX_TENSORS = 16,
    ROW_MAX_INTS = 16,
    ROW_MAX_DIMS = 5,
    ROW_SYMMETRIC_BYTES = 16384
};

/* `same` is the argument that is given back; NULL: a new tensor. */
struct row_output {
    shoal_tensor *same;
    shoal_dtype dtype;
    int n_dims;
    int64_t shape[SHOAL_MAX_DIMS];
};

struct row_wanted {
    shoal_group *group;
    shoal_device device;
    shoal_symmetric *symmetric; /* of the group; NULL: any memory will do, because the group has one rank */
    bool is_alone;              /* a real world of one rank: what is sent must be received by the same call */
    shoal_dtype dtype;          /* of its tensors; 0: any */
    bool is_small;              /* every size is 2 or more, so that there are elements to go wrong */
};

struct row_case {
    const shoal_op *op;
    struct row_wanted wanted;
    struct test_random random;

    shoal_tensor *tensors[ROW_MAX_TENSORS];
    size_t n_tensors;
    int64_t ints[4][ROW_MAX_INTS];
    size_t n_lists; /* of ints */
    char words[ROW_MAX_TENSORS * 8];
    shoal_value values[OP_MAX_PARAMS];
    size_t n_values;

    struct row_output outputs[ROW_MAX_TENSORS];
    size_t n_outputs;
};

/* Random numbers --------------------------------------------------------------------------------------- */

static inline int64_t row_pick(struct row_case *c, int64_t low, int64_t high)
{
    return low + (int64_t)test_random_below(&c->random, (uint64_t)(high - low + 1));
}

static inline bool row_chance(struct row_case *c, int one_in)
{
    return test_random_below(&c->random, (uint64_t)one_in) == 0;
}

static inline int64_t row_ranks(const struct row_case *c)
{
    return shoal_group_n_ranks(c->wanted.group);
}

static inline int64_t row_pick_rank(struct row_case *c)
{
    return row_pick(c, 0, row_ranks(c) - 1);
}

static inline shoal_dtype row_pick_dtype(struct row_case *c)
{
    static const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_F64, SHOAL_BF16, SHOAL_F16, SHOAL_I8,  SHOAL_U16,
                                         SHOAL_I32, SHOAL_U64, SHOAL_BOOL, SHOAL_C64, SHOAL_C128};
    int64_t at = row_pick(c, 0, (int64_t)(sizeof dtypes / sizeof dtypes[0]) - 1);
    return c->wanted.dtype != (shoal_dtype)0 ? c->wanted.dtype : dtypes[at];
}

static inline int row_pick_shape(struct row_case *c, int min_dims, int64_t *shape)
{
    static const int64_t sizes[] = {0, 1, 1, 2, 3, 5, 7};
    int n_dims = (int)row_pick(c, min_dims, ROW_MAX_DIMS);
    for (int i = 0; i < n_dims; i++) {
        shape[i] = sizes[row_pick(c, row_chance(c, 8) ? 0 : 1, n_dims > 3 ? 3 : 6)];
        shape[i] = c->wanted.is_small && shape[i] < 2 ? 2 : shape[i];
    }
    return n_dims;
}

/* A dimension of at least one, sometimes counted from the end. */
static inline int row_pick_dim(struct row_case *c, int n_dims, int64_t *spelled_out)
{
    int dim = (int)row_pick(c, 0, n_dims - 1);
    *spelled_out = row_chance(c, 2) ? dim - n_dims : dim;
    return dim;
}

/* Tensors ---------------------------------------------------------------------------------------------- */

static inline shoal_tensor *row_make(struct row_case *c, shoal_dtype dtype, int n_dims, const int64_t *shape)
{
    return c->wanted.device == SHOAL_META ? shoal_empty_on(shape, n_dims, dtype, SHOAL_META)
                                          : shoal_zeros(shape, n_dims, dtype);
}

/* Kept in the case; NULL once memory has run out. Contiguous, or with dimensions in another order, or with gaps. */
static inline shoal_tensor *row_tensor_like(struct row_case *c, shoal_dtype dtype, int n_dims,
                                            const int64_t *shape, bool is_plain)
{
    int64_t order[SHOAL_MAX_DIMS] = {0};
    int64_t back[SHOAL_MAX_DIMS] = {0};
    int64_t laid[SHOAL_MAX_DIMS] = {0};
    shoal_tensor *tensor;
    for (int i = 0; i < n_dims; i++) {
        int64_t at = row_pick(c, 0, i);
        order[i] = order[at];
        order[at] = i;
    }
    for (int i = 0; i < n_dims; i++) {
        laid[i] = shape[order[i]];
        back[order[i]] = i;
    }
    bool has_gaps = row_chance(c, 3);
    bool is_straight = is_plain || n_dims == 0 || row_chance(c, 3);
    if (is_straight) {
        tensor = row_make(c, dtype, n_dims, shape);
    } else if (has_gaps) {
        laid[0] *= 2;
        tensor =
            shoal_permute(shoal_slice(row_make(c, dtype, n_dims, laid), 0, 0, INT64_MAX, 2), back, n_dims);
    } else {
        tensor = shoal_permute(row_make(c, dtype, n_dims, laid), back, n_dims);
    }
    c->tensors[c->n_tensors++] = tensor;
    return tensor;
}

static inline shoal_tensor *row_tensor(struct row_case *c, shoal_dtype dtype, int n_dims,
                                       const int64_t *shape)
{
    return row_tensor_like(c, dtype, n_dims, shape, /*is_plain=*/false);
}

/* Contiguous and, where the group has some, in symmetric memory. */
static inline shoal_tensor *row_symmetric(struct row_case *c, shoal_dtype dtype, int n_dims,
                                          const int64_t *shape)
{
    if (c->wanted.device == SHOAL_META || !c->wanted.symmetric) {
        return row_tensor_like(c, dtype, n_dims, shape, /*is_plain=*/true);
    }
    return c->tensors[c->n_tensors++] = shoal_symmetric_tensor(c->wanted.symmetric, 0, shape, n_dims, dtype);
}

/* Arguments -------------------------------------------------------------------------------------------- */

static inline void row_add(struct row_case *c, shoal_value value)
{
    c->values[c->n_values++] = value;
}

static inline void row_add_tensor(struct row_case *c, shoal_tensor *tensor)
{
    row_add(c, box_tensor(tensor));
}

/* The tensors of the case from `first` on. */
static inline void row_add_list(struct row_case *c, size_t first)
{
    row_add(c, box_tensors(&c->tensors[first], c->n_tensors - first));
}

static inline int64_t *row_next_ints(struct row_case *c)
{
    return c->ints[c->n_lists++];
}

/* An operator that the dtype has; true: the call needs a factor. */
static inline bool row_add_reduce(struct row_case *c, shoal_dtype dtype, bool may_premul)
{
    static const char *const for_floats[] = {"sum", "avg", "product", "min", "MAX", "Sum", "premul_sum"};
    static const char *const for_integers[] = {"sum", "avg", "product", "min", "max", "BAND", "bor", "bxor"};
    static const char *const for_bools[] = {"sum", "product", "min", "max", "band", "bor", "bxor"};
    static const char *const for_complex[] = {"sum", "AVG", "premul_sum"};
    const char *name = "";
    switch (dtype_kind(dtype)) {
    case DTYPE_KIND_FLOAT:
        name = for_floats[row_pick(c, 0, may_premul ? 6 : 5)];
        break;
    case DTYPE_KIND_FLOAT8: /* row_pick_dtype does not pick it */
        break;
    case DTYPE_KIND_COMPLEX:
        name = for_complex[row_pick(c, 0, may_premul ? 2 : 1)];
        break;
    case DTYPE_KIND_BOOLEAN:
        name = for_bools[row_pick(c, 0, 6)];
        break;
    case DTYPE_KIND_SIGNED:
    case DTYPE_KIND_UNSIGNED:
        name = for_integers[row_pick(c, 0, 7)];
        break;
    }
    row_add(c, box_string(name));
    return strcmp(name, "premul_sum") == 0;
}

static inline void row_add_group(struct row_case *c)
{
    row_add(c, box_group(c->wanted.group));
}

/* The last argument of a reduction; an absent factor is left out, or given as what stands for it. */
static inline void row_add_factor(struct row_case *c, bool needs_factor)
{
    if (needs_factor) {
        row_add(c, box_float(1.5));
    } else if (row_chance(c, 2)) {
        row_add(c, box_float((double)NAN));
    }
}

/* Outputs ---------------------------------------------------------------------------------------------- */

static inline struct row_output *row_expect_new(struct row_case *c, shoal_dtype dtype, int n_dims,
                                                const int64_t *shape)
{
    struct row_output *output = &c->outputs[c->n_outputs++];
    *output = (struct row_output){.dtype = dtype, .n_dims = n_dims};
    memcpy(output->shape, shape, (size_t)n_dims * sizeof shape[0]);
    return output;
}

static inline void row_expect_same(struct row_case *c, shoal_tensor *tensor)
{
    c->outputs[c->n_outputs++] = (struct row_output){.same = tensor};
}

static inline shoal_tensor *row_output_of(const shoal_value *result, size_t index)
{
    return result->kind == SHOAL_VALUE_TENSORS ? result->as.tensors[index] : result->as.tensor;
}

static inline bool row_is_contiguous(const shoal_tensor *tensor)
{
    int64_t stride = 1;
    for (int i = shoal_tensor_n_dims(tensor) - 1; i >= 0; i--) {
        if (shoal_tensor_strides(tensor)[i] != stride) {
            return false;
        }
        stride *= shoal_tensor_shape(tensor)[i] > 0 ? shoal_tensor_shape(tensor)[i] : 1;
    }
    return true;
}

/* A new output: of that shape, contiguous, on the device of the inputs, and with memory of its own. */
static inline void row_check_new(const struct row_case *c, const struct row_output *expected,
                                 const shoal_tensor *tensor)
{
    CHECK_INT(shoal_tensor_dtype(tensor), expected->dtype);
    CHECK_INT(shoal_tensor_device(tensor), c->wanted.device);
    CHECK_INT(shoal_tensor_n_dims(tensor), expected->n_dims);
    for (int i = 0; i < expected->n_dims && !test_has_failed(); i++) {
        CHECK_INT(shoal_tensor_shape(tensor)[i], expected->shape[i]);
    }
    CHECK(row_is_contiguous(tensor));
    CHECK_INT(shoal_tensor_offset(tensor), 0);
    for (size_t i = 0; i < c->n_tensors; i++) {
        CHECK(!shoal_tensor_shares_storage(tensor, c->tensors[i]));
    }
}

static inline void row_check_outputs(const struct row_case *c, const shoal_value *result)
{
    shoal_value_kind kind = c->op->returns_list ? SHOAL_VALUE_TENSORS : SHOAL_VALUE_TENSOR;
    if (!CHECK_INT(result->kind, kind) || !CHECK_INT(result->count, c->n_outputs)) {
        return;
    }
    for (size_t i = 0; i < c->n_outputs && !test_has_failed(); i++) {
        const shoal_tensor *tensor = row_output_of(result, i);
        REQUIRE(tensor);
        if (c->outputs[i].same) {
            CHECK(tensor == c->outputs[i].same);
        } else {
            row_check_new(c, &c->outputs[i], tensor);
        }
    }
}

#endif
