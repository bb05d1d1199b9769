/* SPDX-License-Identifier: MIT */
/*
 * The two 16-bit float formats, carried as their bits. Narrowing rounds once, to nearest even; subnormals are kept,
 * overflow gives infinity, a NaN stays one. The bits are those of Shoal's own casts; a test compares all of them.
 */
#ifndef NN_MATH_HALVES_H
#define NN_MATH_HALVES_H

#include <stdint.h>
#include <string.h>

static inline uint32_t nn_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float nn_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/*
 * Converts a double to a float that rounds to the same 16 bits as the double: excess bits are cut off, and the last bit
 * is set if any of them was 1 ("round to odd"). Rounding to the nearest float instead could move a number close to a
 * tie onto the tie, which the second rounding may then resolve to the wrong side.
 */
static inline float nn_cut(double value)
{
    float nearest = (float)value;
    uint32_t bits = nn_bits_of(nearest);
    double found = (double)nearest;
    if (found == value || value != value) {
        return nearest;
    }
    bits -= (found < 0 ? -found : found) > (value < 0 ? -value : value) ? 1 : 0;
    return nn_float_of(bits | 1);
}

static inline float nn_from_bf16(uint16_t half)
{
    return nn_float_of((uint32_t)half << 16);
}

static inline uint16_t nn_to_bf16(float value)
{
    uint32_t bits = nn_bits_of(value);
    if ((bits & 0x7fffffff) > 0x7f800000) {
        return (uint16_t)((bits >> 16) | 0x40);
    }
    /* Half a step less one, plus the last bit that stays: a tie goes up from odd numbers only. */
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static inline float nn_from_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t exponent = (half >> 10) & 0x1f;
    uint32_t fraction = half & 0x3ff;
    if (exponent == 0) {
        float magnitude = (float)fraction * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    if (exponent == 0x1f) {
        return nn_float_of(sign | 0x7f800000 | (fraction ? (fraction << 13) | 0x00400000 : 0));
    }
    return nn_float_of(sign | ((exponent + 112) << 23) | (fraction << 13));
}

static inline uint16_t nn_to_f16(float value)
{
    uint32_t bits = nn_bits_of(value);
    uint32_t sign = (bits >> 16) & 0x8000;
    uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) {
        return (uint16_t)(sign | 0x7e00 | ((magnitude >> 13) & 0x3ff));
    }
    if (magnitude >= 0x477ff000) { /* 65520 and more round to infinity */
        return (uint16_t)(sign | 0x7c00);
    }
    if (magnitude < 0x38800000) { /* below 2^-14: a multiple of 2^-24, rounded by the adder */
        float shifted = nn_float_of(magnitude) + 0.5f;
        return (uint16_t)(sign | (nn_bits_of(shifted) - 0x3f000000));
    }
    uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
    return (uint16_t)(sign | ((rounded >> 13) - (112u << 10)));
}

#endif
