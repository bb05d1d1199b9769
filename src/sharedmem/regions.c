/* SPDX-License-Identifier: MIT */
/*
 * The table of symmetric memory: read by every large collective, changed when somebody allocates.
 *
 * Readers see an immutable table behind an atomic pointer. A change makes another table, publishes it, and puts
 * the old one, and a region that went with it, on a list of what nobody can find any more. That list is freed by
 * a change that finds no reader inside, at the latest by regions_free.
 *
 * Order: a reader counts itself in, then loads the pointer; a writer stores the pointer, then loads the count.
 * All four are sequentially consistent, so of a reader and a writer at least one sees the other: a writer that
 * loads 0 knows that whoever comes later loads the new table. Counting out releases, the load of 0 acquires, so
 * the last reader's reads come before the memory is freed.
 */
#include "sharedmem/regions.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"

struct region {
    uint32_t id;
    char *base;
    size_t stride;
    size_t bytes;
    uintptr_t own; /* the address of the caller's block */
    /* Only set where memory ran out for a table without it; it is freed with the next one. */
    _Atomic bool was_removed;
    struct region *next_retired;
    int n_ranks;
    int world_ranks[];
};

struct table {
    struct table *next_retired;
    size_t n_regions;
    struct region **by_id; /* behind by_address, in the same block */
    struct region *by_address[];
};

struct regions {
    struct table *_Atomic table; /* NULL if there are none */
    _Atomic uint32_t n_readers;
    pthread_mutex_t lock; /* of writers, and of all below */
    struct table *retired_tables;
    struct region *retired_regions;
    uint16_t n_proposed;
};

struct regions *regions_create(void)
{
    struct regions *regions = mem_alloc_zeroed(1, sizeof(*regions));
    if (!regions) {
        return NULL;
    }
    atomic_init(&regions->table, NULL);
    atomic_init(&regions->n_readers, 0);
    if (pthread_mutex_init(&regions->lock, NULL) != 0) {
        mem_free(regions);
        (void)error_set(SHOAL_ERR_NO_MEMORY, "a lock for symmetric memory could not be created");
        return NULL;
    }
    return regions;
}

static void free_retired(struct regions *regions)
{
    while (regions->retired_tables) {
        struct table *table = regions->retired_tables;
        regions->retired_tables = table->next_retired;
        mem_free(table);
    }
    while (regions->retired_regions) {
        struct region *region = regions->retired_regions;
        regions->retired_regions = region->next_retired;
        mem_free(region);
    }
}

void regions_free(struct regions *regions)
{
    if (!regions) {
        return;
    }
    free_retired(regions);
    /* Relaxed: nobody else is left. */
    struct table *table = atomic_load_explicit(&regions->table, memory_order_relaxed);
    for (size_t i = 0; table && i < table->n_regions; i++) {
        mem_free(table->by_address[i]);
    }
    mem_free(table);
    (void)pthread_mutex_destroy(&regions->lock);
    mem_free(regions);
}

/* Reading ---------------------------------------------------------------------------------------------- */

/* Returns NULL if there are none, and the reader is not counted. */
static const struct table *enter(struct regions *regions)
{
    /* Relaxed: whoever uses a region knows of it from the thread that added it, and so sees the table. */
    if (!atomic_load_explicit(&regions->table, memory_order_relaxed)) {
        return NULL;
    }
    /* Sequentially consistent, both: see the head of the file. The load also acquires what publish released. */
    atomic_fetch_add_explicit(&regions->n_readers, 1, memory_order_seq_cst);
    const struct table *table = atomic_load_explicit(&regions->table, memory_order_seq_cst);
    if (!table) {
        atomic_fetch_sub_explicit(&regions->n_readers, 1, memory_order_release);
    }
    return table;
}

static void leave(struct regions *regions)
{
    /* Release: pairs with the load of 0 in retire. */
    atomic_fetch_sub_explicit(&regions->n_readers, 1, memory_order_release);
}

/* Relaxed: the flag stands for itself; the region's memory stays until no reader is inside. */
static bool is_known(const struct region *region)
{
    return !atomic_load_explicit(&region->was_removed, memory_order_relaxed);
}

/* The number of regions whose own block begins at or below the address. */
static size_t count_at_or_below(const struct table *table, uintptr_t address)
{
    size_t low = 0;
    size_t high = table->n_regions;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (table->by_address[middle]->own <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* The position of the first region whose id is not below. */
static size_t find_id(const struct table *table, uint32_t id)
{
    size_t low = 0;
    size_t high = table->n_regions;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (table->by_id[middle]->id < id) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static bool is_inside(const struct region *region, uint64_t offset, size_t bytes)
{
    return offset <= region->bytes && bytes <= region->bytes - offset;
}

struct region_place regions_find(struct regions *regions, const void *buffer, size_t bytes)
{
    struct region_place place = {0};
    const struct table *table = enter(regions);
    if (!table) {
        return place;
    }
    uintptr_t address = (uintptr_t)buffer;
    size_t n_below = count_at_or_below(table, address);
    if (n_below > 0) {
        const struct region *region = table->by_address[n_below - 1];
        uint64_t offset = address - region->own;
        if (is_inside(region, offset, bytes) && is_known(region)) {
            place = (struct region_place){.id = region->id, .offset = offset};
        }
    }
    leave(regions);
    return place;
}

/* NULL for a rank that has no block. */
static char *block_of(const struct region *region, int world_rank)
{
    for (int i = 0; i < region->n_ranks; i++) {
        if (region->world_ranks[i] == world_rank) {
            return region->base + (size_t)i * region->stride;
        }
    }
    return NULL;
}

static const struct region *region_with_id(const struct table *table, uint32_t id)
{
    size_t position = find_id(table, id);
    if (position == table->n_regions || table->by_id[position]->id != id) {
        return NULL;
    }
    const struct region *region = table->by_id[position];
    return is_known(region) ? region : NULL;
}

static bool covers(const struct region *region, const int *world_ranks, int n_ranks)
{
    /* Mostly the group is the one that the region was made for. */
    if (region->n_ranks == n_ranks &&
        memcmp(region->world_ranks, world_ranks, (size_t)n_ranks * sizeof *world_ranks) == 0) {
        return true;
    }
    for (int i = 0; i < n_ranks; i++) {
        if (!block_of(region, world_ranks[i])) {
            return false;
        }
    }
    return true;
}

bool regions_cover(struct regions *regions, uint32_t id, const int *world_ranks, int n_ranks)
{
    const struct table *table = enter(regions);
    if (!table) {
        return false;
    }
    const struct region *region = region_with_id(table, id);
    bool is_covered = region && covers(region, world_ranks, n_ranks);
    leave(regions);
    return is_covered;
}

void *regions_peer(struct regions *regions, struct region_place place, int world_rank, size_t bytes)
{
    const struct table *table = enter(regions);
    if (!table) {
        return NULL;
    }
    void *address = NULL;
    const struct region *region = region_with_id(table, place.id);
    if (region && is_inside(region, place.offset, bytes)) {
        char *block = block_of(region, world_rank);
        address = block ? block + place.offset : NULL;
    }
    leave(regions);
    return address;
}

/* Changing: all under the lock ------------------------------------------------------------------------- */

static struct table *current_table(struct regions *regions)
{
    /* Relaxed: tables are published under the lock, which the caller holds. */
    return atomic_load_explicit(&regions->table, memory_order_relaxed);
}

static struct table *table_create(size_t n_regions)
{
    size_t bytes;
    if (!mem_multiply(n_regions, 2 * sizeof(struct region *), &bytes) || bytes > SIZE_MAX / 2) {
        (void)error_set(SHOAL_ERR_NO_MEMORY,
                        "there are already %zu regions of symmetric memory, and there cannot be more",
                        n_regions);
        return NULL;
    }
    struct table *table = mem_alloc(sizeof(*table) + bytes);
    if (!table) {
        return NULL;
    }
    *table = (struct table){0};
    table->by_id = table->by_address + n_regions;
    return table;
}

static void table_insert(struct table *table, struct region *region)
{
    size_t at = count_at_or_below(table, region->own);
    size_t id_at = find_id(table, region->id);
    size_t n = table->n_regions;
    memmove(&table->by_address[at + 1], &table->by_address[at], (n - at) * sizeof(region));
    memmove(&table->by_id[id_at + 1], &table->by_id[id_at], (n - id_at) * sizeof(region));
    table->by_address[at] = region;
    table->by_id[id_at] = region;
    table->n_regions = n + 1;
}

static size_t count_known(const struct table *table)
{
    size_t count = 0;
    for (size_t i = 0; table && i < table->n_regions; i++) {
        count += is_known(table->by_address[i]) ? 1 : 0;
    }
    return count;
}

/* Makes `fresh`, which may be NULL, the table, and frees what went before as soon as no reader can be looking at it. */
static void publish(struct regions *regions, struct table *fresh)
{
    struct table *old = current_table(regions);
    /* Sequentially consistent, here and below: see the head of the file. It also releases the fresh table. */
    atomic_store_explicit(&regions->table, fresh, memory_order_seq_cst);
    if (old) {
        for (size_t i = 0; i < old->n_regions; i++) {
            struct region *region = old->by_address[i];
            if (!is_known(region)) {
                region->next_retired = regions->retired_regions;
                regions->retired_regions = region;
            }
        }
        old->next_retired = regions->retired_tables;
        regions->retired_tables = old;
    }
    if (atomic_load_explicit(&regions->n_readers, memory_order_seq_cst) == 0) {
        free_retired(regions);
    }
}

/* Copies those that are still known, in their order; returns how many. */
static size_t copy_known(struct region **to, struct region *const *from, size_t count)
{
    size_t n_known = 0;
    for (size_t i = 0; i < count; i++) {
        if (is_known(from[i])) {
            to[n_known] = from[i];
            n_known++;
        }
    }
    return n_known;
}

/* Another table of the regions there are, with room for `n_more`. */
static struct table *copy_table(struct regions *regions, size_t n_more)
{
    struct table *old = current_table(regions);
    struct table *fresh = table_create(count_known(old) + n_more);
    if (fresh && old) {
        fresh->n_regions = copy_known(fresh->by_address, old->by_address, old->n_regions);
        (void)copy_known(fresh->by_id, old->by_id, old->n_regions);
    }
    return fresh;
}

static struct region *region_create(uint32_t id, char *base, size_t stride, size_t bytes,
                                    const int *world_ranks, int n_ranks, int own)
{
    size_t ranks_bytes = (size_t)n_ranks * sizeof(int);
    struct region *region = mem_alloc(sizeof(*region) + ranks_bytes);
    if (!region) {
        return NULL;
    }
    region->id = id;
    region->base = base;
    region->stride = stride;
    region->bytes = bytes;
    region->own = (uintptr_t)(base + (size_t)own * stride);
    atomic_init(&region->was_removed, false);
    region->next_retired = NULL;
    region->n_ranks = n_ranks;
    memcpy(region->world_ranks, world_ranks, ranks_bytes);
    return region;
}

static shoal_status add_region(struct regions *regions, struct region *region)
{
    const struct table *table = current_table(regions);
    if (table && region_with_id(table, region->id)) {
        return error_set(SHOAL_ERR_STATE,
                         "symmetric memory %u, allocated %u allocations ago, is still in use, and its number "
                         "cannot be given to another one",
                         (unsigned)region->id, (unsigned)UINT16_MAX);
    }
    struct table *fresh = copy_table(regions, 1);
    if (!fresh) {
        return SHOAL_ERR_NO_MEMORY;
    }
    table_insert(fresh, region);
    publish(regions, fresh);
    return SHOAL_OK;
}

shoal_status regions_add(struct regions *regions, uint32_t id, char *base, size_t stride, size_t bytes,
                         const int *world_ranks, int n_ranks, int own)
{
    struct region *region = region_create(id, base, stride, bytes, world_ranks, n_ranks, own);
    if (!region) {
        return SHOAL_ERR_NO_MEMORY;
    }
    (void)pthread_mutex_lock(&regions->lock);
    shoal_status status = add_region(regions, region);
    (void)pthread_mutex_unlock(&regions->lock);
    if (status != SHOAL_OK) {
        mem_free(region);
    }
    return status;
}

static void remove_region(struct regions *regions, struct region *region)
{
    atomic_store_explicit(&region->was_removed, true, memory_order_relaxed);
    if (count_known(current_table(regions)) == 0) {
        publish(regions, NULL);
        return;
    }
    struct table *fresh = copy_table(regions, 0);
    if (fresh) {
        publish(regions, fresh);
    } else {
        /* It is marked, so nobody finds it; the next table is without it. */
        error_clear();
    }
}

void regions_remove(struct regions *regions, uint32_t id)
{
    (void)pthread_mutex_lock(&regions->lock);
    const struct table *table = current_table(regions);
    const struct region *region = table ? region_with_id(table, id) : NULL;
    if (region) {
        remove_region(regions, table->by_id[find_id(table, id)]);
    }
    (void)pthread_mutex_unlock(&regions->lock);
}

uint32_t regions_propose_id(struct regions *regions, int world_rank)
{
    (void)pthread_mutex_lock(&regions->lock);
    const struct table *table = current_table(regions);
    uint32_t id;
    do {
        regions->n_proposed++;
        id = ((uint32_t)world_rank + 1) << 16 | regions->n_proposed;
    } while (table && region_with_id(table, id));
    (void)pthread_mutex_unlock(&regions->lock);
    return id;
}
