/* SPDX-License-Identifier: MIT */
/*
 * How far a result may be from the recorded one. Integers, minima, maxima, bit operations and moved data must be equal
 * bit for bit. A sum of floats was recorded in another order: |got - want| <= (N-1) * eps * sum of |in|, for each
 * element. An average may differ by an Nth of that, and by eps relative to the recorded one for the division; a sum of
 * values times a factor by N * eps * factor * sum of |in|, as each product is rounded. A product may differ by N * eps
 * relative to the recorded one. A complex number counts as two sums, or in products by its absolute value, which may
 * differ by 4 * N * eps (a product of two is rounded by at most sqrt(5) / 2 * eps, on both sides). What several calls
 * gave behind each other may differ by 1e-5 of the largest element.
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
    COMPARE_AVERAGE,
    COMPARE_PREMUL, /* a sum of values times REPLAY_PREMUL_FACTOR */
    COMPARE_PRODUCT,
    COMPARE_LARGEST
};

struct comparison {
    enum compare_kind kind;
    shoal_dtype dtype;
    int n_ranks;
    int64_t count; /* elements */
    const void *got;
    const void *want;
    const void *const
        *ins; /* of a sum: what was added up, of all ranks; NULL where it was moved and then divided */
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

/* Whether the kind looks at `ins`. */
bool compare_needs_sources(enum compare_kind kind);

enum compare_kind compare_kind_of(bool is_reduce, shoal_reduce_op reduce, shoal_dtype dtype);
struct difference compare(const struct comparison *comparison);

#endif
