/* SPDX-License-Identifier: MIT */
/*
 * Reference-counted memory. Storages hold references, and so do fences of work in flight. The count is separate from
 * that of the storage, so that a storage can release or replace its memory while work in flight still uses it.
 */
#ifndef TENSOR_MEMORY_H
#define TENSOR_MEMORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/address.h"
#include "shoal/tensor.h"

struct block; /* tensor/block.h */

struct memory {
    _Atomic uint32_t references;
    /* Where it is, if it was allocated alone or borrowed. The device releases what was allocated alone. */
    shoal_device device;
    struct block *block; /* NULL if it was allocated alone */
    struct address base;
    shoal_deleter deleter; /* NULL if there is nothing to do */
    void *deleter_context;
    bool
        waits_for_device; /* the deleter is called when the device has done its work so far (device/ending.h) */
    void *given; /* what the deleter is called with: the address its owner gave us; NULL for our own bytes */
};

/* For bytes that lie in the same block. This and the other calls that make a memory give the caller one reference. */
void memory_init(struct memory *memory, struct block *block, struct address base);
/*
 * Allocates bytes of a device that has memory (device/device.h), aligned to MEM_DATA_ALIGNMENT unless they are fewer
 * than that.
 */
shoal_status memory_create(shoal_device device, size_t bytes, struct memory **memory_out);
/* For memory of another owner on a device. `base` may be NULL if there are no bytes. A deleter of the library's own frees
   memory behind the work of the device, and is called at once; waits_for_device is set for those of programs. */
struct memory *memory_create_borrowed(shoal_device device, struct address base, shoal_deleter deleter,
                                      void *deleter_context);

/* Both take NULL. */
struct memory *memory_ref(struct memory *memory);
void memory_unref(struct memory *memory);

#endif
