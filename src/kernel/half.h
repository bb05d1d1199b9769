/* SPDX-License-Identifier: MIT */
/*
 * Conversions between the 16-bit and 8-bit float formats, carried as their bits, and f32 and f64. Narrowing rounds
 * once, to nearest even, whatever the source; subnormals are kept, overflow gives infinity (in e4m3fn, which has none,
 * NaN), a NaN stays a NaN and becomes quiet. Widening f16 is exact; widening bf16 moves the bits, NaNs included.
 * NaNs of 8-bit formats are those of PyTorch: narrowing gives 0x7f with the sign.
 *
 * There is no branch, so that compilers turn loops over these into vector code: both the normal and the
 * subnormal result are computed and one is selected. A subnormal result is rounded by the adder: adding a
 * power of two whose last place is the target's smallest step leaves the number of steps in the low bits.
 */
#ifndef KERNEL_HALF_H
#define KERNEL_HALF_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t half_f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float half_f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline uint64_t half_f64_bits(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline double half_f64_from_bits(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* By masks: with ?: compilers move the additions below into a branch, which ends the vector code. */
static inline uint32_t half_select_u32(bool condition, uint32_t yes, uint32_t no)
{
    uint32_t mask = -(uint32_t)condition;
    return (yes & mask) | (no & ~mask);
}

static inline uint64_t half_select_u64(bool condition, uint64_t yes, uint64_t no)
{
    uint64_t mask = -(uint64_t)condition;
    return (yes & mask) | (no & ~mask);
}

static inline float half_bf16_to_f32(uint16_t half)
{
    return half_f32_from_bits((uint32_t)half << 16);
}

static inline uint16_t half_f32_to_bf16(float value)
{
    uint32_t bits = half_f32_bits(value);
    /* Half a step less one, plus the last kept bit: a tie goes up only from an odd number. */
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    uint32_t nan = (bits >> 16) | 0x40;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

static inline float half_f16_to_f32(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t shifted = (uint32_t)(half & 0x7fff) << 13;
    uint32_t normal = shifted + (112u << 23);
    uint32_t quiet = shifted > 0x0f800000 ? 0x00400000 : 0;
    uint32_t special = shifted | 0x7f800000 | quiet;
    /* 2^-14 plus the subnormal is a normal f32; taking 2^-14 away is exact. */
    uint32_t subnormal = half_f32_bits(half_f32_from_bits(0x38800000 + shifted) - 0x1p-14f);
    uint32_t finite = half_select_u32(shifted < 0x00800000, subnormal, normal);
    return half_f32_from_bits(sign | half_select_u32(shifted >= 0x0f800000, special, finite));
}

static inline uint16_t half_f32_to_f16(float value)
{
    uint32_t bits = half_f32_bits(value);
    uint32_t sign = (bits >> 16) & 0x8000;
    uint32_t magnitude = bits & 0x7fffffff;
    uint32_t normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    /* The last place of 0.5 is 2^-24, the smallest f16. */
    uint32_t subnormal = half_f32_bits(half_f32_from_bits(magnitude) + 0.5f) - 0x3f000000;
    uint32_t finite = half_select_u32(magnitude < 0x38800000, subnormal, normal);
    uint32_t nan = ((magnitude >> 13) & 0x1ff) | 0x7e00;
    uint32_t special = magnitude > 0x7f800000 ? nan : 0x7c00;
    /* From 2^16 on; what lies between the largest f16 and 2^16 rounds and carries by itself. */
    return (uint16_t)(sign | half_select_u32(magnitude >= 0x47800000, special, finite));
}

static inline uint16_t half_f64_to_f16(double value)
{
    uint64_t bits = half_f64_bits(value);
    uint64_t sign = (bits >> 48) & 0x8000;
    uint64_t magnitude = bits & 0x7fffffffffffffff;
    uint64_t normal = (magnitude - (1008ull << 52) + 0x1ffffffffff + ((magnitude >> 42) & 1)) >> 42;
    /* The last place of 2^28 is 2^-24, the smallest f16. */
    uint64_t subnormal = half_f64_bits(half_f64_from_bits(magnitude) + 0x1p28) - half_f64_bits(0x1p28);
    uint64_t finite = half_select_u64(magnitude < half_f64_bits(0x1p-14), subnormal, normal);
    uint64_t nan = ((magnitude >> 42) & 0x1ff) | 0x7e00;
    uint64_t special = magnitude > 0x7ff0000000000000 ? nan : 0x7c00;
    return (uint16_t)(sign | half_select_u64(magnitude >= half_f64_bits(0x1p16), special, finite));
}

static inline uint16_t half_f64_to_bf16(double value)
{
    uint64_t bits = half_f64_bits(value);
    uint64_t sign = (bits >> 48) & 0x8000;
    uint64_t magnitude = bits & 0x7fffffffffffffff;
    uint64_t normal = (magnitude - (896ull << 52) + 0xfffffffffff + ((magnitude >> 45) & 1)) >> 45;
    /* The last place of 2^-81 is 2^-133, the smallest bf16. */
    uint64_t subnormal = half_f64_bits(half_f64_from_bits(magnitude) + 0x1p-81) - half_f64_bits(0x1p-81);
    uint64_t finite = half_select_u64(magnitude < half_f64_bits(0x1p-126), subnormal, normal);
    uint64_t nan = ((magnitude >> 45) & 0x3f) | 0x7fc0;
    uint64_t special = magnitude > 0x7ff0000000000000 ? nan : 0x7f80;
    return (uint16_t)(sign | half_select_u64(magnitude >= half_f64_bits(0x1p128), special, finite));
}

/* 8 bits ------------------------------------------------------------------------------------------------ */

static inline float half_f8_e5m2_to_f32(uint8_t code)
{
    return half_f16_to_f32((uint16_t)(code << 8));
}

static inline float half_f8_e4m3fn_to_f32(uint8_t code)
{
    uint32_t sign = (uint32_t)(code & 0x80) << 24;
    uint32_t shifted = (uint32_t)(code & 0x7f) << 20;
    uint32_t normal = shifted + (120u << 23);
    /* 2^-6 plus the subnormal is a normal f32; taking 2^-6 away is exact. */
    uint32_t subnormal = half_f32_bits(half_f32_from_bits(0x3c800000 + shifted) - 0x1p-6f);
    uint32_t finite = half_select_u32(shifted < 0x00800000, subnormal, normal);
    return half_f32_from_bits(sign | half_select_u32(shifted == 0x07f00000, 0x7ff00000, finite));
}

/* From the last code whose exponent is not all ones on, e4m3fn rounds as if its exponent went on: what is larger than
   464, half way from 448 to the next step, gets the code of the NaN. */
static inline uint8_t half_f32_to_f8_e4m3fn(float value)
{
    uint32_t bits = half_f32_bits(value);
    uint32_t sign = (bits >> 24) & 0x80;
    uint32_t magnitude = bits & 0x7fffffff;
    uint32_t normal = (magnitude - (120u << 23) + 0x7ffff + ((magnitude >> 20) & 1)) >> 20;
    /* The last place of 2^14 is 2^-9, the smallest e4m3fn. */
    uint32_t subnormal = half_f32_bits(half_f32_from_bits(magnitude) + 0x1p14f) - half_f32_bits(0x1p14f);
    uint32_t finite = half_select_u32(magnitude < 0x3c800000, subnormal, normal);
    return (uint8_t)(sign | half_select_u32(magnitude >= 0x43f00000, 0x7f, finite));
}

static inline uint8_t half_f32_to_f8_e5m2(float value)
{
    uint32_t bits = half_f32_bits(value);
    uint32_t sign = (bits >> 24) & 0x80;
    uint32_t magnitude = bits & 0x7fffffff;
    uint32_t normal = (magnitude - (112u << 23) + 0xfffff + ((magnitude >> 21) & 1)) >> 21;
    /* The last place of 2^7 is 2^-16, the smallest e5m2. */
    uint32_t subnormal = half_f32_bits(half_f32_from_bits(magnitude) + 0x1p7f) - half_f32_bits(0x1p7f);
    uint32_t finite = half_select_u32(magnitude < 0x38800000, subnormal, normal);
    uint32_t special = half_select_u32(magnitude > 0x7f800000, 0x7f, 0x7c);
    return (uint8_t)(sign | half_select_u32(magnitude >= 0x47800000, special, finite));
}

static inline uint8_t half_f64_to_f8_e4m3fn(double value)
{
    uint64_t bits = half_f64_bits(value);
    uint64_t sign = (bits >> 56) & 0x80;
    uint64_t magnitude = bits & 0x7fffffffffffffff;
    uint64_t normal = (magnitude - (1016ull << 52) + 0xffffffffffff + ((magnitude >> 49) & 1)) >> 49;
    /* The last place of 2^43 is 2^-9. */
    uint64_t subnormal = half_f64_bits(half_f64_from_bits(magnitude) + 0x1p43) - half_f64_bits(0x1p43);
    uint64_t finite = half_select_u64(magnitude < half_f64_bits(0x1p-6), subnormal, normal);
    return (uint8_t)(sign | half_select_u64(magnitude >= half_f64_bits(480.0), 0x7f, finite));
}

static inline uint8_t half_f64_to_f8_e5m2(double value)
{
    uint64_t bits = half_f64_bits(value);
    uint64_t sign = (bits >> 56) & 0x80;
    uint64_t magnitude = bits & 0x7fffffffffffffff;
    uint64_t normal = (magnitude - (1008ull << 52) + 0x1ffffffffffff + ((magnitude >> 50) & 1)) >> 50;
    /* The last place of 2^36 is 2^-16. */
    uint64_t subnormal = half_f64_bits(half_f64_from_bits(magnitude) + 0x1p36) - half_f64_bits(0x1p36);
    uint64_t finite = half_select_u64(magnitude < half_f64_bits(0x1p-14), subnormal, normal);
    uint64_t special = half_select_u64(magnitude > 0x7ff0000000000000, 0x7f, 0x7c);
    return (uint8_t)(sign | half_select_u64(magnitude >= half_f64_bits(0x1p16), special, finite));
}

#endif
