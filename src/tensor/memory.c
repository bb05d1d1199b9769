/* SPDX-License-Identifier: MIT */
#include "tensor/memory.h"

#include <stdalign.h>

#include "base/mem.h"
#include "base/refcount.h"
#include "base/try.h"
#include "device/device.h"
#include "tensor/block.h"

void memory_init(struct memory *memory, struct block *block, struct address base)
{
    *memory = (struct memory){.block = block, .base = base};
    atomic_init(&memory->references, 1);
}

shoal_status memory_create(shoal_device device, size_t bytes, struct memory **memory_out)
{
    void *header = NULL;
    void *data = NULL;
    TRY(device_allocate(device, sizeof(struct memory), bytes, &header, &data));
    struct memory *memory = header;
    memory_init(memory, NULL, address_of(data));
    memory->device = device;
    *memory_out = memory;
    return SHOAL_OK;
}

/* The address of tensors without elements whose owner gave no address. */
static alignas(MEM_DATA_ALIGNMENT) char no_bytes[MEM_DATA_ALIGNMENT];

/* In a reusable block of its own, because sharded parameters are bound and released in every step. */
struct borrowed {
    struct block block;
    struct memory memory;
};

struct memory *memory_create_borrowed(struct address base, shoal_deleter deleter, void *deleter_context)
{
    struct borrowed *borrowed = (struct borrowed *)block_create(sizeof *borrowed);
    if (!borrowed) {
        return NULL;
    }
    struct memory *memory = &borrowed->memory;
    atomic_init(&borrowed->block.objects, 1);
    memory_init(memory, &borrowed->block, address_is_none(base) ? address_of(no_bytes) : base);
    memory->deleter = deleter;
    memory->deleter_context = deleter_context;
    memory->given = address_pointer(base);
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
        device_release(memory->device, memory, address_pointer(memory->base));
    }
}
