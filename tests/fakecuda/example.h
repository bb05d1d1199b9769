/* SPDX-License-Identifier: MIT */
/* The argument of the kernel in examples/18_cuda_kernel.c, whose pointers are addresses of the device. */
#ifndef FAKECUDA_EXAMPLE_H
#define FAKECUDA_EXAMPLE_H

#include "cuda/kernels/target.h"

struct example_add {
    uint64_t out;
    uint64_t a;
    uint64_t b;
    float factor;
    int32_t count;
};

#endif
