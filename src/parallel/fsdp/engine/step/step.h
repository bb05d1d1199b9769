/* SPDX-License-Identifier: MIT */
/*
 * A step: four calls for each unit, in the order of its passes, and one at the end. The explicit calls and modules both
 * use them. step.c decides what happens when, by a table; the context's backend does it. The engine's backend starts
 * work (issue.c). While a capture runs, ops are emitted instead (module/captured.c).
 */
#ifndef PARALLEL_FSDP_ENGINE_STEP_STEP_H
#define PARALLEL_FSDP_ENGINE_STEP_STEP_H

#include "parallel/fsdp/engine/state/context.h"

struct fsdp_backend {
    /* Makes the whole parameters of the unit available, unless they are. */
    shoal_status (*gather)(struct fsdp_unit *unit);
    /* The unit has them, so units that come next may be gathered ahead. `place`: see fsdp_order_take. */
    shoal_status (*ahead_in_forward)(struct fsdp_unit *unit);
    shoal_status (*ahead_in_backward)(struct fsdp_unit *unit, size_t place);
    /* A pass of the unit is over: gives up whole parameters; after a forward pass as the settings say. */
    shoal_status (*reshard)(struct fsdp_unit *unit, bool is_after_forward);
    /* No pass needs whole parameters any more: gives them up, unless they stay. Also ends a gather that nobody used. */
    shoal_status (*give_up)(struct fsdp_unit *unit, bool stays);
    /* The backward pass of the unit begins; takes over what earlier passes have left of gradients. */
    shoal_status (*begin_gradients)(struct fsdp_unit *unit);
    /* The backward pass of the unit is over: reduces its gradients or, without synchronization, keeps them. */
    shoal_status (*end_gradients)(struct fsdp_unit *unit);
    /* A backward pass begins (called for each unit), has ended, and was the last one of the step. */
    shoal_status (*begin_backward)(struct fsdp_context *context);
    shoal_status (*end_backward)(struct fsdp_context *context);
    shoal_status (*end_step)(struct fsdp_context *context);
};

extern const struct fsdp_backend fsdp_issue_backend;

shoal_status fsdp_unit_pre_forward(struct fsdp_unit *unit);
shoal_status fsdp_unit_post_forward(struct fsdp_unit *unit);
shoal_status fsdp_unit_pre_backward(struct fsdp_unit *unit);
shoal_status fsdp_unit_post_backward(struct fsdp_unit *unit);
/* Ends the backward pass of the unit if it has begun and has not ended. */
shoal_status fsdp_unit_finish_backward(struct fsdp_unit *unit);
shoal_status fsdp_end_backward(struct fsdp_context *context);
/* Call when no backward pass follows the forward passes since the order had `n_order` entries. Gives up units
   that no earlier forward pass needs for its backward pass; their parameters may change now. */
shoal_status fsdp_end_forwards(struct fsdp_context *context, size_t n_order);
/* The step is over: gives up what was kept for a backward pass, and waits for gathers that were not used. */
shoal_status fsdp_settle_units(struct fsdp_context *context);
shoal_status fsdp_reset(struct fsdp_context *context);

#endif
