/* SPDX-License-Identifier: MIT */
/*
 * Walking up to three operands over one shape. A space is filled (begin, add per operand), simplified
 * (arrange or merge) and walked: the caller works on the innermost dimensions, iterate_next moves the
 * operands' pointers over the others.
 *
 *     iterate_begin(&space, n_dims, shape);
 *     iterate_add(&space, dst, bytes);
 *     iterate_arrange(&space);
 *     do {
 *         work on space.operands[0].data, over the last dimension
 *     } while (iterate_next(&space, 1));
 *
 * Invariant after arrange or merge: at least one dimension, none of size 0.
 */
#ifndef KERNEL_ITERATE_H
#define KERNEL_ITERATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernel/kernel.h"
#include "shoal/tensor.h"

#define ITERATE_MAX_OPERANDS 3

struct iterate_operand {
    char *data;
    int64_t strides[SHOAL_MAX_DIMS]; /* bytes */
};

struct iterate_space {
    int n_dims;
    int n_operands;
    int64_t shape[SHOAL_MAX_DIMS];
    int64_t index[SHOAL_MAX_DIMS]; /* where iterate_next is */
    struct iterate_operand operands[ITERATE_MAX_OPERANDS];
};

/* Before all else: the other sizes of an empty shape may be any, so that their product need not be a number. */
static inline bool iterate_is_empty(int n_dims, const int64_t *shape)
{
    for (int i = 0; i < n_dims; i++) {
        if (shape[i] == 0) {
            return true;
        }
    }
    return false;
}

/* The shape must have elements. */
static inline int64_t iterate_count(int n_dims, const int64_t *shape)
{
    int64_t count = 1;
    for (int i = 0; i < n_dims; i++) {
        count *= shape[i];
    }
    return count;
}

/* Row-major without gaps. The shape must have elements. */
static inline bool iterate_is_dense(int n_dims, const int64_t *shape, const int64_t *strides)
{
    int64_t expected = 1;
    for (int i = n_dims - 1; i >= 0; i--) {
        if (shape[i] != 1 && strides[i] != expected) {
            return false;
        }
        expected *= shape[i];
    }
    return true;
}

/* The shape must have elements. */
void iterate_begin(struct iterate_space *space, int n_dims, const int64_t *shape);
void iterate_add(struct iterate_space *space, struct kernel_operand operand, size_t element_bytes);

/* Joins neighbouring dimensions that every operand walks in one stride. Keeps the order of the elements. */
void iterate_merge(struct iterate_space *space);

/*
 * For work without an order: turns dimensions so that the first operand's strides are not negative, puts
 * the first operand's smallest stride last, and merges.
 */
void iterate_arrange(struct iterate_space *space);

/* Moves on over all but the last n_inner dimensions; false when that was the last, back at the beginning. */
bool iterate_next(struct iterate_space *space, int n_inner);

#endif
