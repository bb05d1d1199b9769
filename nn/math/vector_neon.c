/* SPDX-License-Identifier: MIT */
/* The vectors of vector.h in NEON, which every AArch64 processor has. */
#include "math/vector_variants.h"

#if defined(__aarch64__) && !defined(__ARM_BIG_ENDIAN)

#include <arm_neon.h>
#include <stdbool.h>

#define VARIANT neon
#define LANES 4
#define TILE_ROWS 8
#define TILE_COLUMNS 32
#define TILE_VECTORS 2

#include "math/vector_registers.h"

typedef uint32x4_t mask;

static inline vector multiply_add(vector a, vector b, vector c)
{
    return vfmaq_f32(c, a, b);
}

static inline vector square_root(vector x)
{
    return vsqrtq_f32(x);
}

static inline mask is_less(vector a, vector b)
{
    return vcltq_f32(a, b);
}

static inline mask is_equal(vector a, vector b)
{
    return vceqq_f32(a, b);
}

static inline vector choose(mask which, vector a, vector b)
{
    return vbslq_f32(which, a, b);
}

static inline vector clamp(vector x, vector low, vector high)
{
    return vmaxq_f32(vminq_f32(x, high), low);
}

static inline vector larger(vector a, vector b)
{
    return vmaxnmq_f32(a, b);
}

/* Elements of a register are multiplied with another one as they are. */
typedef vector quad;

static inline quad load_quad(const float *from)
{
    return load(from);
}

static inline vector element_at(quad four, int at)
{
    return at == 0   ? vdupq_laneq_f32(four, 0)
           : at == 1 ? vdupq_laneq_f32(four, 1)
           : at == 2 ? vdupq_laneq_f32(four, 2)
                     : vdupq_laneq_f32(four, 3);
}

static inline vector load_f16(const uint16_t *from)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
}

static inline void store_f16(uint16_t *to, vector x)
{
    vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32(x)));
}

static inline vector load_bf16(const uint16_t *from)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(from), 16));
}

/* As nn_to_bf16. */
static inline void store_bf16(uint16_t *to, vector x)
{
    words bits = (words)x;
    words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    words kept = (bits >> 16) | 0x40u;
    vst1_u16(to, vmovn_u32(vbslq_u32(vceqq_f32(x, x), rounded, kept)));
}

static inline void multiply_long(words a, uint32_t by, words *high, words *low)
{
    words even = (words)vmull_n_u32(vget_low_u32(a), by);
    words odd = (words)vmull_high_n_u32(a, by);
    *low = vuzp1q_u32(even, odd);
    *high = vuzp2q_u32(even, odd);
}

static inline void store_blocks(uint32_t *to, const words c[4])
{
    const uint32x4x4_t blocks = {{c[0], c[1], c[2], c[3]}};
    vst4q_u32(to, blocks);
}

static inline doubles widen_part(vector x, int part)
{
    return part == 0 ? vcvt_f64_f32(vget_low_f32(x)) : vcvt_high_f64_f32(x);
}

static inline vector narrow(const doubles *parts)
{
    return vcvt_high_f32_f64(vcvt_f32_f64(parts[0]), parts[1]);
}

#include "math/vector_loops.h"

#endif
