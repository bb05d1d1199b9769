/* SPDX-License-Identifier: MIT */
/*
 * Walking over the pieces of a list. A tile has the same number of bytes in every piece; a block finds the piece of
 * its tile by bisection, and a thread has LISTS_EACH vectors of the tile. Of the first and the last vector of a piece
 * some elements may be missing: these are taken one by one.
 */
#ifndef CUDA_KERNELS_WALK_H
#define CUDA_KERNELS_WALK_H

#include "cuda/kernels/lists.h"
#include "cuda/kernels/numbers.h"

DEVICE_FUNCTION uint32_t walk_find(const struct lists_arguments *a, uint32_t tile)
{
    uint32_t low = 0;
    uint32_t high = a->n_pieces;
    NOT_UNROLLED
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (a->pieces[middle].first_tile <= tile) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* A vector of a thread: elements begin .. end of its piece. The address is that of the element `begin`, which is a
   multiple of 16 if the vector is full. */
struct walk_vector {
    uint64_t address;
    int64_t begin;
    int64_t end;
    uint32_t dtype;
    uint32_t bytes;
    bool is_full;
    bool is_aligned;
};

DEVICE_FUNCTION struct walk_vector walk_vector(const struct lists_arguments *a,
                                               const struct cuda_thread *self, uint32_t tile, uint32_t i)
{
    const uint32_t piece = walk_find(a, tile);
    const int64_t count = (int64_t)a->pieces[piece].count;
    struct walk_vector vector;
    vector.dtype = a->pieces[piece].dtype;
    vector.bytes = a->pieces[piece].bytes;
    vector.is_aligned = a->pieces[piece].is_aligned != 0;
    const int64_t n_lanes = vector_lanes(vector.bytes);
    const uint64_t number = (uint64_t)(tile - a->pieces[piece].first_tile) * (LISTS_THREADS * LISTS_EACH) +
                            i * LISTS_THREADS + self->thread;
    const int64_t begin = (int64_t)number * n_lanes - a->pieces[piece].shift;
    vector.begin = begin < 0 ? 0 : begin;
    vector.end = begin + n_lanes < count ? begin + n_lanes : count;
    vector.is_full = vector.is_aligned && vector.end - vector.begin == n_lanes;
    vector.address = a->pieces[piece].data + (uint64_t)vector.begin * vector.bytes;
    return vector;
}

#endif
