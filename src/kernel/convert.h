/* SPDX-License-Identifier: MIT */
/*
 * Conversions of one element between dtypes, by the rules of kernel_cast:
 *
 *   integer to integer   modulo 2^bits: the low bits, read as the target reads them
 *   integer to float     rounded once, to nearest even; f16 and e5m2 overflow to infinity, e4m3fn to NaN
 *   float to integer     truncated, then cut to the target's range; NaN gives 0
 *   complex to bool      true unless both components are zero
 *   bool as a source     any byte but 0 reads as 1
 *
 * They go through a wide value, f64, i64 or u64 by the source's kind: widening is exact, so that narrowing is the only
 * rounding.
 *
 *   convert_load_F16        from an element to its wide value
 *   convert_SIGNED_to_F16   from a wide value to an element
 *   convert_element         from any dtype to any dtype, chosen when it is called
 *
 * The first two are about the real part where the dtype is complex.
 *
 * GPUs compile this file as well (cuda/kernels/target.h), so it is written in what C and C++ have in common.
 */
#ifndef KERNEL_CONVERT_H
#define KERNEL_CONVERT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernel/element.h"

/* From elements to wide values -------------------------------------------------------------------------- */

#define CONVERT_LOAD(NAME, wide, narrow, expression)       \
    static inline wide convert_load_##NAME(narrow element) \
    {                                                      \
        return (expression);                               \
    }
#define CONVERT_LOAD_FLOAT(NAME) \
    CONVERT_LOAD(NAME, double, value_##NAME, (double)element_load_##NAME(element))
#define CONVERT_LOAD_FLOAT8 CONVERT_LOAD_FLOAT
#define CONVERT_LOAD_SIGNED(NAME) CONVERT_LOAD(NAME, int64_t, value_##NAME, element)
#define CONVERT_LOAD_UNSIGNED(NAME) CONVERT_LOAD(NAME, uint64_t, value_##NAME, element)
#define CONVERT_LOAD_BOOLEAN(NAME) CONVERT_LOAD(NAME, uint64_t, value_##NAME, element != 0)
#define CONVERT_LOAD_COMPLEX(NAME)
#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits) CONVERT_LOAD_##kind(NAME)
#include "tensor/dtypes.def"
#undef DTYPE
CONVERT_LOAD(C64, double, float, (double)element)
CONVERT_LOAD(C128, double, double, element)

/* From wide values to elements -------------------------------------------------------------------------- */

static inline double convert_round_odd_REAL(double value)
{
    return value;
}

/*
 * Exact below 2^53; above, the low 11 bits become one that says whether any was set. Rounding the result to
 * at most 40 bits gives what rounding the integer would.
 */
static inline double convert_round_odd_UNSIGNED(uint64_t value)
{
    uint64_t low = value & 0x7ff;
    uint64_t odd = (value - low) | (uint64_t)(low != 0) << 11;
    return (double)(value < (1ull << 53) ? value : odd);
}

static inline double convert_round_odd_SIGNED(int64_t value)
{
    uint64_t magnitude = value < 0 ? -(uint64_t)value : (uint64_t)value;
    double rounded = convert_round_odd_UNSIGNED(magnitude);
    return value < 0 ? -rounded : rounded;
}

/*
 * f32 takes the same way as bf16: clang 14 vectorizes a plain (float) of an i64 into two roundings. An integer
 * that is not exact as a double is far beyond f16 and 8-bit floats: its first rounding does not matter.
 */
#define CONVERT_TO_FLOATS(WIDE, wide)                               \
    static inline double convert_##WIDE##_to_F64(wide value)        \
    {                                                               \
        return (double)value;                                       \
    }                                                               \
    static inline float convert_##WIDE##_to_F32(wide value)         \
    {                                                               \
        return (float)convert_round_odd_##WIDE(value);              \
    }                                                               \
    static inline uint16_t convert_##WIDE##_to_F16(wide value)      \
    {                                                               \
        return half_f64_to_f16((double)value);                      \
    }                                                               \
    static inline uint16_t convert_##WIDE##_to_BF16(wide value)     \
    {                                                               \
        return half_f64_to_bf16(convert_round_odd_##WIDE(value));   \
    }                                                               \
    static inline uint8_t convert_##WIDE##_to_F8_E4M3FN(wide value) \
    {                                                               \
        return half_f64_to_f8_e4m3fn((double)value);                \
    }                                                               \
    static inline uint8_t convert_##WIDE##_to_F8_E5M2(wide value)   \
    {                                                               \
        return half_f64_to_f8_e5m2((double)value);                  \
    }                                                               \
    static inline float convert_##WIDE##_to_C64(wide value)         \
    {                                                               \
        return convert_##WIDE##_to_F32(value);                      \
    }                                                               \
    static inline double convert_##WIDE##_to_C128(wide value)       \
    {                                                               \
        return convert_##WIDE##_to_F64(value);                      \
    }
CONVERT_TO_FLOATS(REAL, double)
CONVERT_TO_FLOATS(SIGNED, int64_t)
CONVERT_TO_FLOATS(UNSIGNED, uint64_t)

static inline int64_t convert_truncate_SIGNED(double value, size_t bits)
{
    uint64_t limit = 1ull << (bits - 1);
    if (value >= (double)limit) {
        return (int64_t)(limit - 1);
    }
    if (value < -(double)limit) {
        return -(int64_t)(limit - 1) - 1;
    }
    return value == value ? (int64_t)value : 0;
}

static inline uint64_t convert_truncate_UNSIGNED(double value, size_t bits)
{
    uint64_t half = 1ull << (bits - 1);
    if (value >= 2.0 * (double)half) {
        return half - 1 + half;
    }
    return value > 0 ? (uint64_t)value : 0;
}

#define CONVERT_TO(WIDE, wide, NAME, expression)                      \
    static inline value_##NAME convert_##WIDE##_to_##NAME(wide value) \
    {                                                                 \
        return (value_##NAME)(expression);                            \
    }
#define CONVERT_TO_INTEGER(NAME, kind)                                                       \
    CONVERT_TO(REAL, double, NAME, convert_truncate_##kind(value, 8 * sizeof(value_##NAME))) \
    CONVERT_TO(SIGNED, int64_t, NAME, value)                                                 \
    CONVERT_TO(UNSIGNED, uint64_t, NAME, value)
#define CONVERT_TO_SIGNED(NAME) CONVERT_TO_INTEGER(NAME, SIGNED)
#define CONVERT_TO_UNSIGNED(NAME) CONVERT_TO_INTEGER(NAME, UNSIGNED)
#define CONVERT_TO_BOOLEAN(NAME)                  \
    CONVERT_TO(REAL, double, NAME, value != 0)    \
    CONVERT_TO(SIGNED, int64_t, NAME, value != 0) \
    CONVERT_TO(UNSIGNED, uint64_t, NAME, value != 0)
#define CONVERT_TO_FLOAT(NAME)
#define CONVERT_TO_FLOAT8(NAME)
#define CONVERT_TO_COMPLEX(NAME)
#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits) CONVERT_TO_##kind(NAME)
#include "tensor/dtypes.def"
#undef DTYPE

/* One element of any dtype ------------------------------------------------------------------------------ */

/* Large enough for any dtype. The bytes of the element come first; the others are zero. */
struct convert_element {
    uint64_t words[2];
};

/*
 * The number in an element, in all forms that a target may need. Of an integer, `real` is rounded to odd, so that it
 * can be rounded once more, and `nearest` to nearest even. Of a real number, both are the number.
 */
struct convert_number {
    bool is_integer;
    uint64_t integer; /* modulo 2^64 */
    double real;
    double nearest;
    double imaginary;
};

static inline struct convert_number convert_number_of_complex(double re, double im)
{
    struct convert_number number = {false, 0, re, re, im};
    return number;
}

static inline struct convert_number convert_number_of_real(double value)
{
    return convert_number_of_complex(value, 0);
}

static inline struct convert_number convert_number_of_signed(int64_t value)
{
    struct convert_number number = {true, (uint64_t)value, convert_round_odd_SIGNED(value), (double)value, 0};
    return number;
}

static inline struct convert_number convert_number_of_unsigned(uint64_t value)
{
    struct convert_number number = {true, value, convert_round_odd_UNSIGNED(value), (double)value, 0};
    return number;
}

#define CONVERT_NUMBER_FLOAT(NAME) convert_number_of_real(convert_load_##NAME(value))
#define CONVERT_NUMBER_FLOAT8 CONVERT_NUMBER_FLOAT
#define CONVERT_NUMBER_SIGNED(NAME) convert_number_of_signed(convert_load_##NAME(value))
#define CONVERT_NUMBER_UNSIGNED(NAME) convert_number_of_unsigned(convert_load_##NAME(value))
#define CONVERT_NUMBER_BOOLEAN CONVERT_NUMBER_UNSIGNED
#define CONVERT_NUMBER_COMPLEX(NAME) \
    convert_number_of_complex(convert_load_##NAME(value.re), convert_load_##NAME(value.im))

static inline struct convert_number convert_read(shoal_dtype dtype, struct convert_element element)
{
    switch (dtype) {
#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits) \
    case SHOAL_##NAME: {                                               \
        value_##NAME value;                                            \
        memcpy(&value, &element, sizeof(value));                       \
        return CONVERT_NUMBER_##kind(NAME);                            \
    }
#include "tensor/dtypes.def"
#undef DTYPE
    }
    return convert_number_of_real(0); /* the dtype is one of these */
}

#define CONVERT_WRITE_FLOAT(NAME) convert_REAL_to_##NAME(CONVERT_REAL_FOR_##NAME)
#define CONVERT_WRITE_FLOAT8 CONVERT_WRITE_FLOAT
#define CONVERT_REAL_FOR_F64 number.nearest
#define CONVERT_REAL_FOR_F32 number.real
#define CONVERT_REAL_FOR_F16 number.real
#define CONVERT_REAL_FOR_BF16 number.real
#define CONVERT_REAL_FOR_F8_E4M3FN number.real
#define CONVERT_REAL_FOR_F8_E5M2 number.real
#define CONVERT_REAL_FOR_C64 number.real
#define CONVERT_REAL_FOR_C128 number.nearest
#define CONVERT_WRITE_SIGNED(NAME) \
    number.is_integer ? convert_UNSIGNED_to_##NAME(number.integer) : convert_REAL_to_##NAME(number.real)
#define CONVERT_WRITE_UNSIGNED CONVERT_WRITE_SIGNED
#define CONVERT_WRITE_BOOLEAN(NAME) (value_##NAME)(number.real != 0 || number.imaginary != 0)
#define CONVERT_WRITE_COMPLEX(NAME)                                                               \
    {                                                                                             \
        convert_REAL_to_##NAME(CONVERT_REAL_FOR_##NAME), convert_REAL_to_##NAME(number.imaginary) \
    }

static inline struct convert_element convert_write(shoal_dtype dtype, struct convert_number number)
{
    struct convert_element element = {{0, 0}};
    switch (dtype) {
#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits) \
    case SHOAL_##NAME: {                                               \
        value_##NAME value = CONVERT_WRITE_##kind(NAME);               \
        memcpy(&element, &value, sizeof(value));                       \
        break;                                                         \
    }
#include "tensor/dtypes.def"
#undef DTYPE
    }
    return element;
}

/* As kernel_cast, for one element. Equal dtypes keep their bits, except that a bool becomes 0 or 1. */
static inline struct convert_element convert_element(shoal_dtype dst_dtype, shoal_dtype src_dtype,
                                                     struct convert_element element)
{
    if (dst_dtype == src_dtype && dst_dtype != SHOAL_BOOL) {
        return element;
    }
    return convert_write(dst_dtype, convert_read(src_dtype, element));
}

#endif
