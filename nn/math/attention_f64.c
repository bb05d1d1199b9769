/* SPDX-License-Identifier: MIT */
/* Attention's loops on doubles, in plain C with libm's exp and log. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#define LANES 1
#define TILE_ROWS 4
#define TILE_COLUMNS 16
#define TILE_VECTORS 4

typedef double element;
typedef double vector;
typedef bool mask;
typedef const double *quad;

static inline vector load(const double *from)
{
    return *from;
}

static inline void store(double *to, vector x)
{
    *to = x;
}

static inline vector all(double x)
{
    return x;
}

static inline quad load_quad(const double *from)
{
    return from;
}

static inline vector element_at(quad four, int at)
{
    return four[at];
}

/* Rounded twice: the fused instruction is not everywhere. */
static inline vector multiply_add(vector a, vector b, vector c)
{
    return a * b + c;
}

static inline vector larger(vector a, vector b)
{
    return a > b ? a : b;
}

static inline mask is_equal(vector a, vector b)
{
    return a == b;
}

static inline vector choose(mask which, vector a, vector b)
{
    return which ? a : b;
}

static inline vector exp_of_difference(vector x)
{
    return exp(x);
}

static inline vector log_of(vector x)
{
    return log(x);
}

static double loop_sum_of_products(size_t n, const double *a, const double *b)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

#include "math/vector_attention.h"

const struct nn_attention_loops nn_attention_f64 = ATTENTION_LOOPS;
