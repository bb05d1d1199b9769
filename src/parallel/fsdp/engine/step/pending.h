/* SPDX-License-Identifier: MIT */
/* Pending gradients: those that backward passes without reduction have left. They can be read, and reduced on
   demand. */
#ifndef PARALLEL_FSDP_ENGINE_STEP_PENDING_H
#define PARALLEL_FSDP_ENGINE_STEP_PENDING_H

#include "parallel/fsdp/engine/state/context.h"

/* Gives what the unit keeps for a parameter. Gradients that are still on tensors are not included: the watch
   has those. */
void fsdp_unit_get_pending(const struct fsdp_unit *unit, const struct fsdp_param *param,
                           shoal_pending_gradient *pending_out);

/* Collective. Reduces everything that is kept, over shards and replicas, whatever the settings say. */
shoal_status fsdp_synchronize(struct fsdp_context *context);

#endif
