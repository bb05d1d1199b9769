/* SPDX-License-Identifier: MIT */
/*
 * A backward pass of a wrapped module, from the first gradient of a parameter on.
 *
 *     begin      with the first gradient: cleans up after a pass that failed, opens lane and block if needed
 *                (without waiting for other ranks), and adds the hook for the end
 *     arrive     with each gradient: starts the reduction of buckets that are full (reduction.h)
 *     end        for all modules that the pass has reached (pass.h)
 *
 * A pass that fails before its end stays "running"; the next one notices that.
 */
#ifndef PARALLEL_DDP_BACKWARD_H
#define PARALLEL_DDP_BACKWARD_H

#include "parallel/ddp/ddp.h"

/* ddp_add_hooks adds hooks to the parameter's leaf. ddp_watch_param adds them again if they are gone: a tensor
   that was frozen and thawed has lost them. */
shoal_status ddp_add_hooks(struct ddp_param *param);
shoal_status ddp_watch_param(struct ddp_param *param);

/* Notices a failed backward pass: one that began, has not ended, and is not the one that runs now; or one that
   led to a parameter and never reached it. */
void ddp_notice_failure(struct ddp *ddp);
/* Call before a forward pass: does what ddp_notice_failure does. Other ranks may still wait in a backward pass that
   failed here: they are told now, otherwise they would not reach this forward pass. */
void ddp_give_up_failed(struct ddp *ddp);

#endif
