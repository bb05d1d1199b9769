/* SPDX-License-Identifier: MIT */
#include "tensor/memory.h"

#include <stdalign.h>

#include "base/mem.h"
#include "base/refcount.h"
#include "device/device.h"
#include "tensor/block.h"

void memory_init(struct memory *memory, struct block *block, void *base)
{
    *memory = (struct memory){.block = block, .base = base};
    atomic_init(&memory->references, 1);
}

struct memory *memory_create(shoal_device device, size_t bytes)
{
    void *data = NULL;
    struct memory *memory = device_allocate(device, sizeof *memory, bytes, &data);
    if (memory) {
        memory_init(memory, NULL, data);
        memory->device = device;
    }
    return memory;
}

/* The address of tensors without elements whose owner gave no address. */
static alignas(MEM_DATA_ALIGNMENT) char no_bytes[MEM_DATA_ALIGNMENT];

/* In a reusable block of its own, because sharded parameters are bound and released in every step. */
struct borrowed {
    struct block block;
    struct memory memory;
};

struct memory *memory_create_borrowed(void *base, shoal_deleter deleter, void *deleter_context)
{
    struct borrowed *borrowed = (struct borrowed *)block_create(sizeof *borrowed);
    if (!borrowed) {
        return NULL;
    }
    struct memory *memory = &borrowed->memory;
    atomic_init(&borrowed->block.objects, 1);
    memory_init(memory, &borrowed->block, base ? base : no_bytes);
    memory->deleter = deleter;
    memory->deleter_context = deleter_context;
    memory->given = base;
    return memory;
}

struct memory *memory_ref(struct memory *memory)
{
    if (memory) {
        refcount_get(&memory->references);
    }
    return memory;
}

void memory_unref(struct memory *memory)
{
    if (!memory || !refcount_put(&memory->references)) {
        return;
    }
    if (memory->deleter) {
        memory->deleter(memory->deleter_context, memory->given);
    }
    if (memory->block) {
        block_free(memory->block, memory);
    } else {
        device_release(memory->device, memory, memory->base);
    }
}
