/* SPDX-License-Identifier: MIT */
/*
 * The table for x86-64 machines with AVX2 and F16C: vectors of 256 bits for simd_loops.h. Requires that MXCSR
 * is as the ABI leaves it: nearest even, no flushing.
 */
#include "kernel/simd.h"

#if defined(__x86_64__) && defined(__AVX2__) && defined(__F16C__)

#include <immintrin.h>
#include <stdint.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

#define VARIANT_NAME "avx2"
#define VARIANT_TABLE simd_avx2
#define VARIANT_HAS_STREAM 1
#define VARIANT_HAS_BF16 1
#define STREAM_ALIGNMENT 64u /* a cache line, so that whole lines are written */
#define PAIR32 16u
#define PAIR64 8u

struct pair32 {
    __m256 low;
    __m256 high;
};

struct pair64 {
    __m256d low;
    __m256d high;
};

ALWAYS_INLINE __m256i load_bytes(const void *from)
{
    return _mm256_loadu_si256(from);
}

ALWAYS_INLINE struct pair32 load_f32(const void *from)
{
    const char *bytes = from;
    return (struct pair32){.low = _mm256_castsi256_ps(load_bytes(bytes)),
                           .high = _mm256_castsi256_ps(load_bytes(bytes + 32))};
}

ALWAYS_INLINE struct pair64 load_f64(const void *from)
{
    const char *bytes = from;
    return (struct pair64){.low = _mm256_castsi256_pd(load_bytes(bytes)),
                           .high = _mm256_castsi256_pd(load_bytes(bytes + 32))};
}

/* A bf16 is the upper half of an f32. */
ALWAYS_INLINE __m256 widen_bf16(const void *from)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

ALWAYS_INLINE struct pair32 load_bf16(const void *from)
{
    const char *bytes = from;
    return (struct pair32){.low = widen_bf16(bytes), .high = widen_bf16(bytes + 16)};
}

ALWAYS_INLINE struct pair32 load_f16(const void *from)
{
    const char *bytes = from;
    return (struct pair32){.low = _mm256_cvtph_ps(_mm_loadu_si128((const void *)bytes)),
                           .high = _mm256_cvtph_ps(_mm_loadu_si128((const void *)(bytes + 16)))};
}

/* As half_f32_to_bf16, in the lower half of each lane. VCVTNEPS2BF16 would flush subnormals. */
ALWAYS_INLINE __m256i round_bf16(__m256 value)
{
    __m256i bits = _mm256_castps_si256(value);
    __m256i last_kept = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), last_kept);
    __m256i nan = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, nan, is_nan), 16);
}

/* Packing works within halves of the register and leaves the quarters in the order 0 2 1 3. */
ALWAYS_INLINE __m256i narrow_bf16(struct pair32 pair)
{
    __m256i packed = _mm256_packus_epi32(round_bf16(pair.low), round_bf16(pair.high));
    return _mm256_permute4x64_epi64(packed, 0xd8);
}

ALWAYS_INLINE __m256i narrow_f16(struct pair32 pair)
{
    return _mm256_set_m128i(_mm256_cvtps_ph(pair.high, _MM_FROUND_TO_NEAREST_INT),
                            _mm256_cvtps_ph(pair.low, _MM_FROUND_TO_NEAREST_INT));
}

#define SUM_COLUMNS 4
typedef __m256d sum_doubles;

ALWAYS_INLINE sum_doubles sum_load_f32(const void *from)
{
    return _mm256_cvtps_pd(_mm_loadu_ps(from));
}

ALWAYS_INLINE sum_doubles sum_load_bf16(const void *from)
{
    __m128i wide = _mm_cvtepu16_epi32(_mm_loadl_epi64(from));
    return _mm256_cvtps_pd(_mm_castsi128_ps(_mm_slli_epi32(wide, 16)));
}

ALWAYS_INLINE void store_f32(void *to, struct pair32 pair)
{
    char *bytes = to;
    _mm256_storeu_si256((void *)bytes, _mm256_castps_si256(pair.low));
    _mm256_storeu_si256((void *)(bytes + 32), _mm256_castps_si256(pair.high));
}

ALWAYS_INLINE void store_f64(void *to, struct pair64 pair)
{
    char *bytes = to;
    _mm256_storeu_si256((void *)bytes, _mm256_castpd_si256(pair.low));
    _mm256_storeu_si256((void *)(bytes + 32), _mm256_castpd_si256(pair.high));
}

ALWAYS_INLINE void store_bf16(void *to, struct pair32 pair)
{
    _mm256_storeu_si256(to, narrow_bf16(pair));
}

ALWAYS_INLINE void store_f16(void *to, struct pair32 pair)
{
    _mm256_storeu_si256(to, narrow_f16(pair));
}

ALWAYS_INLINE void stream_f32(void *to, struct pair32 pair)
{
    char *bytes = to;
    _mm256_stream_si256((void *)bytes, _mm256_castps_si256(pair.low));
    _mm256_stream_si256((void *)(bytes + 32), _mm256_castps_si256(pair.high));
}

ALWAYS_INLINE void stream_f64(void *to, struct pair64 pair)
{
    char *bytes = to;
    _mm256_stream_si256((void *)bytes, _mm256_castpd_si256(pair.low));
    _mm256_stream_si256((void *)(bytes + 32), _mm256_castpd_si256(pair.high));
}

ALWAYS_INLINE void stream_bf16(void *to, struct pair32 pair)
{
    _mm256_stream_si256(to, narrow_bf16(pair));
}

ALWAYS_INLINE void stream_f16(void *to, struct pair32 pair)
{
    _mm256_stream_si256(to, narrow_f16(pair));
}

/* Streamed stores are ordered with nothing: whoever is told that the result is there must see it. */
ALWAYS_INLINE void stream_fence(void)
{
    _mm_sfence();
}

ALWAYS_INLINE struct pair32 splat32(float value)
{
    return (struct pair32){.low = _mm256_set1_ps(value), .high = _mm256_set1_ps(value)};
}

ALWAYS_INLINE struct pair32 add32(struct pair32 a, struct pair32 b)
{
    return (struct pair32){.low = _mm256_add_ps(a.low, b.low), .high = _mm256_add_ps(a.high, b.high)};
}

ALWAYS_INLINE struct pair32 divide32(struct pair32 a, struct pair32 b)
{
    return (struct pair32){.low = _mm256_div_ps(a.low, b.low), .high = _mm256_div_ps(a.high, b.high)};
}

/* MINPS(a, b) is a < b ? a : b, so it keeps `folded` for equal values and for any NaN; a NaN in `next` is
   put back. */
ALWAYS_INLINE __m256 pick_min_f32(__m256 folded, __m256 next)
{
    __m256 is_nan = _mm256_cmp_ps(next, next, _CMP_UNORD_Q);
    return _mm256_blendv_ps(_mm256_min_ps(next, folded), next, is_nan);
}

ALWAYS_INLINE __m256 pick_max_f32(__m256 folded, __m256 next)
{
    __m256 is_nan = _mm256_cmp_ps(next, next, _CMP_UNORD_Q);
    return _mm256_blendv_ps(_mm256_max_ps(next, folded), next, is_nan);
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
    return (struct pair64){.low = _mm256_set1_pd(value), .high = _mm256_set1_pd(value)};
}

ALWAYS_INLINE struct pair64 add64(struct pair64 a, struct pair64 b)
{
    return (struct pair64){.low = _mm256_add_pd(a.low, b.low), .high = _mm256_add_pd(a.high, b.high)};
}

ALWAYS_INLINE struct pair64 divide64(struct pair64 a, struct pair64 b)
{
    return (struct pair64){.low = _mm256_div_pd(a.low, b.low), .high = _mm256_div_pd(a.high, b.high)};
}

ALWAYS_INLINE __m256d pick_min_f64(__m256d folded, __m256d next)
{
    __m256d is_nan = _mm256_cmp_pd(next, next, _CMP_UNORD_Q);
    return _mm256_blendv_pd(_mm256_min_pd(next, folded), next, is_nan);
}

ALWAYS_INLINE __m256d pick_max_f64(__m256d folded, __m256d next)
{
    __m256d is_nan = _mm256_cmp_pd(next, next, _CMP_UNORD_Q);
    return _mm256_blendv_pd(_mm256_max_pd(next, folded), next, is_nan);
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

/*
 * Each lane of both to bf16: low to the even elements, high to the odd ones. Not for NaNs that have bits in the
 * lower half. Upper and lower halves of all lanes are brought together, so that both vectors round at once:
 * bit 15 of the average (lower + bias + 1) / 2 is the carry of lower + 0x7fff + last_kept.
 */
ALWAYS_INLINE __m256i join_numbers(struct pair32 pair)
{
    __m256i even = _mm256_castps_si256(pair.low);
    __m256i odd = _mm256_castps_si256(pair.high);
    __m256i upper = _mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xaa);
    __m256i lower = _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xaa);
    __m256i bias =
        _mm256_and_si256(_mm256_or_si256(upper, _mm256_set1_epi16(0x7ffe)), _mm256_set1_epi16(0x7fff));
    __m256i carry = _mm256_srli_epi16(_mm256_avg_epu16(lower, bias), 15);
    return _mm256_add_epi16(upper, carry);
}

/* Sums of bf16: elements 0, 2, 4, ... in low and 1, 3, 5, ... in high, so that no lane has to move. */
ALWAYS_INLINE struct pair32 sum_bf16_begin(const void *from)
{
    __m256i words = load_bytes(from);
    __m256i odd = _mm256_and_si256(words, _mm256_set1_epi32((int)0xffff0000));
    return (struct pair32){.low = _mm256_castsi256_ps(_mm256_slli_epi32(words, 16)),
                           .high = _mm256_castsi256_ps(odd)};
}

ALWAYS_INLINE struct pair32 sum_bf16_add(struct pair32 sum, const void *from)
{
    return add32(sum, sum_bf16_begin(from));
}

/* A NaN among sums and averages of bf16 is one of the operands, made quiet, or the processor's own: the lower
   half is zero, and rounding it as a number changes nothing in the upper one. */
ALWAYS_INLINE void sum_bf16_store(void *to, struct pair32 sum)
{
    _mm256_storeu_si256(to, join_numbers(sum));
}

ALWAYS_INLINE void sum_bf16_stream(void *to, struct pair32 sum)
{
    _mm256_stream_si256(to, join_numbers(sum));
}

/* Casts look for NaNs once per block, which is what one NaN costs. */
enum {
    CAST_BLOCK = 32 * PAIR32
};

/* join_numbers leaves 0 8 1 9 2 10 3 11 in the lower half of the register, 4 12 5 13 ... in the upper. */
ALWAYS_INLINE __m256i narrow_numbers(struct pair32 pair)
{
    const __m128i unzip = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    __m256i halves = _mm256_shuffle_epi8(join_numbers(pair), _mm256_broadcastsi128_si256(unzip));
    return _mm256_permute4x64_epi64(halves, 0xd8);
}

ALWAYS_INLINE void store_narrow(bool is_stream, void *to, __m256i halves)
{
    if (is_stream) {
        _mm256_stream_si256(to, halves);
    } else {
        _mm256_storeu_si256(to, halves);
    }
}

ALWAYS_INLINE size_t narrow_blocks(bool is_stream, char *to, const char *from, size_t count)
{
    size_t done = 0;
    size_t block;
    for (; count - done >= PAIR32; done += block) {
        block = count - done < CAST_BLOCK ? (count - done) / PAIR32 * PAIR32 : CAST_BLOCK;
        __m256 is_nan = _mm256_setzero_ps();
        for (size_t i = done; i < done + block; i += PAIR32) {
            struct pair32 pair = load_f32(from + i * sizeof(float));
            is_nan = _mm256_or_ps(is_nan, _mm256_cmp_ps(pair.low, pair.high, _CMP_UNORD_Q));
            store_narrow(is_stream, to + i * sizeof(uint16_t), narrow_numbers(pair));
        }
        if (_mm256_movemask_ps(is_nan) != 0) {
            for (size_t i = done; i < done + block; i += PAIR32) {
                __m256i halves = narrow_bf16(load_f32(from + i * sizeof(float)));
                store_narrow(is_stream, to + i * sizeof(uint16_t), halves);
            }
        }
    }
    return done;
}

ALWAYS_INLINE size_t cast_f32_bf16_blocks(void *dst, const void *src, size_t count)
{
    return narrow_blocks(/*is_stream=*/false, dst, src, count);
}

ALWAYS_INLINE size_t stream_f32_bf16_blocks(void *dst, const void *src, size_t count)
{
    return narrow_blocks(/*is_stream=*/true, dst, src, count);
}

#include "kernel/simd_loops.h"

#endif
