/* SPDX-License-Identifier: MIT */
/* Gathers the full parameters of a unit, in one of several ways (gather/way.h), and holds their memory. */
#ifndef PARALLEL_FSDP_ENGINE_GATHER_GATHER_H
#define PARALLEL_FSDP_ENGINE_GATHER_GATHER_H

#include "parallel/fsdp/engine/state/unit.h"

/* Chooses the way, and starts the gather. */
shoal_status fsdp_gather_start(struct fsdp_unit *unit);
/* Waits for the gather that was started. If it fails, its memory is given up. */
shoal_status fsdp_gather_finish(struct fsdp_unit *unit);
/* Waits for a gather whose result nobody wants. Does nothing if there is none. */
void fsdp_gather_drop(struct fsdp_unit *unit);

/* fsdp_gather_data tells where a full parameter is once the gather has finished; the other call frees the memory. */
struct address fsdp_gather_data(const struct fsdp_unit *unit, const struct fsdp_param *param);
shoal_status fsdp_gather_give_up(struct fsdp_unit *unit);

#endif
