/* SPDX-License-Identifier: MIT */
/* The arguments of the kernels that copy over any strides. */
#ifndef CUDA_KERNELS_COPY_H
#define CUDA_KERNELS_COPY_H

#include <stdint.h>

/* A block of so many threads has so many units for each. */
#define COPY_THREADS 128
#define COPY_BLOCK_UNITS (2 * COPY_THREADS)

/* So many units a launch has at most: they are counted in 32 bits. */
#ifndef COPY_UNITS_MOST
#define COPY_UNITS_MOST 0x80000000u
#endif

/* One more than a tensor has: an element that is not aligned is a dimension of bytes. */
#define COPY_DIMS 9

/* Strides are bytes. The last dimension is the one whose elements are next to each other, if there is one. */
struct copy_dim {
    uint32_t size;
    uint32_t magic; /* and shift: division by the size */
    uint32_t shift;
    uint32_t unused;
    int64_t dst_stride;
    int64_t src_stride;
};

/* Units over any strides. They have unit_bytes where bits are copied, and are elements where they are cast. */
struct copy_arguments {
    uint64_t dst;
    uint64_t src; /* 0: nothing is read, dst becomes `fill`, repeated along the last dimension */
    uint32_t fill[4];
    uint32_t n_units;
    uint32_t unit_bytes;
    uint32_t n_dims;
    uint16_t dst_dtype;
    uint16_t src_dtype;
    struct copy_dim dims[COPY_DIMS];
};

/*
 * The units of a matrix, once for each place in the dimensions of `outer`. They are `unit_bytes` apart along a row of
 * dst, and along a column of src. A block has a tile, of which it reads columns and writes rows.
 */
struct transpose_arguments {
    struct copy_arguments outer;
    int64_t dst_row_stride;
    int64_t src_column_stride;
    uint32_t n_rows;
    uint32_t n_columns;
    struct copy_dim row_tiles; /* size, magic and shift */
    struct copy_dim column_tiles;
};

/* Tiles are square. A row in shared memory is longer, so that a column of it lies in different banks. */
#define TRANSPOSE_SIDE 32
#define TRANSPOSE_ROW_UNITS (TRANSPOSE_SIDE + 1)

#endif
