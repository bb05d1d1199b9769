/* SPDX-License-Identifier: MIT */
/* The properties of each dtype, from dtypes.def. */
#ifndef TENSOR_DTYPE_H
#define TENSOR_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/dtype.h"

enum dtype_kind {
    DTYPE_KIND_FLOAT,
    DTYPE_KIND_SIGNED,
    DTYPE_KIND_UNSIGNED,
    DTYPE_KIND_BOOLEAN,
    DTYPE_KIND_COMPLEX,
    DTYPE_KIND_FLOAT8 /* moved, cast and stored; no arithmetic */
};

struct dtype_c64 {
    float re;
    float im;
};

struct dtype_c128 {
    double re;
    double im;
};

struct dtype_row {
    const char *name;
    size_t bytes;
    size_t alignment;
    enum dtype_kind kind;
    shoal_dtype accumulation;
};

/* DTYPE_COUNT is one past the last dtype; 0 is none. */
enum {
#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits) DTYPE_INDEX_##NAME,
    DTYPE_INDEX_NONE,
#include "tensor/dtypes.def"
#undef DTYPE
    DTYPE_COUNT
};

extern const struct dtype_row dtype_rows[DTYPE_COUNT];

bool dtype_is_valid(shoal_dtype dtype);

/* For a valid dtype. */
static inline size_t dtype_bytes(shoal_dtype dtype)
{
    return dtype_rows[dtype].bytes;
}

static inline enum dtype_kind dtype_kind(shoal_dtype dtype)
{
    return dtype_rows[dtype].kind;
}

/* Whether elements are real floating-point numbers, with arithmetic (shoal_dtype_is_floating) or without. */
static inline bool dtype_is_real(shoal_dtype dtype)
{
    return dtype_kind(dtype) == DTYPE_KIND_FLOAT || dtype_kind(dtype) == DTYPE_KIND_FLOAT8;
}

/* SHOAL_ERR_INVALID, naming the argument, for a number that is no dtype. */
shoal_status dtype_check(shoal_dtype dtype, const char *argument);

#endif
