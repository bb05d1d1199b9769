/* SPDX-License-Identifier: MIT */
/*
 * Kernels over lists of pieces: scaling, clamping, the largest magnitude, and exact sums of squares and magnitudes.
 * The last three have no order, so they give the bits of the CPU in whichever order threads come.
 */
#include "cuda/kernels/lists.h"

#include "cuda/kernels/numbers.h"
#include "cuda/kernels/walk.h"
#include "cuda/kernels/window.h"

CUDA_SHARED_CODE_BEGIN
#include "kernel/arithmetic.h"
CUDA_SHARED_CODE_END

/* Changing elements -------------------------------------------------------------------------------------- */

#define CHANGE(NAME, ctype)                                                     \
    DEVICE_FUNCTION ctype change_##NAME(uint32_t op, ctype number, ctype value) \
    {                                                                           \
        if (op == LISTS_SCALE) {                                                \
            return mul_value_##NAME(value, number);                             \
        }                                                                       \
        ctype clamped = value > number ? number : value;                        \
        return clamped < -number ? -number : clamped;                           \
    }
CHANGE(F32, float)
CHANGE(F64, double)

DEVICE_FUNCTION void change_vector(const struct lists_arguments *a, uint32_t dtype, uint32_t *words)
{
    float lanes[LANES_MOST] = {0};
    const double number = a->numbers[dtype];
    if (dtype == SHOAL_F64) {
        lanes_set_f64(words, change_F64(a->op, number, lanes_f64(words)));
        lanes_set_f64(words + 2, change_F64(a->op, number, lanes_f64(words + 2)));
        return;
    }
    lanes_widen(dtype, words, lanes);
    UNROLLED
    for (int i = 0; i < LANES_MOST; i++) {
        lanes[i] = change_F32(a->op, (float)number, lanes[i]);
    }
    lanes_narrow(dtype, lanes, words);
}

DEVICE_FUNCTION void change_elements(const struct lists_arguments *a, struct walk_vector vector)
{
    const double number = a->numbers[vector.dtype];
    NOT_UNROLLED
    for (int64_t i = vector.begin; i < vector.end; i++) {
        struct number_bits bits = number_load(vector.address, vector.bytes, vector.is_aligned);
        bits = vector.dtype == SHOAL_F64
                   ? number_bits_F64(change_F64(a->op, number, number_value_F64(bits)))
                   : number_narrow(vector.dtype,
                                   change_F32(a->op, (float)number, number_widen(vector.dtype, bits)));
        number_store(vector.address, bits, vector.bytes, vector.is_aligned);
        vector.address += vector.bytes;
    }
}

CUDA_KERNEL_BOUNDS(lists_change, struct lists_arguments, LISTS_THREADS, 4)
CUDA_KERNEL(lists_change, struct lists_arguments, 1)
{
    (void)PHASE;
    struct walk_vector vectors[LISTS_EACH];
    uint32_t words[LISTS_EACH][VECTOR_WORDS];
    UNROLLED
    for (uint32_t i = 0; i < LISTS_EACH; i++) {
        vectors[i] = walk_vector(a, self, self->block, i);
        if (vectors[i].is_full) {
            vector_load(words[i], vectors[i].address, VECTOR_BYTES);
        }
    }
    UNROLLED
    for (uint32_t i = 0; i < LISTS_EACH; i++) {
        if (vectors[i].is_full) {
            change_vector(a, vectors[i].dtype, words[i]);
            vector_store(vectors[i].address, words[i], VECTOR_BYTES);
        } else {
            change_elements(a, vectors[i]);
        }
    }
}

/* The largest magnitude ---------------------------------------------------------------------------------- */

/* Magnitudes as bits: numbers that are not negative have the order of their bits, and NaN comes after infinity. */
struct largest {
    uint32_t f32;
    uint64_t f64;
};

DEVICE_FUNCTION struct largest take_f32(struct largest largest, float value)
{
    uint32_t bits = half_f32_bits(value) & 0x7fffffff;
    largest.f32 = bits > largest.f32 ? bits : largest.f32;
    return largest;
}

DEVICE_FUNCTION struct largest take_f64(struct largest largest, double value)
{
    uint64_t bits = half_f64_bits(value) & 0x7fffffffffffffff;
    largest.f64 = bits > largest.f64 ? bits : largest.f64;
    return largest;
}

DEVICE_FUNCTION struct largest take_vector(struct largest largest, struct walk_vector vector)
{
    uint32_t words[VECTOR_WORDS];
    float lanes[LANES_MOST] = {0};
    if (!vector.is_full) {
        NOT_UNROLLED
        for (int64_t i = vector.begin; i < vector.end; i++) {
            struct number_bits bits = number_load(vector.address, vector.bytes, vector.is_aligned);
            largest = vector.dtype == SHOAL_F64 ? take_f64(largest, number_value_F64(bits))
                                                : take_f32(largest, number_widen(vector.dtype, bits));
            vector.address += vector.bytes;
        }
        return largest;
    }
    vector_load(words, vector.address, VECTOR_BYTES);
    if (vector.dtype == SHOAL_F64) {
        return take_f64(take_f64(largest, lanes_f64(words)), lanes_f64(words + 2));
    }
    lanes_widen(vector.dtype, words, lanes);
    UNROLLED
    for (int i = 0; i < LANES_MOST; i++) {
        largest = take_f32(largest, lanes[i]);
    }
    return largest;
}

DEVICE_FUNCTION uint64_t find_largest(const uint64_t *found, uint32_t n)
{
    uint64_t largest = 0;
    NOT_UNROLLED
    for (uint32_t i = 0; i < n; i++) {
        largest = found[i] > largest ? found[i] : largest;
    }
    return largest;
}

/* The first threads of a block each look through the numbers of others, and the first one through theirs. */
CUDA_KERNEL_BOUNDS(lists_largest, struct lists_arguments, LISTS_THREADS, 4)
CUDA_KERNEL(lists_largest, struct lists_arguments, 3)
{
    uint64_t *found = (uint64_t *)(void *)self->shared;
    if (PHASE == 0) {
        struct largest largest = {0, 0};
        NOT_UNROLLED
        for (uint32_t tile = self->block; tile < a->n_tiles; tile += self->n_blocks) {
            UNROLLED
            for (uint32_t i = 0; i < LISTS_EACH; i++) {
                largest = take_vector(largest, walk_vector(a, self, tile, i));
            }
        }
        largest = take_f64(largest, (double)half_f32_from_bits(largest.f32));
        found[self->thread] = largest.f64;
    } else if (PHASE == 1 && self->thread < LISTS_GROUP) {
        const uint32_t n = LISTS_THREADS / LISTS_GROUP;
        found[LISTS_THREADS + self->thread] = find_largest(found + self->thread * n, n);
    } else if (PHASE == 2 && self->thread == 0) {
        device_max_u64(DEVICE_POINTER(uint64_t, a->result), find_largest(found + LISTS_THREADS, LISTS_GROUP));
    }
}

/* Exact sums --------------------------------------------------------------------------------------------- */

DEVICE_FUNCTION struct windows add_elements(const struct lists_arguments *a, struct windows windows,
                                            uint64_t *bins, struct walk_vector vector)
{
    const bool is_square = a->op == LISTS_SQUARES;
    NOT_UNROLLED
    for (int64_t i = vector.begin; i < vector.end; i++) {
        struct number_bits bits = number_load(vector.address, vector.bytes, vector.is_aligned);
        if (vector.dtype == SHOAL_F64) {
            windows = windows_add_f64(windows, bins, number_value_F64(bits), is_square);
        } else {
            windows.first = window_add_f32(windows.first, bins, number_widen(vector.dtype, bits), is_square);
        }
        vector.address += vector.bytes;
    }
    return windows;
}

DEVICE_FUNCTION struct windows add_vector(const struct lists_arguments *a, struct windows windows,
                                          uint64_t *bins, struct walk_vector vector)
{
    uint32_t words[VECTOR_WORDS];
    float lanes[LANES_MOST] = {0};
    const bool is_square = a->op == LISTS_SQUARES;
    vector_load(words, vector.address, VECTOR_BYTES);
    if (vector.dtype == SHOAL_F64) {
        windows = windows_add_f64(windows, bins, lanes_f64(words), is_square);
        return windows_add_f64(windows, bins, lanes_f64(words + 2), is_square);
    }
    lanes_widen(vector.dtype, words, lanes);
    windows.first = window_add_lanes(windows.first, bins, lanes, is_square);
    if (vector.dtype != SHOAL_F32) {
        windows.first = window_add_lanes(windows.first, bins, lanes + WINDOW_LANES, is_square);
    }
    return windows;
}

/* The bins of a block lie in its shared memory. They are carried before they are added to the result, so that no
   digit there can overflow: it gets less than 2^32 from each block. */
CUDA_KERNEL_BOUNDS(lists_powers, struct lists_arguments, LISTS_THREADS, 4)
CUDA_KERNEL(lists_powers, struct lists_arguments, 4)
{
    uint64_t *bins = (uint64_t *)(void *)self->shared;
    if (PHASE == 0 && self->thread < KERNEL_SQUARES_BINS) {
        bins[self->thread] = 0;
    } else if (PHASE == 1) {
        struct windows windows = windows_begin();
        NOT_UNROLLED
        for (uint32_t tile = self->block; tile < a->n_tiles; tile += self->n_blocks) {
            NOT_UNROLLED
            for (uint32_t i = 0; i < LISTS_EACH; i++) {
                struct walk_vector vector = walk_vector(a, self, tile, i);
                windows = vector.is_full ? add_vector(a, windows, bins, vector)
                                         : add_elements(a, windows, bins, vector);
            }
        }
        windows_end(windows, bins);
    } else if (PHASE == 2 && self->thread == 0) {
        squares_carry(bins);
    } else if (PHASE == 3 && self->thread < KERNEL_SQUARES_BINS && bins[self->thread] != 0) {
        device_add_u64(DEVICE_POINTER(uint64_t, a->result) + self->thread, bins[self->thread]);
    }
}

/* Carries the digits of a result, as every call of the CPU's kernels does. One block. */
CUDA_KERNEL(lists_carry, struct lists_carry_arguments, 3)
{
    uint64_t *bins = (uint64_t *)(void *)self->shared;
    uint64_t *result = DEVICE_POINTER(uint64_t, a->bins);
    if (PHASE == 0 && self->thread < KERNEL_SQUARES_BINS) {
        bins[self->thread] = result[self->thread];
    } else if (PHASE == 1 && self->thread == 0) {
        squares_carry(bins);
    } else if (PHASE == 2 && self->thread < KERNEL_SQUARES_BINS) {
        result[self->thread] = bins[self->thread];
    }
}
