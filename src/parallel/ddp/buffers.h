/* SPDX-License-Identifier: MIT */
/*
 * Before a forward pass, all ranks take the buffers of the first rank. They are broadcast together as bytes, over a
 * lane of their own. A buffer whose values are the same already is not written, so its version stays and what was
 * recorded with it can still be walked back.
 */
#ifndef PARALLEL_DDP_BUFFERS_H
#define PARALLEL_DDP_BUFFERS_H

#include "parallel/ddp/ddp.h"

/* Collective. */
shoal_status ddp_send_buffers(struct ddp *ddp);

#endif
