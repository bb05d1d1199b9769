/* SPDX-License-Identifier: MIT */
/*
 * The table for x86-64 machines with AVX-512 (F, BW, VL): vectors of 512 bits for simd_loops.h. Requires that MXCSR
 * is as the ABI leaves it: nearest even, no flushing.
 */
#include "kernel/simd.h"

#if defined(__x86_64__) && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)

#include <immintrin.h>
#include <stdint.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

#define VARIANT_NAME "avx512"
#define VARIANT_TABLE simd_avx512
#define VARIANT_HAS_STREAM 1
#define VARIANT_HAS_BF16 1
#define STREAM_ALIGNMENT 64u /* a cache line, so that whole lines are written */
#define PAIR32 32u
#define PAIR64 16u

struct pair32 {
    __m512 low;
    __m512 high;
};

struct pair64 {
    __m512d low;
    __m512d high;
};

ALWAYS_INLINE __m512i load_bytes(const void *from)
{
    return _mm512_loadu_si512(from);
}

ALWAYS_INLINE struct pair32 load_f32(const void *from)
{
    const char *bytes = from;
    return (struct pair32){.low = _mm512_castsi512_ps(load_bytes(bytes)),
                           .high = _mm512_castsi512_ps(load_bytes(bytes + 64))};
}

ALWAYS_INLINE struct pair64 load_f64(const void *from)
{
    const char *bytes = from;
    return (struct pair64){.low = _mm512_castsi512_pd(load_bytes(bytes)),
                           .high = _mm512_castsi512_pd(load_bytes(bytes + 64))};
}

/* A bf16 is the upper half of an f32. */
ALWAYS_INLINE __m512 widen_bf16(const void *from)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

ALWAYS_INLINE struct pair32 load_bf16(const void *from)
{
    const char *bytes = from;
    return (struct pair32){.low = widen_bf16(bytes), .high = widen_bf16(bytes + 32)};
}

ALWAYS_INLINE struct pair32 load_f16(const void *from)
{
    const char *bytes = from;
    return (struct pair32){.low = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)bytes)),
                           .high = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(bytes + 32)))};
}

/*
 * The f32 closest to `bits` that is a bf16, in the upper half of each lane; the lower half is anything. Not for
 * NaNs that have bits in the lower half. VCVTNEPS2BF16 would flush subnormals.
 *
 * To add 0x7fff + last_kept is to subtract ~(0x7ffe | last_kept), which is one instruction: 0x15 is the truth
 * table of ~((a & b) | c).
 */
ALWAYS_INLINE __m512i round_number(__m512i bits)
{
    __m512i minus_bias = _mm512_ternarylogic_epi32(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1),
                                                   _mm512_set1_epi32(0x7ffe), 0x15);
    return _mm512_sub_epi32(bits, minus_bias);
}

/* As half_f32_to_bf16, in the lower half of each lane. */
ALWAYS_INLINE __m512i round_bf16(__m512 value)
{
    __m512i bits = _mm512_castps_si512(value);
    __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    __m512i rounded = _mm512_mask_or_epi32(round_number(bits), is_nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_srli_epi32(rounded, 16);
}

/* Packing works within quarters of the register and leaves the eighths in the order 0 2 4 6 1 3 5 7. */
ALWAYS_INLINE __m512i narrow_bf16(struct pair32 pair)
{
    __m512i packed = _mm512_packus_epi32(round_bf16(pair.low), round_bf16(pair.high));
    return _mm512_permutexvar_epi64(_mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0), packed);
}

ALWAYS_INLINE __m512i narrow_f16(struct pair32 pair)
{
    __m256i low = _mm512_cvtps_ph(pair.low, _MM_FROUND_TO_NEAREST_INT);
    __m256i high = _mm512_cvtps_ph(pair.high, _MM_FROUND_TO_NEAREST_INT);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

#define SUM_COLUMNS 8
typedef __m512d sum_doubles;

ALWAYS_INLINE sum_doubles sum_load_f32(const void *from)
{
    return _mm512_cvtps_pd(_mm256_loadu_ps(from));
}

ALWAYS_INLINE sum_doubles sum_load_bf16(const void *from)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from));
    return _mm512_cvtps_pd(_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)));
}

ALWAYS_INLINE void store_f32(void *to, struct pair32 pair)
{
    char *bytes = to;
    _mm512_storeu_si512((void *)bytes, _mm512_castps_si512(pair.low));
    _mm512_storeu_si512((void *)(bytes + 64), _mm512_castps_si512(pair.high));
}

ALWAYS_INLINE void store_f64(void *to, struct pair64 pair)
{
    char *bytes = to;
    _mm512_storeu_si512((void *)bytes, _mm512_castpd_si512(pair.low));
    _mm512_storeu_si512((void *)(bytes + 64), _mm512_castpd_si512(pair.high));
}

ALWAYS_INLINE void store_bf16(void *to, struct pair32 pair)
{
    _mm512_storeu_si512(to, narrow_bf16(pair));
}

ALWAYS_INLINE void store_f16(void *to, struct pair32 pair)
{
    _mm512_storeu_si512(to, narrow_f16(pair));
}

ALWAYS_INLINE void stream_f32(void *to, struct pair32 pair)
{
    char *bytes = to;
    _mm512_stream_si512((void *)bytes, _mm512_castps_si512(pair.low));
    _mm512_stream_si512((void *)(bytes + 64), _mm512_castps_si512(pair.high));
}

ALWAYS_INLINE void stream_f64(void *to, struct pair64 pair)
{
    char *bytes = to;
    _mm512_stream_si512((void *)bytes, _mm512_castpd_si512(pair.low));
    _mm512_stream_si512((void *)(bytes + 64), _mm512_castpd_si512(pair.high));
}

ALWAYS_INLINE void stream_bf16(void *to, struct pair32 pair)
{
    _mm512_stream_si512(to, narrow_bf16(pair));
}

ALWAYS_INLINE void stream_f16(void *to, struct pair32 pair)
{
    _mm512_stream_si512(to, narrow_f16(pair));
}

/* Streamed stores are ordered with nothing: whoever is told that the result is there must see it. */
ALWAYS_INLINE void stream_fence(void)
{
    _mm_sfence();
}

ALWAYS_INLINE struct pair32 splat32(float value)
{
    return (struct pair32){.low = _mm512_set1_ps(value), .high = _mm512_set1_ps(value)};
}

ALWAYS_INLINE struct pair32 add32(struct pair32 a, struct pair32 b)
{
    return (struct pair32){.low = _mm512_add_ps(a.low, b.low), .high = _mm512_add_ps(a.high, b.high)};
}

ALWAYS_INLINE struct pair32 divide32(struct pair32 a, struct pair32 b)
{
    return (struct pair32){.low = _mm512_div_ps(a.low, b.low), .high = _mm512_div_ps(a.high, b.high)};
}

/* MINPS(a, b) is a < b ? a : b, so it keeps `folded` for equal values and for any NaN; a NaN in `next` is
   put back. */
ALWAYS_INLINE __m512 pick_min_f32(__m512 folded, __m512 next)
{
    __mmask16 is_nan = _mm512_cmp_ps_mask(next, next, _CMP_UNORD_Q);
    return _mm512_mask_blend_ps(is_nan, _mm512_min_ps(next, folded), next);
}

ALWAYS_INLINE __m512 pick_max_f32(__m512 folded, __m512 next)
{
    __mmask16 is_nan = _mm512_cmp_ps_mask(next, next, _CMP_UNORD_Q);
    return _mm512_mask_blend_ps(is_nan, _mm512_max_ps(next, folded), next);
}

ALWAYS_INLINE struct pair32 pick_min32(struct pair32 folded, struct pair32 next)
{
    return (struct pair32){.low = pick_min_f32(folded.low, next.low),
                           .high = pick_min_f32(folded.high, next.high)};
}

ALWAYS_INLINE struct pair32 pick_max32(struct pair32 folded, struct pair32 next)
{
    return (struct pair32){.low = pick_max_f32(folded.low, next.low),
                           .high = pick_max_f32(folded.high, next.high)};
}

ALWAYS_INLINE struct pair64 splat64(double value)
{
    return (struct pair64){.low = _mm512_set1_pd(value), .high = _mm512_set1_pd(value)};
}

ALWAYS_INLINE struct pair64 add64(struct pair64 a, struct pair64 b)
{
    return (struct pair64){.low = _mm512_add_pd(a.low, b.low), .high = _mm512_add_pd(a.high, b.high)};
}

ALWAYS_INLINE struct pair64 divide64(struct pair64 a, struct pair64 b)
{
    return (struct pair64){.low = _mm512_div_pd(a.low, b.low), .high = _mm512_div_pd(a.high, b.high)};
}

ALWAYS_INLINE __m512d pick_min_f64(__m512d folded, __m512d next)
{
    __mmask8 is_nan = _mm512_cmp_pd_mask(next, next, _CMP_UNORD_Q);
    return _mm512_mask_blend_pd(is_nan, _mm512_min_pd(next, folded), next);
}

ALWAYS_INLINE __m512d pick_max_f64(__m512d folded, __m512d next)
{
    __mmask8 is_nan = _mm512_cmp_pd_mask(next, next, _CMP_UNORD_Q);
    return _mm512_mask_blend_pd(is_nan, _mm512_max_pd(next, folded), next);
}

ALWAYS_INLINE struct pair64 pick_min64(struct pair64 folded, struct pair64 next)
{
    return (struct pair64){.low = pick_min_f64(folded.low, next.low),
                           .high = pick_min_f64(folded.high, next.high)};
}

ALWAYS_INLINE struct pair64 pick_max64(struct pair64 folded, struct pair64 next)
{
    return (struct pair64){.low = pick_max_f64(folded.low, next.low),
                           .high = pick_max_f64(folded.high, next.high)};
}

/* Sums of bf16: elements 0, 2, 4, ... in low and 1, 3, 5, ... in high, so that no lane has to move. */
ALWAYS_INLINE struct pair32 sum_bf16_begin(const void *from)
{
    __m512i words = load_bytes(from);
    __m512i odd = _mm512_and_si512(words, _mm512_set1_epi32((int)0xffff0000));
    return (struct pair32){.low = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16)),
                           .high = _mm512_castsi512_ps(odd)};
}

ALWAYS_INLINE struct pair32 sum_bf16_add(struct pair32 sum, const void *from)
{
    return add32(sum, sum_bf16_begin(from));
}

/* A NaN among sums and averages of bf16 is one of the operands, made quiet, or the processor's own: the lower
   half is zero, and rounding it as a number changes nothing in the upper one. */
ALWAYS_INLINE __m512i join_sums(struct pair32 sum)
{
    __m512i even = _mm512_srli_epi32(round_number(_mm512_castps_si512(sum.low)), 16);
    __m512i odd = round_number(_mm512_castps_si512(sum.high));
    return _mm512_mask_blend_epi16(0xaaaaaaaa, even, odd);
}

ALWAYS_INLINE void sum_bf16_store(void *to, struct pair32 sum)
{
    _mm512_storeu_si512(to, join_sums(sum));
}

ALWAYS_INLINE void sum_bf16_stream(void *to, struct pair32 sum)
{
    _mm512_stream_si512(to, join_sums(sum));
}

/* Masks make NaNs cheap, two instructions a vector: store_bf16 does it all. */
ALWAYS_INLINE size_t cast_f32_bf16_blocks(void *dst, const void *src, size_t count)
{
    return 0;
}
#define stream_f32_bf16_blocks cast_f32_bf16_blocks

#include "kernel/simd_loops.h"

#endif
