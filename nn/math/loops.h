/* SPDX-License-Identifier: MIT */
/*
 * Arithmetic over plain arrays, once for floats and once for doubles (loops_real.h); pointers are to arrays of that
 * type. Sums over many elements are accumulated in double, from the first element to the last or in the lanes of
 * vector.h. The order of a sum never depends on the machine.
 */
#ifndef NN_MATH_LOOPS_H
#define NN_MATH_LOOPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/dtype.h"

/* A matrix in memory, strides in elements. */
struct nn_matrix {
    const void *data;
    int64_t rows;
    int64_t cols;
    int64_t row_stride;
    int64_t col_stride;
};

/* Everything AdamW multiplies with in one step, each rounded to the type once. */
struct nn_adamw_factors {
    double decay; /* lr * weight decay */
    double beta1;
    double one_minus_beta1;
    double beta2;
    double one_minus_beta2;
    double step; /* lr / (1 - beta1^t) */
    double root; /* sqrt(1 - beta2^t) */
    double eps;
};

typedef void (*nn_forward_loop)(size_t n, const void *x, void *y);
typedef void (*nn_backward_loop)(size_t n, const void *gradient, const void *saved, void *out);

struct nn_loops {
    nn_forward_loop tanh_forward;
    nn_backward_loop tanh_backward; /* saved: the result */
    nn_forward_loop relu_forward;
    nn_backward_loop relu_backward; /* saved: the result */
    nn_forward_loop gelu_forward;
    nn_backward_loop gelu_backward; /* saved: the argument */
    nn_forward_loop gelu_tanh_forward;
    nn_backward_loop gelu_tanh_backward; /* saved: the argument */
    nn_forward_loop exp_forward;
    nn_backward_loop exp_backward; /* saved: the result */
    nn_forward_loop log_forward;
    nn_backward_loop log_backward; /* saved: the argument */
    nn_forward_loop sqrt_forward;
    nn_backward_loop sqrt_backward; /* saved: the result */
    nn_forward_loop sigmoid_forward;
    nn_backward_loop sigmoid_backward; /* saved: the result */
    nn_forward_loop silu_forward;
    nn_backward_loop silu_backward; /* saved: the argument */

    /* Of one row. */
    nn_forward_loop softmax_forward;
    nn_backward_loop softmax_backward; /* saved: the result */
    nn_forward_loop log_softmax_forward;
    nn_backward_loop log_softmax_backward; /* saved: the result */

    /* The sum of (a - b)^2. */
    double (*sum_of_squares)(size_t n, const void *a, const void *b);
    /* gradient / n * (2 * (a - b)) */
    void (*mse_backward)(size_t n, double gradient, const void *a, const void *b, void *out);

    /* Of one row of n logits: -log softmax[target], and its gradient times a factor. */
    double (*cross_entropy)(size_t n, const void *logits, size_t target, double smoothing);
    void (*cross_entropy_backward)(size_t n, const void *logits, size_t target, double smoothing,
                                   double factor, void *out);

    /* One row; weight and bias may be NULL. */
    void (*norm)(size_t n, double eps, const void *x, const void *weight, const void *bias, void *y);
    void (*norm_backward)(size_t n, double eps, const void *gradient, const void *x, const void *weight,
                          void *out);
    /* sums += gradient * normalized x */
    void (*norm_weight_backward)(size_t n, double eps, const void *gradient, const void *x, double *sums);

    void (*rms_norm)(size_t n, double eps, const void *x, const void *weight, void *y);
    void (*rms_norm_backward)(size_t n, double eps, const void *gradient, const void *x, const void *weight,
                              void *out);
    void (*rms_norm_weight_backward)(size_t n, double eps, const void *gradient, const void *x, double *sums);

    /* Of at least one element: the first of the largest ones, or the first NaN. */
    size_t (*argmax)(size_t n, const void *x);

    /* Of rotary embeddings: the cosines and sines of a position, n / 2 of each, and a row of n that is turned by them,
       or back. */
    void (*turns)(size_t n, double position, double base, void *turns);
    void (*turn)(size_t n, bool is_inverse, const void *turns, const void *x, void *y);

    void (*fill)(size_t n, double value, void *to);
    void (*add)(size_t n, const void *from, void *to); /* to += from */
    double (*first)(const void *from);                 /* the first element */
    void (*from_doubles)(size_t n, const double *from, void *to);

    /* c [a.rows, b.cols], contiguous, = or += a b; every element from the first product to the last. */
    void (*matmul)(const struct nn_matrix *a, const struct nn_matrix *b, bool adds, void *c);

    /* 0 where a word is below p * 2^32, else x / (1 - p). */
    void (*dropout)(size_t n, double p, const uint32_t *words, const void *x, void *y);

    void (*scale)(size_t n, double factor, void *x); /* x *= factor */
    bool (*is_finite)(size_t n, const void *x);      /* no element is infinite or NaN */

    /* parameter -= lr * gradient */
    void (*sgd)(size_t n, double lr, const void *gradient, void *parameter);
    void (*adamw)(size_t n, const struct nn_adamw_factors *factors, const void *gradient, void *parameter,
                  void *first_moment, void *second_moment);
};

/* SHOAL_F32 or SHOAL_F64. */
const struct nn_loops *nn_loops_of(shoal_dtype real);

#endif
