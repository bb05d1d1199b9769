/* SPDX-License-Identifier: MIT */
/*
 * Blocks: allocations that hold several objects. A small result is a tensor, a storage, a memory and its data. One
 * allocation for all four costs a third of four allocations. Each object has its own end; the last one frees the block.
 * While a thread has a scope open, it keeps a few freed blocks for reuse, because small ops make and free results,
 * scopes and records of autograd all the time.
 */
#ifndef TENSOR_BLOCK_H
#define TENSOR_BLOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* First member of an allocation that holds several objects. */
struct block {
    _Atomic uint32_t objects; /* that are alive; the maker sets it */
    bool is_reusable;         /* of BLOCK_REUSABLE_BYTES */
    uint8_t slab_bits;        /* a block of a slab, of 2^slab_bits bytes; 0 for any other block */
    struct block *next;       /* among the thread's spare blocks */
};

/* Blocks up to this size are allocated in this size, so that any of them can be used again. */
#define BLOCK_REUSABLE_BYTES 832

struct block *block_create(size_t bytes);
/* A block of exactly this size, which is not kept for reuse: for objects that live long. */
struct block *block_create_lasting(size_t bytes);

/* Call when an object ends. Without a block, frees the object; otherwise frees the block with its last object. */
void block_free(struct block *block, void *object);

/* block_keep_spares: from now on this thread keeps freed blocks for reuse. block_free_spares frees them and ends
   that. */
void block_keep_spares(void);
void block_free_spares(void);

#endif
