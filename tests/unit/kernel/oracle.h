/* SPDX-License-Identifier: MIT */
/*
 * Slow and plain answers for the kernel tests: elements are read as exact numbers (long double holds every
 * f64, i64 and u64), and rounded by arithmetic on the format's precision and range, not on bits.
 */
#ifndef TESTS_UNIT_KERNEL_ORACLE_H
#define TESTS_UNIT_KERNEL_ORACLE_H

#include "harness/test.h"
#include "shoal/tensor.h"
#include "tensor/dtype.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(long double) > sizeof(double), "long double holds 64-bit integers");

/* is_integer: the number is `integer`; otherwise it is re + im i. */
struct oracle_number {
    bool is_integer;
    __int128 integer;
    long double re;
    long double im;
};

struct oracle_format {
    int precision;       /* bits, with the leading one */
    int unit;            /* exponent of the smallest subnormal */
    long double max;     /* largest finite number */
    bool lacks_infinity; /* what is larger is NaN */
};

static inline struct oracle_format oracle_format(shoal_dtype dtype)
{
    switch (dtype_rows[dtype].bytes) {
    case 1:
        return dtype == SHOAL_F8_E4M3FN ? (struct oracle_format){4, -9, 448.0L, true}
                                        : (struct oracle_format){3, -16, 57344.0L, false};
    case 2:
        return dtype == SHOAL_F16 ? (struct oracle_format){11, -24, 65504.0L, false}
                                  : (struct oracle_format){8, -133, 0xff.0p120L, false};
    case 4:
        return (struct oracle_format){24, -149, 0xffffff.0p104L, false};
    default:
        return (struct oracle_format){53, -1074, 0x1fffffffffffff.0p971L, false};
    }
}

/* To nearest even, in one step. */
static inline long double oracle_round(struct oracle_format format, long double value)
{
    const long double beyond = format.lacks_infinity ? (long double)NAN : (long double)INFINITY;
    if (value == 0 || !isfinite(value)) {
        return isinf(value) ? copysignl(beyond, value) : value;
    }
    int exponent;
    (void)frexpl(value, &exponent);
    int unit = exponent - format.precision > format.unit ? exponent - format.precision : format.unit;
    long double rounded = copysignl(ldexpl(rintl(ldexpl(value, -unit)), unit), value);
    return fabsl(rounded) > format.max ? copysignl(beyond, value) : rounded;
}

/* Whether there is arithmetic on elements; 8-bit floats are only moved and cast. */
static inline bool oracle_has_arithmetic(shoal_dtype dtype)
{
    return dtype_kind(dtype) != DTYPE_KIND_FLOAT8;
}

/* A 16-bit float from its fields. */
static inline long double oracle_half(uint16_t bits, int exponent_bits)
{
    int mantissa_bits = 15 - exponent_bits;
    int exponent = (bits & 0x7fff) >> mantissa_bits;
    int mantissa = bits & ((1 << mantissa_bits) - 1);
    int bias = (1 << (exponent_bits - 1)) - 1;
    long double magnitude;
    if (exponent == (1 << exponent_bits) - 1) {
        magnitude = mantissa != 0 ? (long double)NAN : (long double)INFINITY;
    } else if (exponent == 0) {
        magnitude = ldexpl((long double)mantissa, 1 - bias - mantissa_bits);
    } else {
        magnitude = ldexpl((long double)(mantissa + (1 << mantissa_bits)), exponent - bias - mantissa_bits);
    }
    return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

/* f8_e4m3fn from its fields: the largest exponent is one of numbers, except for its last code. */
static inline long double oracle_e4m3fn(uint8_t bits)
{
    int exponent = (bits & 0x7f) >> 3;
    int mantissa = bits & 7;
    long double magnitude = exponent == 0 ? ldexpl((long double)mantissa, -9)
                                          : ldexpl((long double)(mantissa + 8), exponent - 10);
    magnitude = (bits & 0x7f) == 0x7f ? (long double)NAN : magnitude;
    return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

static inline struct oracle_number oracle_real(long double value)
{
    return (struct oracle_number){.re = value};
}

#define ORACLE_READ(ctype, member) \
    ctype member;                  \
    memcpy(&member, element, sizeof(member))

static inline struct oracle_number oracle_read_integer(shoal_dtype dtype, const void *element)
{
    size_t bytes = dtype_rows[dtype].bytes;
    uint64_t bits = 0;
    for (size_t i = 0; i < bytes; i++) {
        uint64_t byte;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        byte = ((const unsigned char *)element)[i];
#else
        byte = ((const unsigned char *)element)[bytes - 1 - i];
#endif
        bits |= byte << (8 * i);
    }
    struct oracle_number number = {.is_integer = true, .integer = (__int128)bits};
    if (dtype == SHOAL_BOOL) {
        number.integer = bits != 0;
    } else if (dtype_kind(dtype) == DTYPE_KIND_SIGNED && bits >> (8 * bytes - 1) != 0) {
        number.integer -= (__int128)1 << (8 * bytes);
    }
    number.re = (long double)number.integer;
    return number;
}

static inline struct oracle_number oracle_read(shoal_dtype dtype, const void *element)
{
    if (dtype == SHOAL_F64) {
        ORACLE_READ(double, value);
        return oracle_real((long double)value);
    }
    if (dtype == SHOAL_F32) {
        ORACLE_READ(float, value);
        return oracle_real((long double)value);
    }
    if (dtype == SHOAL_F16 || dtype == SHOAL_BF16) {
        ORACLE_READ(uint16_t, bits);
        return oracle_real(oracle_half(bits, dtype == SHOAL_F16 ? 5 : 8));
    }
    if (dtype == SHOAL_F8_E4M3FN || dtype == SHOAL_F8_E5M2) {
        ORACLE_READ(uint8_t, bits);
        return oracle_real(dtype == SHOAL_F8_E4M3FN ? oracle_e4m3fn(bits)
                                                    : oracle_half((uint16_t)(bits << 8), 5));
    }
    if (dtype == SHOAL_C64) {
        ORACLE_READ(struct dtype_c64, value);
        return (struct oracle_number){.re = (long double)value.re, .im = (long double)value.im};
    }
    if (dtype == SHOAL_C128) {
        ORACLE_READ(struct dtype_c128, value);
        return (struct oracle_number){.re = (long double)value.re, .im = (long double)value.im};
    }
    return oracle_read_integer(dtype, element);
}

static inline bool oracle_same_real(long double a, long double b)
{
    if (isnan(a) || isnan(b)) {
        return isnan(a) && isnan(b);
    }
    return a == b && signbit(a) == signbit(b);
}

static inline bool oracle_same(struct oracle_number a, struct oracle_number b)
{
    if (a.is_integer || b.is_integer) {
        return a.is_integer && b.is_integer && a.integer == b.integer;
    }
    return oracle_same_real(a.re, b.re) && oracle_same_real(a.im, b.im);
}

/* Equal bits, or NaN in the same components. A bool that is neither 0 nor 1 equals nothing. */
static inline bool oracle_same_elements(shoal_dtype dtype, const void *a, const void *b)
{
    if (memcmp(a, b, dtype_rows[dtype].bytes) == 0) {
        return true;
    }
    return dtype != SHOAL_BOOL && oracle_same(oracle_read(dtype, a), oracle_read(dtype, b));
}

/* The component's format of a complex dtype; floats are their own. */
static inline struct oracle_number oracle_round_number(shoal_dtype dtype, struct oracle_number number)
{
    shoal_dtype component = dtype == SHOAL_C64 ? SHOAL_F32 : dtype == SHOAL_C128 ? SHOAL_F64 : dtype;
    struct oracle_format format = oracle_format(component);
    return (struct oracle_number){.re = oracle_round(format, number.re),
                                  .im = oracle_round(format, number.im)};
}

/* Modulo 2^bits into the dtype's range. */
static inline __int128 oracle_wrap(shoal_dtype dtype, __int128 value)
{
    size_t bits = 8 * dtype_rows[dtype].bytes;
    __int128 modulus = (__int128)1 << bits;
    value %= modulus;
    value = value < 0 ? value + modulus : value;
    bool is_high = dtype_kind(dtype) == DTYPE_KIND_SIGNED && value >= modulus / 2;
    return is_high ? value - modulus : value;
}

/* Random elements: any bits, so that every exponent, subnormals, infinities and NaN come by. */
static inline void oracle_random_bits(struct test_random *random, void *memory, size_t bytes)
{
    unsigned char *to = memory;
    for (size_t i = 0; i < bytes; i++) {
        to[i] = (unsigned char)test_random_u64(random);
    }
}

/* Layouts ---------------------------------------------------------------------------------------------- */

/* A random view: strides in elements, and where its first element lies in memory of `extent` elements. */
struct oracle_view {
    int64_t strides[SHOAL_MAX_DIMS];
    int64_t offset;
    int64_t extent;
};

enum oracle_freedom {
    ORACLE_ROW_MAJOR, /* without gaps */
    ORACLE_DISTINCT,  /* permuted, turned, with gaps; no two indices share an element */
    ORACLE_ANY        /* strides of 0 too */
};

static inline struct oracle_view oracle_random_view(struct test_random *random, enum oracle_freedom freedom,
                                                    int n_dims, const int64_t *shape)
{
    struct oracle_view view = {.extent = 1};
    int order[SHOAL_MAX_DIMS];
    for (int i = 0; i < n_dims; i++) {
        order[i] = n_dims - 1 - i;
    }
    for (int i = n_dims - 1; freedom != ORACLE_ROW_MAJOR && i > 0; i--) {
        int j = (int)test_random_below(random, (uint64_t)i + 1);
        int dim = order[i];
        order[i] = order[j];
        order[j] = dim;
    }
    for (int i = 0; i < n_dims; i++) {
        int dim = order[i];
        bool is_free = freedom != ORACLE_ROW_MAJOR && test_random_below(random, 4) == 0;
        int64_t stride = view.extent + (is_free ? (int64_t)test_random_below(random, 3) : 0);
        if (freedom == ORACLE_ANY && test_random_below(random, 6) == 0) {
            continue;
        }
        int64_t size = shape[dim] > 0 ? shape[dim] : 1;
        bool is_turned = freedom != ORACLE_ROW_MAJOR && test_random_below(random, 4) == 0;
        view.strides[dim] = is_turned ? -stride : stride;
        view.offset += is_turned ? stride * (size - 1) : 0;
        view.extent += stride * (size - 1);
    }
    return view;
}

/* The next index in row-major order; false after the last. */
static inline bool oracle_next_index(int n_dims, const int64_t *shape, int64_t *index)
{
    for (int i = n_dims - 1; i >= 0; i--) {
        if (++index[i] < shape[i]) {
            return true;
        }
        index[i] = 0;
    }
    return false;
}

static inline int64_t oracle_element_offset(const struct oracle_view *view, int n_dims, const int64_t *index)
{
    int64_t offset = view->offset;
    for (int i = 0; i < n_dims; i++) {
        offset += view->strides[i] * index[i];
    }
    return offset;
}

static inline int64_t oracle_count(int n_dims, const int64_t *shape)
{
    int64_t count = 1;
    for (int i = 0; i < n_dims; i++) {
        count *= shape[i];
    }
    return count;
}

/* Up to max_dims dimensions, mostly small sizes, sometimes 0 or 1. */
static inline int oracle_random_shape(struct test_random *random, int max_dims, uint64_t max_size,
                                      int64_t *shape)
{
    int n_dims = (int)test_random_below(random, (uint64_t)max_dims + 1);
    for (int i = 0; i < n_dims; i++) {
        shape[i] = test_random_below(random, 40) == 0 ? 0 : 1 + (int64_t)test_random_below(random, max_size);
    }
    return n_dims;
}

#endif
