/* SPDX-License-Identifier: MIT */
/* A map from storages to numbers. It cannot be iterated, so that no result depends on addresses. */
#ifndef GRAPH_IR_STORAGE_MAP_H
#define GRAPH_IR_STORAGE_MAP_H

#include <stdbool.h>
#include <stddef.h>

#include "shoal/status.h"

struct storage;

struct storage_slot {
    const struct storage *storage; /* NULL: free */
    size_t value;
};

/* All zero is an empty map. */
struct storage_map {
    struct storage_slot *slots; /* a power of two of them, at most half in use */
    size_t capacity;
    size_t count;
};

/* Finds the value of a storage. False: it is not in the map. */
bool storage_map_get(const struct storage_map *map, const struct storage *storage, size_t *value_out);
/* Adds a storage that is not in the map yet. A failure changes nothing. */
shoal_status storage_map_add(struct storage_map *map, const struct storage *storage, size_t value);
/* Empties the map, and keeps its memory: adding as many again cannot fail. */
void storage_map_clear(struct storage_map *map);
void storage_map_free(struct storage_map *map);

#endif
