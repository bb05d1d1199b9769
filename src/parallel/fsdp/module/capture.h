/* SPDX-License-Identifier: MIT */
/*
 * Sharded modules in a capture (op/tracer.h): what the hooks of calls.c do while a capture runs. captured.h has what
 * happens to a unit; this file decides when: wherever the engine would gather, give up and reduce. The state is the
 * capture's own. The places in the module tree and the tensors of whole parameters are used as in an eager step, and
 * restored when the capture ends.
 *
 * Parameters that are given up after the forward pass are gathered again in the backward pass. By control_deps this
 * second gather comes after the gradient with which the unit before began its backward pass (for the first unit:
 * after its own gradient). So no pass merges it with the first gather, and a pass that looks for overlap can gather
 * one unit ahead.
 */
#ifndef PARALLEL_FSDP_MODULE_CAPTURE_H
#define PARALLEL_FSDP_MODULE_CAPTURE_H

#include "op/tracer.h"
#include "parallel/fsdp/module/wrapper.h"

/* If the module was never called, prepares it as an eager call would, which is collective. */
shoal_status fsdp_capture_before_forward(struct fsdp_wrapper *wrapper, struct op_tracer *tracer,
                                         const shoal_forward_call *call);
shoal_status fsdp_capture_after_forward(struct fsdp_wrapper *wrapper, const shoal_forward_call *call);
void fsdp_capture_after_failure(const struct fsdp_wrapper *wrapper);

#endif
