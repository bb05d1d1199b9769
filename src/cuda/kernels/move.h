/* SPDX-License-Identifier: MIT */
/*
 * The arguments of the kernels that move elements. Tables of items go by value: that takes the GPU no longer than a
 * table in its memory, and the host less.
 */
#ifndef CUDA_KERNELS_MOVE_H
#define CUDA_KERNELS_MOVE_H

#include <stdint.h>

/* A block of so many threads has a tile: so many units for each thread. */
#define MOVE_THREADS 128
#define MOVE_UNITS 2
#define MOVE_TILE_UNITS (MOVE_THREADS * MOVE_UNITS)

/* So many elements an item has at most: numbers of elements are computed in 32 bits. A multiple of all units. */
#ifndef MOVE_ELEMS_MOST
#define MOVE_ELEMS_MOST 0x80000000u
#endif

#define MOVE_ITEMS 98

/*
 * Elements that are contiguous on one side, and on the other in rows of equal length. A move of contiguous elements is
 * one row. The last elements of an item may be padding, which is not in the source.
 *
 * Threads take units of 1 << unit_log2 elements, none of which is in two rows. Addresses, and those of rows, are
 * multiples of a unit's size. A kernel that moves bytes takes bytes for elements.
 */
struct move_item {
    uint64_t dst;
    uint64_t src;
    uint32_t n_filled; /* elements that are in the source */
    uint32_t n_elems;  /* with the padding */
    uint32_t row_units;
    uint32_t magic; /* and shift: division by row_units */
    uint32_t first_tile;
    uint8_t shift;
    uint8_t unit_log2;
    uint8_t dst_dtype;
    uint8_t src_dtype;
};

struct move_table {
    uint64_t row_bytes; /* from row to row */
    uint32_t is_src_in_rows;
    uint32_t is_added; /* dst += src, cast first */
    uint32_t fill[4];  /* the padding of move_bytes, repeated; other kernels have zeros */
    uint32_t n_items;
    uint32_t n_tiles;
    struct move_item items[MOVE_ITEMS];
};

#endif
