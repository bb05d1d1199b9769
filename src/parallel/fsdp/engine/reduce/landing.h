/* SPDX-License-Identifier: MIT */
/* The end of a reduction: its results become, or are added to, the gradients of the shards. */
#ifndef PARALLEL_FSDP_ENGINE_REDUCE_LANDING_H
#define PARALLEL_FSDP_ENGINE_REDUCE_LANDING_H

#include "parallel/fsdp/engine/reduce/reduction.h"

/* Adds the reduced gradients to those of the shards. */
shoal_status fsdp_land_params(struct fsdp_reduction *reduction);
/* Adds a whole gradient, contiguous and of `dtype`, to that of the only shard. */
shoal_status fsdp_land_whole(const struct fsdp_unit *unit, struct fsdp_param *param, shoal_dtype dtype,
                             struct address gradient);
/* What programs see of the shard: its data, and its gradient if it has one. */
shoal_fsdp_shard fsdp_shard_of(const struct fsdp_param *param);
/* Calls the hooks of the program after fsdp_land_params. */
shoal_status fsdp_run_landed(struct fsdp_unit *unit);
/* Lands and calls the hooks, for a unit whose parameters have no elements: nothing is sent, but they have gradients. */
shoal_status fsdp_land_nothing(struct fsdp_unit *unit);

#endif
