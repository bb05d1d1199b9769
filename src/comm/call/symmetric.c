/* SPDX-License-Identifier: MIT */
/* Symmetric memory: one segment with a block for every member, known to the world's table of regions. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/callback.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/group/group.h"
#include "comm/group/owned.h"
#include "comm/call/shared.h"
#include "comm/group/world.h"
#include "shoal/window.h"
#include "sharedmem/regions.h"
#include "sharedmem/segment.h"

struct shoal_symmetric {
    struct owned owned; /* first: the world's list */
    struct shoal_world *world;
    uint32_t id;
    int rank;
    int n_ranks;
    size_t bytes;
    size_t stride;           /* between blocks; 0: plain memory, of the caller alone */
    char *base;              /* the first member's block */
    struct segment *segment; /* NULL: base is an allocation */
    bool is_known;           /* the world's regions have it */
    uint32_t number; /* of memory that was opened and still has a name; 0: it was shared, or has none */
};

static void symmetric_destroy(struct owned *owned)
{
    struct shoal_symmetric *symmetric = (struct shoal_symmetric *)owned;
    if (symmetric->is_known) {
        regions_remove(symmetric->world->regions, symmetric->id);
    }
    if (symmetric->segment) {
        segment_unref(symmetric->segment);
    } else {
        mem_free(symmetric->base);
    }
    mem_free(symmetric);
}

/* Plain memory. */
static shoal_status allocate_alone(struct shoal_symmetric *symmetric)
{
    size_t block_bytes;
    if (!shared_round_to_pages(symmetric->bytes, &block_bytes)) {
        return error_set(SHOAL_ERR_NO_MEMORY, "symmetric_create: %zu bytes are more than memory can hold",
                         symmetric->bytes);
    }
    symmetric->base = mem_alloc_aligned(block_bytes, (size_t)sysconf(_SC_PAGESIZE));
    if (!symmetric->base) {
        return SHOAL_ERR_NO_MEMORY;
    }
    memset(symmetric->base, 0, block_bytes);
    return SHOAL_OK;
}

static shoal_status map_blocks(struct shoal_group *group, enum shared_kind kind, uint32_t number,
                               struct shoal_symmetric *symmetric)
{
    size_t stride;
    size_t segment_bytes;
    if (!shared_round_to_pages(symmetric->bytes, &stride) ||
        !mem_multiply(stride, (size_t)symmetric->n_ranks, &segment_bytes)) {
        return error_set(SHOAL_ERR_NO_MEMORY, "%zu bytes for each of %d ranks are more than memory can hold",
                         symmetric->bytes, symmetric->n_ranks);
    }
    TRY(shared_open(group, kind, number, segment_bytes, &symmetric->segment));
    symmetric->base = segment_base(symmetric->segment);
    symmetric->stride = stride;
    segment_touch(symmetric->segment, (size_t)symmetric->rank * stride, symmetric->bytes);
    return SHOAL_OK;
}

static shoal_status add_region(struct shoal_group *group, struct shoal_symmetric *symmetric)
{
    TRY(regions_add(symmetric->world->regions, symmetric->id, symmetric->base, symmetric->stride,
                    symmetric->bytes, group->ranks, symmetric->n_ranks, symmetric->rank));
    symmetric->is_known = true;
    return SHOAL_OK;
}

/* A member on which something fails still takes part in both collectives, because the others wait there. */
static shoal_status create_together(struct shoal_group *group, size_t bytes,
                                    struct shoal_symmetric *symmetric)
{
    uint32_t id = 0;
    TRY(shared_agree(group, SHARED_SYMMETRIC, bytes, &id));
    shoal_status mine = SHOAL_ERR_NO_MEMORY;
    if (symmetric) {
        symmetric->id = id;
        mine = map_blocks(group, SHARED_SYMMETRIC, id, symmetric);
        mine = mine == SHOAL_OK ? add_region(group, symmetric) : mine;
    }
    return shared_confirm(group, SHARED_SYMMETRIC, id, mine);
}

/* Makes plain memory on each member. Either all members get it or none. */
static shoal_status create_apart(struct shoal_group *group, struct shoal_symmetric *symmetric)
{
    shoal_status mine = symmetric ? allocate_alone(symmetric) : SHOAL_ERR_NO_MEMORY;
    return group_has_peers(group) ? shared_confirm(group, SHARED_SYMMETRIC, /*id=*/0, mine) : mine;
}

/* Makes the handle, without its memory. NULL: no memory. */
static struct shoal_symmetric *prepare(struct shoal_group *group, size_t bytes)
{
    struct shoal_symmetric *symmetric = mem_alloc_zeroed(1, sizeof(*symmetric));
    if (symmetric) {
        symmetric->owned.destroy = symmetric_destroy;
        symmetric->world = group->world;
        symmetric->rank = group->peers.rank;
        symmetric->n_ranks = group->peers.n_ranks;
        symmetric->bytes = bytes;
    }
    return symmetric;
}

/* Adds the memory to the world's list if it was made, and frees the handle otherwise. */
static shoal_status keep(struct shoal_symmetric *symmetric, shoal_status status,
                         shoal_symmetric **symmetric_out)
{
    if (status != SHOAL_OK || !symmetric) {
        if (symmetric) {
            symmetric_destroy(&symmetric->owned);
        }
        return status;
    }
    owned_list_add(&symmetric->world->owned, &symmetric->owned);
    *symmetric_out = symmetric;
    return SHOAL_OK;
}

static shoal_status create(struct shoal_group *group, size_t bytes, bool is_plain,
                           shoal_symmetric **symmetric_out)
{
    TRY(callback_check_capture("symmetric_create"));
    struct shoal_symmetric *symmetric = prepare(group, bytes);
    shoal_status status =
        is_plain ? create_apart(group, symmetric) : create_together(group, bytes, symmetric);
    return keep(symmetric, status, symmetric_out);
}

shoal_status shoal_symmetric_create(shoal_group *group, size_t bytes, shoal_symmetric **symmetric_out)
{
    error_clear();
    if (!group || !symmetric_out) {
        return error_set(SHOAL_ERR_INVALID, "symmetric_create: %s is NULL",
                         group ? "symmetric_out" : "group");
    }
    TRY(group_check_open(group));
    return create(group, bytes, /*is_plain=*/!group_has_peers(group), symmetric_out);
}

static bool has_shared_memory(const struct shoal_group *group)
{
    const struct transport_memory *memory = group->peers.transport->memory;
    return group_has_peers(group) && memory && memory->has_symmetric;
}

shoal_status symmetric_create_if_possible(shoal_group *group, size_t bytes, shoal_symmetric **symmetric_out)
{
    TRY(group_check_open(group));
    return create(group, bytes, /*is_plain=*/!has_shared_memory(group), symmetric_out);
}

/* In two steps ------------------------------------------------------------------------------------------- */

uint32_t symmetric_propose(const shoal_group *group)
{
    return regions_propose_id(group->world->regions, group->world->rank);
}

shoal_status symmetric_open_if_possible(shoal_group *group, uint32_t number, size_t bytes,
                                        shoal_symmetric **symmetric_out)
{
    TRY(group_check_open(group));
    struct shoal_symmetric *symmetric = prepare(group, bytes);
    if (!symmetric) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status;
    if (has_shared_memory(group)) {
        status = map_blocks(group, SHARED_OPENED, number, symmetric);
        symmetric->number = number;
    } else {
        status = allocate_alone(symmetric);
    }
    return keep(symmetric, status, symmetric_out);
}

shoal_status symmetric_share(shoal_group *group, uint32_t number, size_t bytes, shoal_symmetric *symmetric,
                             shoal_status mine)
{
    char text[ERROR_TEXT_BYTES];
    uint32_t id = 0;
    bool has_memory = has_shared_memory(group);
    if (!group_has_peers(group)) {
        return mine;
    }
    if (has_memory) {
        (void)snprintf(text, sizeof text, "%s", shoal_error_text());
        TRY(shared_agree(group, SHARED_OPENED, bytes, &id));
        (void)error_set(SHOAL_OK, "%s", text);
    }
    if (has_memory && mine == SHOAL_OK) {
        symmetric->id = id;
        mine = add_region(group, symmetric);
    }
    shoal_status status = shared_confirm(group, SHARED_OPENED, number, mine);
    if (status == SHOAL_OK) {
        symmetric->number = 0; /* the name was dropped */
    }
    return status;
}

void symmetric_discard(shoal_group *group, shoal_symmetric *symmetric)
{
    if (group && symmetric && symmetric->number != 0) {
        shared_forget(group, SHARED_OPENED, symmetric->number);
    }
    shoal_symmetric_free(symmetric);
}

/* The memory --------------------------------------------------------------------------------------------- */

void *shoal_symmetric_data(shoal_symmetric *symmetric)
{
    return symmetric ? symmetric->base + (size_t)symmetric->rank * symmetric->stride : NULL;
}

void *shoal_symmetric_peer(shoal_symmetric *symmetric, int group_rank)
{
    error_clear();
    if (!symmetric) {
        (void)error_set(SHOAL_ERR_INVALID, "symmetric_peer: symmetric is NULL");
        return NULL;
    }
    if (group_rank < 0 || group_rank >= symmetric->n_ranks) {
        (void)error_set(SHOAL_ERR_INVALID, "symmetric_peer: rank %d is outside of the group of %d ranks",
                        group_rank, symmetric->n_ranks);
        return NULL;
    }
    return symmetric->base + (size_t)group_rank * symmetric->stride;
}

size_t shoal_symmetric_bytes(const shoal_symmetric *symmetric)
{
    return symmetric ? symmetric->bytes : 0;
}

void shoal_symmetric_free(shoal_symmetric *symmetric)
{
    if (symmetric) {
        owned_list_remove(&symmetric->world->owned, &symmetric->owned);
        symmetric_destroy(&symmetric->owned);
    }
}
