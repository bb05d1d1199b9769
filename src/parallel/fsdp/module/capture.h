/* SPDX-License-Identifier: MIT */
/*
 * Sharded modules in a capture (op/tracer.h): the hooks of calls.c, when a capture runs. What they do for each unit is in
 * captured.h; here is when: where the engine would gather, give up and reduce, in a state of the capture's own. The modules' places
 * and the tensors of whole parameters are used as in an eager step, and put back when the capture ends.
 *
 * Parameters that are given up after forward are gathered again in backward, behind the gradient with which the unit before began
 * its own, or the first unit this one (control_deps): no pass may take the one for the other, and one that looks for overlap can
 * gather one unit ahead.
 */
#ifndef PARALLEL_FSDP_MODULE_CAPTURE_H
#define PARALLEL_FSDP_MODULE_CAPTURE_H

#include "op/tracer.h"
#include "parallel/fsdp/module/wrapper.h"

/* Prepares modules that were never called, for real: collective then. */
shoal_status fsdp_capture_before_forward(struct fsdp_wrapper *wrapper, struct op_tracer *tracer,
                                         const shoal_forward_call *call);
shoal_status fsdp_capture_after_forward(struct fsdp_wrapper *wrapper, const shoal_forward_call *call);
void fsdp_capture_after_failure(const struct fsdp_wrapper *wrapper);

#endif
