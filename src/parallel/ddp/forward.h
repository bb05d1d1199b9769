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

#endif
