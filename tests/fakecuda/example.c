/* SPDX-License-Identifier: MIT */
/* The host half of the kernel in examples/18_cuda_kernel.c. */
#include "fakecuda/example.h"

CUDA_KERNEL(example_add, struct example_add, 1)
{
    uint64_t at = device_first(self);
    (void)PHASE;
    if (at < (uint64_t)a->count) {
        const float *left = DEVICE_POINTER(const float, a->a);
        const float *right = DEVICE_POINTER(const float, a->b);
        DEVICE_POINTER(float, a->out)[at] = left[at] + a->factor * right[at];
    }
}
