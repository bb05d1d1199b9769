/* SPDX-License-Identifier: MIT */
/*
 * A wrapped module in a capture (op/tracer.h): gradients and buffers are functional collectives on the module's lanes, one for
 * each. Nothing of the module, its lanes or its block changes; what the capture has to remember hangs on the module until it ends.
 *
 *     forward    buffers: broadcast and copy_, where an eager forward sends them
 *     gradient   none there:    all_reduce(new)
 *                averaged:      old + all_reduce(new)
 *                local:         all_reduce(old + new)
 *     end        parameters that did not come: local gradients are reduced, otherwise an error
 *
 * A parameter that comes several times in a backward is reduced with the last time, of which eager backwards have told how many
 * there are.
 */
#ifndef PARALLEL_DDP_CAPTURE_H
#define PARALLEL_DDP_CAPTURE_H

#include "op/tracer.h"
#include "parallel/ddp/ddp.h"

/* Before the module is called. */
shoal_status ddp_capture_forward(struct ddp *ddp, struct op_tracer *tracer);
/* The gradient of a parameter has come: what is to be added to the one that the leaf has. NULL: itself. */
shoal_status ddp_capture_gradient(struct ddp_param *param, struct op_tracer *tracer, shoal_tensor *gradient,
                                  shoal_tensor **added_out);
/* It has been added. */
shoal_status ddp_capture_added(struct ddp_param *param);

#endif
