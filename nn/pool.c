/* SPDX-License-Identifier: MIT */
/* The pool of threads; see pool.h. */
#include "pool.h"

/* Operations on elements that are worth waking a thread for: about 10 microseconds. */
#define PART_COST 32768

size_t nn_parts(size_t n, size_t cost)
{
    size_t work;
    if (n == 0 || __builtin_mul_overflow(n, cost, &work)) {
        return n == 0 ? 1 : NN_MAX_PARTS < n ? NN_MAX_PARTS : n;
    }
    size_t n_parts = work / PART_COST;
    n_parts = n_parts < NN_MAX_PARTS ? n_parts : NN_MAX_PARTS;
    n_parts = n_parts < n ? n_parts : n;
    return n_parts > 0 ? n_parts : 1;
}

void nn_parallel(size_t n_parts, void (*body)(void *context, size_t part), void *context)
{
    for (size_t i = 0; i < n_parts; i++) {
        body(context, i);
    }
}
