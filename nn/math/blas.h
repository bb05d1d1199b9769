/* SPDX-License-Identifier: MIT */
/* The BLAS that was found at run time, and the matrix product on it. */
#ifndef NN_MATH_BLAS_H
#define NN_MATH_BLAS_H

#include "math/loops.h"
#include "shoal/status.h"

/* Loads it, once. What went wrong the first time goes wrong every time, with the same text. */
shoal_status nn_blas_load(void);

/* c [a.rows, b.cols], contiguous, = or += a b, in floats or doubles. */
shoal_status nn_blas_product(shoal_dtype real, const struct nn_matrix *a, const struct nn_matrix *b,
                             bool adds, void *c);

/*
 * Computes a product as nn_blas_product does, but on the calling thread only, so that several threads can each compute
 * a product. Call nn_blas_load first. Such products and products that use several threads wait for each other.
 */
void nn_blas_product_alone(shoal_dtype real, const struct nn_matrix *a, const struct nn_matrix *b, void *c);

/* True when a BLAS takes the matrix as it lies: one of its strides is 1 and the other large enough. */
bool nn_blas_takes(const struct nn_matrix *matrix);

/* How many threads a matrix product uses now, or would, if the BLAS can be told. */
int nn_blas_threads(void);

/* What an environment says about threads: the default of shoal_nn_set_threads, given the processors there are. */
int nn_blas_default_threads(int n_processors);

#endif
