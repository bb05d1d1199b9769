/* SPDX-License-Identifier: MIT */
/*
 * The bins of struct kernel_squares, in which squares and powers are added without rounding (kernel/squares.c):
 *
 *   bins[d], d < SQUARES_DIGITS   digit d counts 2^(32 d - 2148); normalized, it is below 2^32
 *   bins[SQUARES_INFINITIES]      how many infinities came by
 *   bins[SQUARES_NANS]            how many NaNs came by
 *
 * The smallest square of an f64 is 2^-2148, which is bit 0; the largest ends below bit 4196. The digits reach bit
 * 4544, so that no sum can leave them.
 *
 * GPUs compile this file as well (cuda/kernels/target.h), so it is written in what C and C++ have in common.
 */
#ifndef KERNEL_SQUARES_H
#define KERNEL_SQUARES_H

#include <stdint.h>

#include "kernel/kernel.h"

enum {
    SQUARES_DIGIT_BITS = 32,
    SQUARES_DIGITS = KERNEL_SQUARES_BINS - 2,
    SQUARES_INFINITIES = SQUARES_DIGITS,
    SQUARES_NANS,
    SQUARES_UNIT_BIT = 2148 /* that of 1; bit 0 counts 2^-2148 */
};

#define SQUARES_DIGIT_MASK 0xffffffffull

/* Carries from digit to digit, so that each is below 2^32. */
static inline void squares_carry(uint64_t *bins)
{
    uint64_t carry = 0;
    for (int i = 0; i < SQUARES_DIGITS; i++) {
        /* Bins that many ranks added may be full: the carry goes in after the split. */
        uint64_t low = (bins[i] & SQUARES_DIGIT_MASK) + (carry & SQUARES_DIGIT_MASK);
        carry = (bins[i] >> SQUARES_DIGIT_BITS) + (carry >> SQUARES_DIGIT_BITS) + (low >> SQUARES_DIGIT_BITS);
        bins[i] = low & SQUARES_DIGIT_MASK;
    }
}

/* A float of at most 24 bits: exponent fields e > 0 mean (2^mantissa_bits + m) * 2^(e - bias). */
struct squares_format {
    unsigned mantissa_bits;
    unsigned n_exponents;
    unsigned bias;
};

#define SQUARES_F32 ((struct squares_format){23, 256, 150})
#define SQUARES_F16 ((struct squares_format){10, 32, 25})
#define SQUARES_BF16 ((struct squares_format){7, 256, 134})

static inline unsigned squares_exponent_of(struct squares_format format, uint32_t bits)
{
    return (bits >> format.mantissa_bits) & (format.n_exponents - 1);
}

static inline uint32_t squares_fraction_of(struct squares_format format, uint32_t bits)
{
    return bits & ((1u << format.mantissa_bits) - 1);
}

/* Without the leading bit of normal numbers an exponent field of 0 has the scale of 1. */
static inline uint64_t squares_mantissa_of(struct squares_format format, uint32_t bits)
{
    uint32_t leading = (uint32_t)(squares_exponent_of(format, bits) != 0) << format.mantissa_bits;
    return squares_fraction_of(format, bits) | leading;
}

static inline uint64_t squares_square_of(struct squares_format format, uint32_t bits)
{
    uint64_t mantissa = squares_mantissa_of(format, bits);
    return mantissa * mantissa;
}

/* Where the square's bit 0 counts. */
static inline unsigned squares_bit_of(struct squares_format format, unsigned exponent)
{
    unsigned scale = exponent == 0 ? 1 : exponent;
    return SQUARES_UNIT_BIT + 2 * scale - 2 * format.bias;
}

#endif
