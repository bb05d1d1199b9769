/* SPDX-License-Identifier: MIT */
/* A step: four calls for each unit, in the order of its passes, and one at the end. The explicit calls and
   modules both use them. */
#ifndef PARALLEL_FSDP_ENGINE_STEP_STEP_H
#define PARALLEL_FSDP_ENGINE_STEP_STEP_H

#include "parallel/fsdp/engine/state/context.h"

shoal_status fsdp_unit_pre_forward(struct fsdp_unit *unit);
shoal_status fsdp_unit_post_forward(struct fsdp_unit *unit);
shoal_status fsdp_unit_pre_backward(struct fsdp_unit *unit);
shoal_status fsdp_unit_post_backward(struct fsdp_unit *unit);
shoal_status fsdp_end_backward(struct fsdp_context *context);
/* Call when no backward pass follows the forward passes since the order had `n_order` entries. Gives up units
   that no earlier forward pass needs for its backward pass; their parameters may change now. */
shoal_status fsdp_end_forwards(struct fsdp_context *context, size_t n_order);
shoal_status fsdp_reset(struct fsdp_context *context);

#endif
