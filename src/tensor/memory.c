/* SPDX-License-Identifier: MIT */
#include "tensor/memory.h"

#include <stdalign.h>
#include <stddef.h>

#include "base/mem.h"
#include "base/refcount.h"
#include "base/try.h"
#include "device/device.h"
#include "device/ending.h"
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
    struct ending ending; /* of memory of a device that is not the host */
};

struct memory *memory_create_borrowed(shoal_device device, struct address base, shoal_deleter deleter,
                                      void *deleter_context)
{
    size_t bytes = device_is_host(device) ? offsetof(struct borrowed, ending) : sizeof(struct borrowed);
    struct borrowed *borrowed = (struct borrowed *)block_create(bytes);
    if (!borrowed) {
        return NULL;
    }
    struct memory *memory = &borrowed->memory;
    atomic_init(&borrowed->block.objects, 1);
    memory_init(memory, &borrowed->block, address_is_none(base) ? address_of(no_bytes) : base);
    memory->device = device;
    memory->deleter = deleter;
    memory->deleter_context = deleter_context;
    memory->waits_for_device = false;
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

static void give_back(struct memory *memory)
{
    memory->deleter(memory->deleter_context, memory->given);
    block_free(memory->block, memory);
}

static void end_borrowed(struct ending *ending)
{
    give_back(&((struct borrowed *)((char *)ending - offsetof(struct borrowed, ending)))->memory);
}

static void give_back_later(struct memory *memory)
{
    struct borrowed *borrowed = (struct borrowed *)((char *)memory - offsetof(struct borrowed, memory));
    if (device_is_inherited(memory->device)) {
        block_free(memory->block, memory); /* it was lent to the parent */
        return;
    }
    ending_add(&borrowed->ending, memory->device, end_borrowed);
}

void memory_unref(struct memory *memory)
{
    if (!memory || !refcount_put(&memory->references)) {
        return;
    }
    if (memory->deleter && memory->waits_for_device) {
        give_back_later(memory);
        return;
    }
    if (memory->deleter) {
        give_back(memory);
        return;
    }
    if (memory->block) {
        block_free(memory->block, memory);
    } else {
        device_release(memory->device, memory, address_pointer(memory->base));
    }
}
