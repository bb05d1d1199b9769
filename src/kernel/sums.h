/* SPDX-License-Identifier: MIT */
/*
 * The arithmetic of kernel_sum_nd, for each row of dtypes.def that has sums:
 *
 *   sum_FLOAT, sum_SIGNED, ...   what elements of a kind are added in; sums start at 0
 *   sum_plus_F16                 adds an element
 *   sum_finish_F16               the element of the result: the sum, divided unless the divisor is 0, rounded once
 *
 * GPUs compile this file as well (cuda/kernels/target.h), so it is written in what C and C++ have in common.
 */
#ifndef KERNEL_SUMS_H
#define KERNEL_SUMS_H

#include <stdint.h>

#include "kernel/arithmetic.h"

typedef double sum_FLOAT;
typedef uint64_t sum_SIGNED;
typedef uint64_t sum_UNSIGNED;
typedef uint64_t sum_BOOLEAN;
typedef struct dtype_c128 sum_COMPLEX;

/* Adding ----------------------------------------------------------------------------------------------- */

#define PLUS_FLOAT(NAME) sum + (double)element_load_##NAME(element)
#define PLUS_SIGNED(NAME) sum + (uint64_t)element
#define PLUS_UNSIGNED(NAME) sum + (uint64_t)element
#define PLUS_BOOLEAN(NAME) sum | (uint64_t)(element != 0)
#define PLUS_COMPLEX(NAME) complex_value_C128(sum.re + (double)element.re, sum.im + (double)element.im)

#define SUM_PLUS(NAME, kind)                                                       \
    static inline sum_##kind sum_plus_##NAME(sum_##kind sum, value_##NAME element) \
    {                                                                              \
        return PLUS_##kind(NAME);                                                  \
    }

/* Finishing -------------------------------------------------------------------------------------------- */

static inline double sum_round_F64(double sum)
{
    return sum;
}

static inline float sum_round_F32(double sum)
{
    return (float)sum;
}

static inline uint16_t sum_round_F16(double sum)
{
    return half_f64_to_f16(sum);
}

static inline uint16_t sum_round_BF16(double sum)
{
    return half_f64_to_bf16(sum);
}

#define sum_round_C64 sum_round_F32
#define sum_round_C128 sum_round_F64

static inline int64_t sum_divide_signed(int64_t sum, int64_t divisor)
{
    if (divisor == 0) {
        return sum;
    }
    return divisor == -1 ? (int64_t) - (uint64_t)sum : sum / divisor;
}

static inline uint64_t sum_divide_unsigned(uint64_t sum, int64_t divisor)
{
    return divisor == 0 ? sum : sum / (uint64_t)divisor;
}

static inline double sum_divide_real(double sum, int64_t divisor)
{
    return divisor == 0 ? sum : sum / (double)divisor;
}

/* The sum wraps in the dtype before it is divided. */
#define FINISH_FLOAT(NAME) sum_round_##NAME(sum_divide_real(sum, divisor))
#define FINISH_SIGNED(NAME) (value_##NAME) sum_divide_signed((value_##NAME)sum, divisor)
#define FINISH_UNSIGNED(NAME) (value_##NAME) sum_divide_unsigned((value_##NAME)sum, divisor)
#define FINISH_BOOLEAN(NAME) (value_##NAME) sum
#define FINISH_COMPLEX(NAME)                                                 \
    complex_value_##NAME(sum_round_##NAME(sum_divide_real(sum.re, divisor)), \
                         sum_round_##NAME(sum_divide_real(sum.im, divisor)))

#define SUM_FINISH(NAME, kind)                                                    \
    static inline value_##NAME sum_finish_##NAME(sum_##kind sum, int64_t divisor) \
    {                                                                             \
        (void)divisor;                                                            \
        return FINISH_##kind(NAME);                                               \
    }

#define SUM_FLOAT(NAME) SUM_PLUS(NAME, FLOAT) SUM_FINISH(NAME, FLOAT)
#define SUM_FLOAT8(NAME)
#define SUM_SIGNED(NAME) SUM_PLUS(NAME, SIGNED) SUM_FINISH(NAME, SIGNED)
#define SUM_UNSIGNED(NAME) SUM_PLUS(NAME, UNSIGNED) SUM_FINISH(NAME, UNSIGNED)
#define SUM_BOOLEAN(NAME) SUM_PLUS(NAME, BOOLEAN) SUM_FINISH(NAME, BOOLEAN)
#define SUM_COMPLEX(NAME) SUM_PLUS(NAME, COMPLEX) SUM_FINISH(NAME, COMPLEX)
#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits) SUM_##kind(NAME)
#include "tensor/dtypes.def"
#undef DTYPE

#undef PLUS_FLOAT
#undef PLUS_SIGNED
#undef PLUS_UNSIGNED
#undef PLUS_BOOLEAN
#undef PLUS_COMPLEX
#undef FINISH_FLOAT
#undef FINISH_SIGNED
#undef FINISH_UNSIGNED
#undef FINISH_BOOLEAN
#undef FINISH_COMPLEX
#undef SUM_PLUS
#undef SUM_FINISH
#undef SUM_FLOAT
#undef SUM_FLOAT8
#undef SUM_SIGNED
#undef SUM_UNSIGNED
#undef SUM_BOOLEAN
#undef SUM_COMPLEX

#endif
