/* SPDX-License-Identifier: MIT */
/* Arguments of the kernels of reduce.cu. */
#ifndef CUDA_KERNELS_REDUCE_H
#define CUDA_KERNELS_REDUCE_H

#include "cuda/kernels/target.h"

enum {
    REDUCE_THREADS = 256,
    REDUCE_MOST = 1 << 30, /* elements of one launch */
    REDUCE_TOGETHER = 4,   /* sources that are loaded from together */
    REDUCE_SOURCES = (CUDA_ARGUMENT_BYTES - 80) / 8 / REDUCE_TOGETHER * REDUCE_TOGETHER
};

/* dst[i] = srcs[0][i] op srcs[1][i] op ... */
struct reduce_arguments {
    uint64_t dst;
    uint64_t table;  /* where the addresses of the sources lie, if there are more than REDUCE_SOURCES; or 0 */
    uint64_t offset; /* bytes, of the first element in every source */
    double factor;   /* of premul_sum */
    uint32_t count;
    uint32_t n_srcs;
    uint32_t op;
    uint32_t dtype; /* complex numbers are pairs of floats */
    uint32_t bytes; /* of an element */
    uint32_t is_aligned;
    uint32_t shift; /* reduce_dense: elements between a multiple of 16 and the first one */
    uint32_t unused;
    uint64_t srcs[REDUCE_SOURCES];
};

#endif
