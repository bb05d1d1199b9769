/* SPDX-License-Identifier: MIT */
/*
 * The end of a backward pass that has reached several wrapped modules. Ends wait for peers, so all ranks end the
 * modules of a pass in one order, that of groups and numbers, whichever was reached first; and before the first of them
 * ranks compare which modules the pass has reached (order.h).
 */
#ifndef PARALLEL_DDP_PASS_H
#define PARALLEL_DDP_PASS_H

#include "parallel/ddp/ddp.h"

/* Collective: ends the backward pass of all modules that it has reached; nothing, if that was done or tried. */
shoal_status ddp_end_pass(struct ddp *first);

#endif
