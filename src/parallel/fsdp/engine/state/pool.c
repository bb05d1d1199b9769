/* SPDX-License-Identifier: MIT */
/* Pools of windows and of buffers: pool.h has the rules. */
#include "parallel/fsdp/engine/state/pool.h"

#include <stdio.h>
#include <string.h>

#include "base/explain_faults.h"
#include "base/mem.h"
#include "base/module.h"
#include "base/try.h"
#include "comm/call/collectives.h"
#include "comm/lane/handles.h"
#include "device/device.h"
#include "parallel/fsdp/engine/state/memory.h"
#include "parallel/fsdp/engine/state/param.h"

void fsdp_pool_init(struct fsdp_pool *pool, enum fsdp_pool_kind kind, shoal_group *group,
                    struct fsdp_memory *memory)
{
    *pool = (struct fsdp_pool){.kind = kind, .group = group, .n_sharing = 1, .memory = memory};
    if (kind == FSDP_WINDOWS && group) {
        pool->n_sharing = (size_t)group_n_local(group);
    }
}

void fsdp_pool_set_device(struct fsdp_pool *pool, shoal_device device)
{
    pool->device = device;
}

static enum fsdp_memory_kind memory_kind(const struct fsdp_pool *pool)
{
    return pool->kind == FSDP_WINDOWS ? FSDP_MEMORY_WINDOWS : FSDP_MEMORY_BUFFERS;
}

static size_t share_of(const struct fsdp_pool *pool, size_t bytes)
{
    return (bytes + pool->n_sharing - 1) / pool->n_sharing;
}

static void free_block(struct fsdp_block *block)
{
    explain_faults_remove(block->fault_number);
    if (block->symmetric) {
        shoal_symmetric_free(block->symmetric);
    } else {
        device_memory_free(block->device, block->data);
    }
    shoal_window_free(block->window);
    mem_free(block);
}

void fsdp_pool_free(struct fsdp_pool *pool)
{
    for (size_t i = 0; i < pool->n_blocks; i++) {
        free_block(pool->blocks[i]);
    }
    mem_free(pool->blocks);
    mem_free(pool->given_up);
    *pool = (struct fsdp_pool){.group = NULL};
}

void fsdp_pool_forget(struct fsdp_pool *pool)
{
    pool->group = NULL;
    for (size_t i = 0; i < pool->n_blocks; i++) {
        struct fsdp_block *block = pool->blocks[i];
        if (block->window || block->symmetric) {
            fsdp_memory_remove(pool->memory, memory_kind(pool), share_of(pool, block->bytes));
            block->data = ADDRESS_NONE;
        }
        explain_faults_remove(block->fault_number);
        block->fault_number = EXPLAIN_FAULTS_NONE;
        block->window = NULL;
        block->symmetric = NULL;
    }
}

/* Choosing ----------------------------------------------------------------------------------------------- */

/* The smallest free block that is large enough. */
static struct fsdp_block *find_large(const struct fsdp_pool *pool, size_t bytes)
{
    struct fsdp_block *best = NULL;
    for (size_t i = 0; i < pool->n_blocks; i++) {
        struct fsdp_block *block = pool->blocks[i];
        bool fits = !block->is_taken && !block->is_owned && block->bytes >= bytes;
        best = fits && (!best || block->bytes < best->bytes) ? block : best;
    }
    return best;
}

/* The largest free block that is too small. */
static struct fsdp_block *find_small(const struct fsdp_pool *pool, size_t bytes)
{
    struct fsdp_block *best = NULL;
    for (size_t i = 0; i < pool->n_blocks; i++) {
        struct fsdp_block *block = pool->blocks[i];
        bool is_small = !block->is_taken && !block->is_owned && block->bytes < bytes;
        best = is_small && (!best || block->bytes > best->bytes) ? block : best;
    }
    return best;
}

struct fsdp_block *fsdp_pool_take(struct fsdp_pool *pool, size_t bytes)
{
    struct fsdp_block *block = find_large(pool, bytes);
    if (!block || block->bytes / 2 > bytes) {
        return NULL;
    }
    block->is_taken = true;
    return block;
}

/* Making ------------------------------------------------------------------------------------------------- */

static void remove_block(struct fsdp_pool *pool, struct fsdp_block *block)
{
    size_t at = 0;
    while (pool->blocks[at] != block) {
        at++;
    }
    pool->n_blocks--;
    memmove(&pool->blocks[at], &pool->blocks[at + 1], (pool->n_blocks - at) * sizeof block);
    pool->bytes -= block->bytes;
    fsdp_memory_remove(pool->memory, memory_kind(pool), share_of(pool, block->bytes));
    free_block(block);
}

static bool was_given_up(const struct fsdp_pool *pool, size_t bytes)
{
    for (size_t i = 0; i < pool->n_given_up; i++) {
        if (pool->given_up[i] == bytes) {
            return true;
        }
    }
    return false;
}

/* The list given_up has room, because add_block has made it. */
static void give_up_block(struct fsdp_pool *pool, struct fsdp_block *block)
{
    if (!was_given_up(pool, block->bytes)) {
        pool->given_up[pool->n_given_up++] = block->bytes;
    }
    remove_block(pool, block);
}

/* Frees blocks before one of `bytes` is made. Unless the pool keeps blocks, frees the largest one that is too
   small; then as many more of these as it takes to stay within the limit. Making the new block waits for all
   ranks, so by then all of them have freed the memory. */
static void make_room(struct fsdp_pool *pool, size_t bytes, size_t limit)
{
    bool replaces = !pool->keeps;
    struct fsdp_block *small = find_small(pool, bytes);
    while (small && (replaces || pool->bytes + bytes > limit)) {
        give_up_block(pool, small);
        replaces = false;
        small = find_small(pool, bytes);
    }
}

static shoal_status allocate(const struct fsdp_pool *pool, struct fsdp_block *block)
{
    if (pool->kind == FSDP_WINDOWS) {
        TRY(shoal_window_create_on(pool->group, block->bytes, pool->device, &block->window));
        if (device_is_host(pool->device)) {
            block->fault_number = explain_faults_add(shoal_window_data(block->window), block->bytes);
        }
        return SHOAL_OK;
    }
    if (pool->group) {
        TRY(symmetric_create_if_possible(pool->group, block->bytes, pool->device, &block->symmetric));
        block->data = address_of(shoal_symmetric_data(block->symmetric));
        return SHOAL_OK;
    }
    return device_memory_allocate(pool->device, block->bytes, &block->data);
}

#define NAME_NUMBERS (MODULE_NAME_CHARACTERS / sizeof(int64_t))

static shoal_status compare_device(const struct fsdp_pool *pool, const struct purpose *purpose)
{
    char words[PURPOSE_WORDS_BYTES];
    int64_t details[2 + NAME_NUMBERS] = {DETAIL_SET, NAME_NUMBERS};
    const char *name = device_name(pool->device);
    struct purpose call = *purpose;
    memcpy(&details[2], name, strlen(name));
    (void)snprintf(words, sizeof words, "%.120s on device %s", purpose->words, name);
    call.words = words;
    call.details = details;
    call.n_details = sizeof details / sizeof details[0];
    return collectives_barrier(pool->group, &call);
}

/* Compares with the other ranks what the block is for, and then on which device it is if that is not the CPU: a rank
   whose block is on the CPU makes another call there. */
static shoal_status compare(const struct fsdp_pool *pool, const struct purpose *purpose)
{
    TRY(collectives_barrier(pool->group, purpose));
    return device_is_host(pool->device) ? SHOAL_OK : compare_device(pool, purpose);
}

/* Makes a block in place of blocks that are too small. */
static shoal_status replace(struct fsdp_pool *pool, struct fsdp_block *block, size_t limit,
                            const struct purpose *purpose)
{
    TRY(pool->group ? compare(pool, purpose) : SHOAL_OK);
    make_room(pool, block->bytes, limit);
    return allocate(pool, block);
}

static shoal_status add_block(struct fsdp_pool *pool, size_t bytes, size_t limit,
                              const struct purpose *purpose)
{
    TRY(mem_grow((void **)&pool->blocks, &pool->capacity, pool->n_blocks + 1, sizeof pool->blocks[0]));
    TRY(mem_grow((void **)&pool->given_up, &pool->given_up_capacity, pool->n_given_up + pool->n_blocks,
                 sizeof pool->given_up[0]));
    struct fsdp_block *block = mem_alloc_zeroed(1, sizeof *block);
    if (!block) {
        return SHOAL_ERR_NO_MEMORY;
    }
    block->bytes = bytes;
    block->device = pool->device;
    block->fault_number = EXPLAIN_FAULTS_NONE;
    shoal_status status = replace(pool, block, limit, purpose);
    if (status != SHOAL_OK) {
        mem_free(block);
        return status;
    }
    pool->blocks[pool->n_blocks++] = block;
    pool->bytes += bytes;
    fsdp_memory_add(pool->memory, memory_kind(pool), share_of(pool, bytes));
    return SHOAL_OK;
}

shoal_status fsdp_pool_make(struct fsdp_pool *pool, size_t bytes, size_t limit, const struct purpose *purpose,
                            struct fsdp_block **block_out)
{
    struct fsdp_block *block = find_large(pool, bytes);
    const struct fsdp_block *small = find_small(pool, bytes);
    pool->keeps = pool->keeps || was_given_up(pool, bytes);
    size_t after = pool->bytes + bytes;
    if (small && (!pool->keeps || after > limit)) {
        after -= small->bytes;
    }
    if (!block || after <= limit) {
        TRY(add_block(pool, bytes, limit, purpose));
        block = pool->blocks[pool->n_blocks - 1];
    }
    block->is_taken = true;
    *block_out = block;
    return SHOAL_OK;
}

/* Owning ------------------------------------------------------------------------------------------------- */

void fsdp_block_own(struct fsdp_block *block)
{
    block->is_owned = true;
}

void fsdp_block_disown(struct fsdp_block *block)
{
    block->is_owned = false;
}

bool fsdp_block_take(struct fsdp_block *block)
{
    bool is_free = !block->is_taken;
    block->is_taken = true;
    return is_free;
}

/* Giving back -------------------------------------------------------------------------------------------- */

void fsdp_pool_give_back(struct fsdp_block *block)
{
    block->is_taken = block->n_landed > 0;
}

shoal_status fsdp_pool_release_window(struct fsdp_block *block)
{
    fsdp_pool_give_back(block);
    return shoal_window_release(block->window);
}

void fsdp_block_keep(struct fsdp_block *block)
{
    block->n_landed++;
}

void fsdp_block_drop(struct fsdp_block *block)
{
    block->n_landed--;
    block->is_taken = block->n_landed > 0;
}
