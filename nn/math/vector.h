/* SPDX-License-Identifier: MIT */
/*
 * Functions over arrays of floats in vector instructions. Every variant (plain C, NEON, AVX2, AVX-512) gives the same
 * bits, and so does every way of cutting an array for functions of each element:
 *
 * - The functions are written once (vector_loops.h) on IEEE operations that have one right result: add, subtract,
 *   multiply, divide, square root, and the fused multiply-add where it is written out. Compilers fuse nothing by
 *   themselves (-ffp-contract=off). Only processors with fused multiply-add run vectors; plain C calls fmaf, which is
 *   slow without the instruction and gives the same bits.
 * - Sums have 16 lanes in every variant: element i is added to lane i % 16, and at the end lane l and lane l + 8 are
 *   added, then l + 4, l + 2, l + 1. The order depends on the number of elements alone.
 *
 * tanh is within 0.75 units in the last place, exp, log and erf within 2, sigmoid and silu within 3 (below 2^-128 they
 * are 0). A NaN stays one. Results may be written over an argument (y == x); arrays that overlap otherwise are not
 * allowed. Nothing needs an alignment.
 *
 * f64 is computed by libm, in loops.h. Where <tgmath.h> is included, exp and tanh are macros: write
 * (vectors->exp)(n, x, y) there.
 */
#ifndef NN_MATH_VECTOR_H
#define NN_MATH_VECTOR_H

#include <stddef.h>
#include <stdint.h>

#include "math/attention_loops.h"
#include "math/loops.h"

#define NN_PHILOX_BLOCKS 32

typedef void (*nn_vector_function)(size_t n, const float *x, float *y);
typedef void (*nn_vector_gradient)(size_t n, const float *gradient, const float *saved, float *out);

struct nn_vector_table {
    const char *name;

    nn_vector_function exp;
    nn_vector_function log;
    nn_vector_function tanh;
    nn_vector_function erf;
    nn_vector_function sigmoid;
    nn_vector_function silu;      /* x * sigmoid(x) */
    nn_vector_function gelu;      /* x (1 + erf(x / sqrt 2)) / 2 */
    nn_vector_function gelu_tanh; /* x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 */

    nn_vector_gradient tanh_backward;    /* saved: the result */
    nn_vector_gradient sigmoid_backward; /* saved: the result */
    nn_vector_gradient silu_backward;    /* saved: the argument, here and below */
    nn_vector_gradient gelu_backward;
    nn_vector_gradient gelu_tanh_backward;

    /* Narrowing rounds once, to nearest even; see halves.h. */
    void (*from_f16)(size_t n, const uint16_t *x, float *y);
    void (*to_f16)(size_t n, const float *x, uint16_t *y);
    void (*from_bf16)(size_t n, const uint16_t *x, float *y);
    void (*to_bf16)(size_t n, const float *x, uint16_t *y);

    /* The largest element; NaN if one is NaN, -infinity of none. */
    float (*maximum)(size_t n, const float *x);
    /* The sum, in f64. */
    double (*sum)(size_t n, const float *x);
    /* The sum of a[i] * b[i], in f64. The products are exact. */
    double (*sum_of_products)(size_t n, const float *a, const float *b);
    /* y[i] = exp(x[i] - shift), and the sum of them: in f32 over blocks of 512, of which the sums are added in f64.
       y may be NULL. */
    double (*sum_exp)(size_t n, const float *x, float shift, float *y);
    /* y[i] = factor * x[i] */
    void (*scale)(size_t n, float factor, const float *x, float *y);

    const struct nn_attention_loops *attention;

    /* The words of NN_PHILOX_BLOCKS blocks of four, from block `first` of a sequence on; see draws.h. */
    void (*philox)(const uint32_t key[2], uint64_t sample, uint64_t first, uint32_t *words);

    /* As in struct nn_loops. */
    void (*sgd)(size_t n, double lr, const float *gradient, float *parameter);
    void (*adamw)(size_t n, const struct nn_adamw_factors *factors, const float *gradient, float *parameter,
                  float *first_moment, float *second_moment);
    void (*norm)(size_t n, double eps, const float *x, const float *weight, const float *bias, float *y);
    void (*norm_backward)(size_t n, double eps, const float *gradient, const float *x, const float *weight,
                          float *out);
    void (*norm_weight_backward)(size_t n, double eps, const float *gradient, const float *x, double *sums);
    /* x / sqrt(mean(x^2) + eps), times weight where there is one; gradients as above. */
    void (*rms_norm)(size_t n, double eps, const float *x, const float *weight, float *y);
    void (*rms_norm_backward)(size_t n, double eps, const float *gradient, const float *x,
                              const float *weight, float *out);
    void (*rms_norm_weight_backward)(size_t n, double eps, const float *gradient, const float *x,
                                     double *sums);
};

/* The best variant for this machine. */
const struct nn_vector_table *nn_vectors(void);

/* Variants by number, for tests: NULL when there are no more. Those that this machine cannot run are left out. */
const struct nn_vector_table *nn_vectors_at(size_t index);

/* Rows ------------------------------------------------------------------------------------------------- */

/* y = softmax(x); y may be x. Returns log(sum of exp(x)). */
double nn_softmax_row(size_t n, const float *x, float *y);
/* y = x - log(sum of exp(x)) */
void nn_log_softmax_row(size_t n, const float *x, float *y);

#endif
