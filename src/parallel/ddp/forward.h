/* SPDX-License-Identifier: MIT */
/*
 * The hooks of a wrapped module's forward pass. Before it, the other ranks are told of a backward pass that failed
 * here, and buffers become those of the first rank. After it, the record of its outputs keeps what their backward
 * pass needs, even if the module is dropped.
 */
#ifndef PARALLEL_DDP_FORWARD_H
#define PARALLEL_DDP_FORWARD_H

#include "parallel/ddp/ddp.h"

shoal_status ddp_hook_forward(struct ddp *ddp);
/* Hooks for modules inside, which a program may call by themselves: `inner` is a list of `ddp`, or will be. */
shoal_status ddp_hook_inner(struct ddp *ddp, struct ddp_inner *inner);

#endif
