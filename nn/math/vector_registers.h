/* SPDX-License-Identifier: MIT */
/*
 * What the registers of all instruction sets have in common, written with the vector extensions of gcc and clang. The
 * file of a variant defines LANES, includes this file, and then defines the operations that need an instruction's name.
 */
#include <string.h>

#define WIDE_PARTS 2

typedef float vector __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef double doubles __attribute__((vector_size(4 * LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));

static inline vector load(const float *from)
{
    vector x;
    memcpy(&x, from, sizeof(x));
    return x;
}

static inline void store(float *to, vector x)
{
    memcpy(to, &x, sizeof(x));
}

static inline vector all(float x)
{
    return x - (vector){0};
}

static inline words load_words(const uint32_t *from)
{
    words x;
    memcpy(&x, from, sizeof(x));
    return x;
}

static inline words all_words(uint32_t x)
{
    return x - (words){0};
}

static inline words as_words(vector x)
{
    return (words)x;
}

static inline vector as_vector(words bits)
{
    return (vector)bits;
}

static inline doubles load_doubles(const double *from)
{
    doubles x;
    memcpy(&x, from, sizeof(x));
    return x;
}

static inline void store_doubles(double *to, doubles x)
{
    memcpy(to, &x, sizeof(x));
}

static inline doubles all_doubles(double x)
{
    return x - (doubles){0};
}
