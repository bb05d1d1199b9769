/* SPDX-License-Identifier: MIT */
/*
 * Sums over dimensions. The order of additions is that of the CPU, so a sum belongs to one thread, which adds its
 * elements one after the other and has the next ones loaded meanwhile. Threads that are next to each other have sums
 * whose elements are as near as possible. Where the elements of one sum are next to each other instead, they are
 * loaded as vectors.
 */
#include "cuda/kernels/sum.h"

#include "cuda/kernels/numbers.h"

CUDA_SHARED_CODE_BEGIN
#include "kernel/sums.h"
CUDA_SHARED_CODE_END

/* Elements, or vectors of them, that are loaded together. */
#define SUM_TOGETHER 8
#define SUM_VECTORS 2

/* Aligned floats ----------------------------------------------------------------------------------------- */

DEVICE_FUNCTION double plus_words_F64(double sum, const uint32_t *words)
{
    return sum + lanes_f64(words);
}

DEVICE_FUNCTION double plus_words_F32(double sum, const uint32_t *words)
{
    return sum + (double)half_f32_from_bits(words[0]);
}

DEVICE_FUNCTION double plus_words_F16(double sum, const uint32_t *words)
{
    return sum + (double)halves_from_f16(words[0]);
}

DEVICE_FUNCTION double plus_words_BF16(double sum, const uint32_t *words)
{
    return sum + (double)half_f32_from_bits(words[0] << 16);
}

DEVICE_FUNCTION double plus_vector_F64(double sum, const uint32_t *words)
{
    return sum + lanes_f64(words) + lanes_f64(words + 2);
}

#define PLUS_VECTOR(NAME, n_lanes)                                               \
    DEVICE_FUNCTION double plus_vector_##NAME(double sum, const uint32_t *words) \
    {                                                                            \
        float lanes[LANES_MOST];                                                 \
        lanes_widen_##NAME(words, lanes);                                        \
        UNROLLED                                                                 \
        for (int i = 0; i < (n_lanes); i++) {                                    \
            sum = sum + (double)lanes[i];                                        \
        }                                                                        \
        return sum;                                                              \
    }
PLUS_VECTOR(F32, 4)
PLUS_VECTOR(F16, 8)
PLUS_VECTOR(BF16, 8)

/* Adds the rows from `address` on: as vectors, and one by one what is left. */
#define ADD_ROWS(NAME, n_bytes)                                                                           \
    DEVICE_FUNCTION double add_rows_##NAME(const struct sum_arguments *a, uint64_t address, double sum)   \
    {                                                                                                     \
        const uint64_t n_rows = a->n_rows;                                                                \
        const uint64_t n_lanes = VECTOR_BYTES / (n_bytes);                                                \
        uint64_t row = 0;                                                                                 \
        NOT_UNROLLED                                                                                      \
        for (; a->is_in_vectors && row + SUM_VECTORS * n_lanes <= n_rows; row += SUM_VECTORS * n_lanes) { \
            uint32_t words[SUM_VECTORS][VECTOR_WORDS];                                                    \
            UNROLLED                                                                                      \
            for (int k = 0; k < SUM_VECTORS; k++) {                                                       \
                vector_load(words[k], address, VECTOR_BYTES);                                             \
                address += VECTOR_BYTES;                                                                  \
            }                                                                                             \
            UNROLLED                                                                                      \
            for (int k = 0; k < SUM_VECTORS; k++) {                                                       \
                sum = plus_vector_##NAME(sum, words[k]);                                                  \
            }                                                                                             \
        }                                                                                                 \
        NOT_UNROLLED                                                                                      \
        for (; row + SUM_TOGETHER <= n_rows; row += SUM_TOGETHER) {                                       \
            uint32_t words[SUM_TOGETHER][2];                                                              \
            UNROLLED                                                                                      \
            for (int k = 0; k < SUM_TOGETHER; k++) {                                                      \
                vector_load(words[k], address, n_bytes);                                                  \
                address += (uint64_t)a->row_stride;                                                       \
            }                                                                                             \
            UNROLLED                                                                                      \
            for (int k = 0; k < SUM_TOGETHER; k++) {                                                      \
                sum = plus_words_##NAME(sum, words[k]);                                                   \
            }                                                                                             \
        }                                                                                                 \
        NOT_UNROLLED                                                                                      \
        for (; row < n_rows; row++) {                                                                     \
            uint32_t words[2];                                                                            \
            vector_load(words, address, n_bytes);                                                         \
            sum = plus_words_##NAME(sum, words);                                                          \
            address += (uint64_t)a->row_stride;                                                           \
        }                                                                                                 \
        return sum;                                                                                       \
    }
ADD_ROWS(F64, 8)
ADD_ROWS(F32, 4)
ADD_ROWS(F16, 2)
ADD_ROWS(BF16, 2)

DEVICE_FUNCTION double add_rows(const struct sum_arguments *a, uint64_t address, double sum)
{
    switch (a->dtype) {
    case SHOAL_F64:
        return add_rows_F64(a, address, sum);
    case SHOAL_F32:
        return add_rows_F32(a, address, sum);
    case SHOAL_F16:
        return add_rows_F16(a, address, sum);
    default:
        return add_rows_BF16(a, address, sum);
    }
}

/* Any dtype ---------------------------------------------------------------------------------------------- */

/* A sum of whichever kind. */
struct sum_state {
    double real;
    double imaginary;
    uint64_t integer;
};

#define PLUS_FLOAT(NAME) state.real = sum_plus_##NAME(state.real, number_value_##NAME(bits));
#define PLUS_FLOAT8(NAME)
#define PLUS_SIGNED(NAME) state.integer = sum_plus_##NAME(state.integer, number_value_##NAME(bits));
#define PLUS_UNSIGNED PLUS_SIGNED
#define PLUS_BOOLEAN PLUS_SIGNED
#define PLUS_COMPLEX(NAME)                                 \
    struct dtype_c128 sum = {state.real, state.imaginary}; \
    sum = sum_plus_##NAME(sum, number_value_##NAME(bits)); \
    state.real = sum.re;                                   \
    state.imaginary = sum.im;

DEVICE_FUNCTION struct sum_state plus_any(uint32_t dtype, struct sum_state state, struct number_bits bits)
{
    switch (dtype) {
#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits) \
    case SHOAL_##NAME: {                                               \
        PLUS_##kind(NAME) break;                                       \
    }
#include "tensor/dtypes.def"
#undef DTYPE
    default:
        break;
    }
    return state;
}

DEVICE_FUNCTION struct sum_state add_rows_any(const struct sum_arguments *a, uint64_t address,
                                              struct sum_state state)
{
    NOT_UNROLLED
    for (uint64_t row = 0; row < a->n_rows; row++) {
        state = plus_any(a->dtype, state, number_load(address, a->bytes, a->is_aligned != 0));
        address += (uint64_t)a->row_stride;
    }
    return state;
}

#define FINISH_FLOAT(NAME) return number_bits_##NAME(sum_finish_##NAME(state.real, divisor));
#define FINISH_FLOAT8(NAME) break;
#define FINISH_SIGNED(NAME) return number_bits_##NAME(sum_finish_##NAME(state.integer, divisor));
#define FINISH_UNSIGNED FINISH_SIGNED
#define FINISH_BOOLEAN FINISH_SIGNED
#define FINISH_COMPLEX(NAME)                               \
    struct dtype_c128 sum = {state.real, state.imaginary}; \
    return number_bits_##NAME(sum_finish_##NAME(sum, divisor));

DEVICE_FUNCTION struct number_bits finish_any(uint32_t dtype, struct sum_state state, int64_t divisor)
{
    struct number_bits none = {{0, 0, 0, 0}};
    switch (dtype) {
#define DTYPE(NAME, name, ctype, kind, accumulation, dl_code, dl_bits) \
    case SHOAL_##NAME: {                                               \
        FINISH_##kind(NAME)                                            \
    }
#include "tensor/dtypes.def"
#undef DTYPE
    default:
        break;
    }
    return none;
}

/* Sums --------------------------------------------------------------------------------------------------- */

/* Where a sum's elements begin, and where it goes. */
struct sum_place {
    uint64_t src;
    uint64_t dst;
};

DEVICE_FUNCTION struct sum_place find_sum(const struct sum_arguments *a, uint32_t index)
{
    struct sum_place place = {a->src, a->dst};
    uint32_t rest = index;
    NOT_UNROLLED
    for (int i = a->n_kept - 1; i >= 0; i--) {
        uint32_t outer = i == 0 ? 0 : vector_divide(rest, a->kept[i].magic, a->kept[i].shift);
        int64_t at = (int64_t)(rest - outer * a->kept[i].size);
        place.src += (uint64_t)(at * a->kept[i].src_stride);
        place.dst += (uint64_t)(at * a->kept[i].dst_stride);
        rest = outer;
    }
    return place;
}

/* From the first element of a sum to the first row in place `index` of the outer dimensions. */
DEVICE_FUNCTION uint64_t outer_offset(const struct sum_arguments *a, uint64_t index)
{
    uint64_t offset = 0;
    NOT_UNROLLED
    for (int i = a->n_outer - 1; i >= 0; i--) {
        const uint64_t size = a->outer[i].size;
        const bool is_short = (index | size) >> 32 == 0;
        uint64_t next = is_short ? (uint32_t)index / (uint32_t)size : index / size;
        offset += (index - next * size) * (uint64_t)a->outer[i].stride;
        index = next;
    }
    return offset;
}

CUDA_KERNEL_BOUNDS(sum_floats, struct sum_arguments, SUM_THREADS, 4)
CUDA_KERNEL(sum_floats, struct sum_arguments, 1)
{
    (void)PHASE;
    const uint32_t index = self->block * self->n_threads + self->thread;
    if (index >= a->count) {
        return;
    }
    struct sum_place place = find_sum(a, index);
    struct sum_state state = {0.0, 0.0, 0};
    NOT_UNROLLED
    for (uint64_t i = 0; i < a->outer_count; i++) {
        state.real = add_rows(a, place.src + outer_offset(a, i), state.real);
    }
    number_store(place.dst, finish_any(a->dtype, state, a->divisor), a->bytes, true);
}

CUDA_KERNEL_BOUNDS(sum_any, struct sum_arguments, SUM_THREADS, 4)
CUDA_KERNEL(sum_any, struct sum_arguments, 1)
{
    (void)PHASE;
    const uint32_t index = self->block * self->n_threads + self->thread;
    if (index >= a->count) {
        return;
    }
    struct sum_place place = find_sum(a, index);
    struct sum_state state = {0.0, 0.0, 0};
    NOT_UNROLLED
    for (uint64_t i = 0; i < a->outer_count; i++) {
        state = add_rows_any(a, place.src + outer_offset(a, i), state);
    }
    number_store(place.dst, finish_any(a->dtype, state, a->divisor), a->bytes, a->is_aligned != 0);
}
