/* SPDX-License-Identifier: MIT */
/*
 * The library's hash map: from keys of 64 bits to values.
 *
 * A key is an address (map_key), a number, or the hash of something longer, such as a name (base/hash.h). With the
 * first two, map_get finds the value. With hashes the caller keeps what was hashed: several values may have the same
 * key, and map_find asks a function of the caller's which of them is meant.
 *
 * A value is an index, or an address that map_pointer gives back. Maps cannot be iterated, so that no result depends on
 * addresses; whoever needs an order has a list beside the map. A map is used by one thread at a time.
 *
 * Slots are probed one after the other, and at most half of them are used. Keys that want the same slot make a map
 * slow, never wrong.
 */
#ifndef BASE_MAP_H
#define BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"

struct map_slot {
    uint64_t key;
    size_t value; /* the value + 1; 0 if the slot is free */
};

/* All zero is an empty map. */
struct map {
    struct map_slot *slots;
    size_t capacity; /* 0, or a power of two */
    unsigned shift;  /* 64 - log2(capacity) */
    size_t count;    /* of values */
};

/* Whether the value is the one that is looked for. `wanted` is what was hashed. */
typedef bool map_is_same(const void *context, const void *wanted, size_t value);

/* Adds a value, which is not SIZE_MAX. Does not look whether the key has one already. A failure changes nothing. */
shoal_status map_add(struct map *map, uint64_t key, size_t value);
/* map_add in two steps, of which only the first can fail: make room for values, and add a value if there is room. */
shoal_status map_reserve(struct map *map, size_t n_more);
void map_put(struct map *map, uint64_t key, size_t value);
/* Gives the value of a key that has at most one. If it has none, it gets `value`. A failure changes nothing. */
shoal_status map_get_or_add(struct map *map, uint64_t key, size_t value, size_t *value_out);
/* Removes a value of a key. Returns false if the key does not have that value. */
bool map_remove(struct map *map, uint64_t key, size_t value);
/* Empties the map, and keeps its memory: there is room for as many values again. */
void map_clear(struct map *map);
/* Frees the memory of the map, which is empty afterwards. */
void map_free(struct map *map);

static inline uint64_t map_key(const void *address)
{
    return (uint64_t)(uintptr_t)address;
}

static inline void *map_pointer(size_t value)
{
    return (void *)(uintptr_t)value;
}

/* Returns the slot where the search for a key begins. With one product, addresses at some regular distances would want
   few slots. With two, those at any distance are spread as random numbers are. */
static inline size_t map_first_slot(const struct map *map, uint64_t key)
{
    key *= UINT64_C(0x9e3779b97f4a7c15);
    key = (key ^ key >> 32) * UINT64_C(0x9e3779b97f4a7c15);
    return (size_t)(key >> map->shift);
}

/* Finds the value of a key that has at most one. Returns false if it has none, and *value_out is unchanged. */
static inline bool map_get(const struct map *map, uint64_t key, size_t *value_out)
{
    if (map->count == 0) {
        return false;
    }
    size_t at = map_first_slot(map, key);
    while (map->slots[at].value > 0 && map->slots[at].key != key) {
        at = (at + 1) & (map->capacity - 1);
    }
    if (map->slots[at].value == 0) {
        return false;
    }
    *value_out = map->slots[at].value - 1;
    return true;
}

/* Finds the value of a hash for which is_same is true. Returns false if there is none, and *value_out is unchanged. */
static inline bool map_find(const struct map *map, uint64_t hash, map_is_same *is_same, const void *context,
                            const void *wanted, size_t *value_out)
{
    if (map->count == 0) {
        return false;
    }
    for (size_t at = map_first_slot(map, hash); map->slots[at].value > 0;
         at = (at + 1) & (map->capacity - 1)) {
        size_t value = map->slots[at].value - 1;
        if (map->slots[at].key == hash && is_same(context, wanted, value)) {
            *value_out = value;
            return true;
        }
    }
    return false;
}

#endif
