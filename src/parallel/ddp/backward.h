/* SPDX-License-Identifier: MIT */
/*
 * One backward pass, from the first gradient of a parameter on.
 *
 *     begin      the first gradient: what a failed pass left, lane and block if need be (without waiting for
 *                anybody), the hook for the end
 *     arrive     each gradient: full buckets leave (reduction.h)
 *     end        of all modules that the pass has reached (pass.h)
 *
 * A pass that fails before its end stays "running", which the next one notices.
 */
#ifndef PARALLEL_DDP_BACKWARD_H
#define PARALLEL_DDP_BACKWARD_H

#include "parallel/ddp/ddp.h"

/* Hooks on the parameter's leaf. The second one is for later calls: a tensor that was frozen and thawed has lost
   them. */
shoal_status ddp_add_hooks(struct ddp_param *param);
shoal_status ddp_watch_param(struct ddp_param *param);

/* A backward pass that began and has not ended has failed: its number is not that of the running one. So has one
   that led to a parameter and never got there. */
void ddp_notice_failure(struct ddp *ddp);

#endif
