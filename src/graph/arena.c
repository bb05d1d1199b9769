/* SPDX-License-Identifier: MIT */
/*
 * Blocks in a list, of which the first has room. They grow, so that a large graph has few; a piece that would waste the rest of
 * the first block gets a block of its own behind it.
 */
#include "graph/arena.h"

#include <stdalign.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"

enum {
    FIRST_BLOCK_BYTES = 4096,
    LAST_BLOCK_BYTES = 1 << 18
};

struct arena_block {
    struct arena_block *next;
    size_t bytes; /* behind this header */
    size_t used;
    alignas(max_align_t) unsigned char memory[];
};

static struct arena_block *create_block(size_t bytes)
{
    size_t total;
    if (__builtin_add_overflow(bytes, sizeof(struct arena_block), &total)) {
        (void)error_set(SHOAL_ERR_NO_MEMORY, "no memory for %zu bytes", bytes);
        return NULL;
    }
    struct arena_block *block = mem_alloc(total);
    if (block) {
        block->next = NULL;
        block->bytes = bytes;
        block->used = 0;
    }
    return block;
}

/* A block with room for that many bytes: the first one, or a new one. */
static struct arena_block *find_block(struct arena *arena, size_t bytes)
{
    struct arena_block *first = arena->blocks;
    if (first && first->bytes - first->used >= bytes) {
        return first;
    }
    size_t usual = first ? 2 * first->bytes : FIRST_BLOCK_BYTES;
    usual = usual > LAST_BLOCK_BYTES ? LAST_BLOCK_BYTES : usual;
    bool is_apart = bytes > usual / 4;
    struct arena_block *block = create_block(is_apart ? bytes : usual);
    if (block && is_apart && first) {
        block->next = first->next;
        first->next = block;
    } else if (block) {
        block->next = first;
        arena->blocks = block;
    }
    return block;
}

void *arena_alloc(struct arena *arena, size_t n_items, size_t item_bytes)
{
    const size_t mask = alignof(max_align_t) - 1;
    size_t bytes;
    if (!mem_multiply(n_items, item_bytes, &bytes) || bytes > SIZE_MAX - mask) {
        (void)error_set(SHOAL_ERR_NO_MEMORY, "no memory for %zu elements of %zu bytes", n_items, item_bytes);
        return NULL;
    }
    bytes = ((bytes ? bytes : 1) + mask) & ~mask;
    struct arena_block *block = find_block(arena, bytes);
    if (!block) {
        return NULL;
    }
    void *piece = block->memory + block->used;
    block->used += bytes;
    memset(piece, 0, bytes);
    return piece;
}

const char *arena_string(struct arena *arena, const char *string)
{
    size_t bytes = strlen(string) + 1;
    char *copy = arena_alloc(arena, bytes, 1);
    if (copy) {
        memcpy(copy, string, bytes);
    }
    return copy;
}

void arena_free(struct arena *arena)
{
    struct arena_block *block = arena->blocks;
    while (block) {
        struct arena_block *next = block->next;
        mem_free(block);
        block = next;
    }
    arena->blocks = NULL;
}
