/* SPDX-License-Identifier: MIT */
/*
 * The table for Arm machines with FEAT_BF16: narrows to bf16 with BFCVTN and adds bf16 with BFMLAL. Both obey
 * FPCR like any other f32 instruction (nearest even, subnormals kept), so BFCVTN equals half_f32_to_bf16 and
 * BFMLAL by one equals widening and adding. Instruction counts and speeds: docs/design/kernels.md.
 */
#include "kernel/simd.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) && !defined(__ARM_BIG_ENDIAN)

#include "kernel/simd_neon.h"

#define VARIANT_NAME "neon_bf16"
#define VARIANT_TABLE simd_neon_bf16
#define VARIANT_HAS_BF16 1

ALWAYS_INLINE void store_bf16(void *to, struct pair32 pair)
{
    bfloat16x8_t halves = vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(pair.low), pair.high);
    vst1q_u8(to, vreinterpretq_u8_bf16(halves));
}

/* Sums --------------------------------------------------------------------------------------------------- */

/* Elements 0, 2, 4, 6 to low and 1, 3, 5, 7 to high: the order in which BFMLALB and BFMLALT take them. */
ALWAYS_INLINE struct pair32 sum_bf16_begin(const void *from)
{
    uint32x4_t words = vreinterpretq_u32_u8(load_bytes(from));
    return (struct pair32){.low = vreinterpretq_f32_u32(vshlq_n_u32(words, 16)),
                           .high = vreinterpretq_f32_u32(vandq_u32(words, vdupq_n_u32(0xffff0000)))};
}

/* The product with one is exact, and what is left of the multiply-add is an addition. The empty statement
   hides the constant from gcc 12, which writes the bf16 1.0 as an f16 1.0. */
ALWAYS_INLINE struct pair32 sum_bf16_add(struct pair32 sum, const void *from)
{
    uint16x8_t one_bits = vdupq_n_u16(0x3f80);
    __asm__("" : "+w"(one_bits));
    bfloat16x8_t one = vreinterpretq_bf16_u16(one_bits);
    bfloat16x8_t halves = vreinterpretq_bf16_u8(load_bytes(from));
    return (struct pair32){.low = vbfmlalbq_f32(sum.low, halves, one),
                           .high = vbfmlaltq_f32(sum.high, halves, one)};
}

ALWAYS_INLINE void sum_bf16_store(void *to, struct pair32 sum)
{
    uint16x8_t even = vreinterpretq_u16_bf16(vcvtq_low_bf16_f32(sum.low));
    uint16x8_t odd = vreinterpretq_u16_bf16(vcvtq_low_bf16_f32(sum.high));
    vst1q_u8(to, vreinterpretq_u8_u16(vzip1q_u16(even, odd)));
}

/* Casts -------------------------------------------------------------------------------------------------- */

/*
 * BFCVTN keeps two of the four vector pipes of a Neoverse V1 busy. A quarter of the elements is therefore
 * rounded by integer instructions on the others: RADDHN adds half of the last kept bit, and -1 too where that
 * bit is zero, so that ties go to even. Right for all but NaNs: a block that has one is cast again.
 */
enum {
    CAST_STEP = 32,
    CAST_BLOCK = 16 * CAST_STEP
};

ALWAYS_INLINE void store_bf16_integer(void *to, struct pair32 pair)
{
    uint32x4_t low = vreinterpretq_u32_f32(pair.low);
    uint32x4_t high = vreinterpretq_u32_f32(pair.high);
    /* Bit 16, the last kept one, becomes the sign: -1 where it is zero. */
    uint32x4_t low_even = vcgezq_s32(vreinterpretq_s32_u32(vshlq_n_u32(low, 15)));
    uint32x4_t high_even = vcgezq_s32(vreinterpretq_s32_u32(vshlq_n_u32(high, 15)));
    uint16x8_t halves = vraddhn_high_u32(vraddhn_u32(low, low_even), high, high_even);
    vst1q_u8(to, vreinterpretq_u8_u16(halves));
}

/* All loads come before all stores, an order that the compiler must keep. The trap becomes NaN if one of the
   elements rounded as integers is; products and sums of infinities and zeros may spring it too. */
ALWAYS_INLINE float32x4_t cast_step(char *to, const char *from, float32x4_t trap)
{
    struct pair32 a = load_f32(from);
    struct pair32 b = load_f32(from + 32);
    struct pair32 c = load_f32(from + 64);
    struct pair32 d = load_f32(from + 96);
    store_bf16_integer(to, a);
    store_bf16(to + 16, b);
    store_bf16(to + 32, c);
    store_bf16(to + 48, d);
    return vfmaq_f32(trap, a.low, a.high);
}

ALWAYS_INLINE bool has_nan(float32x4_t value)
{
    uint16x4_t is_number = vmovn_u32(vceqq_f32(value, value));
    return vget_lane_u64(vreinterpret_u64_u16(is_number), 0) != UINT64_MAX;
}

/* Casts as many whole steps as there are; returns their elements. A block is what one NaN costs. */
ALWAYS_INLINE size_t cast_f32_bf16_blocks(void *dst, const void *src, size_t count)
{
    char *to = dst;
    const char *from = src;
    size_t done = 0;
    size_t block;
    for (; count - done >= CAST_STEP; done += block) {
        block = count - done < CAST_BLOCK ? (count - done) / CAST_STEP * CAST_STEP : CAST_BLOCK;
        float32x4_t trap = vdupq_n_f32(0);
        for (size_t i = 0; i < block; i += CAST_STEP) {
            trap = cast_step(to + i * sizeof(uint16_t), from + i * sizeof(float), trap);
        }
        if (has_nan(trap)) {
            for (size_t i = 0; i < block; i += PAIR32) {
                store_bf16(to + i * sizeof(uint16_t), load_f32(from + i * sizeof(float)));
            }
        }
        to += block * sizeof(uint16_t);
        from += block * sizeof(float);
    }
    return done;
}

#include "kernel/simd_loops.h"

#endif
