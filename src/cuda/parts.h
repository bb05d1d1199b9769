/* SPDX-License-Identifier: MIT */
/* Cutting what a kernel does into launches whose elements can be counted in 32 bits. */
#ifndef CUDA_PARTS_H
#define CUDA_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernel/iterate.h"

/* Calls `launch` for parts of a space, which has elements: together they are the space, and none has more than `most`
   elements. Parts of the first dimension begin at multiples of the largest power of two that is possible. */
void parts_split(const struct iterate_space *space, uint64_t most,
                 void (*launch)(void *context, const struct iterate_space *part), void *context);

/* Whether the addresses are multiples of a size. */
bool parts_are_aligned(const uint64_t *addresses, size_t n_addresses, uint64_t bytes);

/* For kernels that take contiguous elements as vectors of 16 bytes: true if all addresses begin alike between two
   multiples of 16, at elements. Then the first vector begins `shift` elements before them. */
bool parts_find_shift(const uint64_t *addresses, size_t n_addresses, uint64_t element_bytes,
                      uint32_t *shift_out);

static inline uint32_t parts_divide_up(uint64_t n, uint64_t divisor)
{
    return (uint32_t)((n + divisor - 1) / divisor);
}

#endif
