/* SPDX-License-Identifier: MIT */
/*
 * Elements as numbers, for the oracles: decoded, computed and encoded one at a time by the definition of each
 * format, in the widest type of the compiler and with library calls instead of bit tricks, so that nothing is
 * shared with src/kernel. Slow on purpose.
 */
#ifndef CONFORMANCE_SCALAR_H
#define CONFORMANCE_SCALAR_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "tensor/dtype.h"

/* One element: `re` (and `im`) of floats and complex numbers, `bits` of integers (extended to 64) and bool. */
struct scalar {
    double re;
    double im;
    uint64_t bits;
};

/* A binary floating-point format: bits of precision with the hidden one, exponents of normal numbers. */
struct format {
    int precision;
    int min_exponent;
    int max_exponent;
};

static inline struct format format_of(shoal_dtype dtype)
{
    switch ((int)dtype) {
    case SHOAL_F16:
        return (struct format){11, -14, 15};
    case SHOAL_BF16:
        return (struct format){8, -126, 127};
    case SHOAL_F8_E4M3FN: /* its largest exponent has one number less than others; see round_wide */
        return (struct format){4, -6, 8};
    case SHOAL_F8_E5M2:
        return (struct format){3, -14, 15};
    case SHOAL_F32:
    case SHOAL_C64:
        return (struct format){24, -126, 127};
    default:
        return (struct format){53, -1022, 1023};
    }
}

/* To nearest, ties to even, with gradual underflow and overflow to infinity; in e4m3fn to NaN. */
static inline double round_wide(shoal_dtype dtype, long double value)
{
    struct format format = format_of(dtype);
    int exponent;
    if (isinf(value) && dtype == SHOAL_F8_E4M3FN) {
        return (double)NAN;
    }
    if (isnan(value) || isinf(value) || value == 0) {
        return (double)value;
    }
    (void)frexpl(value, &exponent);
    exponent = exponent - 1 < format.min_exponent ? format.min_exponent : exponent - 1;
    int step = exponent - (format.precision - 1);
    long double rounded = ldexpl(rintl(ldexpl(value, -step)), step);
    if (dtype == SHOAL_F8_E4M3FN && fabsl(rounded) > 448) {
        return (double)NAN;
    }
    if (fabsl(rounded) >= ldexpl(1, format.max_exponent + 1)) {
        return value < 0 ? -(double)INFINITY : (double)INFINITY;
    }
    return rounded == 0 ? copysign(0.0, (double)value) : (double)rounded;
}

static inline double round_to(shoal_dtype dtype, double value)
{
    return round_wide(dtype, (long double)value);
}

/* f16 and bf16 --------------------------------------------------------------------------------------------- */

/* The bits of a number that the format can hold. */
static inline uint16_t encode_half(shoal_dtype dtype, double value)
{
    struct format format = format_of(dtype);
    int fraction_bits = format.precision - 1;
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    unsigned specials = (unsigned)(2 * format.max_exponent + 1) << fraction_bits;
    if (isnan(value)) {
        return (uint16_t)(specials | 1u << (fraction_bits - 1));
    }
    if (isinf(value)) {
        return (uint16_t)(sign | specials);
    }
    double magnitude = fabs(value);
    if (magnitude < ldexp(1, format.min_exponent)) {
        return (uint16_t)(sign | (unsigned)ldexp(magnitude, fraction_bits - format.min_exponent));
    }
    int exponent;
    double fraction = frexp(magnitude, &exponent) * 2 - 1;
    unsigned biased = (unsigned)(exponent - 1 + format.max_exponent);
    return (uint16_t)(sign | biased << fraction_bits | (unsigned)ldexp(fraction, fraction_bits));
}

static inline double decode_half(shoal_dtype dtype, uint16_t bits)
{
    struct format format = format_of(dtype);
    int fraction_bits = format.precision - 1;
    int biased = (bits & 0x7fff) >> fraction_bits;
    int fraction = bits & ((1 << fraction_bits) - 1);
    double magnitude;
    if (biased == 2 * format.max_exponent + 1) {
        magnitude = fraction ? (double)NAN : (double)INFINITY;
    } else if (biased == 0) {
        magnitude = ldexp(fraction, format.min_exponent - fraction_bits);
    } else {
        magnitude = ldexp(fraction + (1 << fraction_bits), biased - format.max_exponent - fraction_bits);
    }
    return bits & 0x8000 ? -magnitude : magnitude;
}

/* 8-bit floats -------------------------------------------------------------------------------------------- */

static inline double decode_f8(shoal_dtype dtype, uint8_t bits)
{
    if (dtype == SHOAL_F8_E5M2) { /* the first byte of an f16 */
        return decode_half(SHOAL_F16, (uint16_t)(bits << 8));
    }
    int exponent = bits >> 3 & 15;
    int fraction = bits & 7;
    double magnitude = exponent == 15 && fraction == 7 ? (double)NAN
                       : exponent == 0                 ? ldexp(fraction, -9)
                                                       : ldexp(fraction + 8, exponent - 10);
    return bits & 0x80 ? -magnitude : magnitude;
}

/* The code whose number it is; every number that the format can hold has one. */
static inline uint8_t encode_f8(shoal_dtype dtype, double value)
{
    for (unsigned code = 0; code < 256 && !isnan(value); code++) {
        double number = decode_f8(dtype, (uint8_t)code);
        if (number == value && !signbit(number) == !signbit(value)) {
            return (uint8_t)code;
        }
    }
    return 0x7f;
}

/* Memory --------------------------------------------------------------------------------------------------- */

static inline uint64_t wrap_to(shoal_dtype dtype, uint64_t bits)
{
    int width = 8 * (int)dtype_bytes(dtype);
    if (width >= 64) {
        return bits;
    }
    uint64_t low = bits & ((UINT64_C(1) << width) - 1);
    bool is_negative = dtype_kind(dtype) == DTYPE_KIND_SIGNED && low >> (width - 1) != 0;
    return is_negative ? low - (UINT64_C(1) << width) : low;
}

static inline struct scalar scalar_load(shoal_dtype dtype, const void *element)
{
    struct scalar value = {0, 0, 0};
    uint16_t half;
    float single[2];
    switch ((int)dtype) {
    case SHOAL_F64:
        memcpy(&value.re, element, 8);
        break;
    case SHOAL_C128:
        memcpy(&value.re, element, 8);
        memcpy(&value.im, (const char *)element + 8, 8);
        break;
    case SHOAL_F32:
        memcpy(single, element, 4);
        value.re = (double)single[0];
        break;
    case SHOAL_C64:
        memcpy(single, element, 8);
        value.re = (double)single[0];
        value.im = (double)single[1];
        break;
    case SHOAL_F16:
    case SHOAL_BF16:
        memcpy(&half, element, 2);
        value.re = decode_half(dtype, half);
        break;
    case SHOAL_F8_E4M3FN:
    case SHOAL_F8_E5M2:
        value.re = decode_f8(dtype, *(const unsigned char *)element);
        break;
    case SHOAL_BOOL:
        value.bits = *(const unsigned char *)element != 0;
        break;
    default:
        for (size_t i = dtype_bytes(dtype); i-- > 0;) {
            value.bits = value.bits << 8 | ((const unsigned char *)element)[i];
        }
        value.bits = wrap_to(dtype, value.bits);
        break;
    }
    return value;
}

/* The value is one that the dtype can hold. */
static inline void scalar_store(shoal_dtype dtype, void *element, struct scalar value)
{
    uint16_t half;
    float single[2] = {(float)value.re, (float)value.im};
    switch ((int)dtype) {
    case SHOAL_F64:
        memcpy(element, &value.re, 8);
        break;
    case SHOAL_C128:
        memcpy(element, &value.re, 8);
        memcpy((char *)element + 8, &value.im, 8);
        break;
    case SHOAL_F32:
        memcpy(element, single, 4);
        break;
    case SHOAL_C64:
        memcpy(element, single, 8);
        break;
    case SHOAL_F16:
    case SHOAL_BF16:
        half = encode_half(dtype, value.re);
        memcpy(element, &half, 2);
        break;
    case SHOAL_F8_E4M3FN:
    case SHOAL_F8_E5M2:
        *(unsigned char *)element = encode_f8(dtype, value.re);
        break;
    default:
        for (size_t i = 0; i < dtype_bytes(dtype); i++) {
            ((unsigned char *)element)[i] = (unsigned char)(value.bits >> (8 * i));
        }
        break;
    }
}

/* Equal bits, or both not a number in the same component. */
static inline bool scalar_is_same(shoal_dtype dtype, const void *a, const void *b)
{
    if (memcmp(a, b, dtype_bytes(dtype)) == 0) {
        return true;
    }
    enum dtype_kind kind = dtype_kind(dtype);
    if (dtype_is_real(dtype)) {
        return isnan(scalar_load(dtype, a).re) && isnan(scalar_load(dtype, b).re);
    }
    if (kind != DTYPE_KIND_COMPLEX) {
        return false;
    }
    struct scalar x = scalar_load(dtype, a);
    struct scalar y = scalar_load(dtype, b);
    bool is_re_same = (isnan(x.re) && isnan(y.re)) || memcmp(&x.re, &y.re, 8) == 0;
    bool is_im_same = (isnan(x.im) && isnan(y.im)) || memcmp(&x.im, &y.im, 8) == 0;
    return is_re_same && is_im_same;
}

/* Casting -------------------------------------------------------------------------------------------------- */

static inline uint64_t truncate_to(shoal_dtype dtype, double value)
{
    int width = 8 * (int)dtype_bytes(dtype);
    bool is_signed = dtype_kind(dtype) == DTYPE_KIND_SIGNED;
    long double low = is_signed ? -ldexpl(1, width - 1) : 0;
    long double high = ldexpl(1, is_signed ? width - 1 : width) - 1;
    if (isnan(value)) {
        return 0;
    }
    long double whole = truncl((long double)value);
    whole = whole < low ? low : whole > high ? high : whole;
    return whole < 0 ? (uint64_t)(int64_t)whole : (uint64_t)whole;
}

static inline struct scalar scalar_cast(shoal_dtype to, shoal_dtype from, struct scalar value)
{
    enum dtype_kind from_kind = dtype_kind(from);
    enum dtype_kind to_kind = dtype_kind(to);
    bool is_real = dtype_is_real(from) || from_kind == DTYPE_KIND_COMPLEX;
    bool is_complex = from_kind == DTYPE_KIND_COMPLEX;
    struct scalar result = {0, 0, 0};
    if (dtype_is_real(to) || to_kind == DTYPE_KIND_COMPLEX) {
        long double wide =
            from_kind == DTYPE_KIND_SIGNED ? (long double)(int64_t)value.bits : (long double)value.bits;
        result.re = round_wide(to, is_real ? (long double)value.re : wide);
        result.im = to_kind == DTYPE_KIND_COMPLEX && is_complex ? round_to(to, value.im) : 0;
    } else if (to_kind == DTYPE_KIND_BOOLEAN) {
        result.bits = is_real ? value.re != 0 || (is_complex && value.im != 0) : value.bits != 0;
    } else {
        result.bits = is_real ? truncate_to(to, value.re) : wrap_to(to, value.bits);
    }
    return result;
}

/* A number given by the caller, as an element. */
static inline struct scalar scalar_from_number(shoal_dtype dtype, bool is_integer, int64_t integer,
                                               double real)
{
    struct scalar value = {.re = real, .im = 0, .bits = (uint64_t)integer};
    return scalar_cast(dtype, is_integer ? SHOAL_I64 : SHOAL_F64, value);
}

/* Arithmetic ----------------------------------------------------------------------------------------------- */

/* One operation in the type that dtype computes in: f32 for f16 and bf16, otherwise itself. */
static inline double compute(shoal_dtype dtype, char verb, double a, double b)
{
    double exact = verb == '+' ? a + b : verb == '-' ? a - b : verb == '*' ? a * b : a / b;
    bool is_double = dtype == SHOAL_F64 || dtype == SHOAL_C128;
    /* 53 bits are more than twice 24 and two: rounding a second time gives what rounding once would. */
    return is_double ? exact : round_to(SHOAL_F32, exact);
}

static inline struct scalar compute_complex(shoal_dtype t, char verb, struct scalar x, struct scalar y)
{
    struct scalar result = {0, 0, 0};
    if (verb == '+' || verb == '-') {
        result.re = compute(t, verb, x.re, y.re);
        result.im = compute(t, verb, x.im, y.im);
    } else if (verb == '*') {
        result.re = compute(t, '-', compute(t, '*', x.re, y.re), compute(t, '*', x.im, y.im));
        result.im = compute(t, '+', compute(t, '*', x.re, y.im), compute(t, '*', x.im, y.re));
    } else {
        double size = compute(t, '+', compute(t, '*', y.re, y.re), compute(t, '*', y.im, y.im));
        double re = compute(t, '+', compute(t, '*', x.re, y.re), compute(t, '*', x.im, y.im));
        double im = compute(t, '-', compute(t, '*', x.im, y.re), compute(t, '*', x.re, y.im));
        result.re = compute(t, '/', re, size);
        result.im = compute(t, '/', im, size);
    }
    return result;
}

static inline uint64_t divide_integers(shoal_dtype dtype, uint64_t a, uint64_t b)
{
    if (b == 0) {
        return 0;
    }
    if (dtype_kind(dtype) == DTYPE_KIND_UNSIGNED) {
        return a / b;
    }
    return (int64_t)b == -1 ? 0 - a : (uint64_t)((int64_t)a / (int64_t)b);
}

static inline struct scalar scalar_compute(shoal_dtype dtype, char verb, struct scalar x, struct scalar y)
{
    struct scalar result = {0, 0, 0};
    switch (dtype_kind(dtype)) {
    case DTYPE_KIND_FLOAT:
        result.re = round_to(dtype, compute(dtype, verb, x.re, y.re));
        break;
    case DTYPE_KIND_FLOAT8: /* has no arithmetic */
        break;
    case DTYPE_KIND_COMPLEX:
        result = compute_complex(dtype, verb, x, y);
        break;
    case DTYPE_KIND_BOOLEAN:
        result.bits = verb == '+' ? x.bits | y.bits : x.bits & y.bits;
        break;
    case DTYPE_KIND_SIGNED:
    case DTYPE_KIND_UNSIGNED:
        result.bits = verb == '+'   ? x.bits + y.bits
                      : verb == '-' ? x.bits - y.bits
                      : verb == '*' ? x.bits * y.bits
                                    : divide_integers(dtype, x.bits, y.bits);
        result.bits = wrap_to(dtype, result.bits);
        break;
    }
    return result;
}

static inline struct scalar scalar_negate(shoal_dtype dtype, struct scalar x)
{
    return (struct scalar){.re = -x.re, .im = -x.im, .bits = wrap_to(dtype, 0 - x.bits)};
}

#endif
