/* SPDX-License-Identifier: MIT */
/*
 * Element types and reduce operators.
 *
 * Ownership: every returned string belongs to the library.
 * Threads: any.
 * Errors: a number that is no dtype has the name "?" and 0 bytes.
 */
#ifndef SHOAL_DTYPE_H
#define SHOAL_DTYPE_H

#include <stdbool.h>
#include <stddef.h>

#include "shoal/api.h"
#include "shoal/status.h"

SHOAL_BEGIN_DECLS

/*
 * Zero is no dtype. f16 and bf16 are sixteen bits that C has no arithmetic for: tensors convert (shoal_to_dtype), and
 * so does a gather into a window; for other raw memory there is no call that does. A bf16 is the upper half of an f32.
 */
typedef enum shoal_dtype {
    SHOAL_F64 = 1,
    SHOAL_F32 = 2,
    SHOAL_F16 = 3,
    SHOAL_BF16 = 4,
    SHOAL_I8 = 5,
    SHOAL_I16 = 6,
    SHOAL_I32 = 7,
    SHOAL_I64 = 8,
    SHOAL_U8 = 9,
    SHOAL_U16 = 10,
    SHOAL_U32 = 11,
    SHOAL_U64 = 12,
    SHOAL_BOOL = 13, /* one byte, 0 or 1; any other byte reads as 1 */
    SHOAL_C64 = 14,  /* two f32: real, imaginary */
    SHOAL_C128 = 15  /* two f64 */
} shoal_dtype;

/* Of one element; 0 for a number that is no dtype. */
SHOAL_API size_t shoal_dtype_bytes(shoal_dtype dtype);

/* "f32"; "?" for a number that is no dtype. */
SHOAL_API const char *shoal_dtype_name(shoal_dtype dtype);

/* By that name; SHOAL_ERR_INVALID, naming the nearest dtype, when there is none. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_dtype_find(const char *name, shoal_dtype *dtype_out);

/* True for f64 f32 f16 bf16. */
SHOAL_API bool shoal_dtype_is_floating(shoal_dtype dtype);

/* How values of several ranks are combined; the numbers go over the wire. */
typedef enum shoal_reduce_op {
    SHOAL_SUM = 0,
    SHOAL_AVG = 1, /* of integers: the quotient, cut towards zero */
    SHOAL_PRODUCT = 2,
    SHOAL_MIN = 3,
    SHOAL_MAX = 4,
    SHOAL_BAND = 5,
    SHOAL_BOR = 6,
    SHOAL_BXOR = 7,
    SHOAL_PREMUL_SUM = 8 /* sum of factor * value */
} shoal_reduce_op;

/* "sum"; "?" for a number that is no operator. */
SHOAL_API const char *shoal_reduce_op_name(shoal_reduce_op reduce);

/* By that name, in upper or lower case; SHOAL_ERR_INVALID when there is none. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_reduce_op_find(const char *name, shoal_reduce_op *reduce_out);

SHOAL_END_DECLS

#endif
