/* SPDX-License-Identifier: MIT */
/*
 * How far a result may be from the recorded one. Integers, minima, maxima, bit operations and moved data must be equal
 * bit for bit. A sum of floats was recorded in another order: |got - want| <= (N-1) * eps * sum of |in|, for each
 * element. A product may differ by N * eps relative to the recorded one. A complex number counts as two sums, or in
 * products by its absolute value.
 */
#ifndef REPLAY_COMPARE_H
#define REPLAY_COMPARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/dtype.h"

enum compare_kind {
    COMPARE_BITS,
    COMPARE_SUM,
    COMPARE_PRODUCT
};

struct comparison {
    enum compare_kind kind;
    shoal_dtype dtype;
    int n_ranks;
    int64_t count; /* elements */
    const void *got;
    const void *want;
    const void *const *ins; /* of a sum: the inputs of all ranks */
    /* Where element e of the result lies in the inputs: blocks of block_elems, input_step apart, the first at
       input_begin. */
    int64_t block_elems;
    int64_t input_step;
    int64_t input_begin;
};

struct difference {
    double worst; /* the error as a part of its bound; infinite where the bound is 0 */
    int64_t element;
    char text[160]; /* both values */
};

enum compare_kind compare_kind_of(bool is_reduce, shoal_reduce_op reduce, shoal_dtype dtype);
struct difference compare(const struct comparison *comparison);

#endif
