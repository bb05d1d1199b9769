/* SPDX-License-Identifier: MIT */
/* A step: four calls for each unit, in the order of its passes, and one at the end. Both ways in drive units by these. */
#ifndef PARALLEL_FSDP_ENGINE_STEP_H
#define PARALLEL_FSDP_ENGINE_STEP_H

#include "parallel/fsdp/engine/context.h"

shoal_status fsdp_unit_pre_forward(struct fsdp_unit *unit);
shoal_status fsdp_unit_post_forward(struct fsdp_unit *unit);
shoal_status fsdp_unit_pre_backward(struct fsdp_unit *unit);
shoal_status fsdp_unit_post_backward(struct fsdp_unit *unit);
shoal_status fsdp_end_backward(struct fsdp_context *context);
/* No backward follows the forwards since the order had `n_order` entries: units that no earlier forward needs for its
   backward are given up, and their parameters may change now. */
shoal_status fsdp_end_forwards(struct fsdp_context *context, size_t n_order);
shoal_status fsdp_reset(struct fsdp_context *context);

#endif
