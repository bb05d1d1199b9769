/* SPDX-License-Identifier: MIT */
/* Reference-counted memory, and blocks of objects that are allocated together. */
#include "tensor/memory.h"

#include <stdalign.h>

#include "base/mem.h"
#include "base/refcount.h"
#include "device/device.h"

/* Enough for the results of a few dozen small ops; more would waste memory. None under the address sanitizer,
   which would not notice the use of a freed block. */
enum {
    MAX_SPARES = MEM_KEEPS_FREED ? 64 : 0
};

static _Thread_local struct {
    struct block *first;
    int count;
    bool is_open;
} spares;

struct block *block_create(size_t bytes)
{
    bool is_reusable = bytes <= BLOCK_REUSABLE_BYTES;
    struct block *block = spares.first;
    if (is_reusable && block) {
        spares.first = block->next;
        spares.count--;
        return block;
    }
    block = mem_alloc(is_reusable ? BLOCK_REUSABLE_BYTES : bytes);
    if (block) {
        block->is_reusable = is_reusable;
        block->slab_bits = 0;
    }
    return block;
}

struct block *block_create_lasting(size_t bytes)
{
    struct block *block = mem_alloc(bytes);
    if (block) {
        block->is_reusable = false;
        block->slab_bits = 0;
    }
    return block;
}

void block_free(struct block *block, void *object)
{
    if (!block) {
        mem_free(object);
    } else if (!refcount_put(&block->objects)) {
        return;
    } else if (block->is_reusable && spares.is_open && spares.count < MAX_SPARES) {
        block->next = spares.first;
        spares.first = block;
        spares.count++;
    } else if (block->slab_bits > 0) {
        mem_free_block(block, (size_t)1 << block->slab_bits);
    } else {
        mem_free(block);
    }
}

void block_keep_spares(void)
{
    spares.is_open = true;
}

void block_free_spares(void)
{
    spares.is_open = false;
    spares.count = 0;
    while (spares.first) {
        struct block *block = spares.first;
        spares.first = block->next;
        mem_free(block);
    }
}

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
