/* SPDX-License-Identifier: MIT */
/* The end of a reduction, in the gradients of the shards. */
#ifndef PARALLEL_FSDP_ENGINE_LANDING_H
#define PARALLEL_FSDP_ENGINE_LANDING_H

#include "parallel/fsdp/engine/reduction.h"

/* Adds what was reduced to the gradients of the shards. */
shoal_status fsdp_land_params(struct fsdp_reduction *reduction);
/* What optimizers see of a parameter. */
shoal_fsdp_shard fsdp_shard_of(const struct fsdp_param *param);
/* Hooks of the program, once that is done. */
shoal_status fsdp_run_landed(struct fsdp_unit *unit);
/* Both, for a unit whose parameters have no elements: there is nothing to send, but they have gradients. */
shoal_status fsdp_land_nothing(struct fsdp_unit *unit);

#endif
