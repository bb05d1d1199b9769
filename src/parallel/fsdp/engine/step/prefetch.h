/* SPDX-License-Identifier: MIT */
/* Prefetching: which units are gathered before somebody asks for them, by the order of passes in the last step. */
#ifndef PARALLEL_FSDP_ENGINE_STEP_PREFETCH_H
#define PARALLEL_FSDP_ENGINE_STEP_PREFETCH_H

#include <stddef.h>

#include "parallel/fsdp/engine/state/unit.h"

/* Replaces one of a unit's lists. Takes over the array. */
void fsdp_list_set(struct fsdp_unit ***list, size_t *n_list, struct fsdp_unit **units, size_t n_units);

/* Call when the unit has its parameters. Starts the gathers that come next; in a forward pass, also notes its
   place in the order of this step. */
shoal_status fsdp_prefetch_forward(struct fsdp_unit *unit);
shoal_status fsdp_prefetch_backward(struct fsdp_unit *unit, size_t place);
/* Call when its forward pass is over and a backward pass may follow. */
shoal_status fsdp_order_add(struct fsdp_unit *unit);
/* Call when its backward pass begins. Removes its latest forward pass, and returns how many came before that one. */
size_t fsdp_order_take(struct fsdp_unit *unit);
/* Call when the forward passes of this step are over: the next step is compared with their order. */
void fsdp_order_keep(struct fsdp_context *context);
/* Call when no backward pass will follow the forward passes since the order had `n_order` entries. */
void fsdp_forget_forwards(struct fsdp_context *context, size_t n_order);

#endif
