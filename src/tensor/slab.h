/* SPDX-License-Identifier: MIT */
/*
 * Allocates long-lived objects, many in one block: the tensors without data of which a graph has one or more for each
 * node. A block is freed when its last object has ended and the slab makes no more objects in it, so objects may
 * outlive the slab.
 *
 * A slab of zeros is empty. One thread may use a slab at a time; objects may end on any thread.
 */
#ifndef TENSOR_SLAB_H
#define TENSOR_SLAB_H

#include <stddef.h>
#include <stdint.h>

struct block;

struct slab {
    struct block *block; /* NULL if there is none yet */
    size_t bytes;        /* of the block, including its header */
    size_t used_bytes;   /* of these */
    uint32_t n_objects;  /* made in the block so far */
};

/* Allocates memory for `n_objects` objects, aligned for pointers. Each of them ends by block_free with `*block_out`.
   Returns NULL if memory runs out. */
void *slab_alloc(struct slab *slab, size_t bytes, uint32_t n_objects, struct block **block_out);

/* Call when no more objects will be made. */
void slab_end(struct slab *slab);

#endif
