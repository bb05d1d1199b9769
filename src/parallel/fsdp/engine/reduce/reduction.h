/* SPDX-License-Identifier: MIT */
/* Reductions of gradients: starts them, and carries on those in flight. */
#ifndef PARALLEL_FSDP_ENGINE_REDUCE_REDUCTION_H
#define PARALLEL_FSDP_ENGINE_REDUCE_REDUCTION_H

#include <stddef.h>

#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/in_flight.h"

/* Makes memory for the gradients of a backward pass: zeros, or what an earlier one left. Does it once for each pass. */
shoal_status fsdp_unit_begin_grads(struct fsdp_unit *unit);
/* Call when the backward pass is over: reduces the gradients, or keeps them for the next pass. */
shoal_status fsdp_unit_end_grads(struct fsdp_unit *unit);
/* Call before a backward pass. Moves gradients that a compiled step left in the dtype of the reduction into the
   buffer, so that the gradients of this pass are added to them as a whole. */
shoal_status fsdp_unit_take_cast(struct fsdp_unit *unit);
/*
 * Call before a backward pass. With SHOAL_SHARDED_STATE, makes what earlier passes left in the buffer the gradients
 * of the tensors. This pass then adds to them there, so the sums have the same bits as if gradients stayed on tensors.
 */
shoal_status fsdp_unit_lend_grads(struct fsdp_unit *unit);
/* Reduces over the replicas what is kept for them, without new gradients. */
shoal_status fsdp_unit_reduce_partial(struct fsdp_unit *unit);
/* Ends the oldest reductions until at most `n_left` are in flight. */
shoal_status fsdp_drain(struct fsdp_context *context, size_t n_left);
/* Call before a unit is gathered. If the unit has a hook for accumulated gradients and its reduction is in flight, ends
   all reductions: the hook may write the shards, which the gather reads. */
shoal_status fsdp_unit_land(struct fsdp_unit *unit);
/* Drops all reductions. */
void fsdp_drop_reductions(struct fsdp_context *context);

#endif
