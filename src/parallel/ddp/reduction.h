/* SPDX-License-Identifier: MIT */
/*
 * Gradients of a module are reduced in buckets, which leave in the order of the plan on every rank: one that is full
 * early waits for those before it. The first backward pass after the lane was opened only watches in which order, and
 * how often, gradients arrive; all buckets leave at its end, and the plan is then made again from what the first rank
 * saw.
 */
#ifndef PARALLEL_DDP_REDUCTION_H
#define PARALLEL_DDP_REDUCTION_H

#include "parallel/ddp/ddp.h"

/* The parameter has come as often as expected: full buckets leave. */
shoal_status ddp_mark_ready(struct ddp_param *param);

/* Collective: the block is shared if it was not yet, what has not come is filled in, the rest leaves, ranks compare what they
   have not seen, results land. */
shoal_status ddp_end_backward(struct ddp *ddp);

#endif
