/* SPDX-License-Identifier: MIT */
/*
 * Reducing over sources: a left fold in their order, in the type that is computed in. reduce_dense adds and averages
 * vectors of f32, f16 and bf16; reduce_any has all operators, dtypes and addresses. Threads load from several sources
 * before they add the first of them: the order of loads is free, that of additions is not. They store when they have
 * read all sources, so that dst may coincide with some.
 */
#include "cuda/kernels/reduce.h"

#include "cuda/kernels/numbers.h"

CUDA_SHARED_CODE_BEGIN
#include "kernel/arithmetic.h"
#include "kernel/fold.h"
CUDA_SHARED_CODE_END

/* Where REDUCE_TOGETHER sources begin. */
struct sources {
    uint64_t at[REDUCE_TOGETHER];
};

DEVICE_FUNCTION uint64_t staged_source(const struct reduce_arguments *a, uint32_t source)
{
    struct vector word = {0, 0, 0, 0};
    if (source < a->n_srcs) {
        word = vector_get(a->table + source * sizeof(uint64_t), sizeof(uint64_t));
    }
    return word.x | (uint64_t)word.y << 32;
}

/* Those from `first` on; beyond the last one, anything. What they are read from is asked for once: a branch before each
   load of elements would let it wait for the one before. */
DEVICE_FUNCTION struct sources find_sources(const struct reduce_arguments *a, uint32_t first)
{
    struct sources found = {{0, 0, 0, 0}};
    if (a->table == 0) {
        UNROLLED
        for (uint32_t k = 0; k < REDUCE_TOGETHER; k++) {
            found.at[k] = a->srcs[first + k] + a->offset;
        }
    } else {
        UNROLLED
        for (uint32_t k = 0; k < REDUCE_TOGETHER; k++) {
            found.at[k] = staged_source(a, first + k) + a->offset;
        }
    }
    return found;
}

/* Vectors ------------------------------------------------------------------------------------------------ */

/*
 * For a dtype: the vectors of all sources at `offset` become one of dst. The sum begins at -0, to which any number
 * can be added without changing it.
 */
#define REDUCE_VECTOR(NAME, n_lanes)                                                             \
    DEVICE_FUNCTION void reduce_vector_##NAME(const struct reduce_arguments *a, uint64_t offset) \
    {                                                                                            \
        float sums[LANES_MOST];                                                                  \
        uint32_t words[REDUCE_TOGETHER][VECTOR_WORDS];                                           \
        UNROLLED                                                                                 \
        for (int i = 0; i < (n_lanes); i++) {                                                    \
            sums[i] = -0.0f;                                                                     \
        }                                                                                        \
        NOT_UNROLLED                                                                             \
        for (uint32_t s = 0; s < a->n_srcs; s += REDUCE_TOGETHER) {                              \
            struct sources sources = find_sources(a, s);                                         \
            UNROLLED                                                                             \
            for (uint32_t k = 0; k < REDUCE_TOGETHER; k++) {                                     \
                if (s + k < a->n_srcs) {                                                         \
                    vector_load(words[k], sources.at[k] + offset, VECTOR_BYTES);                 \
                }                                                                                \
            }                                                                                    \
            UNROLLED                                                                             \
            for (uint32_t k = 0; k < REDUCE_TOGETHER; k++) {                                     \
                if (s + k < a->n_srcs) {                                                         \
                    float next[LANES_MOST];                                                      \
                    lanes_widen_##NAME(words[k], next);                                          \
                    UNROLLED                                                                     \
                    for (int i = 0; i < (n_lanes); i++) {                                        \
                        sums[i] = fold_f32(SIMD_SUM, sums[i], next[i]);                          \
                    }                                                                            \
                }                                                                                \
            }                                                                                    \
        }                                                                                        \
        if (a->op == SHOAL_AVG) {                                                                \
            UNROLLED                                                                             \
            for (int i = 0; i < (n_lanes); i++) {                                                \
                sums[i] = sums[i] / (float)a->n_srcs;                                            \
            }                                                                                    \
        }                                                                                        \
        lanes_narrow_##NAME(sums, words[0]);                                                     \
        vector_store(a->dst + offset, words[0], VECTOR_BYTES);                                   \
    }
REDUCE_VECTOR(F32, 4)
REDUCE_VECTOR(F16, 8)
REDUCE_VECTOR(BF16, 8)

/* Any element -------------------------------------------------------------------------------------------- */

/* The f32 and f64 functions of an element: premul_sum has a factor, which the first source gets as well. */
#define REDUCE_REAL(name, ctype, widen)                                                                \
    DEVICE_FUNCTION ctype fold_next_##name(uint32_t op, ctype folded, ctype next)                      \
    {                                                                                                  \
        switch (op) {                                                                                  \
        case SHOAL_PRODUCT:                                                                            \
            return folded * next;                                                                      \
        case SHOAL_MIN:                                                                                \
            return fold_##name(SIMD_MIN, folded, next);                                                \
        case SHOAL_MAX:                                                                                \
            return fold_##name(SIMD_MAX, folded, next);                                                \
        default:                                                                                       \
            return fold_##name(SIMD_SUM, folded, next);                                                \
        }                                                                                              \
    }                                                                                                  \
                                                                                                       \
    DEVICE_FUNCTION void take_##name(const struct reduce_arguments *a, uint32_t source, ctype *folded, \
                                     struct number_bits bits)                                          \
    {                                                                                                  \
        ctype next = widen;                                                                            \
        next = a->op == SHOAL_PREMUL_SUM ? next * (ctype)a->factor : next;                             \
        *folded = source == 0 ? next : fold_next_##name(a->op, *folded, next);                         \
    }                                                                                                  \
                                                                                                       \
    DEVICE_FUNCTION ctype finish_##name(const struct reduce_arguments *a, ctype folded)                \
    {                                                                                                  \
        return a->op == SHOAL_AVG ? folded / (ctype)a->n_srcs : folded;                                \
    }
REDUCE_REAL(f32, float, number_widen(a->dtype, bits))
REDUCE_REAL(f64, double, number_value_F64(bits))

/* Integers are folded in 64 bits, whose low ones are the result; what is averaged is added in 128. */
struct wide {
    uint64_t low;
    uint64_t high;
};

DEVICE_FUNCTION bool is_signed(uint32_t dtype)
{
    return dtype == SHOAL_I8 || dtype == SHOAL_I16 || dtype == SHOAL_I32 || dtype == SHOAL_I64;
}

DEVICE_FUNCTION uint64_t widen_integer(uint32_t dtype, struct number_bits bits)
{
    switch (dtype) {
    case SHOAL_I8:
        return (uint64_t)(int64_t)number_value_I8(bits);
    case SHOAL_I16:
        return (uint64_t)(int64_t)number_value_I16(bits);
    case SHOAL_I32:
        return (uint64_t)(int64_t)number_value_I32(bits);
    case SHOAL_BOOL:
        return bits.words[0] != 0;
    default:
        return bits.words[0] | (uint64_t)bits.words[1] << 32;
    }
}

DEVICE_FUNCTION uint64_t fold_integer(uint32_t op, bool has_sign, uint64_t folded, uint64_t next)
{
    switch (op) {
    case SHOAL_PRODUCT:
        return folded * next;
    case SHOAL_MIN:
        return (has_sign ? (int64_t)next < (int64_t)folded : next < folded) ? next : folded;
    case SHOAL_MAX:
        return (has_sign ? (int64_t)next > (int64_t)folded : next > folded) ? next : folded;
    case SHOAL_BAND:
        return folded & next;
    case SHOAL_BOR:
        return folded | next;
    case SHOAL_BXOR:
        return folded ^ next;
    default:
        return folded + next;
    }
}

/* The first `folded` is anything. */
DEVICE_FUNCTION void take_integer(const struct reduce_arguments *a, uint32_t source, struct wide *folded,
                                  struct number_bits bits)
{
    const bool has_sign = is_signed(a->dtype);
    uint64_t next = widen_integer(a->dtype, bits);
    if (a->op != SHOAL_AVG) {
        folded->low = source == 0 ? next : fold_integer(a->op, has_sign, folded->low, next);
        return;
    }
    uint64_t low = source == 0 ? next : folded->low + next;
    uint64_t high = has_sign && (int64_t)next < 0 ? ~(uint64_t)0 : 0;
    folded->high = source == 0 ? high : folded->high + high + (low < next);
    folded->low = low;
}

/* Truncated toward zero; the quotient fits into 64 bits. A GPU has no division of 128 bits: by digits of 32, as on
   paper. */
DEVICE_FUNCTION uint64_t divide_wide(struct wide sum, uint32_t divisor)
{
    const bool is_negative = (int64_t)sum.high < 0;
    if (is_negative) {
        sum.low = ~sum.low + 1;
        sum.high = ~sum.high + (sum.low == 0);
    }
    uint64_t rest = sum.high % divisor;
    uint64_t quotient = 0;
    UNROLLED
    for (int i = 1; i >= 0; i--) {
        rest = rest << 32 | ((sum.low >> (32 * i)) & 0xffffffffu);
        quotient = quotient << 32 | rest / divisor;
        rest %= divisor;
    }
    return is_negative ? ~quotient + 1 : quotient;
}

DEVICE_FUNCTION uint64_t finish_integer(const struct reduce_arguments *a, struct wide folded)
{
    if (a->op != SHOAL_AVG) {
        return folded.low;
    }
    /* Most sums have 64 bits. */
    bool is_narrow = folded.high == (uint64_t)((int64_t)folded.low >> 63);
    return is_narrow ? (uint64_t)((int64_t)folded.low / (int64_t)a->n_srcs) : divide_wide(folded, a->n_srcs);
}

/* A fold over all sources of one element. */
#define FOLD_SOURCES(take, folded)                                                           \
    NOT_UNROLLED                                                                             \
    for (uint32_t s = 0; s < a->n_srcs; s += REDUCE_TOGETHER) {                              \
        struct number_bits bits[REDUCE_TOGETHER];                                            \
        struct sources sources = find_sources(a, s);                                         \
        UNROLLED                                                                             \
        for (uint32_t k = 0; k < REDUCE_TOGETHER; k++) {                                     \
            if (s + k < a->n_srcs) {                                                         \
                bits[k] = number_load(sources.at[k] + offset, a->bytes, a->is_aligned != 0); \
            }                                                                                \
        }                                                                                    \
        UNROLLED                                                                             \
        for (uint32_t k = 0; k < REDUCE_TOGETHER; k++) {                                     \
            if (s + k < a->n_srcs) {                                                         \
                take(a, s + k, &(folded), bits[k]);                                          \
            }                                                                                \
        }                                                                                    \
    }

DEVICE_FUNCTION struct number_bits reduce_f32(const struct reduce_arguments *a, uint64_t offset)
{
    float folded = 0.0f;
    FOLD_SOURCES(take_f32, folded)
    return number_narrow(a->dtype, finish_f32(a, folded));
}

DEVICE_FUNCTION struct number_bits reduce_f64(const struct reduce_arguments *a, uint64_t offset)
{
    double folded = 0.0;
    FOLD_SOURCES(take_f64, folded)
    return number_bits_F64(finish_f64(a, folded));
}

DEVICE_FUNCTION struct number_bits reduce_integer(const struct reduce_arguments *a, uint64_t offset)
{
    struct wide folded = {0, 0};
    FOLD_SOURCES(take_integer, folded)
    return number_bits_U64(finish_integer(a, folded));
}

DEVICE_FUNCTION void reduce_element(const struct reduce_arguments *a, uint32_t index)
{
    const uint64_t offset = (uint64_t)index * a->bytes;
    struct number_bits result;
    switch (a->dtype) {
    case SHOAL_F64:
        result = reduce_f64(a, offset);
        break;
    case SHOAL_F32:
    case SHOAL_F16:
    case SHOAL_BF16:
        result = reduce_f32(a, offset);
        break;
    default:
        result = reduce_integer(a, offset);
        break;
    }
    number_store(a->dst + offset, result, a->bytes, a->is_aligned != 0);
}

/* Kernels ------------------------------------------------------------------------------------------------ */

CUDA_KERNEL_BOUNDS(reduce_any, struct reduce_arguments, REDUCE_THREADS, 4)
CUDA_KERNEL(reduce_any, struct reduce_arguments, 1)
{
    (void)PHASE;
    uint32_t index = self->block * REDUCE_THREADS + self->thread;
    if (index < a->count) {
        reduce_element(a, index);
    }
}

/* The first and the last vector of an array are done by its elements. */
CUDA_KERNEL_BOUNDS(reduce_dense, struct reduce_arguments, REDUCE_THREADS, 4)
CUDA_KERNEL(reduce_dense, struct reduce_arguments, 1)
{
    (void)PHASE;
    const int64_t n_lanes = vector_lanes(a->bytes);
    const int64_t begin = (int64_t)(self->block * REDUCE_THREADS + self->thread) * n_lanes - a->shift;
    const uint64_t offset = (uint64_t)begin * a->bytes;
    if (begin < 0 || begin + n_lanes > a->count) {
        NOT_UNROLLED
        for (int64_t i = begin < 0 ? 0 : begin; i < begin + n_lanes && i < a->count; i++) {
            float folded = 0.0f;
            const uint64_t at = (uint64_t)i * a->bytes;
            NOT_UNROLLED
            for (uint32_t s = 0; s < a->n_srcs; s++) {
                uint64_t source = (a->table == 0 ? a->srcs[s] : staged_source(a, s)) + a->offset;
                take_f32(a, s, &folded, number_load(source + at, a->bytes, true));
            }
            number_store(a->dst + at, number_narrow(a->dtype, finish_f32(a, folded)), a->bytes, true);
        }
    } else if (a->dtype == SHOAL_F32) {
        reduce_vector_F32(a, offset);
    } else if (a->dtype == SHOAL_BF16) {
        reduce_vector_BF16(a, offset);
    } else {
        reduce_vector_F16(a, offset);
    }
}
