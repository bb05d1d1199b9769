/* SPDX-License-Identifier: MIT */
/* The gather of a unit's full parameters, in whichever way (gather_way.h), and their memory. */
#ifndef PARALLEL_FSDP_ENGINE_GATHER_H
#define PARALLEL_FSDP_ENGINE_GATHER_H

#include "parallel/fsdp/engine/unit.h"

/* Chooses the way, and begins. */
shoal_status fsdp_gather_start(struct fsdp_unit *unit);
/* Waits for what was begun; on failure nothing of it is left. */
shoal_status fsdp_gather_finish(struct fsdp_unit *unit);
/* Waits for a gather whose result nobody wants; nothing where there is none. */
void fsdp_gather_drop(struct fsdp_unit *unit);

/* Where a full parameter is once the gather has finished; and the end of its memory. */
const void *fsdp_gather_data(const struct fsdp_unit *unit, const struct fsdp_param *param);
shoal_status fsdp_gather_give_up(struct fsdp_unit *unit);

#endif
