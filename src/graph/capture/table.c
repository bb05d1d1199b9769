/* SPDX-License-Identifier: MIT */
#include "graph/capture/table.h"

#include <string.h>

#include "base/mem.h"
#include "base/try.h"

enum {
    FIRST_CAPACITY = 64
};

static size_t find_slot(const struct capture_table *table, uint64_t hash)
{
    size_t mask = table->capacity - 1;
    size_t at = (size_t)hash & mask;
    while (table->indices[at] != SIZE_MAX) {
        at = (at + 1) & mask;
    }
    return at;
}

static shoal_status grow(struct capture_table *table)
{
    size_t capacity = table->capacity > 0 ? 2 * table->capacity : FIRST_CAPACITY;
    struct capture_table grown = {.hashes = mem_alloc_zeroed(capacity, sizeof(uint64_t)),
                                  .indices = mem_alloc_zeroed(capacity, sizeof(size_t)),
                                  .capacity = capacity,
                                  .count = table->count};
    if (!grown.hashes || !grown.indices) {
        mem_free(grown.hashes);
        mem_free(grown.indices);
        return SHOAL_ERR_NO_MEMORY;
    }
    memset(grown.indices, 0xff, capacity * sizeof(size_t));
    for (size_t i = 0; i < table->capacity; i++) {
        if (table->indices[i] != SIZE_MAX) {
            size_t at = find_slot(&grown, table->hashes[i]);
            grown.hashes[at] = table->hashes[i];
            grown.indices[at] = table->indices[i];
        }
    }
    mem_free(table->hashes);
    mem_free(table->indices);
    *table = grown;
    return SHOAL_OK;
}

shoal_status capture_table_add(struct capture_table *table, uint64_t hash, size_t index)
{
    if (2 * (table->count + 1) > table->capacity) {
        TRY(grow(table));
    }
    size_t at = find_slot(table, hash);
    table->hashes[at] = hash;
    table->indices[at] = index;
    table->count++;
    return SHOAL_OK;
}

size_t capture_table_find(const struct capture_table *table, uint64_t hash,
                          bool (*is_same)(const void *context, const void *key, size_t index),
                          const void *context, const void *key)
{
    size_t mask = table->capacity - 1;
    for (size_t at = (size_t)hash & mask; table->capacity > 0 && table->indices[at] != SIZE_MAX;
         at = (at + 1) & mask) {
        if (table->hashes[at] == hash && is_same(context, key, table->indices[at])) {
            return table->indices[at];
        }
    }
    return SIZE_MAX;
}

void capture_table_free(struct capture_table *table)
{
    mem_free(table->hashes);
    mem_free(table->indices);
}
