/* SPDX-License-Identifier: MIT */
/*
 * Memory of a device that members map together. Its maker writes what the others need into memory of the host that all
 * have mapped, and they read it after an all_gather.
 */
#include "comm/call/shared_device.h"

#include <stdio.h>

#include "base/error.h"
#include "base/fail_point.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/group/group.h"
#include "comm/group/world.h"
#include "device/ending.h"
#include "device/stream.h"
#include "kernel/moves.h"

struct shared_memory {
    struct ending ending;
    shoal_device device;
    char *data;
    bool is_shared; /* otherwise it is an allocation */
};

shoal_status shared_device_check(const struct shoal_group *group, shoal_device device, enum shared_kind kind)
{
    char what[48];
    (void)snprintf(what, sizeof what, "%s: device", shared_call_name(kind));
    TRY(device_check(device, what));
    if (!device_has_data(device)) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "%s: device %s has no data", shared_call_name(kind),
                         device_name(device));
    }
    if (device_is_host(device) || !group_has_peers(group) || device_row(device)->share_create) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_UNSUPPORTED, "%s: ranks cannot share memory of device %s",
                     shared_call_name(kind), device_name(device));
}

/* The others may write it as soon as it is shared. */
static shoal_status clear(shoal_device device, char *data, size_t bytes, int64_t deadline_ns)
{
    const struct wait_options options = {.deadline_ns = deadline_ns, .what = "a device"};
    struct moves moves;
    moves_begin(&moves, device);
    moves_clear(&moves, address_of(data), bytes);
    moves_end(&moves);
    return stream_finish(device, &options);
}

static struct shared_memory *make(shoal_device device, bool is_shared)
{
    struct shared_memory *memory = mem_alloc_zeroed(1, sizeof *memory);
    if (memory) {
        memory->device = device;
        memory->is_shared = is_shared;
    }
    return memory;
}

static void drop(struct ending *ending)
{
    struct shared_memory *memory = (struct shared_memory *)ending;
    device_row(memory->device)->share_drop(memory->data);
    mem_free(memory);
}

void shared_device_free(struct shared_memory *memory)
{
    if (!memory) {
        return;
    }
    if (memory->is_shared && memory->data && !device_is_inherited(memory->device)) {
        ending_add(&memory->ending, memory->device, drop);
        return;
    }
    if (!memory->is_shared) {
        device_memory_free(memory->device, address_of(memory->data));
    }
    mem_free(memory);
}

char *shared_device_data(const struct shared_memory *memory)
{
    return memory->data;
}

/* A device may refuse to share nothing. */
static size_t at_least_one(size_t bytes)
{
    return bytes > 0 ? bytes : 1;
}

/* Calls of device modules set the error text. */
static shoal_status share(const struct shoal_group *group, shoal_device device, size_t bytes,
                          char *descriptor, struct shared_memory *memory)
{
    void *data = NULL;
    FAIL_POINT("shared device create");
    TRY(device_check_process(device));
    TRY(device_row(device)->share_create(bytes, descriptor, &data));
    memory->data = data;
    return clear(device, memory->data, bytes, group_deadline(group));
}

static shoal_status map(shoal_device device, size_t bytes, const char *descriptor,
                        struct shared_memory *memory)
{
    void *data = NULL;
    FAIL_POINT("shared device map");
    TRY(device_check_process(device));
    TRY(device_row(device)->share_map(descriptor, bytes, &data));
    memory->data = data;
    return SHOAL_OK;
}

shoal_status shared_device_open(struct shoal_group *group, enum shared_kind kind, uint32_t id,
                                shoal_device device, size_t bytes, char *descriptor, shoal_status *mine,
                                struct shared_memory **memory_out)
{
    struct shared_memory *memory = NULL;
    bool is_maker = group->peers.holder == group->world->rank;
    bytes = at_least_one(bytes);
    if (*mine == SHOAL_OK) {
        memory = make(device, /*is_shared=*/true);
        *mine = memory ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
    }
    if (memory && is_maker) {
        *mine = share(group, device, bytes, descriptor, memory);
    }
    shoal_status status = shared_tell(group, kind, id, *mine);
    if (status != SHOAL_OK) {
        shared_device_free(memory);
        return status;
    }
    if (memory && !is_maker) {
        *mine = map(device, bytes, descriptor, memory);
    }
    *memory_out = memory;
    return SHOAL_OK;
}

shoal_status shared_device_allocate(shoal_device device, size_t bytes, struct shared_memory **memory_out)
{
    struct address data;
    struct shared_memory *memory = make(device, /*is_shared=*/false);
    bytes = at_least_one(bytes);
    if (!memory) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = device_memory_allocate(device, bytes, &data);
    if (status != SHOAL_OK) {
        mem_free(memory);
        return status;
    }
    struct moves moves;
    moves_begin(&moves, device);
    moves_clear(&moves, data, bytes);
    moves_end(&moves);
    memory->data = address_pointer(data);
    *memory_out = memory;
    return SHOAL_OK;
}
