/* SPDX-License-Identifier: MIT */
/* The vectors of vector.h in AVX2 with FMA and F16C. */
#include "math/vector_variants.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <stdbool.h>

#define VARIANT avx2
#define LANES 8
#define TILE_ROWS 6
#define TILE_COLUMNS 32
#define TILE_VECTORS 2

#include "math/vector_registers.h"

typedef __m256 mask;

static inline vector multiply_add(vector a, vector b, vector c)
{
    return (vector)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}

static inline vector square_root(vector x)
{
    return (vector)_mm256_sqrt_ps((__m256)x);
}

static inline mask is_less(vector a, vector b)
{
    return _mm256_cmp_ps((__m256)a, (__m256)b, _CMP_LT_OQ);
}

static inline mask is_equal(vector a, vector b)
{
    return _mm256_cmp_ps((__m256)a, (__m256)b, _CMP_EQ_OQ);
}

static inline vector choose(mask which, vector a, vector b)
{
    return (vector)_mm256_blendv_ps((__m256)b, (__m256)a, which);
}

/* Of a NaN and a number these instructions give their second operand. */
static inline vector clamp(vector x, vector low, vector high)
{
    return (vector)_mm256_max_ps((__m256)low, _mm256_min_ps((__m256)high, (__m256)x));
}

static inline vector larger(vector a, vector b)
{
    return (vector)_mm256_max_ps((__m256)a, (__m256)b);
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
    __m128i bits;
    memcpy(&bits, from, sizeof(bits));
    return (vector)_mm256_cvtph_ps(bits);
}

static inline void store_f16(uint16_t *to, vector x)
{
    __m128i bits = _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    memcpy(to, &bits, sizeof(bits));
}

static inline vector load_bf16(const uint16_t *from)
{
    __m128i bits;
    memcpy(&bits, from, sizeof(bits));
    return (vector)((words)_mm256_cvtepu16_epi32(bits) << 16);
}

/* As nn_to_bf16. Packing works within halves of the register; the permutation puts the quarters together. */
static inline void store_bf16(uint16_t *to, vector x)
{
    words bits = (words)x;
    words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    words kept = (bits >> 16) | 0x40u;
    vector chosen = choose(is_equal(x, x), (vector)rounded, (vector)kept);
    __m256i packed = _mm256_packus_epi32((__m256i)chosen, (__m256i)chosen);
    __m128i low = _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
    memcpy(to, &low, sizeof(low));
}

static inline void multiply_long(words a, uint32_t by, words *high, words *low)
{
    const __m256i factor = _mm256_set1_epi32((int)by);
    __m256i even = _mm256_mul_epu32((__m256i)a, factor);
    __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64((__m256i)a, 32), factor);
    *low = (words)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    *high = (words)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}

static inline void store_blocks(uint32_t *to, const words c[4])
{
    __m256i low_01 = _mm256_unpacklo_epi32((__m256i)c[0], (__m256i)c[1]);
    __m256i high_01 = _mm256_unpackhi_epi32((__m256i)c[0], (__m256i)c[1]);
    __m256i low_23 = _mm256_unpacklo_epi32((__m256i)c[2], (__m256i)c[3]);
    __m256i high_23 = _mm256_unpackhi_epi32((__m256i)c[2], (__m256i)c[3]);
    /* Blocks 4 i + k, for every 128 bits i of register k. */
    const __m256i blocks[] = {_mm256_unpacklo_epi64(low_01, low_23), _mm256_unpackhi_epi64(low_01, low_23),
                              _mm256_unpacklo_epi64(high_01, high_23),
                              _mm256_unpackhi_epi64(high_01, high_23)};
    uint32_t numbers[4][LANES];
    for (int k = 0; k < 4; k++) {
        memcpy(numbers[k], &blocks[k], sizeof(numbers[k]));
    }
    for (int i = 0; i < LANES; i++) {
        memcpy(to + 4 * i, &numbers[i % 4][i / 4 * 4], 4 * sizeof(to[0]));
    }
}

static inline doubles widen_part(vector x, int part)
{
    __m128 half = part == 0 ? _mm256_castps256_ps128((__m256)x) : _mm256_extractf128_ps((__m256)x, 1);
    return (doubles)_mm256_cvtps_pd(half);
}

static inline vector narrow(const doubles *parts)
{
    __m256 low = _mm256_castps128_ps256(_mm256_cvtpd_ps((__m256d)parts[0]));
    return (vector)_mm256_insertf128_ps(low, _mm256_cvtpd_ps((__m256d)parts[1]), 1);
}

#include "math/vector_loops.h"

#endif
