/* SPDX-License-Identifier: MIT */
/* Arguments of the kernels of sum.cu. */
#ifndef CUDA_KERNELS_SUM_H
#define CUDA_KERNELS_SUM_H

#include "cuda/kernels/target.h"

/* SHOAL_MAX_DIMS */
#define SUM_DIMS 8

enum {
    SUM_THREADS = 256, /* of a block at most; fewer, if there are few sums */
    SUM_MOST = 1 << 30 /* sums of one launch */
};

/* A dimension that is kept: by the magic and the shift, vector_divide divides by its size. Strides are bytes. */
struct sum_kept {
    uint32_t size;
    uint32_t magic;
    uint32_t shift;
    uint32_t unused;
    int64_t src_stride;
    int64_t dst_stride;
};

struct sum_reduced {
    uint64_t size;
    int64_t stride;
};

struct sum_arguments {
    uint64_t dst;
    uint64_t src;
    int64_t divisor; /* 0: the sum is not divided */
    uint32_t count;  /* of sums */
    uint32_t dtype;
    uint32_t bytes; /* of an element */
    uint32_t is_aligned;
    uint32_t is_in_vectors; /* the rows of a sum are next to each other, and begin at multiples of 16 */
    int32_t n_kept;
    int32_t n_outer; /* dimensions that are reduced, but for the last, which is that of the rows */
    int32_t unused;
    uint64_t outer_count; /* the product of their sizes */
    uint64_t n_rows;
    int64_t row_stride;
    struct sum_kept kept[SUM_DIMS];
    struct sum_reduced outer[SUM_DIMS];
};

#endif
