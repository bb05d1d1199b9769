/* SPDX-License-Identifier: MIT */
/*
 * Adding squares and magnitudes without rounding, in the bins of kernel/squares.h. Adding each number to the bins
 * would make all threads wait for a few digits. So a thread has a window: 128 bits of the long integer, in registers,
 * that begin at bit `base`. A number that begins at most WINDOW_REACH bits above is added there. A larger one closes
 * the window, which goes to the bins, and opens another around itself; a smaller one goes to the bins directly.
 * Numbers that are far below the largest are few in most data.
 *
 * The square of an f64 has 106 bits: it is added as three numbers of at most 54, each of which has a window.
 */
#ifndef CUDA_KERNELS_WINDOW_H
#define CUDA_KERNELS_WINDOW_H

#include "cuda/kernels/target.h"

CUDA_SHARED_CODE_BEGIN
#include "kernel/half.h"
#include "kernel/squares.h"
CUDA_SHARED_CODE_END

/* Numbers have at most 54 bits: 2^27 of them fit into 128 bits from wherever they begin. */
#define WINDOW_REACH 47
/* Where a number is that opens a window: numbers up to 8 times as large fit, too. */
#define WINDOW_MIDDLE 41

/* Far from all bits. */
#define WINDOW_CLOSED (1u << 31)

struct window {
    uint64_t low;
    uint64_t high;
    uint32_t base;
};

/* Adds value * 2^bit to the bins: less than 2^32 to each. */
DEVICE_FUNCTION void bins_add(uint64_t *bins, uint32_t bit, uint64_t value)
{
    const uint32_t digit = bit / SQUARES_DIGIT_BITS;
    const uint32_t shift = bit % SQUARES_DIGIT_BITS;
    uint64_t low = (value & SQUARES_DIGIT_MASK) << shift;
    uint64_t high = (value >> SQUARES_DIGIT_BITS) << shift;
    device_add_u64(bins + digit, low & SQUARES_DIGIT_MASK);
    device_add_u64(bins + digit + 1, low >> SQUARES_DIGIT_BITS);
    device_add_u64(bins + digit + 1, high & SQUARES_DIGIT_MASK);
    device_add_u64(bins + digit + 2, high >> SQUARES_DIGIT_BITS);
}

DEVICE_FUNCTION void window_close(struct window window, uint64_t *bins)
{
    if (window.low != 0) {
        bins_add(bins, window.base, window.low);
    }
    if (window.high != 0) {
        bins_add(bins, window.base + 64, window.high);
    }
}

/* Adds value * 2^(base + shift), where the shift is at most WINDOW_REACH. */
DEVICE_FUNCTION struct window window_put(struct window window, uint64_t value, uint32_t shift)
{
    uint64_t low = value << shift;
    window.high += value >> 1 >> (63 - shift);
    window.low += low;
    window.high += window.low < low;
    return window;
}

/* Adds value * 2^bit, whatever it is. */
DEVICE_FUNCTION struct window window_add(struct window window, uint64_t *bins, uint64_t value, uint32_t bit)
{
    if (value == 0) {
        return window;
    }
    if (bit - window.base > WINDOW_REACH) {
        if (window.base != WINDOW_CLOSED && bit < window.base) {
            bins_add(bins, bit, value);
            return window;
        }
        window_close(window, bins);
        window.low = 0;
        window.high = 0;
        window.base = bit > WINDOW_MIDDLE ? bit - WINDOW_MIDDLE : 0;
    }
    return window_put(window, value, bit - window.base);
}

/* f32, and f16 and bf16 as f32 ---------------------------------------------------------------------------- */

/* A number that is no infinity or NaN, as value * 2^bit; of those the value is 0. */
struct scaled {
    uint64_t value;
    uint32_t bit;
    bool is_special;
};

DEVICE_FUNCTION struct scaled scale_f32(float number, bool is_square)
{
    const struct squares_format format = {23, 256, 150}; /* SQUARES_F32 */
    const uint32_t bits = half_f32_bits(number);
    const uint32_t exponent = squares_exponent_of(format, bits);
    const uint64_t mantissa = squares_mantissa_of(format, bits);
    const uint32_t scale = exponent == 0 ? 1 : exponent;
    struct scaled scaled;
    scaled.is_special = exponent == 255;
    scaled.value = scaled.is_special ? 0 : is_square ? mantissa * mantissa : mantissa;
    scaled.bit = is_square ? squares_bit_of(format, exponent) : SQUARES_UNIT_BIT + scale - 150;
    return scaled;
}

DEVICE_FUNCTION struct window window_add_f32(struct window window, uint64_t *bins, float number,
                                             bool is_square)
{
    struct scaled scaled = scale_f32(number, is_square);
    if (scaled.is_special) {
        device_add_u64(bins + (number == number ? SQUARES_INFINITIES : SQUARES_NANS), 1);
        return window;
    }
    return window_add(window, bins, scaled.value, scaled.bit);
}

/* Four numbers: those that fit into the window without a branch, and then the others. */
#define WINDOW_LANES 4

DEVICE_FUNCTION struct window window_add_lanes(struct window window, uint64_t *bins, const float *lanes,
                                               bool is_square)
{
    uint32_t missed = 0;
    UNROLLED
    for (uint32_t i = 0; i < WINDOW_LANES; i++) {
        struct scaled scaled = scale_f32(lanes[i], is_square);
        const uint32_t shift = scaled.bit - window.base;
        const bool fits = shift <= WINDOW_REACH;
        missed |= (uint32_t)(scaled.is_special || (!fits && scaled.value != 0)) << i;
        window = window_put(window, fits ? scaled.value : 0, fits ? shift : 0);
    }
    NOT_UNROLLED
    for (uint32_t i = 0; missed != 0; i++, missed >>= 1) {
        if ((missed & 1) != 0) {
            float lane = i == 0 ? lanes[0] : i == 1 ? lanes[1] : i == 2 ? lanes[2] : lanes[3];
            window = window_add_f32(window, bins, lane, is_square);
        }
    }
    return window;
}

/* f64 ----------------------------------------------------------------------------------------------------- */

/* The first is the only one, but for squares of f64. */
struct windows {
    struct window first;
    struct window second;
    struct window third;
};

DEVICE_FUNCTION struct windows windows_begin(void)
{
    struct windows windows = {{0, 0, WINDOW_CLOSED}, {0, 0, WINDOW_CLOSED}, {0, 0, WINDOW_CLOSED}};
    return windows;
}

DEVICE_FUNCTION void windows_end(struct windows windows, uint64_t *bins)
{
    window_close(windows.first, bins);
    window_close(windows.second, bins);
    window_close(windows.third, bins);
}

DEVICE_FUNCTION struct windows windows_add_f64(struct windows windows, uint64_t *bins, double number,
                                               bool is_square)
{
    const uint64_t bits = half_f64_bits(number);
    const uint32_t exponent = (uint32_t)(bits >> 52) & 0x7ff;
    const uint64_t fraction = bits & 0xfffffffffffff;
    if (exponent == 0x7ff) {
        device_add_u64(bins + (fraction == 0 ? SQUARES_INFINITIES : SQUARES_NANS), 1);
        return windows;
    }
    const uint64_t mantissa = fraction | (uint64_t)(exponent != 0) << 52;
    const uint32_t scale = exponent == 0 ? 1 : exponent;
    if (!is_square) {
        windows.first = window_add(windows.first, bins, mantissa, SQUARES_UNIT_BIT + scale - 1075);
        return windows;
    }
    /* (h * 2^26 + l)^2 = h * h * 2^52 + h * l * 2^27 + l * l, where h has 27 bits and l has 26. */
    const uint64_t high = mantissa >> 26;
    const uint64_t low = mantissa & 0x3ffffff;
    const uint32_t bit = SQUARES_UNIT_BIT + 2 * scale - 2 * 1075;
    windows.first = window_add(windows.first, bins, low * low, bit);
    windows.second = window_add(windows.second, bins, high * low, bit + 27);
    windows.third = window_add(windows.third, bins, high * high, bit + 52);
    return windows;
}

#endif
