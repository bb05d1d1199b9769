/* SPDX-License-Identifier: MIT */
#include "tensor/block.h"

#include "base/mem.h"
#include "base/refcount.h"

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
