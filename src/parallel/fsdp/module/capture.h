/* SPDX-License-Identifier: MIT */
/*
 * Captures (op/tracer.h) of sharded modules. The first call of a module in a capture begins one for its root: from then
 * on until the end, the root's calls, the state of its units in a step and the backend are the capture's own (captured.h).
 * The places in the module tree and the tensors of whole parameters are used as in an eager step, and restored at the
 * end. What the engine has gathered stays as it is.
 */
#ifndef PARALLEL_FSDP_MODULE_CAPTURE_H
#define PARALLEL_FSDP_MODULE_CAPTURE_H

#include "op/tracer.h"
#include "parallel/fsdp/module/captured.h"
#include "parallel/fsdp/module/wrapper.h"

/* A module is called in a capture. If it was never called, prepares it as an eager call would, which is collective. */
shoal_status fsdp_capture_prepare(struct fsdp_wrapper *wrapper, struct op_tracer *tracer,
                                  const shoal_forward_call *call);
/* A forward pass begins: gives up units whose shards were written since they were gathered. */
void fsdp_capture_refresh(const struct fsdp_capture *capture);
/* A backward pass is over: the gathers of the next one come after gradients of its own. */
void fsdp_capture_forget_gradient(struct fsdp_capture *capture);

/* Call before the unit's backward pass is begun with that gradient. SHOAL_ERR_STATE once the capture is over. */
shoal_status fsdp_captured_reach(struct fsdp_captured *unit, shoal_tensor *gradient);
bool fsdp_captured_is_over(const struct fsdp_captured *unit);
/* Hooks in the record keep the unit, and let go of it. */
void fsdp_captured_keep(struct fsdp_captured *unit);
void fsdp_captured_let_go(void *unit);

#endif
