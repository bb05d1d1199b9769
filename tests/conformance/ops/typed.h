/* SPDX-License-Identifier: MIT */
/*
 * typed_<name> for every row of ops.def that needs no group: the same call through the typed function of shoal/ops.h. A row
 * without one, or a typed function that is missing or takes something else, does not compile.
 */
#ifndef CONFORMANCE_TYPED_H
#define CONFORMANCE_TYPED_H

#include "op/op.h"
#include "shoal_compat/torch.h"
#include "shoal/ops.h"

static inline bool give_one(shoal_value *result, shoal_tensor *tensor)
{
    *result = (shoal_value){.kind = SHOAL_VALUE_TENSOR, .count = 1, .as.tensor = tensor};
    return tensor != NULL;
}

static inline bool give_many(shoal_value *result, shoal_tensor *const *tensors, size_t count)
{
    *result = (shoal_value){.kind = SHOAL_VALUE_TENSORS, .count = count, .as.tensors = tensors};
    return tensors != NULL;
}

#define TENSOR(i) (v[i].as.tensor)
#define LIST(i) (v[i].as.tensors), (v[i].count)
#define INT(i) (v[i].as.integer)
#define DIMS(i) (v[i].as.integers), ((int)v[i].count)
#define NUMBER(i) (v[i].kind == SHOAL_VALUE_INT ? (double)v[i].as.integer : v[i].as.real)

#define TYPED(name) static inline bool typed_##name(const shoal_value *v, shoal_value *result)
#define TYPED_ONE(name, ...)                                \
    TYPED(name)                                             \
    {                                                       \
        return give_one(result, shoal_##name(__VA_ARGS__)); \
    }
#define TYPED_MANY(name, ...)                                          \
    TYPED(name)                                                        \
    {                                                                  \
        size_t count = 77;                                             \
        shoal_tensor *const *list = shoal_##name(__VA_ARGS__, &count); \
        return give_many(result, list, count);                         \
    }

static inline shoal_device named_device(const char *name)
{
    shoal_device device = SHOAL_CPU;
    return shoal_device_find(name, &device) == SHOAL_OK ? device : SHOAL_CPU;
}

TYPED_ONE(empty, DIMS(0), v[1].as.dtype)
TYPED_ONE(zeros, DIMS(0), v[1].as.dtype)
TYPED_ONE(full, DIMS(0), NUMBER(1), v[2].as.dtype)
TYPED_ONE(clone, TENSOR(0))
TYPED_ONE(contiguous, TENSOR(0))
TYPED_ONE(to_dtype, TENSOR(0), v[1].as.dtype)
TYPED_ONE(to_device, TENSOR(0), named_device(v[1].as.string))
TYPED_ONE(copy_, TENSOR(0), TENSOR(1))
TYPED_ONE(view, TENSOR(0), DIMS(1))
TYPED_ONE(view_dtype, TENSOR(0), v[1].as.dtype)
TYPED_ONE(reshape, TENSOR(0), DIMS(1))
TYPED_ONE(flatten, TENSOR(0), INT(1), INT(2))
TYPED_ONE(narrow, TENSOR(0), INT(1), INT(2), INT(3))
TYPED_ONE(slice, TENSOR(0), INT(1), INT(2), INT(3), INT(4))
TYPED_ONE(select, TENSOR(0), INT(1), INT(2))
TYPED_ONE(permute, TENSOR(0), DIMS(1))
TYPED_ONE(transpose, TENSOR(0), INT(1), INT(2))
TYPED_ONE(squeeze, TENSOR(0), INT(1))
TYPED_ONE(squeeze_all, TENSOR(0))
TYPED_ONE(unsqueeze, TENSOR(0), INT(1))
TYPED_ONE(expand, TENSOR(0), DIMS(1))
TYPED_ONE(as_strided, TENSOR(0), v[1].as.integers, v[2].as.integers, (int)v[1].count, INT(3))
TYPED_MANY(split, TENSOR(0), INT(1), INT(2))
TYPED_MANY(split_with_sizes, TENSOR(0), v[1].as.integers, v[1].count, INT(2))
TYPED_MANY(chunk, TENSOR(0), INT(1), INT(2))
TYPED_MANY(chunk_with_empty, TENSOR(0), INT(1), INT(2))
TYPED_ONE(cat, LIST(0), INT(1))
TYPED_ONE(stack, LIST(0), INT(1))
TYPED_ONE(getitem, LIST(0), INT(1))
TYPED_ONE(as_strided_scatter, TENSOR(0), TENSOR(1), v[2].as.integers, v[3].as.integers, (int)v[2].count,
          INT(4))
TYPED_ONE(control_deps, TENSOR(0), LIST(1))
#define TYPED_OPERATOR(name)                       \
    TYPED_ONE(name, TENSOR(0), TENSOR(1))          \
    TYPED_ONE(name##_, TENSOR(0), TENSOR(1))       \
    TYPED_ONE(name##_scalar, TENSOR(0), NUMBER(1)) \
    TYPED_ONE(name##_scalar_, TENSOR(0), NUMBER(1))
TYPED_OPERATOR(add)
TYPED_OPERATOR(sub)
TYPED_OPERATOR(mul)
TYPED_OPERATOR(div)
TYPED_ONE(neg, TENSOR(0))
TYPED_ONE(neg_, TENSOR(0))
TYPED_ONE(sum, TENSOR(0), DIMS(1), v[2].as.boolean)
TYPED_ONE(mean, TENSOR(0), DIMS(1), v[2].as.boolean)
TYPED_ONE(where_equal, TENSOR(0), TENSOR(1), TENSOR(2))
TYPED_ONE(chunk_cat, LIST(0), INT(3), INT(1), v[2].as.dtype)
TYPED_ONE(chunk_cat_out, LIST(1), INT(3), INT(2), TENSOR(0))
TYPED_MANY(split_with_sizes_copy, TENSOR(0), v[1].as.integers, v[1].count, INT(2))

TYPED(foreach_copy_)
{
    return give_many(result, shoal_foreach_copy_(v[0].as.tensors, LIST(1)), v[0].count);
}

TYPED(foreach_add_)
{
    return give_many(result, shoal_foreach_add_(v[0].as.tensors, LIST(1)), v[0].count);
}

TYPED(foreach_div)
{
    return give_many(result, shoal_foreach_div(LIST(0), NUMBER(1)), v[0].count);
}

TYPED(split_with_sizes_copy_out)
{
    return give_many(
        result,
        shoal_split_with_sizes_copy_out(TENSOR(1), v[2].as.integers, v[2].count, INT(3), v[0].as.tensors),
        v[0].count);
}

TYPED(all_gather_copy_in)
{
    return give_many(result, shoal_all_gather_copy_in(TENSOR(0), LIST(1), INT(2), INT(3)), 2);
}

/* False on failure; the error is then in the scope. */
typedef bool (*typed_function)(const shoal_value *values, shoal_value *result);

static const typed_function typed_functions[OP_COUNT] = {
#define OP(name, signature, flags, meta, kernel, gradient, saves, doc) [OP_##name] = typed_##name,
#define OP_OF_RANKS(...)
#include "op/ops.def"
#undef OP
};

#undef TENSOR
#undef LIST
#undef INT
#undef DIMS
#undef NUMBER

#endif
