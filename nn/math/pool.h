/* SPDX-License-Identifier: MIT */
/*
 * The threads of this library, for loops and for the panels of matrix products. Their number is what
 * shoal_nn_set_threads says.
 */
#ifndef NN_MATH_POOL_H
#define NN_MATH_POOL_H

#include <stddef.h>
#include <stdint.h>

/* How many threads a loop uses now. */
int nn_threads(void);
/* What an environment says about threads: the default of shoal_nn_set_threads, given the processors there are. */
int nn_threads_default(int n_processors);

/*
 * Runs body(context, part) for part 0 .. n_parts - 1, on the caller's thread and on those of the pool, in any order.
 * Returns when all parts have ended. The body runs in the default floating-point mode and cannot report an error. It
 * may call nn_parallel itself; that call then runs its parts one after the other.
 */
void nn_parallel(size_t n_parts, void (*body)(void *context, size_t part), void *context);

/*
 * The number of parts into which to cut n items that each cost about `cost` operations on elements: between 1 and
 * NN_MAX_PARTS. It depends on n and cost, never on the number of threads, so sums over parts always have the same
 * order.
 */
#define NN_MAX_PARTS 256
size_t nn_parts(size_t n, size_t cost);

/* Where a part begins; part n_parts is the end. Parts differ by at most one item. */
static inline size_t nn_part_first(size_t n, size_t n_parts, size_t part)
{
    size_t extra = n % n_parts;
    return n / n_parts * part + (part < extra ? part : extra);
}

/* The two together: body(context, first, end) for ranges of n items, each worth about `cost` operations. */
void nn_parallel_ranges(size_t n, size_t cost, void (*body)(void *context, size_t first, size_t end),
                        void *context);

#endif
