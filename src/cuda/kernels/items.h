/* SPDX-License-Identifier: MIT */
/* Where a thread's units lie, by the arguments of move.h. The arguments stay where the driver has put them as long
   as they are only indexed and loaded: a copy of a whole item would lie in slow local memory. */
#ifndef CUDA_KERNELS_ITEMS_H
#define CUDA_KERNELS_ITEMS_H

#include "cuda/kernels/move.h"
#include "cuda/kernels/target.h"
#include "cuda/kernels/vector.h"

struct move_at {
    uint64_t dst;
    uint64_t src;
};

/* The item that a tile belongs to. */
DEVICE_FUNCTION const struct move_item *items_find(const struct move_table *table, uint32_t tile)
{
    uint32_t low = 0;
    uint32_t high = table->n_items;
    NOT_UNROLLED
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (table->items[middle].first_tile <= tile) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return &table->items[low];
}

/* The sizes are those of a unit. */
DEVICE_FUNCTION struct move_at items_at(const struct move_table *table, const struct move_item *item,
                                        uint32_t unit, uint32_t dst_bytes, uint32_t src_bytes)
{
    uint32_t row = vector_divide(unit, item->magic, item->shift);
    uint64_t row_at = row * table->row_bytes;
    uint32_t column = unit - row * item->row_units;
    struct move_at at;
    if (table->is_src_in_rows) {
        at.dst = item->dst + (uint64_t)unit * dst_bytes;
        at.src = item->src + row_at + (uint64_t)column * src_bytes;
    } else {
        at.dst = item->dst + row_at + (uint64_t)column * dst_bytes;
        at.src = item->src + (uint64_t)unit * src_bytes;
    }
    return at;
}

#endif
