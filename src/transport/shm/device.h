/* SPDX-License-Identifier: MIT */
/*
 * Collectives on memory of a device that the ranks share: they meet, are compared and count rounds in host memory, as
 * others do, and their data goes through staging that is memory of the device, of each rank, mapped by all. Work of the
 * device is finished before a counter says so.
 */
#ifndef SHM_DEVICE_H
#define SHM_DEVICE_H

#include "transport/shm/channel.h"

/* A half of a rank's staging in memory of a device: larger than the CPU's, because every round waits for the device. */
#define SHM_DEVICE_HALF_BYTES ((size_t)1024 * 1024)

struct shm_device {
    shoal_device device;
    void *stream;
    /* No work of a call is left in the stream. Otherwise the stream and the memory that it uses are not freed. */
    bool is_idle;
    char **staging; /* n_ranks: addresses of the device; NULL until needed */
};

/* From here on the thread's work is that of the group, until shm_leave_device. A group has calls on one device. */
shoal_status shm_enter_device(struct shm_channel *channel, const struct collective *collective);
void shm_leave_device(struct shm_channel *channel, bool is_done);

/* Waits until the work of the group's stream so far is done. */
shoal_status shm_finish_work(struct shm_channel *channel, const struct collective *collective);

/* Called by all ranks together, in the first call that needs it. */
shoal_status shm_open_device_staging(struct shm_channel *channel, const struct collective *collective);

/* Halves 0 and 1, results 2 and 3. */
static inline char *shm_device_staging(const struct shm_channel *channel, int rank, uint32_t part)
{
    return channel->device->staging[rank] + (size_t)part * SHM_DEVICE_HALF_BYTES;
}

void shm_close_device(struct shm_channel *channel);

#endif
