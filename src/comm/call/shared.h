/* SPDX-License-Identifier: MIT */
/*
 * How a group makes shared memory together: it agrees on what is made, every member maps it, and all learn whether
 * all could. Nobody keeps memory that another member could not get.
 */
#ifndef COMM_CALL_SHARED_H
#define COMM_CALL_SHARED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shoal/status.h"
#include "shoal/tensor.h"

struct segment;
struct shoal_group;

/* The kind of memory, which must be the same on all members. */
enum shared_kind {
    SHARED_SYMMETRIC = 1,
    SHARED_WINDOW = 2,
    SHARED_OPENED =
        3, /* symmetric memory that members have opened before they agree on it: symmetric_share */
    SHARED_GROWING = 4, /* symmetric memory that can grow */
    SHARED_GROWTH = 5   /* growth of such memory */
};

/* Rounds up to whole pages. False if the result is too large. */
bool shared_round_to_pages(size_t bytes, size_t *rounded_out);

/* What members agree on. */
struct shared_request {
    enum shared_kind kind;
    size_t bytes;
    uint64_t second;     /* how many bytes SHARED_GROWING reserves, or which memory SHARED_GROWTH is about */
    shoal_device device; /* where the memory is; members compare its name */
};

/*
 * Collective. The members agree on all of the request, and on an id that nothing else of the world has.
 * SHOAL_ERR_INVALID, on all of them, with both sides where they differ; the group stays usable.
 */
shoal_status shared_agree(struct shoal_group *group, const struct shared_request *request, uint32_t *id_out);

/* Local: maps the memory that the id stands for; zeroed. That of SHARED_GROWING is a sparse segment. */
shoal_status shared_open(struct shoal_group *group, enum shared_kind kind, uint32_t id, size_t bytes,
                         struct segment **segment_out);

/*
 * Collective. Every member calls it, whatever its own status is, and passes that status with the thread's error text.
 * All members get the failure of the first rank that has one, with a text that names the rank.
 */
shoal_status shared_confirm(struct shoal_group *group, enum shared_kind kind, uint32_t id, shoal_status mine);

/* Collective, in the middle: does what shared_confirm does, and keeps the name if all is well. */
shoal_status shared_tell(struct shoal_group *group, enum shared_kind kind, uint32_t id, shoal_status mine);

/* The name of the call in error texts. `kind` may come from a peer, so it is checked. */
const char *shared_call_name(uint64_t kind);

/* Local: drops the name of memory that will not be confirmed. Members that have mapped it keep it; a later
   shared_open gets new memory. Keeps the thread's error text. */
void shared_forget(struct shoal_group *group, enum shared_kind kind, uint32_t id);

#endif
