/* SPDX-License-Identifier: MIT */
/*
 * A block counts its objects (tensor/block.h). While a slab still makes objects in a block, all that it could make are
 * counted in advance, so that making one need not write to the shared counter.
 */
#include "tensor/slab.h"

#include "base/mem.h"
#include "tensor/block.h"

/* Larger than the number of objects of any block. */
#define PROMISED_OBJECTS (UINT32_C(1) << 30)

/* Under the address sanitizer each allocation has a block of its own, so that it notices use after free. */
enum {
    FIRST_BYTES = 1024,
    LAST_BYTES = MEM_KEEPS_FREED ? MEM_LARGE_BYTES : 0
};

void slab_end(struct slab *slab)
{
    struct block *block = slab->block;
    uint32_t n_unmade = PROMISED_OBJECTS - slab->n_objects;
    /* As in refcount_put: the thread that frees the block has seen all that others did with its objects. */
    if (block && atomic_fetch_sub_explicit(&block->objects, n_unmade, memory_order_acq_rel) == n_unmade) {
        mem_free_block(block, slab->bytes);
    }
    *slab = (struct slab){.block = NULL};
}

static size_t choose_bytes(const struct slab *slab, size_t bytes)
{
    size_t usual = slab->block ? 2 * slab->bytes : FIRST_BYTES;
    usual = usual > LAST_BYTES ? LAST_BYTES : usual;
    size_t least = sizeof(struct block) + bytes;
    return least > usual ? least : usual;
}

void *slab_alloc(struct slab *slab, size_t bytes, uint32_t n_objects, struct block **block_out)
{
    bytes = (bytes + 7) & ~(size_t)7;
    if (!slab->block || slab->bytes - slab->used_bytes < bytes) {
        size_t block_bytes = choose_bytes(slab, bytes);
        struct block *block = mem_alloc_block(block_bytes);
        if (!block) {
            return NULL;
        }
        slab_end(slab);
        atomic_init(&block->objects, PROMISED_OBJECTS);
        block->is_reusable = false;
        block->slab_bits = (block_bytes & (block_bytes - 1)) == 0 ? (uint8_t)__builtin_ctzl(block_bytes) : 0;
        *slab = (struct slab){.block = block, .bytes = block_bytes, .used_bytes = sizeof(*block)};
    }
    void *memory = (char *)slab->block + slab->used_bytes;
    slab->used_bytes += bytes;
    slab->n_objects += n_objects;
    *block_out = slab->block;
    return memory;
}
