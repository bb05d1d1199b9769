/* SPDX-License-Identifier: MIT */
/* The BLAS that was found at run time, and the number of threads. Its products are a row of math/products.h. */
#ifndef NN_MATH_BLAS_H
#define NN_MATH_BLAS_H

#include "shoal/status.h"

/* Loads it, once. What went wrong the first time goes wrong every time, with the same text. */
shoal_status nn_blas_load(void);

/* How many threads a matrix product uses now, or would, if the BLAS can be told. */
int nn_blas_threads(void);

/* What an environment says about threads: the default of shoal_nn_set_threads, given the processors there are. */
int nn_blas_default_threads(int n_processors);

#endif
