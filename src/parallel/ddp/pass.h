/* SPDX-License-Identifier: MIT */
/*
 * The end of a backward pass that has reached several wrapped modules. The end of each module waits for peers, so
 * all ranks end the modules in one order, by group and number, whichever was reached first. Before the first of
 * them, ranks compare which modules the pass has reached (order.h).
 */
#ifndef PARALLEL_DDP_PASS_H
#define PARALLEL_DDP_PASS_H

#include "parallel/ddp/ddp.h"

/* Collective. Ends the backward pass of all modules that it has reached; does nothing if that was done or tried
   before. */
shoal_status ddp_end_pass(struct ddp *first);

#endif
