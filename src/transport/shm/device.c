/* SPDX-License-Identifier: MIT */
/* What a group needs for calls on memory of a device: a stream, and staging that the ranks share. */
#include "transport/shm/device.h"

#include <string.h>

#include "base/clock.h"
#include "base/fail_point.h"
#include "base/mem.h"
#include "base/try.h"
#include "base/wait.h"
#include "device/stream.h"

/* How long a group that has failed waits for the work of its stream when it is closed. Then its memory stays. */
#define CLOSE_SECONDS 2.0

static shoal_status open_device(struct shm_channel *channel, shoal_device device)
{
    const struct device_row *row = device_row(device);
    TRY(device_check_process(device));
    struct shm_device *made = mem_alloc_zeroed(1, sizeof *made);
    if (!made) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *made = (struct shm_device){.device = device, .is_idle = true};
    shoal_status status = row->streams ? row->streams->create(&made->stream) : SHOAL_OK;
    if (status != SHOAL_OK) {
        mem_free(made);
        return status;
    }
    channel->device = made;
    return SHOAL_OK;
}

shoal_status shm_enter_device(struct shm_channel *channel, const struct collective *collective)
{
    if (!channel->device) {
        TRY(open_device(channel, collective->device));
    }
    struct shm_device *device = channel->device;
    if (device->device != collective->device) {
        return error_set(SHOAL_ERR_UNSUPPORTED,
                         "%s: buffers on device %s, but earlier calls on the group had buffers on %s",
                         collective_rows[collective->kind].name, device_name(collective->device),
                         device_name(device->device));
    }
    device->is_idle = false;
    stream_enter(device->device, device->stream);
    return SHOAL_OK;
}

void shm_leave_device(struct shm_channel *channel, bool is_done)
{
    shoal_device device = channel->device->device;
    void *event = NULL;
    channel->device->is_idle = is_done;
    /* Work of a call that has failed may still use the caller's memory, which is freed behind the compute stream. */
    bool must_follow = !is_done && stream_mark(device, &event) == SHOAL_OK;
    stream_leave();
    if (must_follow) {
        (void)stream_follow(device, event);
        stream_drop(device, event);
    }
}

static shoal_status look_around(void *context)
{
    return shm_failure(context);
}

shoal_status shm_finish_work(struct shm_channel *channel, const struct collective *collective)
{
    const struct wait_options options = {.deadline_ns = collective->deadline_ns,
                                         .may_spin = channel->base.peers->may_spin,
                                         .liveness = look_around,
                                         .liveness_context = channel,
                                         .what = "a device"};
    shoal_status status = stream_finish(collective->device, &options);
    return status == SHOAL_ERR_TIMEOUT
               ? error_prefix(status, "%s: the work of device %s", collective_rows[collective->kind].name,
                              device_name(collective->device))
               : status;
}

/* Staging ---------------------------------------------------------------------------------------------- */

static const size_t staging_bytes = 4 * SHM_DEVICE_HALF_BYTES;

/* Values of the flag `shared`. */
enum {
    IS_THERE = 1,  /* the own memory: it can be mapped */
    HAS_MAPPED = 2 /* this rank has mapped that of all others */
};

/* Gives the own memory away: the release of the flag comes behind the descriptor. */
static shoal_status share_own(struct shm_channel *channel)
{
    struct shm_rank *own = shm_peer(channel, channel->rank);
    void *data = NULL;
    TRY(device_row(channel->device->device)->share_create(staging_bytes, own->descriptor, &data));
    channel->device->staging[channel->rank] = data;
    flag_set(&own->shared, IS_THERE);
    return SHOAL_OK;
}

static shoal_status map_peer(struct shm_channel *channel, const struct collective *collective, int peer)
{
    void *data = NULL;
    TRY(shm_wait(channel, peer, shm_counters_of(channel, shared), IS_THERE, collective->deadline_ns));
    shoal_status status = device_row(channel->device->device)
                              ->share_map(shm_peer(channel, peer)->descriptor, staging_bytes, &data);
    if (status != SHOAL_OK) {
        return error_prefix(status, "memory of device %s of rank %d", device_name(channel->device->device),
                            channel->base.peers->world_ranks[peer]);
    }
    channel->device->staging[peer] = data;
    return SHOAL_OK;
}

shoal_status shm_open_device_staging(struct shm_channel *channel, const struct collective *collective)
{
    struct shm_device *device = channel->device;
    if (device->staging) {
        return SHOAL_OK;
    }
    if (!device_row(device->device)->share_create) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "%s: ranks cannot share memory of device %s",
                         collective_rows[collective->kind].name, device_name(device->device));
    }
    FAIL_POINT("shm device staging");
    device->staging = mem_alloc_zeroed((size_t)channel->n_ranks, sizeof *device->staging);
    if (!device->staging) {
        return SHOAL_ERR_NO_MEMORY;
    }
    TRY(share_own(channel));
    for (int i = 0; i < channel->n_ranks; i++) {
        if (i != channel->rank) {
            TRY(map_peer(channel, collective, i));
        }
    }
    flag_set(&shm_peer(channel, channel->rank)->shared, HAS_MAPPED);
    /* A rank that has memory of its own may leave with it after the call: until then all others must have mapped it. */
    for (int i = 0; i < channel->n_ranks; i++) {
        if (i != channel->rank) {
            TRY(shm_wait(channel, i, shm_counters_of(channel, shared), HAS_MAPPED, collective->deadline_ns));
        }
    }
    return SHOAL_OK;
}

void shm_close_device(struct shm_channel *channel)
{
    struct shm_device *device = channel->device;
    if (!device) {
        return;
    }
    const struct device_row *row = device_row(device->device);
    if (device_is_inherited(device->device)) {
        device->is_idle = false; /* stream and staging are the parent's */
    } else if (!device->is_idle) {
        /* After a failure the work may end all the same. */
        const struct wait_options soon = {.deadline_ns = clock_deadline_after(CLOSE_SECONDS),
                                          .what = "a device"};
        stream_enter(device->device, device->stream);
        device->is_idle = stream_finish(device->device, &soon) == SHOAL_OK;
        stream_leave();
        error_clear();
    }
    if (device->is_idle && device->stream) {
        row->streams->destroy(device->stream);
    }
    for (int i = 0; device->is_idle && device->staging && i < channel->n_ranks; i++) {
        if (device->staging[i]) {
            row->share_drop(device->staging[i]);
        }
    }
    mem_free(device->staging);
    mem_free(device);
    channel->device = NULL;
}
