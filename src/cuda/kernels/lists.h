/* SPDX-License-Identifier: MIT */
/* Arguments of the kernels of lists.cu. */
#ifndef CUDA_KERNELS_LISTS_H
#define CUDA_KERNELS_LISTS_H

#include "cuda/kernels/target.h"

enum {
    LISTS_THREADS = 256,
    LISTS_EACH = 2, /* vectors of a thread in a tile */
    LISTS_TILE_BYTES = LISTS_THREADS * LISTS_EACH * 16,
    LISTS_TILES_MOST = 0x7fffffff, /* of one launch */
    LISTS_DTYPES = 5,              /* those of floats have lower numbers */
    LISTS_PIECES = (CUDA_ARGUMENT_BYTES - 72) / 24,
    LISTS_GROUP = 16, /* threads of lists_largest that look through the numbers of others */
    LISTS_LARGEST_BYTES = (LISTS_THREADS + LISTS_GROUP) * 8,
    LISTS_BINS_BYTES = 144 * 8 /* KERNEL_SQUARES_BINS */
};

/* Contiguous floats: complex numbers are pairs of them. Vectors lie at multiples of 16: before the first element
   are `shift` others in its vector. What is not aligned is taken element by element. */
struct lists_piece {
    uint64_t data;
    uint64_t count;
    uint32_t first_tile;
    uint8_t dtype;
    uint8_t bytes; /* of an element */
    uint8_t shift;
    uint8_t is_aligned;
};

enum lists_op {
    LISTS_SCALE,
    LISTS_CLAMP,
    LISTS_LARGEST,
    LISTS_MAGNITUDES, /* powers_list with power 1 */
    LISTS_SQUARES
};

struct lists_arguments {
    uint64_t result;              /* of lists_largest and lists_powers */
    double numbers[LISTS_DTYPES]; /* by dtype: the factor, or the limit */
    uint32_t op;
    uint32_t n_pieces;
    uint32_t n_tiles;
    uint32_t unused;
    struct lists_piece pieces[LISTS_PIECES];
};

struct lists_carry_arguments {
    uint64_t bins;
};

#endif
