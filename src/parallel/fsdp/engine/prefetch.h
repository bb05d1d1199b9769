/* SPDX-License-Identifier: MIT */
/* Units that are gathered before somebody asks for them: which, and the orders of passes by which that is known. */
#ifndef PARALLEL_FSDP_ENGINE_PREFETCH_H
#define PARALLEL_FSDP_ENGINE_PREFETCH_H

#include <stddef.h>

#include "parallel/fsdp/engine/unit.h"

/* Puts units, whose array is taken over, in place of one of a unit's lists. */
void fsdp_list_set(struct fsdp_unit ***list, size_t *n_list, struct fsdp_unit **units, size_t n_units);

/* The unit has its parameters: what comes next is gathered, and its forward pass is put into the order of this step. */
shoal_status fsdp_prefetch_forward(struct fsdp_unit *unit);
shoal_status fsdp_prefetch_backward(struct fsdp_unit *unit);
/* Its forward pass is over, and a backward pass may follow. */
shoal_status fsdp_order_add(struct fsdp_unit *unit);
/* The forward passes of this step are over: they are what the next one is compared with. */
void fsdp_order_keep(struct fsdp_context *context);
/* No backward will follow the forwards since the order had `n_order` entries. */
void fsdp_forget_forwards(struct fsdp_context *context, size_t n_order);

#endif
