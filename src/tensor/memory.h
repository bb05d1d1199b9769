/* SPDX-License-Identifier: MIT */
/*
 * Reference-counted memory. Storages hold references, and so do fences of work in flight. The count is separate from
 * that of the storage, so that a storage can release or replace its memory while work in flight still uses it.
 *
 * Also: blocks. A small result is a tensor, a storage, a memory and its data. One allocation for all four costs a third
 * of four allocations. Each object has its own end; the last one frees the block. While a thread has a scope open, it
 * keeps a few freed blocks for reuse, because small ops make and free results all the time.
 */
#ifndef TENSOR_MEMORY_H
#define TENSOR_MEMORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/tensor.h"

/* First member of an allocation that holds several objects. */
struct block {
    _Atomic uint32_t objects; /* that are alive; the maker sets it */
    bool is_reusable;         /* of BLOCK_REUSABLE_BYTES */
    uint8_t slab_bits;        /* a block of a slab, of 2^slab_bits bytes; 0: any other block */
    struct block *next;       /* among the thread's spare blocks */
};

/* Blocks up to this size are allocated in this size, so that any of them can be used again. */
#define BLOCK_REUSABLE_BYTES 640

struct block *block_create(size_t bytes);
/* A block of exactly this size, which is not kept for reuse: for objects that live long. */
struct block *block_create_lasting(size_t bytes);

/* Call when an object ends. Without a block, frees the object; otherwise frees the block with its last object. */
void block_free(struct block *block, void *object);

/* block_keep_spares: from now on this thread keeps freed blocks for reuse. block_free_spares frees them and ends
   that. */
void block_keep_spares(void);
void block_free_spares(void);

struct memory {
    _Atomic uint32_t references;
    shoal_device device; /* if allocated alone: the device that releases it */
    struct block *block; /* NULL: allocated alone */
    void *base;
    shoal_deleter deleter; /* NULL: nothing to do */
    void *deleter_context;
    void *given; /* what the deleter is called with: the address its owner gave us; NULL for our own bytes */
};

/* For bytes that lie in the same block. This and the other calls that make a memory give the caller one reference. */
void memory_init(struct memory *memory, struct block *block, void *base);
/*
 * Allocates bytes of a device that has memory (device/device.h), aligned to MEM_DATA_ALIGNMENT unless they are fewer
 * than that. NULL: no memory.
 */
struct memory *memory_create(shoal_device device, size_t bytes);
/* For memory of another owner. `base` may be NULL if there are no bytes. */
struct memory *memory_create_borrowed(void *base, shoal_deleter deleter, void *deleter_context);

/* Both take NULL. */
struct memory *memory_ref(struct memory *memory);
void memory_unref(struct memory *memory);

#endif
