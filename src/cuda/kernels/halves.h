/* SPDX-License-Identifier: MIT */
/* Conversions of f16 and bf16 in registers. A GPU has instructions for them, which round two numbers together where the
   functions of kernel/half.h take about 20 instructions. Both have the same bits, but for NaNs. */
#ifndef CUDA_KERNELS_HALVES_H
#define CUDA_KERNELS_HALVES_H

#include "cuda/kernels/target.h"

CUDA_SHARED_CODE_BEGIN
#include "kernel/half.h"
CUDA_SHARED_CODE_END

#ifdef __CUDA__

DEVICE_FUNCTION float halves_from_f16(uint32_t half)
{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((uint16_t)half));
    return value;
}

/* Two numbers in a word. The instruction names the upper half first. */
DEVICE_FUNCTION uint32_t halves_to_f16(float low, float high)
{
    uint32_t halves;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(halves) : "f"(high), "f"(low));
    return halves;
}

DEVICE_FUNCTION uint32_t halves_to_bf16(float low, float high)
{
    uint32_t halves;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(halves) : "f"(high), "f"(low));
    return halves;
}

#else

DEVICE_FUNCTION float halves_from_f16(uint32_t half)
{
    return half_f16_to_f32((uint16_t)half);
}

DEVICE_FUNCTION uint32_t halves_to_f16(float low, float high)
{
    return half_f32_to_f16(low) | (uint32_t)half_f32_to_f16(high) << 16;
}

DEVICE_FUNCTION uint32_t halves_to_bf16(float low, float high)
{
    return half_f32_to_bf16(low) | (uint32_t)half_f32_to_bf16(high) << 16;
}

#endif

#endif
