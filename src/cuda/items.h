/* SPDX-License-Identifier: MIT */
/*
 * Tables of what is moved (kernels/move.h), in as few launches as possible:
 *
 *     struct items items;
 *     items_begin(&items);
 *     items.row_bytes = ...;           if there are rows
 *     items_add(&items, ...);          as often as needed
 *     items_end(&items);
 *
 * What one part writes, no other one reads or writes: they are moved in any order.
 */
#ifndef CUDA_ITEMS_H
#define CUDA_ITEMS_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda/kernels/move.h"
#include "shoal/dtype.h"

/* Kernels of such a table. */
enum items_way {
    ITEMS_BYTES,
    ITEMS_FLOATS,
    ITEMS_ELEMENTS,
    ITEMS_WAYS
};

struct items {
    uint64_t row_bytes; /* from row to row, on the side that is in rows; may stand for a negative number */
    bool is_src_in_rows;
    bool is_added;
    unsigned char fill[16]; /* the padding of equal dtypes: an element, repeated */
    struct move_table tables[ITEMS_WAYS];
};

/* Rows of row_elems elements, the last of which may be shorter if it is the only one. */
struct items_part {
    uint64_t dst;
    uint64_t src;
    uint64_t n_filled; /* elements that are in the source; the others are padding */
    uint64_t n_elems;
    uint64_t row_elems;
};

/* All members are 0, the tables empty. */
void items_begin(struct items *items);
void items_add(struct items *items, shoal_dtype dst_dtype, shoal_dtype src_dtype, struct items_part part);
void items_end(struct items *items);

#endif
