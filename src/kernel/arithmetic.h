/* SPDX-License-Identifier: MIT */
/*
 * Arithmetic on single elements, in the type that the dtype is computed in: add_value_F16, sub_value_I32, ...,
 * negate_value_C64, equal_value_BF16. Complex numbers:
 *
 *   (a + bi) + (c + di) = (a + c) + (b + d)i          (a + bi)(c + di) = (ac - bd) + (ad + bc)i
 *   (a + bi) / (c + di) = ((ac + bd) / s) + ((bc - ad) / s)i,   s = cc + dd
 *
 * as written, each operation rounded in the component's type, and nothing done for infinities or NaN.
 *
 * GPUs compile this file as well (cuda/kernels/target.h), so it is written in what C and C++ have in common.
 */
#ifndef KERNEL_ARITHMETIC_H
#define KERNEL_ARITHMETIC_H

#include <stdbool.h>
#include <stdint.h>

#include "kernel/element.h"

#define BINARY_VALUE(verb, NAME, expression)                                             \
    static inline compute_##NAME verb##_value_##NAME(compute_##NAME x, compute_##NAME y) \
    {                                                                                    \
        return (expression);                                                             \
    }
#define UNARY_VALUE(verb, NAME, expression)                            \
    static inline compute_##NAME verb##_value_##NAME(compute_##NAME x) \
    {                                                                  \
        return (expression);                                           \
    }

#define VALUES_FLOAT(NAME)         \
    BINARY_VALUE(add, NAME, x + y) \
    BINARY_VALUE(sub, NAME, x - y) \
    BINARY_VALUE(mul, NAME, x *y)  \
    BINARY_VALUE(div, NAME, x / y) \
    UNARY_VALUE(negate, NAME, -x)

/* Modulo 2^bits: in unsigned types that no promotion turns into int. */
#define WRAPPED(NAME, sign)                                                     \
    (compute_##NAME)(sizeof(compute_##NAME) == 8 ? (uint64_t)x sign(uint64_t) y \
                                                 : (uint64_t)((uint32_t)x sign(uint32_t) y))
#define VALUES_UNSIGNED(NAME)                                     \
    BINARY_VALUE(add, NAME, WRAPPED(NAME, +))                     \
    BINARY_VALUE(sub, NAME, WRAPPED(NAME, -))                     \
    BINARY_VALUE(mul, NAME, WRAPPED(NAME, *))                     \
    BINARY_VALUE(div, NAME, (compute_##NAME)(y == 0 ? 0 : x / y)) \
    UNARY_VALUE(negate, NAME, sub_value_##NAME(0, x))

/* Signed integers have a quotient of their own. Dividing by -1 is negating: the smallest number gives itself instead
   of a trap. */
#define VALUES_SIGNED(NAME)                   \
    BINARY_VALUE(sub, NAME, WRAPPED(NAME, -)) \
    BINARY_VALUE(div, NAME, (compute_##NAME)(y == 0 ? 0 : y == -1 ? sub_value_##NAME(0, x) : x / y))

#define VALUES_BOOLEAN(NAME)       \
    BINARY_VALUE(add, NAME, x | y) \
    BINARY_VALUE(mul, NAME, x &y)

#define VALUES_FLOAT8(NAME)

static inline struct dtype_c64 complex_value_C64(float real, float imaginary)
{
    struct dtype_c64 value = {real, imaginary};
    return value;
}

static inline struct dtype_c128 complex_value_C128(double real, double imaginary)
{
    struct dtype_c128 value = {real, imaginary};
    return value;
}

#define COMPLEX(NAME, real, imaginary) complex_value_##NAME((real), (imaginary))
#define VALUES_COMPLEX(NAME)                                                                    \
    BINARY_VALUE(add, NAME, COMPLEX(NAME, x.re + y.re, x.im + y.im))                            \
    BINARY_VALUE(sub, NAME, COMPLEX(NAME, x.re - y.re, x.im - y.im))                            \
    BINARY_VALUE(mul, NAME, COMPLEX(NAME, x.re *y.re - x.im * y.im, x.re * y.im + x.im * y.re)) \
    BINARY_VALUE(div, NAME,                                                                     \
                 COMPLEX(NAME, (x.re * y.re + x.im * y.im) / (y.re * y.re + y.im * y.im),       \
                         (x.im * y.re - x.re * y.im) / (y.re * y.re + y.im * y.im)))            \
    UNARY_VALUE(negate, NAME, COMPLEX(NAME, -x.re, -x.im))

#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits) VALUES_##kind(NAME)
#include "tensor/dtypes.def"
#undef DTYPE

#undef VALUES_FLOAT
#undef VALUES_FLOAT8
#undef VALUES_SIGNED
#undef VALUES_UNSIGNED
#undef VALUES_BOOLEAN
#undef VALUES_COMPLEX
#undef COMPLEX
#undef WRAPPED
#undef UNARY_VALUE
#undef BINARY_VALUE

/* Equal: NaN with NaN, too. */
#define EQUAL_FLOAT(x, y) ((x) == (y) || ((x) != (x) && (y) != (y)))
#define EQUAL_FLOAT8 EQUAL_FLOAT
#define EQUAL_SIGNED(x, y) ((x) == (y))
#define EQUAL_UNSIGNED(x, y) ((x) == (y))
#define EQUAL_BOOLEAN(x, y) ((x) == (y))
#define EQUAL_COMPLEX(x, y) (EQUAL_FLOAT((x).re, (y).re) && EQUAL_FLOAT((x).im, (y).im))

#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits)        \
    static inline bool equal_value_##NAME(compute_##NAME x, compute_##NAME y) \
    {                                                                         \
        return EQUAL_##kind(x, y);                                            \
    }
#include "tensor/dtypes.def"
#undef DTYPE

#undef EQUAL_FLOAT
#undef EQUAL_FLOAT8
#undef EQUAL_SIGNED
#undef EQUAL_UNSIGNED
#undef EQUAL_BOOLEAN
#undef EQUAL_COMPLEX

#endif
