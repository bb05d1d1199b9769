/* SPDX-License-Identifier: MIT */
/*
 * Gradients of a module are reduced in buckets. Every rank starts them in the order of the plan: a bucket that is
 * full early waits for those before it. The first backward pass after a lane was opened only records in which order,
 * and how often, gradients arrive. It starts all buckets at its end, and the plan is then made again from the first
 * rank's order.
 */
#ifndef PARALLEL_DDP_REDUCTION_H
#define PARALLEL_DDP_REDUCTION_H

#include "parallel/ddp/ddp.h"

/* Call when the parameter has got as many gradients as expected: starts the buckets that are full. */
shoal_status ddp_mark_ready(struct ddp_param *param);

/* Collective. Shares the block if it was not shared yet, fills in gradients that did not arrive, starts the
   other buckets, compares what ranks have not compared yet, and lands the results. */
shoal_status ddp_end_backward(struct ddp *ddp);

#endif
