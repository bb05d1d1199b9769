/* SPDX-License-Identifier: MIT */
/*
 * Bytes with a count of those who need them: storages, and fences of work in flight. Counted apart from
 * storages, so that the bytes under a storage can be given back or replaced while somebody still uses them.
 *
 * Also: blocks. A small result is a tensor, a storage, a memory and its data, made together; one allocation for
 * all four costs a third of four. Each dies on its own, and the last one frees the block. While a thread has a
 * scope open it keeps a few freed blocks to use again, because results of small ops come and go by the dozen.
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
    uint8_t slab_bits;        /* of a slab, of two to the power of so many bytes; 0: another one */
    struct block *next;       /* among the thread's spare blocks */
};

/* Blocks up to this size are allocated in this size, so that any of them can be used again. */
#define BLOCK_REUSABLE_BYTES 640

struct block *block_create(size_t bytes);
/* One that will not be used again, and so is as small as it can be: for what lives long, as shapes without data do
   in graphs. */
struct block *block_create_lasting(size_t bytes);

/* The end of an object: frees it, or counts it out of the block it lies in. */
void block_free(struct block *block, void *object);

/* The thread keeps spare blocks from now on; until it gives them all back. */
void block_keep_spares(void);
void block_free_spares(void);

struct memory {
    _Atomic uint32_t references;
    shoal_device device; /* of those allocated alone: whose row releases it */
    struct block *block; /* NULL: allocated alone */
    void *base;
    shoal_deleter deleter; /* NULL: nothing to do */
    void *deleter_context;
    void *given; /* what the deleter is called with: the address its owner gave us; NULL for our own bytes */
};

/* Around bytes that lie in the same block. One reference, the caller's; so in all of them. */
void memory_init(struct memory *memory, struct block *block, void *base);
/*
 * Fresh bytes of a device that has some (device/device.h), at a multiple of MEM_DATA_ALIGNMENT unless they are fewer
 * than that. NULL: no memory.
 */
struct memory *memory_create(shoal_device device, size_t bytes);
/* Somebody else's bytes; NULL stands for none. */
struct memory *memory_create_borrowed(void *base, shoal_deleter deleter, void *deleter_context);

/* Both take NULL. */
struct memory *memory_ref(struct memory *memory);
void memory_unref(struct memory *memory);

#endif
