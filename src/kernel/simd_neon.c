/* SPDX-License-Identifier: MIT */
/* The table for every 64-bit Arm: narrows to bf16 with integer instructions. */
#include "kernel/simd.h"

#if defined(__aarch64__) && defined(__ARM_NEON) && !defined(__ARM_BIG_ENDIAN)

#include "kernel/simd_neon.h"

#define VARIANT_NAME "neon"
#define VARIANT_TABLE simd_neon

/* As half_f32_to_bf16: the rounded number is left in the upper half of each lane. */
ALWAYS_INLINE uint32x4_t round_bf16(float32x4_t value)
{
    uint32x4_t bits = vreinterpretq_u32_f32(value);
    uint32x4_t last_kept = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), last_kept);
    uint32x4_t nan = vorrq_u32(bits, vdupq_n_u32(0x400000));
    return vbslq_u32(vceqq_f32(value, value), rounded, nan);
}

ALWAYS_INLINE void store_bf16(void *to, struct pair32 pair)
{
    uint16x8_t low = vreinterpretq_u16_u32(round_bf16(pair.low));
    uint16x8_t high = vreinterpretq_u16_u32(round_bf16(pair.high));
    vst1q_u8(to, vreinterpretq_u8_u16(vuzp2q_u16(low, high)));
}

#include "kernel/simd_loops.h"

#endif
