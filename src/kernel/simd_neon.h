/* SPDX-License-Identifier: MIT */
/*
 * Vectors of 128 bits on Arm, for simd_loops.h; everything but narrowing to bf16, which is where the two Arm
 * variants differ. Requires that FPCR is as the ABI leaves it: nearest even, no flushing.
 */
#ifndef KERNEL_SIMD_NEON_H
#define KERNEL_SIMD_NEON_H

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* STNP was not faster than STP at any size: docs/design/kernels.md. */
#define VARIANT_HAS_STREAM 0
#define STREAM_ALIGNMENT 16u
#define PAIR32 8u
#define PAIR64 4u

struct pair32 {
    float32x4_t low;
    float32x4_t high;
};

struct pair64 {
    float64x2_t low;
    float64x2_t high;
};

/* Loads and stores go through bytes: those need no alignment. */
ALWAYS_INLINE uint8x16_t load_bytes(const void *from)
{
    return vld1q_u8(from);
}

ALWAYS_INLINE struct pair32 load_f32(const void *from)
{
    const char *bytes = from;
    return (struct pair32){.low = vreinterpretq_f32_u8(load_bytes(bytes)),
                           .high = vreinterpretq_f32_u8(load_bytes(bytes + 16))};
}

ALWAYS_INLINE struct pair64 load_f64(const void *from)
{
    const char *bytes = from;
    return (struct pair64){.low = vreinterpretq_f64_u8(load_bytes(bytes)),
                           .high = vreinterpretq_f64_u8(load_bytes(bytes + 16))};
}

/* A bf16 is the upper half of an f32: zeros go below it. The empty statement keeps clang from joining this
   with a store to ST2, which is half as fast. */
ALWAYS_INLINE struct pair32 load_bf16(const void *from)
{
    uint16x8_t halves = vreinterpretq_u16_u8(load_bytes(from));
    uint16x8_t low = vzip1q_u16(vdupq_n_u16(0), halves);
    uint16x8_t high = vzip2q_u16(vdupq_n_u16(0), halves);
    __asm__("" : "+w"(low), "+w"(high));
    return (struct pair32){.low = vreinterpretq_f32_u16(low), .high = vreinterpretq_f32_u16(high)};
}

ALWAYS_INLINE struct pair32 load_f16(const void *from)
{
    float16x8_t halves = vreinterpretq_f16_u8(load_bytes(from));
    return (struct pair32){.low = vcvt_f32_f16(vget_low_f16(halves)), .high = vcvt_high_f32_f16(halves)};
}

ALWAYS_INLINE void store_f32(void *to, struct pair32 pair)
{
    uint8_t *bytes = to;
    vst1q_u8(bytes, vreinterpretq_u8_f32(pair.low));
    vst1q_u8(bytes + 16, vreinterpretq_u8_f32(pair.high));
}

ALWAYS_INLINE void store_f64(void *to, struct pair64 pair)
{
    uint8_t *bytes = to;
    vst1q_u8(bytes, vreinterpretq_u8_f64(pair.low));
    vst1q_u8(bytes + 16, vreinterpretq_u8_f64(pair.high));
}

ALWAYS_INLINE void store_f16(void *to, struct pair32 pair)
{
    vst1q_u8(to, vreinterpretq_u8_f16(vcvt_high_f16_f32(vcvt_f16_f32(pair.low), pair.high)));
}

#define stream_f32 store_f32
#define stream_f64 store_f64
#define stream_bf16 store_bf16
#define stream_f16 store_f16

ALWAYS_INLINE void stream_fence(void)
{
}

ALWAYS_INLINE struct pair32 splat32(float value)
{
    return (struct pair32){.low = vdupq_n_f32(value), .high = vdupq_n_f32(value)};
}

ALWAYS_INLINE struct pair32 add32(struct pair32 a, struct pair32 b)
{
    return (struct pair32){.low = vaddq_f32(a.low, b.low), .high = vaddq_f32(a.high, b.high)};
}

ALWAYS_INLINE struct pair32 divide32(struct pair32 a, struct pair32 b)
{
    return (struct pair32){.low = vdivq_f32(a.low, b.low), .high = vdivq_f32(a.high, b.high)};
}

/* FMIN and FMAX order the zeros, so compare and select: `is_better`, or next is not equal to itself. */
ALWAYS_INLINE float32x4_t pick_f32(uint32x4_t is_better, float32x4_t folded, float32x4_t next)
{
    return vbslq_f32(vornq_u32(is_better, vceqq_f32(next, next)), next, folded);
}

ALWAYS_INLINE struct pair32 pick_min32(struct pair32 folded, struct pair32 next)
{
    return (struct pair32){.low = pick_f32(vcltq_f32(next.low, folded.low), folded.low, next.low),
                           .high = pick_f32(vcltq_f32(next.high, folded.high), folded.high, next.high)};
}

ALWAYS_INLINE struct pair32 pick_max32(struct pair32 folded, struct pair32 next)
{
    return (struct pair32){.low = pick_f32(vcgtq_f32(next.low, folded.low), folded.low, next.low),
                           .high = pick_f32(vcgtq_f32(next.high, folded.high), folded.high, next.high)};
}

ALWAYS_INLINE struct pair64 splat64(double value)
{
    return (struct pair64){.low = vdupq_n_f64(value), .high = vdupq_n_f64(value)};
}

ALWAYS_INLINE struct pair64 add64(struct pair64 a, struct pair64 b)
{
    return (struct pair64){.low = vaddq_f64(a.low, b.low), .high = vaddq_f64(a.high, b.high)};
}

ALWAYS_INLINE struct pair64 divide64(struct pair64 a, struct pair64 b)
{
    return (struct pair64){.low = vdivq_f64(a.low, b.low), .high = vdivq_f64(a.high, b.high)};
}

ALWAYS_INLINE float64x2_t pick_f64(uint64x2_t is_better, float64x2_t folded, float64x2_t next)
{
    uint64x2_t is_number = vceqq_f64(next, next);
    uint64x2_t is_taken =
        vreinterpretq_u64_u32(vornq_u32(vreinterpretq_u32_u64(is_better), vreinterpretq_u32_u64(is_number)));
    return vbslq_f64(is_taken, next, folded);
}

ALWAYS_INLINE struct pair64 pick_min64(struct pair64 folded, struct pair64 next)
{
    return (struct pair64){.low = pick_f64(vcltq_f64(next.low, folded.low), folded.low, next.low),
                           .high = pick_f64(vcltq_f64(next.high, folded.high), folded.high, next.high)};
}

ALWAYS_INLINE struct pair64 pick_max64(struct pair64 folded, struct pair64 next)
{
    return (struct pair64){.low = pick_f64(vcgtq_f64(next.low, folded.low), folded.low, next.low),
                           .high = pick_f64(vcgtq_f64(next.high, folded.high), folded.high, next.high)};
}

#endif
