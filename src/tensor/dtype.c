/* SPDX-License-Identifier: MIT */
/* Names and properties of dtypes and reduce operators: the expansions of dtypes.def and reduces.def. */
#include "tensor/dtype.h"

#include <stdalign.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/name.h"

const struct dtype_row dtype_rows[DTYPE_COUNT] = {
    [DTYPE_INDEX_NONE] = {.name = "?"},
#define DTYPE(NAME, name_, ctype, kind_, accumulation_, dl_code, dl_bits) \
    [SHOAL_##NAME] = {.name = #name_,                                     \
                      .bytes = sizeof(ctype),                             \
                      .alignment = alignof(ctype),                        \
                      .kind = DTYPE_KIND_##kind_,                         \
                      .accumulation = SHOAL_##accumulation_},
#include "tensor/dtypes.def"
#undef DTYPE
};

/* Checks at compile time that the public enum and the rows have the same numbers. */
#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits) \
    _Static_assert((int)DTYPE_INDEX_##NAME == (int)SHOAL_##NAME, #NAME " has another number in dtype.h");
#include "tensor/dtypes.def"
#undef DTYPE

static const char *const reduce_names[] = {
#define REDUCE(NAME, name) [SHOAL_##NAME] = #name,
#include "tensor/reduces.def"
#undef REDUCE
};

enum {
    REDUCE_COUNT = sizeof(reduce_names) / sizeof(reduce_names[0])
};

/* A public value without a row is a -Wswitch-enum warning here, and those are errors in CI. */
bool dtype_is_valid(shoal_dtype dtype)
{
    switch (dtype) {
#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits) case SHOAL_##NAME:
#include "tensor/dtypes.def"
#undef DTYPE
        return true;
    }
    return false;
}

static bool reduce_is_valid(shoal_reduce_op reduce)
{
    switch (reduce) {
#define REDUCE(NAME, name) case SHOAL_##NAME:
#include "tensor/reduces.def"
#undef REDUCE
        return true;
    }
    return false;
}

shoal_status dtype_check(shoal_dtype dtype, const char *argument)
{
    if (dtype_is_valid(dtype)) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_INVALID, "%s: %d is not a dtype", argument, (int)dtype);
}

size_t shoal_dtype_bytes(shoal_dtype dtype)
{
    return dtype_is_valid(dtype) ? dtype_rows[dtype].bytes : 0;
}

const char *shoal_dtype_name(shoal_dtype dtype)
{
    return dtype_is_valid(dtype) ? dtype_rows[dtype].name : "?";
}

bool shoal_dtype_is_floating(shoal_dtype dtype)
{
    return dtype_is_valid(dtype) && dtype_rows[dtype].kind == DTYPE_KIND_FLOAT;
}

shoal_status shoal_dtype_find(const char *name, shoal_dtype *dtype_out)
{
    error_clear();
    if (!name || !dtype_out) {
        return error_set(SHOAL_ERR_INVALID, "%s is NULL", name ? "dtype_out" : "name");
    }
    for (int i = 1; i < DTYPE_COUNT; i++) {
        if (strcmp(dtype_rows[i].name, name) == 0) {
            *dtype_out = (shoal_dtype)i;
            return SHOAL_OK;
        }
    }
    int nearest = 1;
    for (int i = 2; i < DTYPE_COUNT; i++) {
        if (name_distance(name, dtype_rows[i].name) < name_distance(name, dtype_rows[nearest].name)) {
            nearest = i;
        }
    }
    return error_set(SHOAL_ERR_INVALID, "dtype_find: there is no dtype \"%.32s\"; the nearest is \"%s\"",
                     name, dtype_rows[nearest].name);
}

const char *shoal_reduce_op_name(shoal_reduce_op reduce)
{
    return reduce_is_valid(reduce) ? reduce_names[reduce] : "?";
}

shoal_status shoal_reduce_op_find(const char *name, shoal_reduce_op *reduce_out)
{
    error_clear();
    if (!name || !reduce_out) {
        return error_set(SHOAL_ERR_INVALID, "%s is NULL", name ? "reduce_out" : "name");
    }
    for (int i = 0; i < REDUCE_COUNT; i++) {
        if (strcasecmp(reduce_names[i], name) == 0) {
            *reduce_out = (shoal_reduce_op)i;
            return SHOAL_OK;
        }
    }
    int nearest = 0;
    for (int i = 1; i < REDUCE_COUNT; i++) {
        if (name_distance(name, reduce_names[i]) < name_distance(name, reduce_names[nearest])) {
            nearest = i;
        }
    }
    return error_set(SHOAL_ERR_INVALID,
                     "reduce_op_find: there is no reduce operator \"%.32s\"; the nearest is \"%s\"", name,
                     reduce_names[nearest]);
}
