/* SPDX-License-Identifier: MIT */
/* From storages to numbers. Nobody walks over it, so that addresses decide nothing. */
#ifndef GRAPH_STORAGE_MAP_H
#define GRAPH_STORAGE_MAP_H

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

/* False when it is not there. */
bool storage_map_get(const struct storage_map *map, const struct storage *storage, size_t *value_out);
/* One that is not there yet. On failure nothing changes. */
shoal_status storage_map_add(struct storage_map *map, const struct storage *storage, size_t value);
/* Empty, with room for as many as it had. */
void storage_map_clear(struct storage_map *map);
void storage_map_free(struct storage_map *map);

#endif
