/* SPDX-License-Identifier: MIT */
/*
 * The table in plain C: what every machine can run, what the other variants call for the few elements that
 * fill no vector, and the definition of the right bits. Elements are reached through memcpy, so that any
 * alignment is fine.
 */
#include "kernel/simd.h"

#include "kernel/fold.h"
#include "kernel/half.h"

#include <string.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum {
    BLOCK_ELEMS = 256,
    FEW_ELEMS = 16,
    FEW_SRCS = 8
};

ALWAYS_INLINE size_t element_bytes(enum simd_float type)
{
    return type == SIMD_F64 ? sizeof(double) : type == SIMD_F32 ? sizeof(float) : sizeof(uint16_t);
}

#define DEFINE_LOAD(name, ctype)                                                   \
    ALWAYS_INLINE ctype load_##name(const void *base, size_t index)                \
    {                                                                              \
        ctype value;                                                               \
        memcpy(&value, (const char *)base + index * sizeof(value), sizeof(value)); \
        return value;                                                              \
    }
DEFINE_LOAD(f32, float)
DEFINE_LOAD(f64, double)

ALWAYS_INLINE float load_as_f32(enum simd_float type, const void *base, size_t index)
{
    if (type == SIMD_F32) {
        return load_f32(base, index);
    }
    uint16_t half;
    memcpy(&half, (const char *)base + index * sizeof(half), sizeof(half));
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

static void copy(void *dst, const void *src, size_t bytes)
{
    if (bytes > 0) {
        memcpy(dst, src, bytes);
    }
}

#define SIMD_CAST(FROM, TO, member)                                         \
    static void member(void *dst, const void *src, size_t count)            \
    {                                                                       \
        for (size_t i = 0; i < count; i++) {                                \
            store_f32(SIMD_##TO, dst, i, load_as_f32(SIMD_##FROM, src, i)); \
        }                                                                   \
    }
#include "kernel/simd_members.def"
#undef SIMD_CAST

/* Blocks ------------------------------------------------------------------------------------------------ */

/* The next source into a block: one operation in a loop, so that compilers can use what vectors they have. */
#define DEFINE_BLOCK_FOLD(function, name, ctype, FOLD)                                    \
    static void function(ctype *restrict folded, const void *restrict next, size_t count) \
    {                                                                                     \
        for (size_t i = 0; i < count; i++) {                                              \
            folded[i] = fold_##name(SIMD_##FOLD, folded[i], load_##name(next, i));        \
        }                                                                                 \
    }
#define DEFINE_BLOCK_FOLDS(name, ctype)                                                                    \
    DEFINE_BLOCK_FOLD(sum_##name, name, ctype, SUM)                                                        \
    DEFINE_BLOCK_FOLD(min_##name, name, ctype, MIN)                                                        \
    DEFINE_BLOCK_FOLD(max_##name, name, ctype, MAX)                                                        \
    static void (*const folds_##name[SIMD_FOLD_COUNT])(ctype * folded, const void *next, size_t count) = { \
        [SIMD_SUM] = sum_##name, [SIMD_AVG] = sum_##name, [SIMD_MIN] = min_##name, [SIMD_MAX] = max_##name};
DEFINE_BLOCK_FOLDS(f32, float)
DEFINE_BLOCK_FOLDS(f64, double)

static void reduce_block_f64(enum simd_fold fold, void *dst, const void *const *srcs, size_t n_srcs,
                             size_t begin, size_t count)
{
    double folded[BLOCK_ELEMS];
    size_t begin_bytes = begin * sizeof(double);
    memcpy(folded, (const char *)srcs[0] + begin_bytes, count * sizeof(double));
    for (size_t s = 1; s < n_srcs; s++) {
        folds_f64[fold](folded, (const char *)srcs[s] + begin_bytes, count);
    }
    for (size_t i = 0; fold == SIMD_AVG && i < count; i++) {
        folded[i] /= (double)n_srcs;
    }
    memcpy((char *)dst + begin_bytes, folded, count * sizeof(double));
}

static void copy_f32(void *dst, const void *src, size_t count)
{
    memcpy(dst, src, count * sizeof(float));
}

static const struct {
    simd_cast_function *widen;
    simd_cast_function *narrow;
} casts[SIMD_FLOAT_COUNT] = {
    [SIMD_F32] = {.widen = copy_f32, .narrow = copy_f32},
    [SIMD_BF16] = {.widen = cast_bf16_f32, .narrow = cast_f32_bf16},
    [SIMD_F16] = {.widen = cast_f16_f32, .narrow = cast_f32_f16},
};

/* Halves are widened block by block: the conversions are long, and in a loop for every operator they would take
   more place than the vectors of a variant. */
static void reduce_block_f32(enum simd_float type, enum simd_fold fold, void *dst, const void *const *srcs,
                             size_t n_srcs, size_t begin, size_t count)
{
    float folded[BLOCK_ELEMS];
    float widened[BLOCK_ELEMS];
    size_t begin_bytes = begin * element_bytes(type);
    casts[type].widen(folded, (const char *)srcs[0] + begin_bytes, count);
    for (size_t s = 1; s < n_srcs; s++) {
        const void *next = (const char *)srcs[s] + begin_bytes;
        if (type != SIMD_F32) {
            casts[type].widen(widened, next, count);
            next = widened;
        }
        folds_f32[fold](folded, next, count);
    }
    for (size_t i = 0; fold == SIMD_AVG && i < count; i++) {
        folded[i] /= (float)n_srcs;
    }
    casts[type].narrow((char *)dst + begin_bytes, folded, count);
}

static void reduce_many(enum simd_float type, enum simd_fold fold, void *dst, const void *const *srcs,
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

/* Few elements: what other variants leave over ---------------------------------------------------------- */

ALWAYS_INLINE void reduce_element_f64(enum simd_fold fold, void *dst, const void *const *srcs, size_t n_srcs,
                                      size_t i)
{
    double folded = load_f64(srcs[0], i);
    for (size_t s = 1; s < n_srcs; s++) {
        folded = fold_f64(fold, folded, load_f64(srcs[s], i));
    }
    folded = fold == SIMD_AVG ? folded / (double)n_srcs : folded;
    memcpy((char *)dst + i * sizeof(folded), &folded, sizeof(folded));
}

ALWAYS_INLINE void reduce_element_f32(enum simd_float type, enum simd_fold fold, void *dst,
                                      const void *const *srcs, size_t n_srcs, size_t i)
{
    float folded = load_as_f32(type, srcs[0], i);
    for (size_t s = 1; s < n_srcs; s++) {
        folded = fold_f32(fold, folded, load_as_f32(type, srcs[s], i));
    }
    store_f32(type, dst, i, fold == SIMD_AVG ? folded / (float)n_srcs : folded);
}

/* Few are done one by one, which is faster than blocks. Not f16: the conversions take longer than all else. */
ALWAYS_INLINE void reduce_any(enum simd_float type, enum simd_fold fold, void *dst, const void *const *srcs,
                              size_t n_srcs, size_t begin, size_t end)
{
    if (type == SIMD_F16 || end - begin > FEW_ELEMS || n_srcs > FEW_SRCS) {
        reduce_many(type, fold, dst, srcs, n_srcs, begin, end);
        return;
    }
    for (size_t i = begin; i < end; i++) {
        if (type == SIMD_F64) {
            reduce_element_f64(fold, dst, srcs, n_srcs, i);
        } else {
            reduce_element_f32(type, fold, dst, srcs, n_srcs, i);
        }
    }
}

#define SIMD_REDUCE(TYPE, FOLD, suffix)                                                                      \
    static void reduce_##suffix(void *dst, const void *const *srcs, size_t n_srcs, size_t begin, size_t end) \
    {                                                                                                        \
        reduce_any(SIMD_##TYPE, SIMD_##FOLD, dst, srcs, n_srcs, begin, end);                                 \
    }
#include "kernel/simd_members.def"
#undef SIMD_REDUCE

#define SUM_ROWS(suffix, type)                                                                       \
    static void sum_rows_##suffix(double *sums, const void *src, ptrdiff_t row_bytes, size_t n_rows, \
                                  size_t n_columns)                                                  \
    {                                                                                                \
        const char *row = src;                                                                       \
        for (size_t r = 0; r < n_rows; r++) {                                                        \
            for (size_t i = 0; i < n_columns; i++) {                                                 \
                sums[i] += (double)load_as_f32(type, row, i);                                        \
            }                                                                                        \
            row += row_bytes;                                                                        \
        }                                                                                            \
    }
SUM_ROWS(f32, SIMD_F32)
SUM_ROWS(bf16, SIMD_BF16)

/* Ordinary stores are ordered by whoever publishes them. */
void simd_end_nothing(void)
{
}

const struct simd_table simd_plain = {
    .name = "plain",
    .copy = copy,
    .copy_stream = copy,
    .copy_stream_open = copy,
    .stream_end = simd_end_nothing,
    .sum_rows_f32 = sum_rows_f32,
    .sum_rows_bf16 = sum_rows_bf16,
#define SIMD_CAST(FROM, TO, member) .member = member, .member##_stream = member,
#define SIMD_REDUCE(TYPE, FOLD, suffix)                  \
    .reduce[SIMD_##TYPE][SIMD_##FOLD] = reduce_##suffix, \
    .reduce_stream[SIMD_##TYPE][SIMD_##FOLD] = reduce_##suffix,
#include "kernel/simd_members.def"
#undef SIMD_CAST
#undef SIMD_REDUCE
};
