/* SPDX-License-Identifier: MIT */
/* A group of one: the result of every collective is made of the caller's own memory. */
#include "base/try.h"
#include "base/wait.h"
#include "kernel/kernel.h"
#include "transport/blocks.h"
#include "transport/shm/channel.h"

bool shm_local_must_wait(const struct collective *collective)
{
    return collective->kind == COLLECTIVE_WINDOW_GATHER && !shm_window_is_released(collective, /*member=*/0);
}

shoal_status shm_local_run(struct shm_channel *channel, const struct collective *collective)
{
    if (collective->kind == COLLECTIVE_BARRIER || collective->kind == COLLECTIVE_BROADCAST) {
        return SHOAL_OK;
    }
    if (collective->kind == COLLECTIVE_WINDOW_GATHER) {
        TRY(shm_window_begin(channel, collective));
        return shm_window_write(collective, /*member=*/0);
    }
    if (!collective_rows[collective->kind].reduces) {
        block_copy_own(collective, 0);
        return SHOAL_OK;
    }
    /* One source still is a reduction: premul_sum multiplies, bool becomes 0 or 1. */
    const void *source = NULL;
    return block_reduce(collective, 0, 0, 1, &source, 0, block_elements(collective, BLOCK_RECV, 0));
}
