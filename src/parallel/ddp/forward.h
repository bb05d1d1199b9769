/* SPDX-License-Identifier: MIT */
/*
 * What a call of a wrapped module does: before it, others hear of a backward pass that failed here, and buffers become
 * those of the first rank; after it, the record of its outputs keeps what their backward pass needs, also when the
 * module is dropped.
 */
#ifndef PARALLEL_DDP_FORWARD_H
#define PARALLEL_DDP_FORWARD_H

#include "parallel/ddp/ddp.h"

shoal_status ddp_hook_forward(struct ddp *ddp);

#endif
