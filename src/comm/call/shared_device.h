/* SPDX-License-Identifier: MIT */
/*
 * Memory of a device that the members of a group have mapped. The first member on the host makes it, within the
 * collective call that makes what it is part of; the others map it. Each drops it for itself.
 */
#ifndef COMM_CALL_SHARED_DEVICE_H
#define COMM_CALL_SHARED_DEVICE_H

#include "comm/call/shared.h"
#include "shoal/tensor.h"

struct shared_memory;

/* Whether the group can have memory of the device, which may be the host's. SHOAL_ERR_UNSUPPORTED: the device has no
   data, or processes cannot share its memory. */
shoal_status shared_device_check(const struct shoal_group *group, shoal_device device, enum shared_kind kind);

/*
 * Collective, before shared_confirm: every member calls it, whatever its own status is, and passes that status. The
 * memory is zeroed. `descriptor` is DEVICE_SHARE_BYTES of the memory that shared_open has mapped here; it is used if
 * *mine is SHOAL_OK. A failure is that of all members; if this one cannot map the memory, *mine says so.
 */
shoal_status shared_device_open(struct shoal_group *group, enum shared_kind kind, uint32_t id,
                                shoal_device device, size_t bytes, char *descriptor, shoal_status *mine,
                                struct shared_memory **memory_out);
/* The same in a world without peers. */
shoal_status shared_device_allocate(shoal_device device, size_t bytes, struct shared_memory **memory_out);

char *shared_device_data(const struct shared_memory *memory);

/* Behind the work of the compute stream so far; does not wait. NULL is allowed. */
void shared_device_free(struct shared_memory *memory);

#endif
