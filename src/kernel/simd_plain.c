/* SPDX-License-Identifier: MIT */
/*
 * The table in plain C: what every machine can run, what the other variants call for the few elements that
 * fill no vector, and the definition of the right bits. Elements are reached through memcpy, so that any
 * alignment is fine; the type and the operator are constants in every expansion.
 */
#include "kernel/simd.h"

#include "kernel/half.h"

#include <string.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum {
    BLOCK_ELEMS = 256
};

ALWAYS_INLINE size_t element_bytes(enum simd_float type)
{
    return type == SIMD_F64 ? sizeof(double) : type == SIMD_F32 ? sizeof(float) : sizeof(uint16_t);
}

ALWAYS_INLINE float load_f32(enum simd_float type, const void *base, size_t index)
{
    const char *element = (const char *)base + index * element_bytes(type);
    if (type == SIMD_F32) {
        float value;
        memcpy(&value, element, sizeof(value));
        return value;
    }
    uint16_t half;
    memcpy(&half, element, sizeof(half));
    return type == SIMD_BF16 ? half_bf16_to_f32(half) : half_f16_to_f32(half);
}

ALWAYS_INLINE void store_f32(enum simd_float type, void *base, size_t index, float value)
{
    char *element = (char *)base + index * element_bytes(type);
    if (type == SIMD_F32) {
        memcpy(element, &value, sizeof(value));
        return;
    }
    uint16_t half = type == SIMD_BF16 ? half_f32_to_bf16(value) : half_f32_to_f16(value);
    memcpy(element, &half, sizeof(half));
}

ALWAYS_INLINE double load_f64(const void *base, size_t index)
{
    double value;
    memcpy(&value, (const char *)base + index * sizeof(value), sizeof(value));
    return value;
}

/* min and max: the next value is taken when it is better or NaN. A NaN that is there is never replaced by a
   number, because comparing with it is false; equal values keep the earlier one. */
ALWAYS_INLINE float fold_f32(enum simd_fold fold, float folded, float next)
{
    if (fold == SIMD_MIN) {
        return next < folded || next != next ? next : folded;
    }
    if (fold == SIMD_MAX) {
        return next > folded || next != next ? next : folded;
    }
    return folded + next;
}

ALWAYS_INLINE double fold_f64(enum simd_fold fold, double folded, double next)
{
    if (fold == SIMD_MIN) {
        return next < folded || next != next ? next : folded;
    }
    if (fold == SIMD_MAX) {
        return next > folded || next != next ? next : folded;
    }
    return folded + next;
}

/* Block by block, so that the inner loops have one operation and compilers can use what vectors they have. */
ALWAYS_INLINE void reduce_block_f64(enum simd_fold fold, void *dst, const void *const *srcs, size_t n_srcs,
                                    size_t begin, size_t count)
{
    double folded[BLOCK_ELEMS];
    for (size_t i = 0; i < count; i++) {
        folded[i] = load_f64(srcs[0], begin + i);
    }
    for (size_t s = 1; s < n_srcs; s++) {
        const void *src = srcs[s];
        for (size_t i = 0; i < count; i++) {
            folded[i] = fold_f64(fold, folded[i], load_f64(src, begin + i));
        }
    }
    for (size_t i = 0; i < count; i++) {
        double value = fold == SIMD_AVG ? folded[i] / (double)n_srcs : folded[i];
        memcpy((char *)dst + (begin + i) * sizeof(value), &value, sizeof(value));
    }
}

ALWAYS_INLINE void reduce_block_f32(enum simd_float type, enum simd_fold fold, void *dst,
                                    const void *const *srcs, size_t n_srcs, size_t begin, size_t count)
{
    float folded[BLOCK_ELEMS];
    for (size_t i = 0; i < count; i++) {
        folded[i] = load_f32(type, srcs[0], begin + i);
    }
    for (size_t s = 1; s < n_srcs; s++) {
        const void *src = srcs[s];
        for (size_t i = 0; i < count; i++) {
            folded[i] = fold_f32(fold, folded[i], load_f32(type, src, begin + i));
        }
    }
    for (size_t i = 0; i < count; i++) {
        store_f32(type, dst, begin + i, fold == SIMD_AVG ? folded[i] / (float)n_srcs : folded[i]);
    }
}

ALWAYS_INLINE void reduce_any(enum simd_float type, enum simd_fold fold, void *dst, const void *const *srcs,
                              size_t n_srcs, size_t begin, size_t end)
{
    size_t count;
    for (; begin < end; begin += count) {
        count = end - begin < BLOCK_ELEMS ? end - begin : BLOCK_ELEMS;
        if (type == SIMD_F64) {
            reduce_block_f64(fold, dst, srcs, n_srcs, begin, count);
        } else {
            reduce_block_f32(type, fold, dst, srcs, n_srcs, begin, count);
        }
    }
}

static void copy(void *dst, const void *src, size_t bytes)
{
    if (bytes > 0) {
        memcpy(dst, src, bytes);
    }
}

#define SIMD_CAST(FROM, TO, member)                                      \
    static void member(void *dst, const void *src, size_t count)         \
    {                                                                    \
        for (size_t i = 0; i < count; i++) {                             \
            store_f32(SIMD_##TO, dst, i, load_f32(SIMD_##FROM, src, i)); \
        }                                                                \
    }
#define SIMD_REDUCE(TYPE, FOLD, suffix)                                                                      \
    static void reduce_##suffix(void *dst, const void *const *srcs, size_t n_srcs, size_t begin, size_t end) \
    {                                                                                                        \
        reduce_any(SIMD_##TYPE, SIMD_##FOLD, dst, srcs, n_srcs, begin, end);                                 \
    }
#include "kernel/simd_members.def"
#undef SIMD_CAST
#undef SIMD_REDUCE

const struct simd_table simd_plain = {
    .name = "plain",
    .copy = copy,
    .copy_stream = copy,
#define SIMD_CAST(FROM, TO, member) .member = member, .member##_stream = member,
#define SIMD_REDUCE(TYPE, FOLD, suffix)                  \
    .reduce[SIMD_##TYPE][SIMD_##FOLD] = reduce_##suffix, \
    .reduce_stream[SIMD_##TYPE][SIMD_##FOLD] = reduce_##suffix,
#include "kernel/simd_members.def"
#undef SIMD_CAST
#undef SIMD_REDUCE
};
