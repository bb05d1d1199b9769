/* SPDX-License-Identifier: MIT */
/*
 * Moves a box of a tensor (a range of indices in every dimension) between a file, where the tensor is row-major, and
 * memory with strides. The box is cut into pieces, each of which is one request to the system:
 *
 *   direct pieces    are contiguous on both sides, as long as they can be, and need no buffer
 *   buffered pieces  are a span of the file that fits the buffer; elements are moved between the buffer and memory
 *
 * When reading, a span may contain bytes that are not of the box: reading a small gap is cheaper than another request.
 * When writing, there are no gaps.
 */
#ifndef CHECKPOINT_IO_BOX_H
#define CHECKPOINT_IO_BOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/dtype.h"
#include "shoal/tensor.h"

#define BOX_BUFFER_BYTES ((size_t)1 << 20)

/*
 * The largest gap that is read. From a disk, short runs that lie close together are read several times faster in one
 * request than one by one, because the kernel reads nothing ahead for requests with holes. From the page cache they
 * take somewhat longer.
 */
#define BOX_READ_GAP_BYTES ((size_t)16 << 10)

struct box {
    int n_dims; /* those with more than one index */
    int64_t length[SHOAL_MAX_DIMS];
    int64_t file_strides[SHOAL_MAX_DIMS]; /* these and the next in elements */
    int64_t memory_strides[SHOAL_MAX_DIMS];
    size_t element_bytes;
    uint64_t file_offset; /* of the first element in the tensor, in bytes */
    bool is_empty;

    /* The pieces: one for each index of the dimensions before `cut`, and for each chunk of dimension `cut`. */
    bool is_direct; /* then there is one chunk, all of it */
    int cut;
    int64_t chunk;
    size_t buffer_bytes; /* what the largest piece needs; 0 if is_direct */
};

/*
 * A box of a tensor of that shape. If `begin` is NULL, it begins at 0; if `length` is NULL, it goes to the end.
 * `strides` are those of the memory, in elements; NULL means contiguous. SHOAL_ERR_INVALID, with the name of the
 * argument, if the box does not lie within the shape or its strides leave the address space.
 */
struct box_arguments {
    int n_dims;
    const int64_t *shape;
    shoal_dtype dtype;
    const int64_t *begin;
    const int64_t *length;
    const int64_t *strides;
};
shoal_status box_make(const struct box_arguments *arguments, struct box *box_out);

/* Decides about the pieces. `must_buffer`: none is direct. */
void box_plan(struct box *box, size_t max_gap_bytes, bool must_buffer);

struct box_piece {
    uint64_t file_offset; /* in the tensor */
    size_t file_bytes;
    int64_t memory_offset; /* bytes from the first element */
    /* For buffered ones: the elements. */
    int n_dims;
    int64_t shape[SHOAL_MAX_DIMS];
    const int64_t *file_strides;
    const int64_t *memory_strides;
};

/* A dtype with elements of the same size, to copy bits unchanged: kernels turn a bool into 0 or 1. */
shoal_dtype box_bits(const struct box *box);

/* Visits all pieces in the order of the file, until one fails. */
shoal_status box_walk(const struct box *box,
                      shoal_status (*visit)(void *context, const struct box_piece *piece), void *context);

#endif
