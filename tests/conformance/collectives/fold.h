/* SPDX-License-Identifier: MIT */
/*
 * The oracle of reductions over ranks: one element at a time, in plain C, from the definition in shoal/group.h. A
 * left fold in rank order in the accumulation type (f16 and bf16 in f32; integers wrap), rounded once. Shares
 * nothing with src/kernel. Fast enough for millions of elements: f16 and bf16 are read from tables that the slow
 * conversions of ops/scalar.h fill.
 */
#ifndef CONFORMANCE_FOLD_H
#define CONFORMANCE_FOLD_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "conformance/ops/scalar.h"
#include "shoal/dtype.h"
#include "tensor/dtype.h"

__extension__ typedef __int128 fold_wide;

#define FOLD_MAX_RANKS 16

/* What is folded: element `i` of every source. */
struct fold {
    shoal_reduce_op reduce;
    shoal_dtype dtype;
    double factor; /* premul_sum */
    int n_ranks;
    const unsigned char *sources[FOLD_MAX_RANKS];
};

/* Which combinations have a meaning. */
static inline bool fold_has_meaning(shoal_reduce_op reduce, shoal_dtype dtype)
{
    bool is_bitwise = reduce == SHOAL_BAND || reduce == SHOAL_BOR || reduce == SHOAL_BXOR;
    bool is_linear = reduce == SHOAL_SUM || reduce == SHOAL_AVG || reduce == SHOAL_PREMUL_SUM;
    switch (dtype_kind(dtype)) {
    case DTYPE_KIND_FLOAT:
        return !is_bitwise;
    case DTYPE_KIND_FLOAT8:
        return false;
    case DTYPE_KIND_COMPLEX:
        return is_linear;
    case DTYPE_KIND_BOOLEAN:
        return reduce != SHOAL_AVG && reduce != SHOAL_PREMUL_SUM;
    case DTYPE_KIND_SIGNED:
    case DTYPE_KIND_UNSIGNED:
        break;
    }
    return reduce != SHOAL_PREMUL_SUM;
}

/* Floats --------------------------------------------------------------------------------------------------- */

static float fold_halves[2][65536]; /* f16, bf16 */

static inline void fold_prepare(void)
{
    for (unsigned bits = 0; bits < 65536; bits++) {
        fold_halves[0][bits] = (float)decode_half(SHOAL_F16, (uint16_t)bits);
        fold_halves[1][bits] = (float)decode_half(SHOAL_BF16, (uint16_t)bits);
    }
}

/* To nearest even, by looking for the neighbours among all numbers of the format: they grow with their bits. */
static inline uint16_t fold_encode_half(shoal_dtype dtype, float value)
{
    const float *numbers = fold_halves[dtype == SHOAL_BF16];
    uint16_t infinity = dtype == SHOAL_BF16 ? 0x7f80 : 0x7c00;
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    float magnitude = fabsf(value);
    if (isnan(value)) {
        return (uint16_t)(infinity | infinity >> 1);
    }
    unsigned low = 0; /* the largest number that is not above */
    unsigned high = infinity;
    while (high - low > 1) {
        unsigned middle = (low + high) / 2;
        if (numbers[middle] <= magnitude) {
            low = middle;
        } else {
            high = middle;
        }
    }
    if (magnitude == numbers[high]) {
        return (uint16_t)(sign | high); /* infinity */
    }
    /* Infinity stands, for rounding, where the next number would be. */
    double next =
        high == infinity ? 2 * (double)numbers[low] - (double)numbers[low - 1] : (double)numbers[high];
    double below = (double)magnitude - (double)numbers[low];
    double above = next - (double)magnitude;
    bool is_up = above < below || (above == below && low % 2 == 1);
    return (uint16_t)(sign | (is_up ? high : low));
}

static inline float fold_load_single(shoal_dtype dtype, const unsigned char *element)
{
    float value;
    uint16_t half;
    if (dtype == SHOAL_F32) {
        memcpy(&value, element, sizeof value);
        return value;
    }
    memcpy(&half, element, sizeof half);
    return fold_halves[dtype == SHOAL_BF16][half];
}

static inline void fold_store_single(shoal_dtype dtype, unsigned char *element, float value)
{
    if (dtype == SHOAL_F32) {
        memcpy(element, &value, sizeof value);
        return;
    }
    uint16_t half = fold_encode_half(dtype, value);
    memcpy(element, &half, sizeof half);
}

/* NaN wins; equal values keep the earlier. */
#define FOLD_STEP(reduce, a, b)                         \
    ((reduce) == SHOAL_PRODUCT ? (a) * (b)              \
     : (reduce) == SHOAL_MIN   ? FOLD_PICK(a, b, b < a) \
     : (reduce) == SHOAL_MAX   ? FOLD_PICK(a, b, b > a) \
                               : (a) + (b))
#define FOLD_PICK(a, b, is_second) (isnan(a) ? (a) : isnan(b) ? (b) : (is_second) ? (b) : (a))

static inline void fold_single(const struct fold *fold, shoal_dtype dtype, size_t i, unsigned char *out)
{
    size_t bytes = dtype_bytes(dtype);
    float factor = (float)fold->factor;
    float folded = 0;
    for (int r = 0; r < fold->n_ranks; r++) {
        float next = fold_load_single(dtype, fold->sources[r] + i * bytes);
        next = fold->reduce == SHOAL_PREMUL_SUM ? next * factor : next;
        folded = r == 0 ? next : FOLD_STEP(fold->reduce, folded, next);
    }
    folded = fold->reduce == SHOAL_AVG ? folded / (float)fold->n_ranks : folded;
    fold_store_single(dtype, out + i * bytes, folded);
}

static inline void fold_double(const struct fold *fold, size_t i, unsigned char *out)
{
    double folded = 0;
    for (int r = 0; r < fold->n_ranks; r++) {
        double next;
        memcpy(&next, fold->sources[r] + i * 8, 8);
        next = fold->reduce == SHOAL_PREMUL_SUM ? next * fold->factor : next;
        folded = r == 0 ? next : FOLD_STEP(fold->reduce, folded, next);
    }
    folded = fold->reduce == SHOAL_AVG ? folded / (double)fold->n_ranks : folded;
    memcpy(out + i * 8, &folded, 8);
}

/* Integers and bool ---------------------------------------------------------------------------------------- */

static inline fold_wide fold_load_integer(shoal_dtype dtype, const unsigned char *element)
{
    struct scalar value = scalar_load(dtype, element);
    bool is_signed = dtype_kind(dtype) == DTYPE_KIND_SIGNED;
    return is_signed ? (fold_wide)(int64_t)value.bits : (fold_wide)value.bits;
}

/* `a` and `b` are exact for avg, otherwise any numbers that are right modulo 2^64. */
static inline fold_wide fold_integers(shoal_reduce_op reduce, bool is_bool, fold_wide a, fold_wide b)
{
    switch (reduce) {
    case SHOAL_SUM:
        return is_bool ? (a | b) : (fold_wide)((uint64_t)a + (uint64_t)b);
    case SHOAL_PRODUCT:
        return (fold_wide)((uint64_t)a * (uint64_t)b);
    case SHOAL_MIN:
        return a < b ? a : b;
    case SHOAL_MAX:
        return a > b ? a : b;
    case SHOAL_BAND:
        return a & b;
    case SHOAL_BOR:
        return a | b;
    case SHOAL_BXOR:
        return a ^ b;
    case SHOAL_AVG:
    case SHOAL_PREMUL_SUM:
        break;
    }
    return a + b;
}

static inline void fold_integer(const struct fold *fold, size_t i, unsigned char *out)
{
    size_t bytes = dtype_bytes(fold->dtype);
    fold_wide folded = 0;
    for (int r = 0; r < fold->n_ranks; r++) {
        fold_wide next = fold_load_integer(fold->dtype, fold->sources[r] + i * bytes);
        folded = r == 0 ? next : fold_integers(fold->reduce, fold->dtype == SHOAL_BOOL, folded, next);
    }
    folded = fold->reduce == SHOAL_AVG ? folded / fold->n_ranks : folded;
    scalar_store(fold->dtype, out + i * bytes, (struct scalar){.bits = (uint64_t)folded});
}

/* Elements [from, to) of the result. fold_prepare came before. */
static inline void fold_elements(const struct fold *fold, size_t from, size_t to, unsigned char *out)
{
    for (size_t i = from; i < to; i++) {
        switch ((int)fold->dtype) {
        case SHOAL_F64:
            fold_double(fold, i, out);
            break;
        case SHOAL_C128:
            fold_double(fold, 2 * i, out);
            fold_double(fold, 2 * i + 1, out);
            break;
        case SHOAL_F32:
        case SHOAL_F16:
        case SHOAL_BF16:
            fold_single(fold, fold->dtype, i, out);
            break;
        case SHOAL_C64:
            fold_single(fold, SHOAL_F32, 2 * i, out);
            fold_single(fold, SHOAL_F32, 2 * i + 1, out);
            break;
        default:
            fold_integer(fold, i, out);
            break;
        }
    }
}

/* Equal bits; where a reduction made a NaN, any NaN. Returns the first element that differs, or count. */
static inline size_t fold_first_difference(shoal_dtype dtype, const unsigned char *actual,
                                           const unsigned char *expected, size_t count, bool is_reduced)
{
    size_t bytes = dtype_bytes(dtype);
    if (count == 0 || memcmp(actual, expected, count * bytes) == 0) {
        return count;
    }
    for (size_t i = 0; i < count; i++) {
        bool is_same = is_reduced ? scalar_is_same(dtype, actual + i * bytes, expected + i * bytes)
                                  : memcmp(actual + i * bytes, expected + i * bytes, bytes) == 0;
        if (!is_same) {
            return i;
        }
    }
    return count;
}

#endif
