/* SPDX-License-Identifier: MIT */
/*
 * The table for Arm machines with FEAT_BF16: narrows to bf16 with BFCVTN, which obeys FPCR like any other
 * f32 instruction (nearest even, subnormals kept) and equals half_f32_to_bf16 for all 2^32 inputs.
 */
#include "kernel/simd.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) && !defined(__ARM_BIG_ENDIAN)

#include "kernel/simd_neon.h"

#define VARIANT_NAME "neon_bf16"
#define VARIANT_TABLE simd_neon_bf16

ALWAYS_INLINE void store_bf16(void *to, struct pair32 pair)
{
    bfloat16x8_t halves = vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(pair.low), pair.high);
    vst1q_u8(to, vreinterpretq_u8_bf16(halves));
}

#include "kernel/simd_loops.h"

#endif
