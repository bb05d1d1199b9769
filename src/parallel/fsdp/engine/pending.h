/* SPDX-License-Identifier: MIT */
/* Gradients that backwards without reduction have left: to be looked at, and reduced on demand. */
#ifndef PARALLEL_FSDP_ENGINE_PENDING_H
#define PARALLEL_FSDP_ENGINE_PENDING_H

#include "parallel/fsdp/engine/context.h"

/* What the unit keeps of a parameter; what is still on tensors is the watch's. */
void fsdp_unit_get_pending(const struct fsdp_unit *unit, const struct fsdp_param *param,
                           shoal_pending_gradient *pending_out);

/* Collective: reduces all that is kept, over the shards and the replicas, whatever the settings say. */
shoal_status fsdp_synchronize(struct fsdp_context *context);

#endif
