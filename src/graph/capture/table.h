/* SPDX-License-Identifier: MIT */
/* A hash table of a capture. */
#ifndef GRAPH_CAPTURE_TABLE_H
#define GRAPH_CAPTURE_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"

/* Maps hashes to indices of an array of the caller's, whose function compares keys. All zero is an empty table. */
struct capture_table {
    uint64_t *hashes;
    size_t *indices; /* SIZE_MAX: free */
    size_t capacity; /* a power of two, at most half in use */
    size_t count;
};

shoal_status capture_table_add(struct capture_table *table, uint64_t hash, size_t index);
/* Returns the index for which is_same is true; SIZE_MAX: there is none. */
size_t capture_table_find(const struct capture_table *table, uint64_t hash,
                          bool (*is_same)(const void *context, const void *key, size_t index),
                          const void *context, const void *key);
void capture_table_free(struct capture_table *table);

#endif
