/* SPDX-License-Identifier: MIT */
/*
 * Compute for networks, as a companion of Shoal: operations with gradients, on any CBLAS that is found at run time.
 * It uses the public headers of Shoal and nothing else. Optimizers are in shoal_nn/optim.h; random numbers, initial
 * values and dropout are in shoal_nn/random.h.
 *
 * Every operation is registered ("nn.linear", "nn.tanh", ...), so shoal_op_find, tracers and gradients see it. Dtypes:
 * f64 is computed in f64; f32, bf16 and f16 in f32, from the inputs as they are, with one rounding to the result's
 * dtype at the end. That holds for gradients too: each gradient is one operation that rounds once.
 *
 * The environment, read once, at first use:
 *     SHOAL_NN_BLAS     a library to load instead of the default ones (libopenblas.so.0, libblas.so.3, ...), as a path
 *                       or a name; it must have cblas_sgemm and cblas_dgemm with 32-bit integers. "none": the plain
 *                       loops of this library. One that cannot be loaded is an error of every matrix product.
 *     SHOAL_NN_THREADS  threads of a matrix product, and of all other operations; without it OPENBLAS_NUM_THREADS
 *                       counts, and without that the processors this process may use, divided by the ranks that the
 *                       launcher started on this host
 *     OPENBLAS_CORETYPE left alone when set; else set while OpenBLAS is loaded on processors that it would misjudge
 *
 * Bits: the same call on the same values gives the same bits on every rank whose machine, BLAS, core name
 * and number of threads are the same. A BLAS may add in another order with another number of threads or another shape.
 * Everything that is not a matrix product has the same bits with any number of threads, and in f32, bf16 and f16 with
 * any vector instructions: this library has its own exp, log, tanh and erf. In f64 they are those of libm. So are, in
 * every dtype, the sines, cosines and powers of rotary embeddings, the last logarithm of a row of log_softmax and
 * cross_entropy and the powers of AdamW, all computed in f64 and then rounded: another libm may change a last bit.
 * The caller's floating-point mode (shoal/fp_mode.h) changes nothing on the calling thread. The threads of a BLAS keep
 * the mode they were started in, mostly that of the thread that called this library first.
 *
 * Ownership: results belong to the innermost scope. Strings belong to the library.
 * Threads: any, each in its own scope. All threads share one BLAS and its number of threads: products that run at the
 * same time have the same number, others wait, so that bits do not depend on what other threads do. They share one pool
 * of as many threads for all other loops, which sleep between calls and while the BLAS computes; a call that finds the
 * pool taken by another thread's does without it. With ranks as threads of one process call shoal_nn_set_threads: the
 * environment does not tell how many there are. A forked child starts threads of its own.
 * Errors: NULL, with the reason in the scope (shoal/scope.h), or a status.
 *
 *     shoal_tensor *hidden = shoal_nn_tanh(shoal_nn_linear(x, weight, bias));
 *     shoal_status status = shoal_backward(shoal_nn_mse(hidden, target), NULL);
 */
#ifndef SHOAL_NN_NN_H
#define SHOAL_NN_NN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/api.h"
#include "shoal/status.h"
#include "shoal/tensor.h"

SHOAL_BEGIN_DECLS

/* Registers the operations and loads the BLAS. Any call does so by itself; this one says what is wrong. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_init(void);

/* The BLAS --------------------------------------------------------------------------------------------- */

typedef struct shoal_nn_blas {
    size_t struct_size;  /* sizeof(shoal_nn_blas), set by the caller */
    const char *library; /* the file that was loaded; "none": the plain loops of this library */
    const char *core;    /* what OpenBLAS takes the processor for; "" when the library does not say */
    int n_threads;       /* of a matrix product; 0: the library's own choice, it cannot be told */
} shoal_nn_blas;
#define SHOAL_NN_BLAS_INIT SHOAL_SIZED(shoal_nn_blas)

SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_blas_info(shoal_nn_blas *info_out);

/* Threads of every matrix product, and of the other operations, from now on; 0: what the environment says. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_set_threads(int n_threads);

/* Products --------------------------------------------------------------------------------------------- */

/* a [..., k] times b [k, n] gives [..., n]. Transposed views are multiplied in place, not copied. */
SHOAL_API shoal_tensor *shoal_nn_matmul(shoal_tensor *a, shoal_tensor *b);

/* input [..., in] times weight [out, in] transposed, plus bias [out] where there is one: [..., out]. */
SHOAL_API shoal_tensor *shoal_nn_linear(shoal_tensor *input, shoal_tensor *weight, shoal_tensor *bias);

/* shoal_nn_linear with a weight that lies as [in, out], as GPT-2's do (Conv1D), and a bias [out]. */
SHOAL_API shoal_tensor *shoal_nn_projection(shoal_tensor *input, shoal_tensor *weight, shoal_tensor *bias);

/*
 * Matrix products: a [..., m, k] times b [..., k, n] gives [..., m, n]. Leading dimensions are the same; expand first
 * where they are not (shoal_expand). Transposed and expanded views are multiplied in place.
 */
SHOAL_API shoal_tensor *shoal_nn_bmm(shoal_tensor *a, shoal_tensor *b);

/*
 * On plain memory, without tensors: c [m, n] = a [m, k] b [k, n], or c += with `adds`, rows one after the other. A
 * matrix that is transposed lies as [k, m] or [n, k].
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_sgemm(bool transposes_a, bool transposes_b, size_t m,
                                                       size_t n, size_t k, const float *a, const float *b,
                                                       bool adds, float *c);

/* Functions of each element ---------------------------------------------------------------------------- */

SHOAL_API shoal_tensor *shoal_nn_tanh(shoal_tensor *self);
/* Where it is not positive the gradient is 0. */
SHOAL_API shoal_tensor *shoal_nn_relu(shoal_tensor *self);
/* x (1 + erf(x / sqrt 2)) / 2: the exact form, not the one with tanh. */
SHOAL_API shoal_tensor *shoal_nn_gelu(shoal_tensor *self);
/* x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, GPT-2's. */
SHOAL_API shoal_tensor *shoal_nn_gelu_tanh(shoal_tensor *self);
SHOAL_API shoal_tensor *shoal_nn_exp(shoal_tensor *self);
/* Of 0 it is -infinity, of negative numbers NaN. */
SHOAL_API shoal_tensor *shoal_nn_log(shoal_tensor *self);
/* Of negative numbers it is NaN. The gradient at 0 is infinite. */
SHOAL_API shoal_tensor *shoal_nn_sqrt(shoal_tensor *self);
/* 1 / (1 + exp(-x)) */
SHOAL_API shoal_tensor *shoal_nn_sigmoid(shoal_tensor *self);
/* x / (1 + exp(-x)); NaN at -infinity, as gelu is. */
SHOAL_API shoal_tensor *shoal_nn_silu(shoal_tensor *self);

/* Along a dimension ------------------------------------------------------------------------------------ */

/*
 * exp(x) / sum(exp(x)) along a dimension, and its logarithm; -1 is the last. The largest is subtracted first: large
 * numbers do not overflow. A row with a NaN or +infinity, or of -infinities alone, is NaN, as in PyTorch. Only the
 * result is kept for the gradient.
 */
SHOAL_API shoal_tensor *shoal_nn_softmax(shoal_tensor *self, int dim);
SHOAL_API shoal_tensor *shoal_nn_log_softmax(shoal_tensor *self, int dim);

/*
 * The largest along a dimension, which is dropped or keeps a size of 1, and where it is (i64). A NaN is larger than all
 * else. The first of equal ones counts: it has the gradient. A dimension of size 0 is an error.
 */
SHOAL_API shoal_tensor *shoal_nn_max(shoal_tensor *self, int dim, bool keeps_dim);
SHOAL_API shoal_tensor *shoal_nn_argmax(shoal_tensor *self, int dim, bool keeps_dim);

/* Losses ----------------------------------------------------------------------------------------------- */

/*
 * The mean of (input - target)^2 over all elements, of one shape. Differences in f32, their squares added in f64 in
 * row-major order, one rounding: an f32 (f64 for f64). The target has the input's dtype, or f32 for bf16 and f16.
 */
SHOAL_API shoal_tensor *shoal_nn_mse(shoal_tensor *input, shoal_tensor *target);

/*
 * The mean over rows of -log softmax(row)[target], for logits [..., classes] and integer targets [...]: an f32 (f64
 * for f64). Rows whose target is -100 are ignored: they are not counted, and their gradient is 0. Any other target that
 * is no class is an error. Without rows that count it is NaN. The gradient computes the softmax again: nothing of the
 * size of the logits is kept but the logits.
 */
SHOAL_API shoal_tensor *shoal_nn_cross_entropy(shoal_tensor *logits, shoal_tensor *targets);

typedef struct shoal_nn_cross_entropy_options {
    size_t struct_size;     /* sizeof(shoal_nn_cross_entropy_options), set by the initializer */
    int64_t ignore_index;   /* the target of rows that do not count; it may be a class */
    double label_smoothing; /* 0 .. 1: so much of the target's weight is spread over all classes */
} shoal_nn_cross_entropy_options;
#define SHOAL_NN_CROSS_ENTROPY_OPTIONS_INIT             \
    {                                                   \
        sizeof(shoal_nn_cross_entropy_options), -100, 0 \
    }

/* options NULL: those of shoal_nn_cross_entropy. */
SHOAL_API shoal_tensor *shoal_nn_cross_entropy_with(shoal_tensor *logits, shoal_tensor *targets,
                                                    const shoal_nn_cross_entropy_options *options);

/* Layers ----------------------------------------------------------------------------------------------- */

/* Rows of weight [rows, size] by integer indices [...] (not u64): [..., size]. The gradient is dense. */
SHOAL_API shoal_tensor *shoal_nn_embedding(shoal_tensor *indices, shoal_tensor *weight);

/*
 * (x - mean) / sqrt(variance + eps) over the last dimension, times weight, plus bias, where there are any, both of
 * that dimension's size. PyTorch's eps is 1e-5.
 */
SHOAL_API shoal_tensor *shoal_nn_layer_norm(shoal_tensor *input, shoal_tensor *weight, shoal_tensor *bias,
                                            double eps);

/* x / sqrt(mean(x^2) + eps) over the last dimension, times weight of that size where there is one. */
SHOAL_API shoal_tensor *shoal_nn_rms_norm(shoal_tensor *input, shoal_tensor *weight, double eps);

/*
 * Rotary position embedding of self [..., positions, heads, size], size even; positions count from first_position.
 * Pairs are halves, as in GPT-NeoX and Llama: elements i and i + size / 2 are turned by position * base^(-2 i / size),
 * 10000 being the usual base. Models with pairs of neighbours (GPT-J) need their rows put in that order first.
 */
SHOAL_API shoal_tensor *shoal_nn_rotary(shoal_tensor *self, int64_t first_position, double base);

/* Choosing --------------------------------------------------------------------------------------------- */

/*
 * The slices of a dimension that integer indices [n] name, of any dtype: that dimension has size n then. The gradient
 * is dense; slices that were taken more than once are added in the order of the indices.
 */
SHOAL_API shoal_tensor *shoal_nn_index_select(shoal_tensor *self, int dim, shoal_tensor *indices);
/* Elements of a where the condition, a bool tensor, is true, else of b. Shapes broadcast; a and b have one dtype. */
SHOAL_API shoal_tensor *shoal_nn_where(shoal_tensor *condition, shoal_tensor *a, shoal_tensor *b);
/* The value, rounded to the dtype, where the mask is true, else self. The mask, a bool tensor, is broadcast to self. */
SHOAL_API shoal_tensor *shoal_nn_masked_fill(shoal_tensor *self, shoal_tensor *mask, double value);

SHOAL_END_DECLS

#endif
