/* SPDX-License-Identifier: MIT */
/*
 * The loops of a vector variant, over the vectors that the including file has defined. Included once per
 * simd_<variant>.c, after these, where a pair is two vectors next to each other:
 *
 *   VARIANT_NAME, VARIANT_TABLE, VARIANT_HAS_STREAM, PAIR32, PAIR64 (elements of a pair), STREAM_ALIGNMENT
 *   struct pair32 (f32), struct pair64 (f64), with for each:
 *     splat add divide pick_min pick_max        pick_min(folded, next): next where it is smaller or NaN
 *   load_f32 load_bf16 load_f16 load_f64        widened to f32; any address
 *   store_f32 store_bf16 store_f16 store_f64    rounded to nearest even; any address
 *   stream_f32 ... stream_f64, stream_fence     with VARIANT_HAS_STREAM; multiples of STREAM_ALIGNMENT
 *   SUM_COLUMNS, sum_doubles                    if it has them: so many doubles, to which + applies,
 *   sum_load_f32 sum_load_bf16                  and how they are read; any address
 * and, where VARIANT_HAS_BF16 is defined as 1, faster ways with the same bits:
 *   sum_bf16_begin sum_bf16_add sum_bf16_store  as load, add32 of a load, store; lanes in an order of its own
 *   cast_f32_bf16_blocks                        casts some of the elements and returns how many
 *   sum_bf16_stream stream_f32_bf16_blocks      the last two with VARIANT_HAS_STREAM
 *
 * Each lane does what simd_plain.c does to one element, in the same order, so the bits are the same; what
 * fills no pair is left to simd_plain.c itself.
 */
#ifndef KERNEL_SIMD_LOOPS_H
#define KERNEL_SIMD_LOOPS_H

#include "kernel/simd.h"

#include <stdint.h>
#include <string.h>

#ifndef VARIANT_HAS_BF16
#define VARIANT_HAS_BF16 0
#define sum_bf16_begin load_bf16
#define sum_bf16_add(sum, from) add32(sum, load_bf16(from))
#define sum_bf16_store store_bf16
#define sum_bf16_stream stream_bf16

ALWAYS_INLINE size_t cast_f32_bf16_blocks(void *dst, const void *src, size_t count)
{
    return 0;
}
#define stream_f32_bf16_blocks cast_f32_bf16_blocks

#elif !VARIANT_HAS_STREAM
#define sum_bf16_stream sum_bf16_store
#define stream_f32_bf16_blocks cast_f32_bf16_blocks
#endif

/* Before a loop that little time is spent in: -O3 would copy the body as often as it is run at most. */
#if defined(__clang__)
#define SMALL_LOOP _Pragma("clang loop unroll(disable)")
#else
#define SMALL_LOOP _Pragma("GCC unroll 1")
#endif

ALWAYS_INLINE size_t element_bytes(enum simd_float type)
{
    return type == SIMD_F64 ? sizeof(double) : type == SIMD_F32 ? sizeof(float) : sizeof(uint16_t);
}

/* How many elements come before the first aligned one; false when there never is one. */
ALWAYS_INLINE bool find_aligned(enum simd_float type, const void *dst, size_t begin, size_t end,
                                size_t *aligned)
{
    uintptr_t address = (uintptr_t)dst + begin * element_bytes(type);
    size_t gap_bytes = (size_t)(-address & (STREAM_ALIGNMENT - 1));
    *aligned = begin + gap_bytes / element_bytes(type);
    return gap_bytes % element_bytes(type) == 0 && *aligned <= end;
}

ALWAYS_INLINE struct pair32 load32(enum simd_float type, const void *base, size_t index)
{
    const char *from = (const char *)base + index * element_bytes(type);
    return type == SIMD_F32 ? load_f32(from) : type == SIMD_BF16 ? load_bf16(from) : load_f16(from);
}

ALWAYS_INLINE void store32(enum simd_float type, bool is_stream, void *base, size_t index, struct pair32 pair)
{
    char *to = (char *)base + index * element_bytes(type);
    if (type == SIMD_F32) {
        (is_stream ? stream_f32 : store_f32)(to, pair);
    } else if (type == SIMD_BF16) {
        (is_stream ? stream_bf16 : store_bf16)(to, pair);
    } else {
        (is_stream ? stream_f16 : store_f16)(to, pair);
    }
}

ALWAYS_INLINE struct pair32 fold32(enum simd_fold fold, struct pair32 folded, struct pair32 next)
{
    return fold == SIMD_MIN   ? pick_min32(folded, next)
           : fold == SIMD_MAX ? pick_max32(folded, next)
                              : add32(folded, next);
}

ALWAYS_INLINE struct pair64 fold64(enum simd_fold fold, struct pair64 folded, struct pair64 next)
{
    return fold == SIMD_MIN   ? pick_min64(folded, next)
           : fold == SIMD_MAX ? pick_max64(folded, next)
                              : add64(folded, next);
}

/* Averages are sums too, until the division. */
ALWAYS_INLINE bool is_bf16_sum(enum simd_float type, enum simd_fold fold)
{
    return VARIANT_HAS_BF16 && type == SIMD_BF16 && (fold == SIMD_SUM || fold == SIMD_AVG);
}

ALWAYS_INLINE struct pair32 fold_first32(enum simd_float type, enum simd_fold fold, const void *src, size_t i)
{
    return is_bf16_sum(type, fold) ? sum_bf16_begin((const char *)src + i * sizeof(uint16_t))
                                   : load32(type, src, i);
}

ALWAYS_INLINE struct pair32 fold_next32(enum simd_float type, enum simd_fold fold, struct pair32 folded,
                                        const void *src, size_t i)
{
    return is_bf16_sum(type, fold) ? sum_bf16_add(folded, (const char *)src + i * sizeof(uint16_t))
                                   : fold32(fold, folded, load32(type, src, i));
}

ALWAYS_INLINE void store_fold32(enum simd_float type, enum simd_fold fold, bool is_stream, void *dst,
                                size_t i, struct pair32 folded, size_t n_srcs)
{
    struct pair32 result = fold == SIMD_AVG ? divide32(folded, splat32((float)n_srcs)) : folded;
    if (is_bf16_sum(type, fold)) {
        (is_stream ? sum_bf16_stream : sum_bf16_store)((char *)dst + i * sizeof(uint16_t), result);
    } else {
        store32(type, is_stream, dst, i, result);
    }
}

ALWAYS_INLINE struct pair64 reduce_pair64(enum simd_fold fold, const void *const *srcs, size_t n_srcs,
                                          size_t offset_bytes)
{
    struct pair64 folded = load_f64((const char *)srcs[0] + offset_bytes);
    for (size_t s = 1; s < n_srcs; s++) {
        folded = fold64(fold, folded, load_f64((const char *)srcs[s] + offset_bytes));
    }
    return fold == SIMD_AVG ? divide64(folded, splat64((double)n_srcs)) : folded;
}

/* f32 waits for memory, and two pairs at a time are enough; the halves wait for their instructions. */
ALWAYS_INLINE size_t pairs_at_once(enum simd_float type)
{
    return type == SIMD_F32 ? 2 : 4;
}

/* As many pairs of results as that. The first two sources come as pointers: a store might change srcs, for all
   that the compiler knows, and reloading them costs as much as adding. */
ALWAYS_INLINE void reduce_at_once32(enum simd_float type, enum simd_fold fold, bool is_stream, void *dst,
                                    const void *first, const void *second, const void *const *srcs,
                                    size_t n_srcs, size_t i)
{
    bool has_four = pairs_at_once(type) == 4;
    struct pair32 a = fold_first32(type, fold, first, i);
    struct pair32 b = fold_first32(type, fold, first, i + PAIR32);
    struct pair32 c = has_four ? fold_first32(type, fold, first, i + 2 * PAIR32) : a;
    struct pair32 d = has_four ? fold_first32(type, fold, first, i + 3 * PAIR32) : b;
    for (size_t s = 1; s < n_srcs; s++) {
        const void *next = s == 1 ? second : srcs[s];
        a = fold_next32(type, fold, a, next, i);
        b = fold_next32(type, fold, b, next, i + PAIR32);
        c = has_four ? fold_next32(type, fold, c, next, i + 2 * PAIR32) : c;
        d = has_four ? fold_next32(type, fold, d, next, i + 3 * PAIR32) : d;
    }
    store_fold32(type, fold, is_stream, dst, i, a, n_srcs);
    store_fold32(type, fold, is_stream, dst, i + PAIR32, b, n_srcs);
    if (has_four) {
        store_fold32(type, fold, is_stream, dst, i + 2 * PAIR32, c, n_srcs);
        store_fold32(type, fold, is_stream, dst, i + 3 * PAIR32, d, n_srcs);
    }
}

/* These return how far they came: less than a step, or a pair, from the end. */
ALWAYS_INLINE size_t reduce_steps32(enum simd_float type, enum simd_fold fold, bool is_stream, void *dst,
                                    const void *const *srcs, size_t n_srcs, size_t begin, size_t end)
{
    const void *first = srcs[0];
    const void *second = srcs[n_srcs > 1 ? 1 : 0];
    const size_t step = pairs_at_once(type) * PAIR32;
    size_t i = begin;
    for (; end - i >= step; i += step) {
        reduce_at_once32(type, fold, is_stream, dst, first, second, srcs, n_srcs, i);
    }
    return i;
}

ALWAYS_INLINE size_t reduce_pairs32(enum simd_float type, enum simd_fold fold, void *dst,
                                    const void *const *srcs, size_t n_srcs, size_t begin, size_t end)
{
    size_t i = begin;
    SMALL_LOOP
    for (; end - i >= PAIR32; i += PAIR32) {
        struct pair32 folded = fold_first32(type, fold, srcs[0], i);
        SMALL_LOOP
        for (size_t s = 1; s < n_srcs; s++) {
            folded = fold_next32(type, fold, folded, srcs[s], i);
        }
        store_fold32(type, fold, /*is_stream=*/false, dst, i, folded, n_srcs);
    }
    return i;
}

ALWAYS_INLINE size_t reduce_pairs64(enum simd_fold fold, bool is_stream, void *dst, const void *const *srcs,
                                    size_t n_srcs, size_t begin, size_t end)
{
    size_t i = begin;
    for (; end - i >= PAIR64; i += PAIR64) {
        size_t offset_bytes = i * sizeof(double);
        struct pair64 folded = reduce_pair64(fold, srcs, n_srcs, offset_bytes);
        (is_stream ? stream_f64 : store_f64)((char *)dst + offset_bytes, folded);
    }
    return i;
}

/*
 * More sources than DIRECT_SRCS are more than the prefetchers follow and, at equal offsets in their pages,
 * more than a set of the first-level cache holds. They are folded in groups, a block at a time, into a buffer
 * on the stack: the same additions in the same order.
 */
enum {
    DIRECT_SRCS = 16,
    GROUP_SRCS = 8,
    BLOCK_ELEMS = 1024
};

/* folded = the fold of the group's sources, continuing from what is there unless the group is the first. */
ALWAYS_INLINE void fold_group32(enum simd_float type, enum simd_fold fold, float *folded, bool is_first,
                                const void *const *srcs, size_t n_srcs, size_t begin, size_t count)
{
    for (size_t i = 0; i < count; i += PAIR32) {
        struct pair32 pair = is_first ? fold_first32(type, fold, srcs[0], begin + i) : load_f32(folded + i);
        for (size_t s = is_first ? 1 : 0; s < n_srcs; s++) {
            pair = fold_next32(type, fold, pair, srcs[s], begin + i);
        }
        store_f32(folded + i, pair);
    }
}

ALWAYS_INLINE void fold_group64(enum simd_fold fold, double *folded, bool is_first, const void *const *srcs,
                                size_t n_srcs, size_t begin, size_t count)
{
    for (size_t i = 0; i < count; i += PAIR64) {
        size_t offset_bytes = (begin + i) * sizeof(double);
        struct pair64 pair = load_f64(is_first ? (const char *)srcs[0] + offset_bytes : (char *)(folded + i));
        for (size_t s = is_first ? 1 : 0; s < n_srcs; s++) {
            pair = fold64(fold, pair, load_f64((const char *)srcs[s] + offset_bytes));
        }
        store_f64(folded + i, pair);
    }
}

ALWAYS_INLINE void store_block32(enum simd_float type, enum simd_fold fold, bool is_stream, void *dst,
                                 const float *folded, size_t n_srcs, size_t begin, size_t count)
{
    for (size_t i = 0; i < count; i += PAIR32) {
        store_fold32(type, fold, is_stream, dst, begin + i, load_f32(folded + i), n_srcs);
    }
}

ALWAYS_INLINE size_t reduce_blocks32(enum simd_float type, enum simd_fold fold, bool is_stream, void *dst,
                                     const void *const *srcs, size_t n_srcs, size_t begin, size_t end)
{
    float folded[BLOCK_ELEMS];
    size_t count;
    for (; end - begin >= PAIR32; begin += count) {
        count = end - begin < BLOCK_ELEMS ? (end - begin) / PAIR32 * PAIR32 : BLOCK_ELEMS;
        for (size_t s = 0; s < n_srcs; s += GROUP_SRCS) {
            size_t n_group = n_srcs - s < GROUP_SRCS ? n_srcs - s : GROUP_SRCS;
            fold_group32(type, fold, folded, s == 0, srcs + s, n_group, begin, count);
        }
        if (VARIANT_HAS_STREAM && is_stream) {
            store_block32(type, fold, true, dst, folded, n_srcs, begin, count);
        } else {
            store_block32(type, fold, false, dst, folded, n_srcs, begin, count);
        }
    }
    return begin;
}

ALWAYS_INLINE void store_block64(enum simd_fold fold, bool is_stream, void *dst, const double *folded,
                                 size_t n_srcs, size_t begin, size_t count)
{
    for (size_t i = 0; i < count; i += PAIR64) {
        struct pair64 pair = load_f64(folded + i);
        pair = fold == SIMD_AVG ? divide64(pair, splat64((double)n_srcs)) : pair;
        (is_stream ? stream_f64 : store_f64)((char *)dst + (begin + i) * sizeof(double), pair);
    }
}

ALWAYS_INLINE size_t reduce_blocks64(enum simd_fold fold, bool is_stream, void *dst, const void *const *srcs,
                                     size_t n_srcs, size_t begin, size_t end)
{
    double folded[BLOCK_ELEMS];
    size_t count;
    for (; end - begin >= PAIR64; begin += count) {
        count = end - begin < BLOCK_ELEMS ? (end - begin) / PAIR64 * PAIR64 : BLOCK_ELEMS;
        for (size_t s = 0; s < n_srcs; s += GROUP_SRCS) {
            size_t n_group = n_srcs - s < GROUP_SRCS ? n_srcs - s : GROUP_SRCS;
            fold_group64(fold, folded, s == 0, srcs + s, n_group, begin, count);
        }
        if (VARIANT_HAS_STREAM && is_stream) {
            store_block64(fold, true, dst, folded, n_srcs, begin, count);
        } else {
            store_block64(fold, false, dst, folded, n_srcs, begin, count);
        }
    }
    return begin;
}

/* Many sources: one function, in the cache or past it, which is asked once per block. */
typedef size_t reduce_blocks_function(bool is_stream, void *dst, const void *const *srcs, size_t n_srcs,
                                      size_t begin, size_t end);
#define SIMD_REDUCE(TYPE, FOLD, suffix)                                                                   \
    static __attribute__((noinline)) size_t reduce_blocks_##suffix(                                       \
        bool is_stream, void *dst, const void *const *srcs, size_t n_srcs, size_t begin, size_t end)      \
    {                                                                                                     \
        return SIMD_##TYPE == SIMD_F64                                                                    \
                   ? reduce_blocks64(SIMD_##FOLD, is_stream, dst, srcs, n_srcs, begin, end)               \
                   : reduce_blocks32(SIMD_##TYPE, SIMD_##FOLD, is_stream, dst, srcs, n_srcs, begin, end); \
    }
#include "kernel/simd_members.def"
#undef SIMD_REDUCE

/* Few sources, as many whole steps as there are. */
ALWAYS_INLINE size_t reduce_steps(enum simd_float type, enum simd_fold fold, bool is_stream, void *dst,
                                  const void *const *srcs, size_t n_srcs, size_t begin, size_t end)
{
    if (type == SIMD_F64) {
        return reduce_pairs64(fold, is_stream, dst, srcs, n_srcs, begin, end);
    }
    /* Two is what rings and trees add; as a constant it leaves no loop over the sources. */
    bool is_sum = fold == SIMD_SUM || fold == SIMD_AVG;
    return is_sum && n_srcs == 2 ? reduce_steps32(type, fold, is_stream, dst, srcs, 2, begin, end)
                                 : reduce_steps32(type, fold, is_stream, dst, srcs, n_srcs, begin, end);
}

ALWAYS_INLINE void reduce_cached(enum simd_float type, enum simd_fold fold, reduce_blocks_function *blocks,
                                 void *dst, const void *const *srcs, size_t n_srcs, size_t begin, size_t end)
{
    size_t done;
    if (n_srcs > DIRECT_SRCS) {
        done = blocks(/*is_stream=*/false, dst, srcs, n_srcs, begin, end);
    } else {
        done = reduce_steps(type, fold, /*is_stream=*/false, dst, srcs, n_srcs, begin, end);
        if (type != SIMD_F64) {
            done = reduce_pairs32(type, fold, dst, srcs, n_srcs, done, end);
        }
    }
    simd_plain.reduce[type][fold](dst, srcs, n_srcs, done, end);
}

/* Only whole steps go past the cache; what they leave, and a dst that is never aligned, is left to `cached`. */
ALWAYS_INLINE void reduce_streaming(enum simd_float type, enum simd_fold fold, reduce_blocks_function *blocks,
                                    simd_reduce_function *cached, void *dst, const void *const *srcs,
                                    size_t n_srcs, size_t begin, size_t end)
{
    size_t done = begin;
    size_t aligned;
    if (find_aligned(type, dst, begin, end, &aligned)) {
        simd_plain.reduce[type][fold](dst, srcs, n_srcs, begin, aligned);
        done = n_srcs > DIRECT_SRCS
                   ? blocks(/*is_stream=*/true, dst, srcs, n_srcs, aligned, end)
                   : reduce_steps(type, fold, /*is_stream=*/true, dst, srcs, n_srcs, aligned, end);
        stream_fence();
    }
    cached(dst, srcs, n_srcs, done, end);
}

ALWAYS_INLINE size_t cast_pairs(enum simd_float from, enum simd_float to, bool is_stream, void *dst,
                                const void *src, size_t begin, size_t end)
{
    size_t i = begin;
    if (VARIANT_HAS_BF16 && from == SIMD_F32 && to == SIMD_BF16) {
        char *first = (char *)dst + i * sizeof(uint16_t);
        i += (is_stream ? stream_f32_bf16_blocks
                        : cast_f32_bf16_blocks)(first, (const char *)src + i * sizeof(float), end - i);
    }
    for (; end - i >= 2 * PAIR32; i += 2 * PAIR32) {
        struct pair32 low = load32(from, src, i);
        struct pair32 high = load32(from, src, i + PAIR32);
        store32(to, is_stream, dst, i, low);
        store32(to, is_stream, dst, i + PAIR32, high);
    }
    for (; end - i >= PAIR32; i += PAIR32) {
        store32(to, is_stream, dst, i, load32(from, src, i));
    }
    return i;
}

ALWAYS_INLINE void cast_cached(enum simd_float from, enum simd_float to, simd_cast_function *rest, void *dst,
                               const void *src, size_t count)
{
    size_t done = cast_pairs(from, to, /*is_stream=*/false, dst, src, 0, count);
    if (done < count && count >= PAIR32) {
        /* The last pair again covers what fills no pair: dst is not src, so it gets the same values twice. */
        store32(to, /*is_stream=*/false, dst, count - PAIR32, load32(from, src, count - PAIR32));
    } else {
        rest((char *)dst + done * element_bytes(to), (const char *)src + done * element_bytes(from),
             count - done);
    }
}

ALWAYS_INLINE void cast_streaming(enum simd_float from, enum simd_float to, simd_cast_function *rest,
                                  simd_cast_function *cached, void *dst, const void *src, size_t count)
{
    size_t done = 0;
    size_t aligned;
    if (find_aligned(to, dst, 0, count, &aligned)) {
        rest(dst, src, aligned);
        done = cast_pairs(from, to, /*is_stream=*/true, dst, src, aligned, count);
        stream_fence();
    }
    cached((char *)dst + done * element_bytes(to), (const char *)src + done * element_bytes(from),
           count - done);
}

#define SIMD_CAST(FROM, TO, member)                                              \
    static void member(void *dst, const void *src, size_t count)                 \
    {                                                                            \
        cast_cached(SIMD_##FROM, SIMD_##TO, simd_plain.member, dst, src, count); \
    }
#define SIMD_REDUCE(TYPE, FOLD, suffix)                                                                      \
    static void reduce_##suffix(void *dst, const void *const *srcs, size_t n_srcs, size_t begin, size_t end) \
    {                                                                                                        \
        reduce_cached(SIMD_##TYPE, SIMD_##FOLD, reduce_blocks_##suffix, dst, srcs, n_srcs, begin, end);      \
    }
#include "kernel/simd_members.def"
#undef SIMD_CAST
#undef SIMD_REDUCE

#if VARIANT_HAS_STREAM

#define SIMD_CAST(FROM, TO, member)                                                         \
    static void member##_stream(void *dst, const void *src, size_t count)                   \
    {                                                                                       \
        cast_streaming(SIMD_##FROM, SIMD_##TO, simd_plain.member, member, dst, src, count); \
    }
#define SIMD_REDUCE(TYPE, FOLD, suffix)                                                                   \
    static void reduce_##suffix##_stream(void *dst, const void *const *srcs, size_t n_srcs, size_t begin, \
                                         size_t end)                                                      \
    {                                                                                                     \
        reduce_streaming(SIMD_##TYPE, SIMD_##FOLD, reduce_blocks_##suffix, reduce_##suffix, dst, srcs,    \
                         n_srcs, begin, end);                                                             \
    }
#include "kernel/simd_members.def"
#undef SIMD_CAST
#undef SIMD_REDUCE

/* Bits are moved as f32 vectors, which loads and stores do not change; memcpy does the ragged ends. */
static void copy_stream_open(void *dst, const void *src, size_t bytes)
{
    size_t head_bytes = (size_t)(-(uintptr_t)dst & (STREAM_ALIGNMENT - 1));
    if (bytes < head_bytes + 2 * PAIR32 * sizeof(float)) {
        simd_plain.copy(dst, src, bytes);
        return;
    }
    memcpy(dst, src, head_bytes);
    char *to = (char *)dst + head_bytes;
    const char *from = (const char *)src + head_bytes;
    size_t count = (bytes - head_bytes) / sizeof(float);
    size_t done_bytes = cast_pairs(SIMD_F32, SIMD_F32, true, to, from, 0, count) * sizeof(float);
    memcpy(to + done_bytes, from + done_bytes, bytes - head_bytes - done_bytes);
}

static void stream_end(void)
{
    stream_fence();
}

static void copy_stream(void *dst, const void *src, size_t bytes)
{
    copy_stream_open(dst, src, bytes);
    stream_fence();
}

#define STREAM_MEMBER(name) name##_stream

#else

/* The C library's memcpy is as fast as any stores that bypass the cache: docs/design/kernels.md. */
#define STREAM_MEMBER(name) name

#endif

/* Sums of rows, written with the vector extensions of gcc and clang: the columns of a vector are added independently of
   each other, as simd_plain.c adds each of them. Several rows at a time, for which sums are loaded and stored once. */
#define SUM_TOGETHER 4

#ifndef SUM_COLUMNS
#define SUM_COLUMNS 8
typedef double sum_doubles __attribute__((vector_size(8 * SUM_COLUMNS)));
typedef float sum_floats __attribute__((vector_size(4 * SUM_COLUMNS)));
typedef uint32_t sum_words __attribute__((vector_size(4 * SUM_COLUMNS)));
typedef uint16_t sum_halves __attribute__((vector_size(2 * SUM_COLUMNS)));

ALWAYS_INLINE sum_doubles sum_load_f32(const void *from)
{
    sum_floats floats;
    memcpy(&floats, from, sizeof(floats));
    return __builtin_convertvector(floats, sum_doubles);
}

ALWAYS_INLINE sum_doubles sum_load_bf16(const void *from)
{
    sum_halves halves;
    memcpy(&halves, from, sizeof(halves));
    const sum_words words = __builtin_convertvector(halves, sum_words) << 16;
    return sum_load_f32(&words);
}
#endif

ALWAYS_INLINE void sum_some_rows(enum simd_float type, double *sums, const char *src, ptrdiff_t row_bytes,
                                 size_t n_rows, size_t n_columns)
{
    const size_t bytes = type == SIMD_F32 ? sizeof(float) : sizeof(uint16_t);
    for (size_t i = 0; i + SUM_COLUMNS <= n_columns; i += SUM_COLUMNS) {
        const char *from = src + i * bytes;
        sum_doubles values;
        memcpy(&values, sums + i, sizeof(values));
        for (size_t r = 0; r < n_rows; r++) {
            const char *row = from + (ptrdiff_t)r * row_bytes;
            values += type == SIMD_F32 ? sum_load_f32(row) : sum_load_bf16(row);
        }
        memcpy(sums + i, &values, sizeof(values));
    }
}

ALWAYS_INLINE void sum_rows(enum simd_float type, simd_sum_rows_function *plain, double *sums,
                            const char *src, ptrdiff_t row_bytes, size_t n_rows, size_t n_columns)
{
    const size_t bytes = type == SIMD_F32 ? sizeof(float) : sizeof(uint16_t);
    const size_t n_whole = n_columns / SUM_COLUMNS * SUM_COLUMNS;
    size_t row = 0;
    for (; row + SUM_TOGETHER <= n_rows; row += SUM_TOGETHER) {
        sum_some_rows(type, sums, src + (ptrdiff_t)row * row_bytes, row_bytes, SUM_TOGETHER, n_whole);
    }
    sum_some_rows(type, sums, src + (ptrdiff_t)row * row_bytes, row_bytes, n_rows - row, n_whole);
    if (n_whole < n_columns) {
        plain(sums + n_whole, src + n_whole * bytes, row_bytes, n_rows, n_columns - n_whole);
    }
}

static void sum_rows_f32(double *sums, const void *src, ptrdiff_t row_bytes, size_t n_rows, size_t n_columns)
{
    sum_rows(SIMD_F32, simd_plain.sum_rows_f32, sums, src, row_bytes, n_rows, n_columns);
}

static void sum_rows_bf16(double *sums, const void *src, ptrdiff_t row_bytes, size_t n_rows, size_t n_columns)
{
    sum_rows(SIMD_BF16, simd_plain.sum_rows_bf16, sums, src, row_bytes, n_rows, n_columns);
}

static void copy(void *dst, const void *src, size_t bytes)
{
    simd_plain.copy(dst, src, bytes);
}

const struct simd_table VARIANT_TABLE = {
    .name = VARIANT_NAME,
    .copy = copy,
    .copy_stream = STREAM_MEMBER(copy),
#if VARIANT_HAS_STREAM
    .copy_stream_open = copy_stream_open,
    .stream_end = stream_end,
#else
    .copy_stream_open = copy,
    .stream_end = simd_end_nothing,
#endif
    .sum_rows_f32 = sum_rows_f32,
    .sum_rows_bf16 = sum_rows_bf16,
#define SIMD_CAST(FROM, TO, member) .member = member, .member##_stream = STREAM_MEMBER(member),
#define SIMD_REDUCE(TYPE, FOLD, suffix)                  \
    .reduce[SIMD_##TYPE][SIMD_##FOLD] = reduce_##suffix, \
    .reduce_stream[SIMD_##TYPE][SIMD_##FOLD] = STREAM_MEMBER(reduce_##suffix),
#include "kernel/simd_members.def"
#undef SIMD_CAST
#undef SIMD_REDUCE
};

#endif
