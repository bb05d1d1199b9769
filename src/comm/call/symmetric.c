/* SPDX-License-Identifier: MIT */
/*
 * Symmetric memory: one segment with a block for every member, known to the world's table of regions. On a device it is
 * memory of the device that all members have mapped (shared_device.h).
 */
#include <inttypes.h>
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
#include "comm/call/shared_device.h"
#include "comm/lane/handles.h"
#include "comm/lane/lane.h"
#include "comm/group/world.h"
#include "device/device.h"
#include "shoal/window.h"
#include "sharedmem/regions.h"
#include "sharedmem/segment.h"

struct shoal_symmetric {
    struct owned owned; /* first: the world's list */
    struct shoal_world *world;
    uint32_t id;
    shoal_device device;
    int rank;
    int n_ranks;
    size_t bytes;
    size_t reserve_bytes;            /* up to which a block can grow, at its address */
    size_t stride;                   /* between blocks; 0 for plain memory, of the caller alone */
    char *base;                      /* the first member's block; on a device an address of it */
    struct segment *segment;         /* NULL if base is an allocation, or on a device */
    struct shared_memory *on_device; /* NULL on the CPU */
    bool is_known;                   /* the world's regions have it */
    uint32_t number; /* of memory that was opened and still has a name; 0 if it was shared, or has none */
};

static void symmetric_destroy(struct owned *owned)
{
    struct shoal_symmetric *symmetric = (struct shoal_symmetric *)owned;
    if (symmetric->is_known) {
        regions_remove(symmetric->world->regions, symmetric->id);
    }
    if (symmetric->on_device) {
        shared_device_free(symmetric->on_device);
    } else if (symmetric->segment) {
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
    if (!device_is_host(symmetric->device)) {
        TRY(shared_device_allocate(symmetric->device, block_bytes, &symmetric->on_device));
        symmetric->base = shared_device_data(symmetric->on_device);
        return SHOAL_OK;
    }
    symmetric->base = mem_alloc_aligned(block_bytes, (size_t)sysconf(_SC_PAGESIZE));
    if (!symmetric->base) {
        return SHOAL_ERR_NO_MEMORY;
    }
    memset(symmetric->base, 0, block_bytes);
    return SHOAL_OK;
}

/* Makes the pages of this rank's block from `from` on present in this process. */
static void touch_own(const struct shoal_symmetric *symmetric, size_t from)
{
    segment_touch(symmetric->segment, (size_t)symmetric->rank * symmetric->stride + from,
                  symmetric->bytes - from);
}

/* Sets the stride. */
static shoal_status lay_out(struct shoal_symmetric *symmetric, size_t *total_out)
{
    return shared_round_to_pages(symmetric->reserve_bytes, &symmetric->stride) &&
                   mem_multiply(symmetric->stride, (size_t)symmetric->n_ranks, total_out)
               ? SHOAL_OK
               : error_set(SHOAL_ERR_NO_MEMORY,
                           "%zu bytes for each of %d ranks are more than memory can hold",
                           symmetric->reserve_bytes, symmetric->n_ranks);
}

static shoal_status open_blocks(struct shoal_group *group, enum shared_kind kind, uint32_t number,
                                struct shoal_symmetric *symmetric)
{
    size_t total;
    TRY(lay_out(symmetric, &total));
    TRY(shared_open(group, kind, number, total, &symmetric->segment));
    symmetric->base = segment_base(symmetric->segment);
    return SHOAL_OK;
}

static shoal_status map_blocks(struct shoal_group *group, enum shared_kind kind, uint32_t number,
                               struct shoal_symmetric *symmetric)
{
    TRY(open_blocks(group, kind, number, symmetric));
    touch_own(symmetric, 0);
    return SHOAL_OK;
}

/* The region has room for all growth: the addresses are there from the beginning, and the program uses only what it has. */
static shoal_status add_region(struct shoal_group *group, struct shoal_symmetric *symmetric)
{
    TRY(regions_add(symmetric->world->regions, symmetric->id, symmetric->base, symmetric->stride,
                    symmetric->reserve_bytes, group->ranks, symmetric->n_ranks, symmetric->rank));
    symmetric->is_known = true;
    return SHOAL_OK;
}

/* Host memory in which the first member says how to map the device's. It is needed until all have. */
struct control {
    struct segment *segment;
    size_t total; /* bytes of all blocks */
};

static shoal_status open_control(struct shoal_group *group, struct shoal_symmetric *symmetric,
                                 struct control *control)
{
    TRY(lay_out(symmetric, &control->total));
    return shared_open(group, SHARED_SYMMETRIC, symmetric->id, DEVICE_SHARE_BYTES, &control->segment);
}

/* Collective. `symmetric` is NULL if there is no memory for it. A failure is that of all members; what fails here goes
   to *mine. */
static shoal_status map_on_device(struct shoal_group *group, const struct shared_request *request,
                                  uint32_t id, struct shoal_symmetric *symmetric, shoal_status *mine)
{
    struct control control = {.segment = NULL};
    struct shared_memory *memory = NULL;
    *mine = symmetric ? open_control(group, symmetric, &control) : SHOAL_ERR_NO_MEMORY;
    char *descriptor = control.segment ? segment_base(control.segment) : NULL;
    shoal_status status = shared_device_open(group, request->kind, id, request->device, control.total,
                                             descriptor, mine, &memory);
    segment_unref(control.segment);
    if (symmetric) {
        symmetric->on_device = memory;
        symmetric->base = memory ? shared_device_data(memory) : NULL;
    }
    return status;
}

/* A member on which something fails still takes part in all collectives, because the others wait there. */
static shoal_status create_together(struct shoal_group *group, const struct shared_request *request,
                                    struct shoal_symmetric *symmetric)
{
    uint32_t id = 0;
    shoal_status mine = SHOAL_ERR_NO_MEMORY;
    TRY(shared_agree(group, request, &id));
    if (symmetric) {
        symmetric->id = id;
    }
    if (!device_is_host(request->device)) {
        TRY(map_on_device(group, request, id, symmetric, &mine));
    } else if (symmetric) {
        mine = map_blocks(group, SHARED_SYMMETRIC, id, symmetric);
    }
    mine = mine == SHOAL_OK ? add_region(group, symmetric) : mine;
    return shared_confirm(group, SHARED_SYMMETRIC, id, mine);
}

/* Makes plain memory on each member. Either all members get it or none. */
static shoal_status create_apart(struct shoal_group *group, struct shoal_symmetric *symmetric)
{
    shoal_status mine = symmetric ? allocate_alone(symmetric) : SHOAL_ERR_NO_MEMORY;
    return group_has_peers(group) ? shared_confirm(group, SHARED_SYMMETRIC, /*id=*/0, mine) : mine;
}

/* Makes the handle, without its memory. Returns NULL if memory runs out. */
static struct shoal_symmetric *prepare(struct shoal_group *group, size_t bytes, size_t reserve_bytes)
{
    struct shoal_symmetric *symmetric = mem_alloc_zeroed(1, sizeof(*symmetric));
    if (symmetric) {
        symmetric->owned.destroy = symmetric_destroy;
        symmetric->world = group->world;
        symmetric->rank = group->peers.rank;
        symmetric->n_ranks = group->peers.n_ranks;
        symmetric->bytes = bytes;
        symmetric->reserve_bytes = reserve_bytes;
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

static shoal_status create(struct shoal_group *group, size_t bytes, shoal_device device, bool is_plain,
                           shoal_symmetric **symmetric_out)
{
    TRY(callback_check_capture("symmetric_create"));
    const struct shared_request request = {.kind = SHARED_SYMMETRIC, .bytes = bytes, .device = device};
    struct shoal_symmetric *symmetric = prepare(group, bytes, bytes);
    if (symmetric) {
        symmetric->device = device;
    }
    shoal_status status =
        is_plain ? create_apart(group, symmetric) : create_together(group, &request, symmetric);
    return keep(symmetric, status, symmetric_out);
}

shoal_status shoal_symmetric_create_on(shoal_group *group, size_t bytes, shoal_device device,
                                       shoal_symmetric **symmetric_out)
{
    error_clear();
    if (!group || !symmetric_out) {
        return error_set(SHOAL_ERR_INVALID, "symmetric_create: %s is NULL",
                         group ? "symmetric_out" : "group");
    }
    TRY(group_check_open(group));
    TRY(shared_device_check(group, device, SHARED_SYMMETRIC));
    return create(group, bytes, device, /*is_plain=*/!group_has_peers(group), symmetric_out);
}

shoal_status shoal_symmetric_create(shoal_group *group, size_t bytes, shoal_symmetric **symmetric_out)
{
    return shoal_symmetric_create_on(group, bytes, SHOAL_CPU, symmetric_out);
}

static bool has_shared_memory(const struct shoal_group *group, shoal_device device)
{
    const struct transport_memory *memory = group->peers.transport->memory;
    return group_has_peers(group) && memory && memory->has_symmetric &&
           (device_is_host(device) || (memory->is_on_devices && device_row(device)->share_create));
}

shoal_status symmetric_create_if_possible(shoal_group *group, size_t bytes, shoal_device device,
                                          shoal_symmetric **symmetric_out)
{
    TRY(group_check_open(group));
    return create(group, bytes, device, /*is_plain=*/!has_shared_memory(group, device), symmetric_out);
}

/* Memory that grows -------------------------------------------------------------------------------------- */

/* What all blocks have between two sizes. */
static struct segment_parts parts_between(const struct shoal_symmetric *symmetric, size_t from, size_t to)
{
    return (struct segment_parts){.stride = symmetric->stride,
                                  .n_blocks = symmetric->stride > 0 ? (size_t)symmetric->n_ranks : 1,
                                  .from = from,
                                  .to = to};
}

/* The first member gives memory to all blocks, so that what is free is compared with all that is needed. */
static shoal_status reserve_all(const struct shoal_group *group, const struct shoal_symmetric *symmetric,
                                size_t from, size_t to)
{
    struct segment_parts parts = parts_between(symmetric, from, to);
    return group->peers.rank == 0 || symmetric->stride == 0
               ? segment_reserve(symmetric->segment, "symmetric", &parts)
               : SHOAL_OK;
}

static shoal_status check_reserve(size_t bytes, size_t reserve_bytes)
{
    return bytes <= reserve_bytes
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID, "symmetric_reserve: %zu bytes are more than reserve_bytes, %zu",
                           bytes, reserve_bytes);
}

/* Of a group without peers: the memory is this rank's alone. */
static shoal_status reserve_apart(struct shoal_group *group, struct shoal_symmetric *symmetric)
{
    size_t bytes;
    if (!shared_round_to_pages(symmetric->reserve_bytes, &bytes)) {
        return error_set(SHOAL_ERR_NO_MEMORY, "symmetric_reserve: %zu bytes are more than memory can hold",
                         symmetric->reserve_bytes);
    }
    TRY(group_open_segment(group, "growing", bytes, /*is_sparse=*/true, group_deadline(group),
                           &symmetric->segment));
    symmetric->base = segment_base(symmetric->segment);
    return reserve_all(group, symmetric, 0, symmetric->bytes);
}

/* A member on which something fails still takes part in both collectives, because the others wait there. */
static shoal_status reserve_together(struct shoal_group *group, size_t bytes, size_t reserve_bytes,
                                     struct shoal_symmetric *symmetric)
{
    uint32_t id = 0;
    const struct shared_request request = {.kind = SHARED_GROWING, .bytes = bytes, .second = reserve_bytes};
    TRY(shared_agree(group, &request, &id));
    TRY(check_reserve(bytes, reserve_bytes)); /* alike on all members */
    shoal_status mine = SHOAL_ERR_NO_MEMORY;
    if (symmetric) {
        symmetric->id = id;
        mine = open_blocks(group, SHARED_GROWING, id, symmetric);
        mine = mine == SHOAL_OK ? reserve_all(group, symmetric, 0, bytes) : mine;
        mine = mine == SHOAL_OK ? add_region(group, symmetric) : mine;
    }
    TRY(shared_confirm(group, SHARED_GROWING, id, mine));
    touch_own(symmetric, 0);
    return SHOAL_OK;
}

shoal_status shoal_symmetric_reserve(shoal_group *group, size_t bytes, size_t reserve_bytes,
                                     shoal_symmetric **symmetric_out)
{
    error_clear();
    if (!group || !symmetric_out) {
        return error_set(SHOAL_ERR_INVALID, "symmetric_reserve: %s is NULL",
                         group ? "symmetric_out" : "group");
    }
    TRY(group_check_open(group));
    TRY(callback_check_capture("symmetric_reserve"));
    struct shoal_symmetric *symmetric = prepare(group, bytes, reserve_bytes);
    shoal_status status;
    if (group_has_peers(group)) {
        status = reserve_together(group, bytes, reserve_bytes, symmetric);
    } else {
        status = check_reserve(bytes, reserve_bytes);
        status = status == SHOAL_OK && !symmetric ? SHOAL_ERR_NO_MEMORY : status;
        status = status == SHOAL_OK ? reserve_apart(group, symmetric) : status;
    }
    return keep(symmetric, status, symmetric_out);
}

/* Whether the group has exactly the members that have blocks. */
static shoal_status check_members(struct shoal_group *group, const struct shoal_symmetric *symmetric)
{
    bool is_same = group->world == symmetric->world && group->peers.n_ranks == symmetric->n_ranks &&
                   group_has_peers(group) == symmetric->is_known;
    if (is_same && symmetric->is_known) {
        is_same = regions_cover(symmetric->world->regions, symmetric->id, group->ranks, symmetric->n_ranks);
    }
    return is_same
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID,
                           "symmetric_grow: group %s does not have the ranks that have blocks", group->name);
}

static shoal_status check_growth(const struct shoal_group *group, const struct shoal_symmetric *symmetric,
                                 size_t bytes, uint64_t n_unfinished)
{
    if (bytes < symmetric->bytes) {
        return error_set(SHOAL_ERR_INVALID, "%zu bytes are less than the %zu that a block has", bytes,
                         symmetric->bytes);
    }
    if (bytes > symmetric->reserve_bytes) {
        return error_set(SHOAL_ERR_INVALID, "%zu bytes are more than the %zu that were reserved", bytes,
                         symmetric->reserve_bytes);
    }
    if (n_unfinished > 0) {
        return error_set(SHOAL_ERR_STATE, "%" PRIu64 " collectives of group %s have not ended", n_unfinished,
                         group->name);
    }
    return SHOAL_OK;
}

/* Checks, and gives memory to the blocks where this is the member that does so. */
static shoal_status grow_alone(const struct shoal_group *group, const struct shoal_symmetric *symmetric,
                               size_t bytes, uint64_t n_unfinished)
{
    TRY(check_growth(group, symmetric, bytes, n_unfinished));
    return bytes > symmetric->bytes ? reserve_all(group, symmetric, symmetric->bytes, bytes) : SHOAL_OK;
}

static shoal_status grow_together(struct shoal_group *group, struct shoal_symmetric *symmetric, size_t bytes,
                                  uint64_t n_unfinished)
{
    uint32_t id;
    const struct shared_request request = {.kind = SHARED_GROWTH, .bytes = bytes, .second = symmetric->id};
    TRY(shared_agree(group, &request, &id));
    shoal_status mine = grow_alone(group, symmetric, bytes, n_unfinished);
    shoal_status status = shared_confirm(group, SHARED_GROWTH, id, mine);
    if (status != SHOAL_OK && mine == SHOAL_OK && group->peers.rank == 0 && bytes > symmetric->bytes &&
        lane_failure(group->lane) == SHOAL_OK) {
        /* All members know that it has failed. In a group that has failed, some might not. */
        struct segment_parts parts = parts_between(symmetric, symmetric->bytes, bytes);
        segment_release(symmetric->segment, &parts);
    }
    return status;
}

shoal_status shoal_symmetric_grow(shoal_group *group, shoal_symmetric *symmetric, size_t bytes)
{
    error_clear();
    if (!group || !symmetric) {
        return error_set(SHOAL_ERR_INVALID, "symmetric_grow: %s is NULL", group ? "symmetric" : "group");
    }
    TRY(group_check_open(group));
    TRY(callback_check_capture("symmetric_grow"));
    TRY(check_members(group, symmetric));
    uint64_t n_unfinished = lane_n_unfinished(group->lane);
    if (group_has_peers(group)) {
        TRY(grow_together(group, symmetric, bytes, n_unfinished));
    } else {
        shoal_status status = grow_alone(group, symmetric, bytes, n_unfinished);
        TRY(status == SHOAL_OK ? status : error_prefix(status, "symmetric_grow"));
    }
    size_t from = symmetric->bytes;
    symmetric->bytes = bytes;
    if (bytes > from) {
        touch_own(symmetric, from);
    }
    return SHOAL_OK;
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
    struct shoal_symmetric *symmetric = prepare(group, bytes, bytes);
    if (!symmetric) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status;
    if (has_shared_memory(group, SHOAL_CPU)) {
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
    bool has_memory = has_shared_memory(group, SHOAL_CPU);
    if (!group_has_peers(group)) {
        return mine;
    }
    if (has_memory) {
        (void)snprintf(text, sizeof text, "%s", shoal_error_text());
        TRY(shared_agree(group, &(struct shared_request){.kind = SHARED_OPENED, .bytes = bytes}, &id));
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

shoal_device symmetric_device(const shoal_symmetric *symmetric)
{
    return symmetric->device;
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
