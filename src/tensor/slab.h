/* SPDX-License-Identifier: MIT */
/*
 * Lasting objects of one maker, many to an allocation: tensors without data, of which a graph has one or more for each
 * node. A block of a slab is freed when its last object is, and its maker has turned to the next block; so an object
 * may outlive the maker.
 *
 * All zero is an empty slab. It is used by one thread at a time; its objects may end on any.
 */
#ifndef TENSOR_SLAB_H
#define TENSOR_SLAB_H

#include <stddef.h>
#include <stdint.h>

struct block;

struct slab {
    struct block *block; /* NULL: none yet */
    size_t bytes;        /* of the block, its head included */
    size_t used_bytes;   /* of them */
    uint32_t n_objects;  /* that were made in it */
};

/* Room for so many objects, each of which ends by block_free with that block; aligned for pointers. NULL: no memory. */
void *slab_alloc(struct slab *slab, size_t bytes, uint32_t n_objects, struct block **block_out);

/* The maker has ended. */
void slab_end(struct slab *slab);

#endif
