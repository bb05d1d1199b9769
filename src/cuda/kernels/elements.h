/* SPDX-License-Identifier: MIT */
/* Arguments of the kernels of elements.cu. */
#ifndef CUDA_KERNELS_ELEMENTS_H
#define CUDA_KERNELS_ELEMENTS_H

#include "cuda/kernels/target.h"

/* SHOAL_MAX_DIMS */
#define ELEMENTS_DIMS 8

enum {
    ELEMENTS_THREADS = 256,
    ELEMENTS_EACH = 4,      /* elements of a thread of elements_any and elements_where */
    ELEMENTS_MOST = 1 << 30 /* of one launch */
};

/* After those of enum kernel_binary. */
#define ELEMENTS_NEGATE KERNEL_BINARY_COUNT

/* What the second operand is. */
enum elements_second {
    ELEMENTS_ARRAY,
    ELEMENTS_NUMBER, /* `number` */
    ELEMENTS_SINGLE  /* one element in memory, for elements_dense */
};

/* A dimension: by the magic and the shift, vector_divide divides by its size. */
struct elements_dim {
    uint32_t size;
    uint32_t magic;
    uint32_t shift;
    uint32_t unused;
    int64_t strides[3]; /* bytes, of dst, a, b */
};

/* dst = a op b, or -a. elements_dense: dst and a are contiguous, and so is b if it is an array. */
struct elements_arguments {
    uint64_t dst;
    uint64_t a;
    uint64_t b;
    uint32_t number[4]; /* in the type that is computed in */
    uint32_t count;
    uint32_t op;
    uint32_t dtype;
    uint32_t bytes; /* of an element */
    uint32_t second;
    uint32_t is_aligned; /* all addresses are multiples of the element's size */
    uint32_t shift;      /* elements_dense: elements between a multiple of 16 and the first one */
    int32_t n_dims;
    struct elements_dim dims[ELEMENTS_DIMS];
};

/* dst[i] = src[i] where a[i] equals b[i], or 0. */
struct elements_where_arguments {
    uint64_t dst;
    uint64_t src;
    uint64_t a;
    uint64_t b;
    uint32_t count;
    uint32_t dtype;
    uint32_t bytes;
    uint32_t is_aligned;
};

#endif
