/* SPDX-License-Identifier: MIT */
/* Memory that is given piece by piece and freed at once. */
#ifndef GRAPH_ARENA_H
#define GRAPH_ARENA_H

#include <stddef.h>

struct arena_block;

/* All zero is an empty arena. */
struct arena {
    struct arena_block *blocks;
};

/* Zeroed, aligned for anything; NULL with the error set. n_items times item_bytes may overflow: that is an error too. */
void *arena_alloc(struct arena *arena, size_t n_items, size_t item_bytes);
/* A copy of the string; NULL for lack of memory. */
const char *arena_string(struct arena *arena, const char *string);
void arena_free(struct arena *arena);

#endif
