/* SPDX-License-Identifier: MIT */
/* Changes of a map: see map.h. */
#include "base/map.h"

#include <string.h>

#include "base/mem.h"
#include "base/try.h"

#define FIRST_CAPACITY 16
#define MAX_CAPACITY (SIZE_MAX / 2 + 1) /* no memory is so large */

void map_put(struct map *map, uint64_t key, size_t value)
{
    size_t at = map_first_slot(map, key);
    while (map->slots[at].value > 0) {
        at = (at + 1) & (map->capacity - 1);
    }
    map->slots[at] = (struct map_slot){.key = key, .value = value + 1};
    map->count++;
}

shoal_status map_reserve(struct map *map, size_t n_more)
{
    if (n_more <= map->capacity / 2 - map->count) {
        return SHOAL_OK;
    }
    struct map larger = {.capacity = map->capacity > 0 ? map->capacity : FIRST_CAPACITY};
    while (larger.capacity / 2 - map->count < n_more && larger.capacity < MAX_CAPACITY) {
        larger.capacity *= 2;
    }
    larger.shift = 64 - (unsigned)__builtin_ctzll(larger.capacity);
    larger.slots = mem_alloc_zeroed(larger.capacity, sizeof larger.slots[0]);
    if (!larger.slots) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < map->capacity; i++) {
        if (map->slots[i].value > 0) {
            map_put(&larger, map->slots[i].key, map->slots[i].value - 1);
        }
    }
    mem_free(map->slots);
    *map = larger;
    return SHOAL_OK;
}

shoal_status map_add(struct map *map, uint64_t key, size_t value)
{
    TRY(map_reserve(map, 1));
    map_put(map, key, value);
    return SHOAL_OK;
}

shoal_status map_get_or_add(struct map *map, uint64_t key, size_t value, size_t *value_out)
{
    TRY(map_reserve(map, 1));
    size_t at = map_first_slot(map, key);
    while (map->slots[at].value > 0 && map->slots[at].key != key) {
        at = (at + 1) & (map->capacity - 1);
    }
    if (map->slots[at].value == 0) {
        map->slots[at] = (struct map_slot){.key = key, .value = value + 1};
        map->count++;
    }
    *value_out = map->slots[at].value - 1;
    return SHOAL_OK;
}

/* Frees a slot. Later slots, up to the next free one, move back if their searches would end at the gap. */
static void close_gap(const struct map *map, size_t gap)
{
    size_t mask = map->capacity - 1;
    for (size_t at = (gap + 1) & mask; map->slots[at].value > 0; at = (at + 1) & mask) {
        size_t first = map_first_slot(map, map->slots[at].key);
        if (((at - first) & mask) >= ((at - gap) & mask)) {
            map->slots[gap] = map->slots[at];
            gap = at;
        }
    }
    map->slots[gap] = (struct map_slot){.value = 0};
}

bool map_remove(struct map *map, uint64_t key, size_t value)
{
    if (map->count == 0) {
        return false;
    }
    size_t at = map_first_slot(map, key);
    while (map->slots[at].value > 0 && (map->slots[at].key != key || map->slots[at].value != value + 1)) {
        at = (at + 1) & (map->capacity - 1);
    }
    if (map->slots[at].value == 0) {
        return false;
    }
    close_gap(map, at);
    map->count--;
    return true;
}

void map_clear(struct map *map)
{
    if (map->count > 0) {
        memset(map->slots, 0, map->capacity * sizeof map->slots[0]);
        map->count = 0;
    }
}

void map_free(struct map *map)
{
    mem_free(map->slots);
    *map = (struct map){.slots = NULL};
}
