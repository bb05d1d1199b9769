/* SPDX-License-Identifier: MIT */
/* Gradients that were reduced over the shards but not over the replicas: kept in the unit until they are. */
#ifndef PARALLEL_FSDP_ENGINE_REDUCE_PARTIAL_H
#define PARALLEL_FSDP_ENGINE_REDUCE_PARTIAL_H

#include "parallel/fsdp/engine/reduce/reduction.h"

/* Keeps the output for the next backward pass, added to what is kept already. */
shoal_status fsdp_partial_put(const struct fsdp_reduction *reduction);
/* fsdp_partial_add adds what was kept to the output; fsdp_partial_take makes it the output. Afterwards nothing
   is kept. */
shoal_status fsdp_partial_add(struct fsdp_reduction *reduction);
void fsdp_partial_take(const struct fsdp_reduction *reduction);

/* Makes room, not set to anything, for the parameters with is_partial. They are kept from now on. */
shoal_status fsdp_partial_make(struct fsdp_unit *unit);
/* Where the padded shard of a parameter with is_partial is kept, in the layout of those. */
struct address fsdp_partial_at(const struct fsdp_unit *unit, const struct fsdp_param *param);

#endif
