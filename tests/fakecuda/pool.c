/* SPDX-License-Identifier: MIT */
/* Pools: what they have reserved and what of that is used, and their attributes. */
#include "fakecuda/memory.h"

#include <string.h>

#define POOLS_MOST 256

static struct CUmemPoolHandle_st all_pools[POOLS_MOST];
static struct fake_slots pools = FAKE_SLOTS(all_pools);

bool fake_is_pool(const struct CUmemPoolHandle_st *pool)
{
    return fake_slot_is_open(&pools, pool);
}

static void set_up(struct CUmemPoolHandle_st *pool, uint64_t most_bytes)
{
    (void)pthread_mutex_lock(&fake_memory_lock);
    pool->most_bytes = most_bytes;
    pool->follows_events = 1;
    pool->reuses_by_chance = 1;
    pool->adds_dependencies = 1;
    pool->keeps = 0;
    pool->reserved = 0;
    pool->reserved_high = 0;
    pool->used = 0;
    pool->used_high = 0;
    (void)pthread_mutex_unlock(&fake_memory_lock);
}

cuda_result cuMemPoolCreate(struct CUmemPoolHandle_st **pool_out,
                            const struct cuda_pool_properties *properties)
{
    cuda_result result = fake_begin();
    if (result != CUDA_OK) {
        return result;
    }
    if (!pool_out || !properties || properties->allocation != CUDA_ALLOCATION_PINNED ||
        properties->handles != 0 || properties->location != CUDA_LOCATION_DEVICE ||
        !fake_is_device(properties->device)) {
        return CUDA_INVALID_VALUE;
    }
    struct CUmemPoolHandle_st *pool = fake_slot_take(&pools);
    if (!pool) {
        return CUDA_OUT_OF_MEMORY;
    }
    set_up(pool, properties->most_bytes);
    fake_slot_open(pool);
    *pool_out = pool;
    return CUDA_OK;
}

/* What is allocated of it stays so. */
cuda_result cuMemPoolDestroy(struct CUmemPoolHandle_st *pool)
{
    cuda_result result = fake_begin_query();
    if (!fake_may_free(result)) {
        return result;
    }
    if (!fake_slot_close(&pools, pool)) {
        return CUDA_INVALID_VALUE;
    }
    (void)pthread_mutex_lock(&fake_memory_lock);
    fake_memory_let_go(pool);
    (void)pthread_mutex_unlock(&fake_memory_lock);
    fake_slot_give(pool);
    return result;
}

void fake_pools_trim(void)
{
    (void)pthread_mutex_lock(&fake_memory_lock);
    for (size_t i = 0; i < POOLS_MOST; i++) {
        if (fake_is_pool(&all_pools[i])) {
            fake_memory_trim(&all_pools[i], all_pools[i].keeps);
        }
    }
    (void)pthread_mutex_unlock(&fake_memory_lock);
}

cuda_result cuMemPoolTrimTo(struct CUmemPoolHandle_st *pool, size_t least)
{
    cuda_result result = fake_begin();
    if (result != CUDA_OK) {
        return result;
    }
    if (!fake_is_pool(pool)) {
        return CUDA_INVALID_VALUE;
    }
    (void)pthread_mutex_lock(&fake_memory_lock);
    fake_memory_trim(pool, least);
    (void)pthread_mutex_unlock(&fake_memory_lock);
    return CUDA_OK;
}

/* Attributes --------------------------------------------------------------------------------------------- */

/* Where a pool keeps an attribute; NULL if there is none of that number. */
static void *attribute_of(struct CUmemPoolHandle_st *pool, int attribute, size_t *bytes_out)
{
    const struct {
        int attribute;
        size_t bytes;
        void *value;
    } rows[] = {{CUDA_POOL_FOLLOWS_EVENTS, sizeof(int), &pool->follows_events},
                {CUDA_POOL_REUSES_BY_CHANCE, sizeof(int), &pool->reuses_by_chance},
                {CUDA_POOL_ADDS_DEPENDENCIES, sizeof(int), &pool->adds_dependencies},
                {CUDA_POOL_KEEPS, sizeof(uint64_t), &pool->keeps},
                {CUDA_POOL_RESERVED, sizeof(uint64_t), &pool->reserved},
                {CUDA_POOL_RESERVED_HIGH, sizeof(uint64_t), &pool->reserved_high},
                {CUDA_POOL_USED, sizeof(uint64_t), &pool->used},
                {CUDA_POOL_USED_HIGH, sizeof(uint64_t), &pool->used_high}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].attribute == attribute) {
            *bytes_out = rows[i].bytes;
            return rows[i].value;
        }
    }
    return NULL;
}

/* High marks are set to what is so now, and only by a 0. */
static cuda_result set_attribute(struct CUmemPoolHandle_st *pool, int attribute, const void *value)
{
    size_t bytes = 0;
    void *known = attribute_of(pool, attribute, &bytes);
    if (!known || attribute == CUDA_POOL_RESERVED || attribute == CUDA_POOL_USED) {
        return CUDA_INVALID_VALUE;
    }
    if (attribute == CUDA_POOL_RESERVED_HIGH || attribute == CUDA_POOL_USED_HIGH) {
        uint64_t given;
        memcpy(&given, value, sizeof given);
        if (given != 0) {
            return CUDA_INVALID_VALUE;
        }
        value = attribute == CUDA_POOL_USED_HIGH ? &pool->used : &pool->reserved;
    }
    memcpy(known, value, bytes);
    return CUDA_OK;
}

cuda_result cuMemPoolSetAttribute(struct CUmemPoolHandle_st *pool, int attribute, void *value)
{
    cuda_result result = fake_begin();
    if (result != CUDA_OK) {
        return result;
    }
    if (!fake_is_pool(pool) || !value) {
        return CUDA_INVALID_VALUE;
    }
    (void)pthread_mutex_lock(&fake_memory_lock);
    result = set_attribute(pool, attribute, value);
    (void)pthread_mutex_unlock(&fake_memory_lock);
    return result;
}

cuda_result cuMemPoolGetAttribute(struct CUmemPoolHandle_st *pool, int attribute, void *value_out)
{
    cuda_result result = fake_begin_query();
    if (result != CUDA_OK) {
        return result;
    }
    if (!fake_is_pool(pool) || !value_out) {
        return CUDA_INVALID_VALUE;
    }
    size_t bytes = 0;
    (void)pthread_mutex_lock(&fake_memory_lock);
    const void *value = attribute_of(pool, attribute, &bytes);
    if (value) {
        memcpy(value_out, value, bytes);
    }
    (void)pthread_mutex_unlock(&fake_memory_lock);
    return value ? CUDA_OK : CUDA_INVALID_VALUE;
}

cuda_result cuMemGetInfo(size_t *free_out, size_t *total_out)
{
    cuda_result result = fake_begin_query();
    if (result != CUDA_OK) {
        return result;
    }
    if (!free_out || !total_out) {
        return CUDA_INVALID_VALUE;
    }
    (void)pthread_mutex_lock(&fake_memory_lock);
    uint64_t reserved = fake_shared_created();
    for (size_t i = 0; i < POOLS_MOST; i++) {
        reserved += fake_is_pool(&all_pools[i]) ? all_pools[i].reserved : 0;
    }
    (void)pthread_mutex_unlock(&fake_memory_lock);
    *free_out = reserved < FAKE_SPACE_BYTES ? FAKE_SPACE_BYTES - reserved : 0;
    *total_out = FAKE_SPACE_BYTES;
    return CUDA_OK;
}
