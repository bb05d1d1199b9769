/* SPDX-License-Identifier: MIT */
/* Boxing arguments and calling a row: what typed functions are made of. */
#ifndef OP_BOX_H
#define OP_BOX_H

#include "op/op.h"

static inline shoal_value box_tensor(shoal_tensor *tensor)
{
    return (shoal_value){.kind = SHOAL_VALUE_TENSOR, .count = 1, .as.tensor = tensor};
}

static inline shoal_value box_tensors(shoal_tensor *const *tensors, size_t count)
{
    return (shoal_value){.kind = SHOAL_VALUE_TENSORS, .count = count, .as.tensors = tensors};
}

static inline shoal_value box_int(int64_t integer)
{
    return (shoal_value){.kind = SHOAL_VALUE_INT, .as.integer = integer};
}

static inline shoal_value box_ints(const int64_t *integers, size_t count)
{
    return (shoal_value){.kind = SHOAL_VALUE_INTS, .count = count, .as.integers = integers};
}

/* A negative number of dimensions becomes a count that every op rejects and that errors print as this number. */
static inline shoal_value box_dims(const int64_t *integers, int n_dims)
{
    return box_ints(integers, (size_t)n_dims);
}

static inline shoal_value box_float(double real)
{
    return (shoal_value){.kind = SHOAL_VALUE_FLOAT, .as.real = real};
}

static inline shoal_value box_bool(bool boolean)
{
    return (shoal_value){.kind = SHOAL_VALUE_BOOL, .as.boolean = boolean};
}

static inline shoal_value box_dtype(shoal_dtype dtype)
{
    return (shoal_value){.kind = SHOAL_VALUE_DTYPE, .as.dtype = dtype};
}

static inline shoal_value box_string(const char *string)
{
    return (shoal_value){.kind = SHOAL_VALUE_STRING, .as.string = string};
}

static inline shoal_value box_group(struct shoal_group *group)
{
    return (shoal_value){.kind = SHOAL_VALUE_GROUP, .as.group = group};
}

/* Returns NULL after an error, which the scope keeps. */
shoal_tensor *box_call_one(enum op_id id, const shoal_value *arguments, size_t n_arguments);
/* count_out may be NULL. */
shoal_tensor *const *box_call_many(enum op_id id, const shoal_value *arguments, size_t n_arguments,
                                   size_t *count_out);

/* An array of boxed arguments, and how many they are. */
#define BOX_COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define BOX_LIST(...) (const shoal_value[]){__VA_ARGS__}, BOX_COUNT(((const shoal_value[]){__VA_ARGS__}))

#define BOX_ONE(name, ...) box_call_one(OP_##name, BOX_LIST(__VA_ARGS__))
#define BOX_MANY(name, count_out, ...) box_call_many(OP_##name, BOX_LIST(__VA_ARGS__), count_out)

#endif
