/* SPDX-License-Identifier: MIT */
#include "graph/ir/storage_map.h"

#include <stdint.h>
#include <string.h>

#include "base/mem.h"
#include "base/try.h"

#define FIRST_CAPACITY 16

/* Addresses differ in few bits. The multiplication spreads them to the upper half. */
static size_t hash(const struct storage *storage)
{
    return (size_t)(((uint64_t)(uintptr_t)storage * 0x9e3779b97f4a7c15u) >> 32);
}

/* Returns the slot of a storage, or the free slot where it would be. There is always a free slot. */
static struct storage_slot *find_slot(const struct storage_map *map, const struct storage *storage)
{
    size_t mask = map->capacity - 1;
    size_t at = hash(storage) & mask;
    while (map->slots[at].storage && map->slots[at].storage != storage) {
        at = (at + 1) & mask;
    }
    return &map->slots[at];
}

bool storage_map_get(const struct storage_map *map, const struct storage *storage, size_t *value_out)
{
    if (map->count == 0) {
        return false;
    }
    const struct storage_slot *slot = find_slot(map, storage);
    if (!slot->storage) {
        return false;
    }
    *value_out = slot->value;
    return true;
}

static shoal_status grow(struct storage_map *map)
{
    struct storage_map larger = {.capacity = map->capacity ? 2 * map->capacity : FIRST_CAPACITY,
                                 .count = map->count};
    larger.slots = mem_alloc_zeroed(larger.capacity, sizeof *larger.slots);
    if (!larger.slots) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < map->capacity; i++) {
        if (map->slots[i].storage) {
            *find_slot(&larger, map->slots[i].storage) = map->slots[i];
        }
    }
    mem_free(map->slots);
    *map = larger;
    return SHOAL_OK;
}

shoal_status storage_map_add(struct storage_map *map, const struct storage *storage, size_t value)
{
    if (2 * (map->count + 1) > map->capacity) {
        TRY(grow(map));
    }
    *find_slot(map, storage) = (struct storage_slot){.storage = storage, .value = value};
    map->count++;
    return SHOAL_OK;
}

void storage_map_clear(struct storage_map *map)
{
    if (map->count > 0) {
        memset(map->slots, 0, map->capacity * sizeof *map->slots);
        map->count = 0;
    }
}

void storage_map_free(struct storage_map *map)
{
    mem_free(map->slots);
    *map = (struct storage_map){.slots = NULL};
}
