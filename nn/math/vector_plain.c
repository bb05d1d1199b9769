/* SPDX-License-Identifier: MIT */
/* The vectors of vector.h in plain C: one lane. The other variants have the same bits. */
#include <math.h>
#include <stdbool.h>

#include "math/halves.h"
#include "math/vector_variants.h"

#define VARIANT plain
#define LANES 1
#define TILE_ROWS 4
#define TILE_COLUMNS 16
#define TILE_VECTORS 4
#define WIDE_PARTS 1

typedef float vector;
typedef uint32_t words;
typedef bool mask;
typedef double doubles;

static inline vector load(const float *from)
{
    return *from;
}

static inline void store(float *to, vector x)
{
    *to = x;
}

static inline vector all(float x)
{
    return x;
}

static inline words as_words(vector x)
{
    return nn_bits_of(x);
}

static inline vector as_vector(words bits)
{
    return nn_float_of(bits);
}

static inline vector multiply_add(vector a, vector b, vector c)
{
    return fmaf(a, b, c);
}

static inline vector square_root(vector x)
{
    return sqrtf(x);
}

static inline mask is_less(vector a, vector b)
{
    return a < b;
}

static inline mask is_equal(vector a, vector b)
{
    return a == b;
}

static inline vector choose(mask which, vector a, vector b)
{
    return which ? a : b;
}

static inline vector clamp(vector x, vector low, vector high)
{
    x = high < x ? high : x;
    return x < low ? low : x;
}

static inline vector larger(vector a, vector b)
{
    return a > b ? a : b;
}

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
    return nn_from_f16(*from);
}

static inline void store_f16(uint16_t *to, vector x)
{
    *to = nn_to_f16(x);
}

static inline vector load_bf16(const uint16_t *from)
{
    return nn_from_bf16(*from);
}

static inline void store_bf16(uint16_t *to, vector x)
{
    *to = nn_to_bf16(x);
}

static inline words load_words(const uint32_t *from)
{
    return *from;
}

static inline words all_words(uint32_t x)
{
    return x;
}

static inline void multiply_long(words a, uint32_t by, words *high, words *low)
{
    uint64_t product = (uint64_t)a * by;
    *low = (uint32_t)(product & UINT32_MAX);
    *high = (uint32_t)(product >> 32);
}

static inline void store_blocks(uint32_t *to, const words c[4])
{
    memcpy(to, c, 4 * sizeof(c[0]));
}

static inline doubles widen_part(vector x, int part)
{
    (void)part;
    return (double)x;
}

static inline vector narrow(const doubles *parts)
{
    return (float)parts[0];
}

static inline doubles load_doubles(const double *from)
{
    return *from;
}

static inline void store_doubles(double *to, doubles x)
{
    *to = x;
}

static inline doubles all_doubles(double x)
{
    return x;
}

#include "math/vector_loops.h"
