/* SPDX-License-Identifier: MIT */
/*
 * Operations for neural networks, with gradients: matrix products, activations, softmax, losses, norms, embeddings.
 * They are a library of their own, libshoal_nn, which uses the public headers of Shoal and nothing else, and loads a
 * BLAS at run time. Layers as modules are in shoal_nn/modules.h, optimizers in shoal_nn/optim.h, random numbers and
 * dropout in shoal_nn/random.h.
 *
 *     shoal_tensor *hidden = shoal_nn_tanh(shoal_nn_linear(x, weight, bias));
 *     shoal_status status = shoal_backward(shoal_nn_mse(hidden, target), NULL);
 *
 * Every operation is a registered op ("nn.linear", "nn.tanh", ...), which shoal_op_find finds and shoal_compile
 * captures. f64 is computed in f64; f32, bf16 and f16 are computed in f32 and rounded once to the dtype of the result.
 * That holds for gradients, too: each is one operation that rounds once.
 *
 * Matrix products are computed by one of several things, the rows of a table: `plain` (loops of this library),
 * `openblas` (a BLAS) and `onednn`, of which the last two are loaded at run time, if they are there. A fixed table
 * chooses by dtype, size and processor: oneDNN for f32 and bf16 on processors with AVX-512 (bf16: AVX512_BF16 or AMX),
 * else the BLAS, else the loops. bf16 that is not multiplied as it is, and f16, are widened to f32.
 *
 * The environment is read once, at first use:
 *     SHOAL_PRODUCTS    the name of a row, for all products that it can compute; others are widened, or computed by the
 *                       next row of the table (f64). If it cannot be loaded, every matrix product fails.
 *     SHOAL_NN_ONEDNN   the library to load instead of libdnnl.so.2, as a path or a name; it must be oneDNN 2.6. "none"
 *                       means that there is none.
 *     SHOAL_NN_BLAS     the library to load, as a path or a name, instead of the usual ones (libopenblas.so.0,
 *                       libblas.so.3, ...). It must have cblas_sgemm and cblas_dgemm with 32-bit integers. "none" means
 *                       the plain loops of this library. If it cannot be loaded, every matrix product fails.
 *     SHOAL_NN_THREADS  the number of threads of each operation. Without it: OPENBLAS_NUM_THREADS; without that, the
 *                       processors that this process may use, divided by the ranks that the launcher started on this
 *                       host.
 *     OPENBLAS_CORETYPE if it is not set, it is set while OpenBLAS is loaded, on processors that OpenBLAS would not
 *                       recognize.
 *
 * Bits: a matrix product has bits that are a function of the row, the version of its library, the instruction set that
 * it uses, shapes and strides, and not of the number of threads: a library computes on one thread at a time, and
 * threads of this library compute parts of a product whose sizes follow from its own. (A BLAS that has threads, and no
 * openblas_set_num_threads, keeps them: what it promises is not known here.) Ranks compare rows, versions and
 * instruction sets with everything else that they must have in common. A library may add in another order for another
 * number of rows, so another number of ranks gives other bits; n ranks have the bits of one process that computes the
 * same n parts. docs/architecture.md has the whole promise.
 *
 * All other operations have the same bits with any number of threads, and in f32, bf16 and f16 with any vector
 * instructions, because this library has its own exp, log, tanh and erf. In f64 the functions of libm are used. Sines,
 * cosines and powers of rotary embeddings, the last logarithm of a row of log_softmax and cross_entropy, and the powers
 * of AdamW also come from libm, in f64, and are then rounded: another libm may change the last bit. The caller's
 * floating-point mode (shoal/fp_mode.h) changes nothing.
 *
 * Ownership: results belong to the innermost scope. Strings belong to the library.
 * Threads: any, each in its own scope. All operations share a pool of threads, which sleep between calls; a call that
 * finds the pool in use computes alone. While a product runs, OpenBLAS has one thread in the whole process; then it has
 * as many as the program has chosen. If ranks are threads of
 * one process, call shoal_nn_set_threads, because the environment does not say how many there are. A forked child
 * starts its own threads.
 * Errors: NULL, with the reason in the scope (shoal/scope.h), or a status. Shapes, dtypes and devices that do not fit
 * are SHOAL_ERR_INVALID or SHOAL_ERR_UNSUPPORTED.
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

/* Registers the operations and loads what computes products. Other calls do that themselves, except shoal_op_find; call
   it to learn at once whether that can be loaded, and, if a module around such operations is your own, before the first
   call of its wrapper: ranks then compare what they compute products with. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_init(void);

/* The BLAS --------------------------------------------------------------------------------------------- */

typedef struct shoal_nn_blas {
    size_t struct_size;  /* sizeof(shoal_nn_blas), set by the caller */
    const char *library; /* the file that was loaded; "none" if this library uses its own plain loops */
    const char *core;    /* the processor that OpenBLAS computes for; "" if the library does not say */
    int n_threads;       /* of a matrix product; 0 if the BLAS has threads of its own and cannot be asked */
} shoal_nn_blas;
#define SHOAL_NN_BLAS_INIT SHOAL_SIZED(shoal_nn_blas)

/* Describes the BLAS, which it loads if that was not done. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_blas_info(shoal_nn_blas *info_out);

/* Which rows compute matrix products. */
typedef struct shoal_nn_products {
    size_t struct_size; /* sizeof(shoal_nn_products), set by the caller */
    const char *f32;    /* row, version, instruction set: "openblas 0.3.21 neoversev1" */
    const char *bf16;   /* "openblas 0.3.21 neoversev1, widened to f32" if no row multiplies it as it is */
    const char *f64;
    const char *all;  /* all of them in one text, which ranks compare */
    const char *hint; /* what would make bf16 faster on this processor; "" if nothing is known */
} shoal_nn_products;
#define SHOAL_NN_PRODUCTS_INIT SHOAL_SIZED(shoal_nn_products)

/* Describes what computes large products, and loads it if that was not done. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_products_info(shoal_nn_products *info_out);

/* A row of the table, used or not. */
typedef struct shoal_nn_product_row {
    size_t struct_size; /* sizeof(shoal_nn_product_row), set by the caller */
    const char *name;   /* as SHOAL_PRODUCTS names it */
    const char *doc;    /* what it is */
    const char *
        details; /* version and instruction set; NULL if it cannot be used. Valid until the thread's next call */
    const char *library; /* the file that was loaded; NULL if there is none */
    const char *reason;  /* why it cannot be used; NULL if it can. Valid until the thread's next call */
} shoal_nn_product_row;
#define SHOAL_NN_PRODUCT_ROW_INIT SHOAL_SIZED(shoal_nn_product_row)

/* Describes row number `index`, counted from 0, and loads its library if that was not done. SHOAL_ERR_INVALID: there is
   no such row. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_product_row_get(size_t index,
                                                                 shoal_nn_product_row *info_out);

/* Sets the number of threads of every operation, from now on and in the whole process. 0 means what the environment
   says. */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_set_threads(int n_threads);

/* Products --------------------------------------------------------------------------------------------- */

/* Multiplies a [..., k] by b [k, n]: [..., n]. Transposed views are not copied. */
SHOAL_API shoal_tensor *shoal_nn_matmul(shoal_tensor *a, shoal_tensor *b);

/* Multiplies input [..., in] by the transpose of weight [out, in], and adds bias [out] unless that is NULL. The result
   is [..., out]. */
SHOAL_API shoal_tensor *shoal_nn_linear(shoal_tensor *input, shoal_tensor *weight, shoal_tensor *bias);

/* Does the same with a weight [in, out], as GPT-2 has (Conv1D). bias [out] may be NULL. */
SHOAL_API shoal_tensor *shoal_nn_projection(shoal_tensor *input, shoal_tensor *weight, shoal_tensor *bias);

/*
 * Multiplies matrices a [..., m, k] by b [..., k, n]: [..., m, n]. The leading dimensions are equal; use shoal_expand
 * otherwise. Transposed and expanded views are not copied.
 */
SHOAL_API shoal_tensor *shoal_nn_bmm(shoal_tensor *a, shoal_tensor *b);

/*
 * Multiplies matrices in plain memory, without tensors: c [m, n] = a [m, k] b [k, n], or c += if `adds`. Matrices are
 * contiguous and row-major; a transposed one is stored as [k, m] or [n, k].
 */
SHOAL_API SHOAL_MUST_CHECK shoal_status shoal_nn_sgemm(bool transposes_a, bool transposes_b, size_t m,
                                                       size_t n, size_t k, const float *a, const float *b,
                                                       bool adds, float *c);

/* Functions of each element ---------------------------------------------------------------------------- */

/* The hyperbolic tangent. */
SHOAL_API shoal_tensor *shoal_nn_tanh(shoal_tensor *self);
/* max(x, 0). The gradient at 0 is 0. */
SHOAL_API shoal_tensor *shoal_nn_relu(shoal_tensor *self);
/* x (1 + erf(x / sqrt 2)) / 2: the exact form of GELU. */
SHOAL_API shoal_tensor *shoal_nn_gelu(shoal_tensor *self);
/* x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2: the form of GELU that GPT-2 uses. */
SHOAL_API shoal_tensor *shoal_nn_gelu_tanh(shoal_tensor *self);
/* The exponential function. */
SHOAL_API shoal_tensor *shoal_nn_exp(shoal_tensor *self);
/* The natural logarithm: -infinity for 0, NaN for negative numbers. */
SHOAL_API shoal_tensor *shoal_nn_log(shoal_tensor *self);
/* The square root: NaN for negative numbers. The gradient at 0 is infinite. */
SHOAL_API shoal_tensor *shoal_nn_sqrt(shoal_tensor *self);
/* 1 / (1 + exp(-x)) */
SHOAL_API shoal_tensor *shoal_nn_sigmoid(shoal_tensor *self);
/* x / (1 + exp(-x)); NaN for -infinity, as gelu is. */
SHOAL_API shoal_tensor *shoal_nn_silu(shoal_tensor *self);

/* Along a dimension ------------------------------------------------------------------------------------ */

/*
 * exp(x) / sum(exp(x)) along a dimension (-1 is the last), and its logarithm. The largest element is subtracted first,
 * so that large numbers do not overflow. A row that has a NaN or +infinity, or -infinity only, gives NaN, as in
 * PyTorch. Only the result is kept for the backward pass.
 */
SHOAL_API shoal_tensor *shoal_nn_softmax(shoal_tensor *self, int dim);
SHOAL_API shoal_tensor *shoal_nn_log_softmax(shoal_tensor *self, int dim);

/*
 * The largest element along a dimension, and its index (i64). The dimension disappears, or has size 1 with keeps_dim. A
 * NaN is larger than everything else. Of equal elements the first counts and gets the gradient. A dimension of size 0
 * is an error.
 */
SHOAL_API shoal_tensor *shoal_nn_max(shoal_tensor *self, int dim, bool keeps_dim);
SHOAL_API shoal_tensor *shoal_nn_argmax(shoal_tensor *self, int dim, bool keeps_dim);

/* Losses ----------------------------------------------------------------------------------------------- */

/*
 * The mean of (input - target)^2 over all elements. Both have the same shape. The target has the dtype of the input;
 * for bf16 and f16 it may also be f32. Differences are computed in f32 (f64 for f64), and their squares are added in
 * f64 in row-major order and rounded once. The result is an f32 (f64 for f64).
 */
SHOAL_API shoal_tensor *shoal_nn_mse(shoal_tensor *input, shoal_tensor *target);

/*
 * The mean over rows of -log softmax(row)[target], for logits [..., classes] and integer targets [...]. The result is
 * an f32 (f64 for f64). Rows whose target is -100 are ignored: they do not count, and their gradient is 0. Any other
 * target that is no class is an error. If no row counts, the result is NaN. For the backward pass only the logits are
 * kept; the softmax is computed again.
 */
SHOAL_API shoal_tensor *shoal_nn_cross_entropy(shoal_tensor *logits, shoal_tensor *targets);

typedef struct shoal_nn_cross_entropy_options {
    size_t struct_size;     /* sizeof(shoal_nn_cross_entropy_options), set by the initializer */
    int64_t ignore_index;   /* rows with this target are ignored; it may be a class */
    double label_smoothing; /* 0 to 1: how much of the target's weight is spread evenly over all classes */
} shoal_nn_cross_entropy_options;
#define SHOAL_NN_CROSS_ENTROPY_OPTIONS_INIT             \
    {                                                   \
        sizeof(shoal_nn_cross_entropy_options), -100, 0 \
    }

/* Computes shoal_nn_cross_entropy with options. NULL means the defaults above. */
SHOAL_API shoal_tensor *shoal_nn_cross_entropy_with(shoal_tensor *logits, shoal_tensor *targets,
                                                    const shoal_nn_cross_entropy_options *options);

/* Layers ----------------------------------------------------------------------------------------------- */

/* Takes rows of weight [rows, size] by integer indices [...] (not u64): [..., size]. The gradient is a whole tensor of
   the weight's shape. SHOAL_ERR_INVALID: an index is no row. */
SHOAL_API shoal_tensor *shoal_nn_embedding(shoal_tensor *indices, shoal_tensor *weight);

/*
 * (x - mean) / sqrt(variance + eps) over the last dimension, times weight, plus bias. Both have that dimension's size
 * and may be NULL. The usual eps is 1e-5.
 */
SHOAL_API shoal_tensor *shoal_nn_layer_norm(shoal_tensor *input, shoal_tensor *weight, shoal_tensor *bias,
                                            double eps);

/* x / sqrt(mean(x^2) + eps) over the last dimension, times weight, which has that dimension's size and may be NULL. */
SHOAL_API shoal_tensor *shoal_nn_rms_norm(shoal_tensor *input, shoal_tensor *weight, double eps);

/*
 * Applies a rotary position embedding to self [..., positions, heads, size]; size is even, and the first position is
 * first_position. Elements i and i + size / 2 are rotated by the angle position * base^(-2 i / size), as in GPT-NeoX
 * and Llama; the usual base is 10000. For models that rotate neighbours (GPT-J), bring the rows into this order first.
 */
SHOAL_API shoal_tensor *shoal_nn_rotary(shoal_tensor *self, int64_t first_position, double base);

/* Choosing --------------------------------------------------------------------------------------------- */

/*
 * Takes slices of a dimension by integer indices [n]; the dimension then has size n. Any dtype. The gradient is a whole
 * tensor; gradients of a slice that was taken several times are added in the order of the indices.
 */
SHOAL_API shoal_tensor *shoal_nn_index_select(shoal_tensor *self, int dim, shoal_tensor *indices);
/* Takes elements of a where the condition, a bool tensor, is true, and of b elsewhere. Shapes broadcast; a and b have
   the same dtype. */
SHOAL_API shoal_tensor *shoal_nn_where(shoal_tensor *condition, shoal_tensor *a, shoal_tensor *b);
/* Takes the value, rounded to the dtype, where the mask is true, and self elsewhere. The mask, a bool tensor, is
   broadcast to the shape of self. */
SHOAL_API shoal_tensor *shoal_nn_masked_fill(shoal_tensor *self, shoal_tensor *mask, double value);

SHOAL_END_DECLS

#endif
