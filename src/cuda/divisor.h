/* SPDX-License-Identifier: MIT */
/* Division by multiplication, which the GPU does faster: n / divisor is (high half of n * magic + n) >> shift, for n
   and divisors up to 2^31 (vector_divide of kernels/vector.h). */
#ifndef CUDA_DIVISOR_H
#define CUDA_DIVISOR_H

#include <stdint.h>

struct divisor {
    uint32_t magic;
    uint32_t shift;
};

/* The magic number is 2^32 * (2^shift - divisor) / divisor + 1, with the smallest shift for which 2^shift >=
   divisor. */
static inline struct divisor divisor_of(uint32_t divisor)
{
    uint32_t shift = 0;
    while (((uint64_t)1 << shift) < divisor) {
        shift++;
    }
    uint64_t beyond = ((uint64_t)1 << shift) - divisor;
    return (struct divisor){.magic = (uint32_t)((beyond << 32) / divisor + 1), .shift = shift};
}

#endif
