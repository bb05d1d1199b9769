/* SPDX-License-Identifier: MIT */
/*
 * Dtypes (types of elements) and reduce operators (how values of several ranks are combined).
 *
 * Ownership: every returned string belongs to the library.
 * Threads: any.
 * Errors: status and text. Calls that return something else take any number and say below what they give for one that
 * is no dtype or operator.
 */
#ifndef SHOAL_DTYPE_H
#define SHOAL_DTYPE_H

#include <stdbool.h>
#include <stddef.h>

#include "shoal/api.h"
#include "shoal/status.h"

SHOAL_BEGIN_DECLS

/*
 * 0 is no dtype, so that a forgotten field is an error. f16 (IEEE half precision) and bf16 (the upper half of an f32)
 * have 16 bits and no arithmetic in C: shoal_to_dtype converts tensors, and a gather into a window converts on the way
 * (shoal/window.h). There is no call that converts other raw memory.
 *
 * The two 8-bit floats are PyTorch's float8_e4m3fn and float8_e5m2. They are only moved, converted, printed and stored:
 * arithmetic on them, reductions and gradients included, is SHOAL_ERR_UNSUPPORTED. Conversions to them round to nearest
 * even. What is too large becomes NaN in e4m3fn, which has no infinity, and infinity in e5m2.
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
    SHOAL_BOOL = 13,      /* one byte, 0 or 1; any other byte reads as 1 */
    SHOAL_C64 = 14,       /* two f32: real, imaginary */
    SHOAL_C128 = 15,      /* two f64: real, imaginary */
    SHOAL_F8_E4M3FN = 16, /* 4 bits of exponent, 3 of fraction: up to 448; S.1111.111 is the only NaN */
    SHOAL_F8_E5M2 = 17    /* 5 bits of exponent, 2 of fraction: up to 57344; infinities and NaN as in f16 */
} shoal_dtype;

/* The bytes of one element; 0 for a number that is no dtype. */
SHOAL_API size_t shoal_dtype_bytes(shoal_dtype dtype);

/* The name of a dtype in small letters: "f32"; "?" for a number that is no dtype. */
SHOAL_API const char *shoal_dtype_name(shoal_dtype dtype);

/* Finds a dtype by its name. SHOAL_ERR_INVALID, with the nearest name in the text: there is none. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_dtype_find(const char *name, shoal_dtype *dtype_out);

/* True for f64, f32, f16 and bf16: real numbers with arithmetic and gradients. False for the 8-bit floats. */
SHOAL_API bool shoal_dtype_is_floating(shoal_dtype dtype);

/*
 * Values are combined in rank order, in the accumulation type (f32 for f16 and bf16, otherwise the dtype itself), and
 * rounded once. Sums and products of integers wrap. A combination that is not offered is SHOAL_ERR_UNSUPPORTED.
 */
typedef enum shoal_reduce_op {
    SHOAL_SUM = 0,       /* any dtype but 8-bit floats, which no operator takes; of bools: or */
    SHOAL_AVG = 1,       /* the sum divided by the number of ranks; integers are cut towards zero; not bool */
    SHOAL_PRODUCT = 2,   /* not complex; of bools: and */
    SHOAL_MIN = 3,       /* not complex; a NaN wins; of bools: and */
    SHOAL_MAX = 4,       /* not complex; a NaN wins; of bools: or */
    SHOAL_BAND = 5,      /* bitwise and; integers and bool */
    SHOAL_BOR = 6,       /* bitwise or; integers and bool */
    SHOAL_BXOR = 7,      /* bitwise exclusive or; integers and bool */
    SHOAL_PREMUL_SUM = 8 /* the sum of factor * value (shoal_group_collective); floating and complex */
} shoal_reduce_op;

/* The name of an operator in small letters: "sum"; "?" for a number that is no operator. */
SHOAL_API const char *shoal_reduce_op_name(shoal_reduce_op reduce);

/* Finds an operator by its name, in upper or lower case. SHOAL_ERR_INVALID, with the nearest name: there is none. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_reduce_op_find(const char *name, shoal_reduce_op *reduce_out);

SHOAL_END_DECLS

#endif
