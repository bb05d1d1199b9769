/* SPDX-License-Identifier: MIT */
/* Memory that is given piece by piece and freed at once. */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct arena_block;

/* All zero is an empty arena. */
struct arena {
    struct arena_block *blocks;
    unsigned char *free; /* the rest of the first block */
    size_t free_bytes;
};

/* Pieces begin at multiples of this: enough for pointers, doubles and 64-bit integers. */
#define ARENA_ALIGNMENT 8

/* For arena_take: makes a block, or sets the error. */
void *arena_take_slowly(struct arena *arena, size_t n_items, size_t item_bytes);

/* Not zeroed; otherwise as arena_alloc. For what is written at once. */
static inline void *arena_take(struct arena *arena, size_t n_items, size_t item_bytes)
{
    size_t bytes;
    if (__builtin_mul_overflow(n_items, item_bytes, &bytes) || bytes == 0 || bytes > arena->free_bytes) {
        return arena_take_slowly(arena, n_items, item_bytes);
    }
    /* What is free is a multiple of the alignment. */
    bytes = (bytes + ARENA_ALIGNMENT - 1) & ~(size_t)(ARENA_ALIGNMENT - 1);
    void *piece = arena->free;
    arena->free += bytes;
    arena->free_bytes -= bytes;
    return piece;
}

/* Of the piece that was taken last only the beginning is needed; nothing happens when it has a block of its own. */
static inline void arena_shorten(struct arena *arena, void *piece, size_t bytes, size_t needed_bytes)
{
    const size_t mask = ARENA_ALIGNMENT - 1;
    size_t taken = (bytes + mask) & ~mask;
    size_t rest = taken - ((needed_bytes + mask) & ~mask);
    if ((unsigned char *)piece + taken == arena->free) {
        arena->free -= rest;
        arena->free_bytes += rest;
    }
}

/* Zeroed; NULL with the error set. n_items times item_bytes may overflow: that is an error too. */
static inline void *arena_alloc(struct arena *arena, size_t n_items, size_t item_bytes)
{
    void *piece = arena_take(arena, n_items, item_bytes);
    return piece ? memset(piece, 0, n_items * item_bytes) : NULL;
}

/* A copy of the string; NULL for lack of memory. */
static inline const char *arena_string(struct arena *arena, const char *string)
{
    size_t bytes = strlen(string) + 1;
    char *copy = arena_take(arena, bytes, 1);
    return copy ? memcpy(copy, string, bytes) : NULL;
}

void arena_free(struct arena *arena);

#endif
