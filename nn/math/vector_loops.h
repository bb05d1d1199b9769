/* SPDX-License-Identifier: MIT */
/*
 * The loops of vector.h. The file of a variant defines the operations below for its registers, includes this file, and
 * has the table nn_vectors_<VARIANT>.
 *
 *     LANES                          floats of a vector: 1, 4, 8 or 16
 *     vector, words, mask            LANES floats, uint32_t, truths; + - * / & | << >> work on the first two
 *     load, store, all               from and to memory; a vector of equal floats
 *     as_words, as_vector            the bits
 *     multiply_add(a, b, c)          a * b + c, rounded once
 *     square_root
 *     is_less, is_equal, choose      choose(m, a, b): a where m is true, else b
 *     clamp(x, low, high)            a NaN stays one; the bounds are not 0
 *     load_f16, store_f16, load_bf16, store_bf16
 *     WIDE_PARTS, doubles            a vector as doubles takes WIDE_PARTS registers, of LANES / WIDE_PARTS doubles
 *     widen_part(vector, part), narrow(const doubles *), load_doubles, store_doubles, all_doubles
 */
#include <math.h>
#include <string.h>

#include "math/vector.h"
#include "math/vector_functions.h"

typedef float element;

enum {
    SUM_LANES = 16,
    STEPS = SUM_LANES / LANES, /* vectors that hold the lanes of a sum */
    EXP_BLOCK = 512,
    ADAMW_AHEAD = 128 /* elements: what is fetched in advance, which may lie behind the end */
};

/* The last elements of an array, which fill no vector. */
static inline vector load_some(const float *from, size_t n)
{
    float buffer[LANES] = {0};
    memcpy(buffer, from, n * sizeof(buffer[0]));
    return load(buffer);
}

static inline void store_some(float *to, size_t n, vector x)
{
    float buffer[LANES];
    store(buffer, x);
    memcpy(to, buffer, n * sizeof(buffer[0]));
}

/* Functions of each element ---------------------------------------------------------------------------- */

/* Vectors that are computed side by side: a chain of dependent operations leaves units idle. */
#define SIDE_BY_SIDE 4
#define PAIR 2 /* of gradients, which need more registers */

#define FUNCTION(name, of)                                                 \
    static void name(size_t n, const float *x, float *y)                   \
    {                                                                      \
        size_t i = 0;                                                      \
        for (; i + SIDE_BY_SIDE * LANES <= n; i += SIDE_BY_SIDE * LANES) { \
            vector values[SIDE_BY_SIDE];                                   \
            for (int k = 0; k < SIDE_BY_SIDE; k++) {                       \
                values[k] = of(load(x + i + k * LANES));                   \
            }                                                              \
            for (int k = 0; k < SIDE_BY_SIDE; k++) {                       \
                store(y + i + k * LANES, values[k]);                       \
            }                                                              \
        }                                                                  \
        for (; i + LANES <= n; i += LANES) {                               \
            store(y + i, of(load(x + i)));                                 \
        }                                                                  \
        if (i < n) {                                                       \
            store_some(y + i, n - i, of(load_some(x + i, n - i)));         \
        }                                                                  \
    }

#define GRADIENT_FUNCTION(name, of)                                                                      \
    static void name(size_t n, const float *gradient, const float *saved, float *out)                    \
    {                                                                                                    \
        size_t i = 0;                                                                                    \
        for (; i + PAIR * LANES <= n; i += PAIR * LANES) {                                               \
            vector values[PAIR];                                                                         \
            for (int k = 0; k < PAIR; k++) {                                                             \
                values[k] = of(load(gradient + i + k * LANES), load(saved + i + k * LANES));             \
            }                                                                                            \
            for (int k = 0; k < PAIR; k++) {                                                             \
                store(out + i + k * LANES, values[k]);                                                   \
            }                                                                                            \
        }                                                                                                \
        for (; i + LANES <= n; i += LANES) {                                                             \
            store(out + i, of(load(gradient + i), load(saved + i)));                                     \
        }                                                                                                \
        if (i < n) {                                                                                     \
            store_some(out + i, n - i, of(load_some(gradient + i, n - i), load_some(saved + i, n - i))); \
        }                                                                                                \
    }

FUNCTION(loop_exp, exp_of)
FUNCTION(loop_log, log_of)
FUNCTION(loop_tanh, tanh_of)
FUNCTION(loop_erf, erf_of)
FUNCTION(loop_sigmoid, sigmoid_of)
FUNCTION(loop_silu, silu_of)
FUNCTION(loop_gelu, gelu_of)
FUNCTION(loop_gelu_tanh, gelu_tanh_of)
GRADIENT_FUNCTION(loop_tanh_backward, tanh_gradient)
GRADIENT_FUNCTION(loop_sigmoid_backward, sigmoid_gradient)
GRADIENT_FUNCTION(loop_silu_backward, silu_gradient)
GRADIENT_FUNCTION(loop_gelu_backward, gelu_gradient)
GRADIENT_FUNCTION(loop_gelu_tanh_backward, gelu_tanh_gradient)

#define HALF_LOOPS(half)                                                \
    static void loop_from_##half(size_t n, const uint16_t *x, float *y) \
    {                                                                   \
        size_t i = 0;                                                   \
        for (; i + LANES <= n; i += LANES) {                            \
            store(y + i, load_##half(x + i));                           \
        }                                                               \
        if (i < n) {                                                    \
            uint16_t buffer[LANES] = {0};                               \
            memcpy(buffer, x + i, (n - i) * sizeof(buffer[0]));         \
            store_some(y + i, n - i, load_##half(buffer));              \
        }                                                               \
    }                                                                   \
    static void loop_to_##half(size_t n, const float *x, uint16_t *y)   \
    {                                                                   \
        size_t i = 0;                                                   \
        for (; i + LANES <= n; i += LANES) {                            \
            store_##half(y + i, load(x + i));                           \
        }                                                               \
        if (i < n) {                                                    \
            uint16_t buffer[LANES];                                     \
            store_##half(buffer, load_some(x + i, n - i));              \
            memcpy(y + i, buffer, (n - i) * sizeof(buffer[0]));         \
        }                                                               \
    }

HALF_LOOPS(f16)
HALF_LOOPS(bf16)

static void loop_scale(size_t n, float factor, const float *x, float *y)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        store(y + i, all(factor) * load(x + i));
    }
    if (i < n) {
        store_some(y + i, n - i, all(factor) * load_some(x + i, n - i));
    }
}

/* Vectors as doubles ------------------------------------------------------------------------------------ */

struct wide {
    doubles part[WIDE_PARTS];
};

static inline struct wide widen(vector x)
{
    struct wide wide;
    for (int i = 0; i < WIDE_PARTS; i++) {
        wide.part[i] = widen_part(x, i);
    }
    return wide;
}

static inline struct wide wide_all(double value)
{
    struct wide wide;
    for (int i = 0; i < WIDE_PARTS; i++) {
        wide.part[i] = all_doubles(value);
    }
    return wide;
}

static inline struct wide wide_load(const double *from)
{
    struct wide wide;
    for (int i = 0; i < WIDE_PARTS; i++) {
        wide.part[i] = load_doubles(from + i * (LANES / WIDE_PARTS));
    }
    return wide;
}

static inline void wide_store(double *to, struct wide wide)
{
    for (int i = 0; i < WIDE_PARTS; i++) {
        store_doubles(to + i * (LANES / WIDE_PARTS), wide.part[i]);
    }
}

static inline struct wide wide_add(struct wide a, struct wide b)
{
    for (int i = 0; i < WIDE_PARTS; i++) {
        a.part[i] = a.part[i] + b.part[i];
    }
    return a;
}

static inline struct wide wide_subtract(struct wide a, struct wide b)
{
    for (int i = 0; i < WIDE_PARTS; i++) {
        a.part[i] = a.part[i] - b.part[i];
    }
    return a;
}

static inline struct wide wide_multiply(struct wide a, struct wide b)
{
    for (int i = 0; i < WIDE_PARTS; i++) {
        a.part[i] = a.part[i] * b.part[i];
    }
    return a;
}

/* Sums: 16 lanes, then a tree. What an array lacks to a multiple of 16 is filled up with what adds nothing. ---- */

struct sums {
    struct wide step[STEPS];
};

static inline struct sums no_sums(void)
{
    struct sums sums;
    for (int i = 0; i < STEPS; i++) {
        sums.step[i] = wide_all(0);
    }
    return sums;
}

static inline double fold_sums(const struct sums *sums)
{
    double lanes[SUM_LANES];
    for (int i = 0; i < STEPS; i++) {
        wide_store(lanes + i * LANES, sums->step[i]);
    }
    for (int width = SUM_LANES / 2; width > 0; width /= 2) {
        for (int i = 0; i < width; i++) {
            lanes[i] += lanes[i + width];
        }
    }
    return lanes[0];
}

/* The elements of block `first` .. first + 15, or zeros behind the end. */
static inline const float *block_at(const float *x, size_t n, size_t first, float *buffer)
{
    if (first + SUM_LANES <= n) {
        return x + first;
    }
    memset(buffer, 0, SUM_LANES * sizeof(buffer[0]));
    memcpy(buffer, x + first, (n - first) * sizeof(buffer[0]));
    return buffer;
}

static double loop_sum(size_t n, const float *x)
{
    struct sums sums = no_sums();
    float buffer[SUM_LANES];
    for (size_t first = 0; first < n; first += SUM_LANES) {
        const float *block = block_at(x, n, first, buffer);
        for (int i = 0; i < STEPS; i++) {
            sums.step[i] = wide_add(sums.step[i], widen(load(block + i * LANES)));
        }
    }
    return fold_sums(&sums);
}

static double loop_sum_of_products(size_t n, const float *a, const float *b)
{
    struct sums sums = no_sums();
    float a_buffer[SUM_LANES];
    float b_buffer[SUM_LANES];
    for (size_t first = 0; first < n; first += SUM_LANES) {
        const float *a_block = block_at(a, n, first, a_buffer);
        const float *b_block = block_at(b, n, first, b_buffer);
        for (int i = 0; i < STEPS; i++) {
            struct wide product =
                wide_multiply(widen(load(a_block + i * LANES)), widen(load(b_block + i * LANES)));
            sums.step[i] = wide_add(sums.step[i], product);
        }
    }
    return fold_sums(&sums);
}

/* The larger one; NaN when one is. */
static inline float larger_of(float a, float b)
{
    return a != a || a > b ? a : b;
}

static float loop_maximum(size_t n, const float *x)
{
    vector largest[STEPS];
    vector odd[STEPS]; /* a NaN of the lane */
    for (int i = 0; i < STEPS; i++) {
        largest[i] = all(-(float)INFINITY);
        odd[i] = largest[i];
    }
    size_t first = 0;
    for (; first + SUM_LANES <= n; first += SUM_LANES) {
        for (int i = 0; i < STEPS; i++) {
            vector next = load(x + first + i * LANES);
            largest[i] = choose(is_less(largest[i], next), next, largest[i]);
            odd[i] = choose(is_equal(next, next), odd[i], next);
        }
    }
    float lanes[2][SUM_LANES];
    for (int i = 0; i < STEPS; i++) {
        store(lanes[0] + i * LANES, largest[i]);
        store(lanes[1] + i * LANES, odd[i]);
    }
    float result = -(float)INFINITY;
    for (int i = 0; i < 2 * SUM_LANES; i++) {
        result = larger_of(lanes[i / SUM_LANES][i % SUM_LANES], result);
    }
    for (; first < n; first++) {
        result = larger_of(result, x[first]);
    }
    return result;
}

static inline float fold_floats(const vector *sums)
{
    float lanes[SUM_LANES];
    for (int i = 0; i < STEPS; i++) {
        store(lanes + i * LANES, sums[i]);
    }
    for (int width = SUM_LANES / 2; width > 0; width /= 2) {
        for (int i = 0; i < width; i++) {
            lanes[i] += lanes[i + width];
        }
    }
    return lanes[0];
}

/* The exponentials of 16 elements at `x` into `y`, added to the sums. */
static inline void add_exponentials(const float *x, vector shift, float *y, vector *sums)
{
    vector values[STEPS];
    for (int i = 0; i < STEPS; i++) {
        values[i] = exp_of(load(x + i * LANES) - shift);
    }
    for (int i = 0; i < STEPS; i++) {
        store(y + i * LANES, values[i]);
        sums[i] = sums[i] + values[i];
    }
}

static double loop_sum_exp(size_t n, const float *x, float shift, float *y)
{
    double total = 0;
    float from[SUM_LANES];
    float to[SUM_LANES];
    for (size_t first = 0; first < n; first += EXP_BLOCK) {
        size_t end = n - first < EXP_BLOCK ? n : first + EXP_BLOCK;
        vector sums[STEPS];
        for (int i = 0; i < STEPS; i++) {
            sums[i] = all(0.0f);
        }
        size_t i = first;
        for (; i + SUM_LANES <= end; i += SUM_LANES) {
            add_exponentials(x + i, all(shift), y ? y + i : to, sums);
        }
        if (i < end) {
            for (size_t k = 0; k < SUM_LANES; k++) {
                from[k] = i + k < end ? x[i + k] : -(float)INFINITY;
            }
            add_exponentials(from, all(shift), to, sums);
            if (y) {
                memcpy(y + i, to, (end - i) * sizeof(to[0]));
            }
        }
        total += (double)fold_floats(sums);
    }
    return total;
}

/* Optimizers ------------------------------------------------------------------------------------------- */

static inline vector sgd_of(vector rate, vector g, vector p)
{
    return p - rate * g;
}

static void loop_sgd(size_t n, double lr, const float *gradient, float *parameter)
{
    const vector rate = all((float)lr);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        store(parameter + i, sgd_of(rate, load(gradient + i), load(parameter + i)));
    }
    if (i < n) {
        store_some(parameter + i, n - i,
                   sgd_of(rate, load_some(gradient + i, n - i), load_some(parameter + i, n - i)));
    }
}

struct adamw_vectors {
    vector decay, beta1, one_minus_beta1, beta2, one_minus_beta2, step, root, eps;
};

static inline void adamw_of(const struct adamw_vectors *by, vector g, vector *p, vector *m, vector *v)
{
    vector decayed = *p - by->decay * *p;
    *m = by->beta1 * *m + by->one_minus_beta1 * g;
    *v = by->beta2 * *v + by->one_minus_beta2 * (g * g);
    *p = decayed - by->step * *m / (square_root(*v) / by->root + by->eps);
}

static void loop_adamw(size_t n, const struct nn_adamw_factors *factors, const float *gradient,
                       float *parameter, float *first_moment, float *second_moment)
{
    const struct adamw_vectors by = {.decay = all((float)factors->decay),
                                     .beta1 = all((float)factors->beta1),
                                     .one_minus_beta1 = all((float)factors->one_minus_beta1),
                                     .beta2 = all((float)factors->beta2),
                                     .one_minus_beta2 = all((float)factors->one_minus_beta2),
                                     .step = all((float)factors->step),
                                     .root = all((float)factors->root),
                                     .eps = all((float)factors->eps)};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        /* A core follows seven streams with fewer misses if it is told of the four that it reads. */
        __builtin_prefetch(gradient + i + ADAMW_AHEAD);
        __builtin_prefetch(parameter + i + ADAMW_AHEAD, 1);
        __builtin_prefetch(first_moment + i + ADAMW_AHEAD, 1);
        __builtin_prefetch(second_moment + i + ADAMW_AHEAD, 1);
        vector p = load(parameter + i);
        vector m = load(first_moment + i);
        vector v = load(second_moment + i);
        adamw_of(&by, load(gradient + i), &p, &m, &v);
        store(parameter + i, p);
        store(first_moment + i, m);
        store(second_moment + i, v);
    }
    if (i < n) {
        vector p = load_some(parameter + i, n - i);
        vector m = load_some(first_moment + i, n - i);
        vector v = load_some(second_moment + i, n - i);
        adamw_of(&by, load_some(gradient + i, n - i), &p, &m, &v);
        store_some(parameter + i, n - i, p);
        store_some(first_moment + i, n - i, m);
        store_some(second_moment + i, n - i, v);
    }
}

#include "math/vector_attention.h"
#include "math/vector_draws.h"
#include "math/vector_norms.h"
#include "math/vector_table.h"
