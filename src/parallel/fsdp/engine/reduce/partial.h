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

#endif
