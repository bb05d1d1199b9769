/* SPDX-License-Identifier: MIT */
/* The vectors of vector.h in AVX-512 (F alone). */
#include "math/vector_variants.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <stdbool.h>

#define VARIANT avx512
#define LANES 16
#define TILE_ROWS 8
#define TILE_COLUMNS 32
#define TILE_VECTORS 2

#include "math/vector_registers.h"

typedef __mmask16 mask;

static inline vector multiply_add(vector a, vector b, vector c)
{
    return (vector)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}

static inline vector square_root(vector x)
{
    return (vector)_mm512_sqrt_ps((__m512)x);
}

static inline mask is_less(vector a, vector b)
{
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ);
}

static inline mask is_equal(vector a, vector b)
{
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_EQ_OQ);
}

static inline vector choose(mask which, vector a, vector b)
{
    return (vector)_mm512_mask_blend_ps(which, (__m512)b, (__m512)a);
}

/* Of a NaN and a number these instructions give their second operand. */
static inline vector clamp(vector x, vector low, vector high)
{
    return (vector)_mm512_max_ps((__m512)low, _mm512_min_ps((__m512)high, (__m512)x));
}

static inline vector larger(vector a, vector b)
{
    return (vector)_mm512_max_ps((__m512)a, (__m512)b);
}

/* Elements are broadcast as they are loaded. */
typedef const float *quad;

static inline quad load_quad(const float *from)
{
    return from;
}

static inline vector element_at(quad four, int at)
{
    return all(four[at]);
}

static inline vector load_f16(const uint16_t *from)
{
    __m256i bits;
    memcpy(&bits, from, sizeof(bits));
    return (vector)_mm512_cvtph_ps(bits);
}

static inline void store_f16(uint16_t *to, vector x)
{
    __m256i bits = _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    memcpy(to, &bits, sizeof(bits));
}

static inline vector load_bf16(const uint16_t *from)
{
    __m256i bits;
    memcpy(&bits, from, sizeof(bits));
    return (vector)((words)_mm512_cvtepu16_epi32(bits) << 16);
}

/* As nn_to_bf16. */
static inline void store_bf16(uint16_t *to, vector x)
{
    words bits = (words)x;
    words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    words kept = (bits >> 16) | 0x40u;
    vector chosen = choose(is_equal(x, x), (vector)rounded, (vector)kept);
    __m256i packed = _mm512_cvtepi32_epi16((__m512i)chosen);
    memcpy(to, &packed, sizeof(packed));
}

static inline void multiply_long(words a, uint32_t by, words *high, words *low)
{
    const __m512i factor = _mm512_set1_epi32((int)by);
    __m512i even = _mm512_mul_epu32((__m512i)a, factor);
    __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64((__m512i)a, 32), factor);
    *low = (words)_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
    *high = (words)_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
}

static inline void store_blocks(uint32_t *to, const words c[4])
{
    __m512i low_01 = _mm512_unpacklo_epi32((__m512i)c[0], (__m512i)c[1]);
    __m512i high_01 = _mm512_unpackhi_epi32((__m512i)c[0], (__m512i)c[1]);
    __m512i low_23 = _mm512_unpacklo_epi32((__m512i)c[2], (__m512i)c[3]);
    __m512i high_23 = _mm512_unpackhi_epi32((__m512i)c[2], (__m512i)c[3]);
    /* Blocks 4 i + k, for every 128 bits i of register k. */
    const __m512i blocks[] = {_mm512_unpacklo_epi64(low_01, low_23), _mm512_unpackhi_epi64(low_01, low_23),
                              _mm512_unpacklo_epi64(high_01, high_23),
                              _mm512_unpackhi_epi64(high_01, high_23)};
    uint32_t numbers[4][LANES];
    for (int k = 0; k < 4; k++) {
        _mm512_storeu_si512(numbers[k], blocks[k]);
    }
    for (int i = 0; i < LANES; i++) {
        memcpy(to + 4 * i, &numbers[i % 4][i / 4 * 4], 4 * sizeof(to[0]));
    }
}

static inline doubles widen_part(vector x, int part)
{
    __m512d as_doubles = _mm512_castps_pd((__m512)x);
    __m256d half = part == 0 ? _mm512_castpd512_pd256(as_doubles) : _mm512_extractf64x4_pd(as_doubles, 1);
    return (doubles)_mm512_cvtps_pd(_mm256_castpd_ps(half));
}

static inline vector narrow(const doubles *parts)
{
    __m512d low = _mm512_castpd256_pd512(_mm256_castps_pd(_mm512_cvtpd_ps((__m512d)parts[0])));
    __m256d high = _mm256_castps_pd(_mm512_cvtpd_ps((__m512d)parts[1]));
    return (vector)_mm512_castpd_ps(_mm512_insertf64x4(low, high, 1));
}

#include "math/vector_loops.h"

#endif
