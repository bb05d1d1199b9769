/* SPDX-License-Identifier: MIT */
/*
 * The ways to gather a unit, one row each:
 *
 *     alone    one shard: nothing is sent; parameters are cast if needed
 *     window   every rank writes its shards into memory that the ranks of a host share: where the group has windows
 *     copy     an all-gather into memory of the rank's own, which is then unpacked: on any transport
 *     custom   an object of the program does the all-gather (shoal/fsdp_comm.h)
 *
 * All give the same bits. A gather is started, and finished once its work (unit->gather.work, if there is one) has
 * ended well. A gather that failed, or that nobody wants, is dropped instead.
 */
#ifndef PARALLEL_FSDP_ENGINE_GATHER_WAY_H
#define PARALLEL_FSDP_ENGINE_GATHER_WAY_H

#include "parallel/fsdp/engine/state/unit.h"

struct fsdp_gather_way {
    const char *name;
    /* If it fails, it leaves nothing behind. */
    shoal_status (*start)(struct fsdp_unit *unit);
    /* Puts full parameters where fsdp_gather_data says. It is NULL if they are there already. */
    shoal_status (*finish)(struct fsdp_unit *unit);
    /* Called when the work has ended, well or not. It is NULL if there is nothing to free. */
    void (*drop)(struct fsdp_unit *unit);
};

extern const struct fsdp_gather_way fsdp_gather_alone;
extern const struct fsdp_gather_way fsdp_gather_window;
extern const struct fsdp_gather_way fsdp_gather_copy;
extern const struct fsdp_gather_way fsdp_gather_custom;

#endif
