/* SPDX-License-Identifier: MIT */
/*
 * A wrapped module in a capture (op/tracer.h): the collectives of gradients and buffers become functional ones on
 * the module's lanes, one for each tensor. The module, its lanes and its block do not change; what the capture has
 * to remember is kept with the module until the capture ends.
 *
 *     forward    buffers: broadcast and copy_, where an eager forward pass sends them
 *     gradient   the leaf has none:        all_reduce(new)
 *                it has an averaged one:   old + all_reduce(new)
 *                it has a local one:       all_reduce(old + new)
 *     end        parameters that got no gradient: local gradients are reduced, otherwise it is an error
 *
 * A parameter may get several gradients in one backward pass. They are reduced when the last one has arrived; how
 * many there are is known from earlier eager backward passes.
 */
#ifndef PARALLEL_DDP_CAPTURE_H
#define PARALLEL_DDP_CAPTURE_H

#include "op/tracer.h"
#include "parallel/ddp/ddp.h"

/* Call before a captured forward pass: opens the next generation after a failure. SHOAL_ERR_STATE: the program has to
   reset the module first. */
shoal_status ddp_capture_ready(struct ddp *ddp);
/* Call before the module is called. */
shoal_status ddp_capture_forward(struct ddp *ddp, struct op_tracer *tracer);
/* Call when a gradient of a parameter has arrived. Gives what the leaf has to add instead; NULL means the gradient
   itself. */
shoal_status ddp_capture_gradient(struct ddp_param *param, struct op_tracer *tracer, shoal_tensor *gradient,
                                  shoal_tensor **added_out);
/* Call when the gradient has been added to the leaf's. */
shoal_status ddp_capture_added(struct ddp_param *param);

#endif
