/* SPDX-License-Identifier: MIT */
/*
 * An arena is a list of blocks. Pieces are taken from the first block. Blocks grow in size, so that a large arena has
 * few of them. A large piece that does not fit gets a block of its own behind the first one, whose rest is not wasted.
 */
#include "base/arena.h"

#include <stdalign.h>
#include <stdbool.h>

#include "base/error.h"
#include "base/mem.h"

enum {
    FIRST_BLOCK_BYTES = 4096,
    LAST_BLOCK_BYTES = MEM_LARGE_BYTES
};

/* Pieces that are whole cache lines, one after the other, begin at cache lines. */
struct arena_block {
    struct arena_block *next;
    size_t bytes; /* with this header */
    alignas(MEM_DATA_ALIGNMENT) unsigned char memory[];
};

static struct arena_block *create_block(size_t bytes)
{
    struct arena_block *block = mem_alloc_block(bytes);
    if (block) {
        block->next = NULL;
        block->bytes = bytes;
    }
    return block;
}

/* The piece has a block of its own, behind the first one. */
static void *take_apart(struct arena *arena, size_t bytes)
{
    struct arena_block *block = create_block(sizeof(*block) + bytes);
    if (!block) {
        return NULL;
    }
    if (arena->blocks) {
        block->next = arena->blocks->next;
        arena->blocks->next = block;
    } else {
        arena->blocks = block;
    }
    return block->memory;
}

/* The piece begins a new first block. */
static void *take_from_new(struct arena *arena, size_t bytes, size_t block_bytes)
{
    struct arena_block *block = create_block(block_bytes);
    if (!block) {
        return NULL;
    }
    block->next = arena->blocks;
    arena->blocks = block;
    arena->free = block->memory + bytes;
    arena->free_bytes = block_bytes - sizeof(*block) - bytes;
    return block->memory;
}

void *arena_take_slowly(struct arena *arena, size_t n_items, size_t item_bytes)
{
    const size_t mask = ARENA_ALIGNMENT - 1;
    size_t bytes;
    if (!mem_multiply(n_items, item_bytes, &bytes) || bytes > SIZE_MAX / 2) {
        (void)error_set(SHOAL_ERR_NO_MEMORY, "no memory for %zu elements of %zu bytes", n_items, item_bytes);
        return NULL;
    }
    bytes = ((bytes ? bytes : 1) + mask) & ~mask;
    if (bytes <= arena->free_bytes) {
        return arena_take(arena, bytes, 1);
    }
    size_t usual = arena->blocks ? 2 * arena->blocks->bytes : 0;
    usual = usual < FIRST_BLOCK_BYTES ? FIRST_BLOCK_BYTES : usual;
    usual = usual > LAST_BLOCK_BYTES ? LAST_BLOCK_BYTES : usual;
    return bytes > usual / 4 ? take_apart(arena, bytes) : take_from_new(arena, bytes, usual);
}

void arena_free(struct arena *arena)
{
    struct arena_block *block = arena->blocks;
    while (block) {
        struct arena_block *next = block->next;
        mem_free_block(block, block->bytes);
        block = next;
    }
    *arena = (struct arena){.blocks = NULL};
}
