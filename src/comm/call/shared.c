/* SPDX-License-Identifier: MIT */
/*
 * Making shared memory together: two small all_gathers on the group's lane, and between them each member maps the
 * segment, which the server of the first member on this host makes for whoever asks first.
 *
 * Its name is needed only until all have mapped it: the first member drops it after the second all_gather, and the
 * memory then lives as long as somebody has it mapped.
 */
#include "comm/call/shared.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fail_point.h"
#include "base/mem.h"
#include "base/module.h"
#include "base/try.h"
#include "comm/group/group.h"
#include "comm/lane/lane.h"
#include "comm/group/world.h"
#include "device/device.h"
#include "shoal/work.h"
#include "sharedmem/regions.h"
#include "sharedmem/segment.h"

/* What each member sends before memory is made. */
struct request {
    uint64_t kind;
    uint64_t bytes;
    uint64_t second;
    uint64_t id; /* that of the first member is used */
    char device[MODULE_NAME_CHARACTERS + 1];
};

#define REASON_BYTES 156

/* What each member sends afterwards. */
struct outcome {
    int32_t status;
    char reason[REASON_BYTES];
};

/* The name of the call in error texts, of its segments at the server (NULL if it makes none), and of the second
   number. */
static const struct kind_row {
    const char *call;
    const char *segment;
    const char *second;
} kind_rows[] = {[SHARED_SYMMETRIC] = {"symmetric_create", "symmetric", ""},
                 [SHARED_WINDOW] = {"window_create", "window", ""},
                 [SHARED_OPENED] = {"symmetric_share", "opened", ""},
                 [SHARED_GROWING] = {"symmetric_reserve", "growing", "reserve_bytes"},
                 [SHARED_GROWTH] = {"symmetric_grow", NULL, "the number of the symmetric memory"}};

const char *shared_call_name(uint64_t kind)
{
    return kind >= SHARED_SYMMETRIC && kind <= SHARED_GROWTH ? kind_rows[kind].call : "?";
}

/* Checks that the transport has such memory. The answer is the same on all members, because they have the same
   transport. */
static shoal_status check_memory(const struct shoal_group *group, const struct shared_request *request)
{
    const struct transport_memory *memory = group->peers.transport->memory;
    const char *what = request->kind == SHARED_WINDOW ? "windows" : "symmetric memory";
    bool has_memory =
        memory && (request->kind == SHARED_WINDOW ? memory->has_windows : memory->has_symmetric);
    if (has_memory && (device_is_host(request->device) || memory->is_on_devices)) {
        return SHOAL_OK;
    }
    const char *of_device = device_is_host(request->device) ? "" : " on device ";
    return error_set(SHOAL_ERR_UNSUPPORTED, "%s: group %s is carried by transport %s, which has no %s%s%s",
                     shared_call_name(request->kind), group->name, group->peers.transport->name, what,
                     of_device, device_is_host(request->device) ? "" : device_name(request->device));
}

bool shared_round_to_pages(size_t bytes, size_t *rounded_out)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (bytes > SIZE_MAX / 4) {
        return false;
    }
    *rounded_out = bytes == 0 ? page : (bytes + page - 1) / page * page;
    return true;
}

/* Room for what all members send. A member that fails before the collective would leave the others waiting, so for
   up to a few dozen ranks no allocation is needed. */
struct room {
    void *allocated;
    void *all;
    _Alignas(16) char small[8192];
};

static void room_free(struct room *room)
{
    mem_free(room->allocated);
}

/* They meet no other call, and not each other; members that make different memory meet. */
enum step {
    STEP_AGREE = 1,
    STEP_CONFIRM = 2,
    STEP_TELL = 3
};

/* Gathers the bytes of all members, in rank order, into the room, which the caller frees. */
static shoal_status all_gather(struct shoal_group *group, enum shared_kind kind, enum step step,
                               const void *mine, size_t bytes, struct room *room)
{
    const struct purpose purpose = {.id = PURPOSE_SHARED_MEMORY,
                                    .argument = (uint32_t)step,
                                    .words = shared_call_name(kind),
                                    .has_lasting_words = true};
    size_t n_ranks = (size_t)group->peers.n_ranks;
    room->allocated = NULL;
    room->all = room->small;
    if (bytes * n_ranks > sizeof room->small) {
        room->allocated = mem_alloc(bytes * n_ranks);
        if (!room->allocated) {
            return SHOAL_ERR_NO_MEMORY;
        }
        room->all = room->allocated;
    }
    struct collective collective = {.kind = COLLECTIVE_ALL_GATHER,
                                    .dtype = SHOAL_U8,
                                    .n_pieces = 1,
                                    .single = {.send = mine, .recv = room->all, .count = bytes},
                                    .purpose = &purpose};
    collective.pieces = &collective.single;
    return lane_run(group->lane, &collective);
}

/* Agreeing --------------------------------------------------------------------------------------------- */

static shoal_status compare_requests(const struct shoal_group *group, const struct request *all)
{
    for (int i = 1; i < group->peers.n_ranks; i++) {
        int first = group->ranks[0];
        int other = group->ranks[i];
        if (all[i].kind != all[0].kind) {
            return error_set(SHOAL_ERR_INVALID, "rank %d called %s, rank %d called %s, on group %s", first,
                             shared_call_name(all[0].kind), other, shared_call_name(all[i].kind),
                             group->name);
        }
        if (all[i].bytes != all[0].bytes) {
            return error_set(SHOAL_ERR_INVALID,
                             "%s: rank %d asked for %" PRIu64 " bytes, rank %d for %" PRIu64 ", on group %s",
                             shared_call_name(all[0].kind), first, all[0].bytes, other, all[i].bytes,
                             group->name);
        }
        if (all[i].second != all[0].second) {
            return error_set(SHOAL_ERR_INVALID,
                             "%s: %s is %" PRIu64 " on rank %d, and %" PRIu64 " on rank %d, on group %s",
                             shared_call_name(all[0].kind), kind_rows[all[0].kind].second, all[0].second,
                             first, all[i].second, other, group->name);
        }
        if (strncmp(all[i].device, all[0].device, sizeof all[0].device) != 0) {
            return error_set(
                SHOAL_ERR_INVALID,
                "%s: rank %d asked for memory of device %.*s, rank %d for that of %.*s, on group %s",
                shared_call_name(all[0].kind), first, MODULE_NAME_CHARACTERS, all[0].device, other,
                MODULE_NAME_CHARACTERS, all[i].device, group->name);
        }
    }
    return SHOAL_OK;
}

shoal_status shared_agree(struct shoal_group *group, const struct shared_request *request, uint32_t *id_out)
{
    TRY(check_memory(group, request));
    struct request mine = {.kind = request->kind, .bytes = request->bytes, .second = request->second};
    (void)snprintf(mine.device, sizeof mine.device, "%s", device_name(request->device));
    if (group->peers.rank == 0) {
        mine.id = regions_propose_id(group->world->regions, group->world->rank);
    }
    FAIL_POINT("shared agree");
    struct room room;
    shoal_status status = all_gather(group, request->kind, STEP_AGREE, &mine, sizeof mine, &room);
    if (status == SHOAL_OK) {
        const struct request *requests = room.all;
        *id_out = (uint32_t)requests[0].id;
        status = compare_requests(group, requests);
    }
    room_free(&room);
    return status;
}

/* Mapping ---------------------------------------------------------------------------------------------- */

struct segment_name {
    char text[32];
};

static struct segment_name name_segment(enum shared_kind kind, uint32_t id)
{
    struct segment_name name;
    (void)snprintf(name.text, sizeof name.text, "%s/%08" PRIx32, kind_rows[kind].segment, id);
    return name;
}

shoal_status shared_open(struct shoal_group *group, enum shared_kind kind, uint32_t id, size_t bytes,
                         struct segment **segment_out)
{
    FAIL_POINT("shared open");
    struct segment_name name = name_segment(kind, id);
    if (kind == SHARED_GROWING) {
        return group_open_segment(group, name.text, bytes, /*is_sparse=*/true, group_deadline(group),
                                  segment_out);
    }
    return group->peers.transport->memory->open(&group->peers, name.text, bytes, group_deadline(group),
                                                segment_out);
}

/* Confirming ------------------------------------------------------------------------------------------- */

static shoal_status first_failure(const struct shoal_group *group, enum shared_kind kind,
                                  const struct outcome *all)
{
    for (int i = 0; i < group->peers.n_ranks; i++) {
        if (all[i].status != SHOAL_OK) {
            return error_set((shoal_status)all[i].status, "%s: rank %d: %.*s", shared_call_name(kind),
                             group->ranks[i], REASON_BYTES, all[i].reason);
        }
    }
    return SHOAL_OK;
}

void shared_forget(struct shoal_group *group, enum shared_kind kind, uint32_t id)
{
    char text[ERROR_TEXT_BYTES];
    if (!group->peers.transport->memory || !kind_rows[kind].segment) {
        return; /* memory without a segment has no name */
    }
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    struct segment_name name = name_segment(kind, id);
    /* A failure is ignored: a server that is gone has no names either. */
    (void)group->peers.transport->memory->drop(&group->peers, name.text, group_deadline(group));
    (void)error_set(SHOAL_OK, "%s", text);
}

/* The first failure of all members. */
static shoal_status tell(struct shoal_group *group, enum shared_kind kind, enum step step, shoal_status mine)
{
    struct outcome outcome = {.status = (int32_t)mine};
    if (mine != SHOAL_OK) {
        const char *text = shoal_error_text();
        (void)snprintf(outcome.reason, sizeof outcome.reason, "%s",
                       *text ? text : shoal_status_message(mine));
    }
    FAIL_POINT("shared confirm");
    struct room room;
    shoal_status status = all_gather(group, kind, step, &outcome, sizeof outcome, &room);
    if (status == SHOAL_OK) {
        status = first_failure(group, kind, room.all);
    }
    room_free(&room);
    return status;
}

static void forget_at_holder(struct shoal_group *group, enum shared_kind kind, uint32_t id)
{
    if (group->peers.holder == group->world->rank) {
        shared_forget(group, kind, id);
    }
}

shoal_status shared_confirm(struct shoal_group *group, enum shared_kind kind, uint32_t id, shoal_status mine)
{
    shoal_status status = tell(group, kind, STEP_CONFIRM, mine);
    forget_at_holder(group, kind, id);
    return status;
}

shoal_status shared_tell(struct shoal_group *group, enum shared_kind kind, uint32_t id, shoal_status mine)
{
    shoal_status status = tell(group, kind, STEP_TELL, mine);
    if (status != SHOAL_OK) {
        forget_at_holder(group, kind, id);
    }
    return status;
}
