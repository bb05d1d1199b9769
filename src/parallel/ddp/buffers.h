/* SPDX-License-Identifier: MIT */
/*
 * Buffers before a forward: those of the first rank, as one piece of bytes over a lane of their own. A buffer whose
 * values are the same already is not written, so that what was recorded with it stays valid.
 */
#ifndef PARALLEL_DDP_BUFFERS_H
#define PARALLEL_DDP_BUFFERS_H

#include "parallel/ddp/ddp.h"

/* Collective. */
shoal_status ddp_send_buffers(struct ddp *ddp);

#endif
