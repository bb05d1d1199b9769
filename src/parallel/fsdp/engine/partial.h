/* SPDX-License-Identifier: MIT */
/* Gradients that were reduced over the shards but not over the replicas: kept in the unit until they are. */
#ifndef PARALLEL_FSDP_ENGINE_PARTIAL_H
#define PARALLEL_FSDP_ENGINE_PARTIAL_H

#include "parallel/fsdp/engine/reduction.h"

/* The output is kept for the next backward, added to what is there. */
shoal_status fsdp_partial_put(const struct fsdp_reduction *reduction);
/* What was kept is added to the output; becomes the output. Nothing is kept afterwards. */
shoal_status fsdp_partial_add(struct fsdp_reduction *reduction);
void fsdp_partial_take(const struct fsdp_reduction *reduction);

#endif
