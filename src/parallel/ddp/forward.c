/* SPDX-License-Identifier: MIT */
#include "parallel/ddp/forward.h"

#include "autograd/backward.h"
#include "base/error.h"
#include "base/try.h"
#include "op/tracer.h"
#include "parallel/ddp/backward.h"
#include "parallel/ddp/buffers.h"
#include "parallel/ddp/capture.h"
#include "parallel/ddp/follow.h"
#include "parallel/ddp/order.h"
#include "parallel/ddp/reached.h"
#include "shoal/autograd.h"
#include "tensor/scope.h"

/* Before ------------------------------------------------------------------------------------------------- */

static shoal_status before_forward(void *context, const shoal_forward_call *call)
{
    struct ddp *ddp = context;
    struct op_tracer *tracer = op_capture_running();
    if (call->is_recompute) {
        return SHOAL_OK;
    }
    if (tracer) {
        TRY(ddp_capture_ready(ddp));
        TRY(ddp_follow(ddp));
        return ddp_capture_forward(ddp, tracer);
    }
    ddp_give_up_failed(ddp);
    ddp->wanted_sync = ddp->wants_sync && scope_will_record();
    ddp->order.generation = ddp->world ? ddp_order_generation(ddp->order.shared) : 0;
    TRY(ddp_follow(ddp));
    if (ddp->world && ddp->buffers.are_sent && ddp->wanted_sync) {
        return ddp_send_buffers(ddp);
    }
    return SHOAL_OK;
}

/* After -------------------------------------------------------------------------------------------------- */

/* If the pass has reached no parameter that is wrapped, only this looks for others. */
static shoal_status end_held(void *context)
{
    struct ddp *ddp = context;
    if (!ddp->wants_sync) {
        return SHOAL_OK;
    }
    shoal_status status = ddp_check_reached(ddp);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "ddp");
}

/* A backward pass has reached an output of the module: keeps the struct until the end of the pass. */
static shoal_tensor *hold(void *context, shoal_tensor *gradient)
{
    struct forward *forward = context;
    struct ddp *ddp = forward_owner(forward);
    size_t n_newer;
    (void)gradient;
    if (op_capture_running()) {
        (void)scope_fail(error_set(
            SHOAL_ERR_STATE,
            "ddp: the forward pass ran before the capture, so its backward pass cannot be captured"));
        return NULL;
    }
    if (forward_reached(forward, &n_newer) && ddp->forwards.backward != backward_number()) {
        ddp->forwards.backward = backward_number();
        ddp->forwards.n_newer = n_newer;
    }
    shoal_status status = backward_on_end(end_held, ddp, ddp_let_go);
    if (status == SHOAL_OK) {
        ddp_keep(ddp);
    } else {
        (void)scope_fail(error_prefix(status, "ddp"));
    }
    return NULL;
}

static shoal_status after_forward(void *context, const shoal_forward_call *call)
{
    struct ddp *ddp = context;
    if (op_capture_running()) {
        return SHOAL_OK; /* the capture keeps the module, and there is nobody to compare with */
    }
    return forwards_record(&ddp->forwards.list, call, hold);
}

shoal_status ddp_hook_forward(struct ddp *ddp)
{
    const shoal_module_hook_definition definition = {.struct_size = sizeof definition,
                                                     .pre_forward = before_forward,
                                                     .pre_place = SHOAL_HOOK_FIRST,
                                                     .post_forward = after_forward,
                                                     .post_place = SHOAL_HOOK_LAST,
                                                     .context = ddp};
    return shoal_module_add_hook(ddp->module, &definition, &ddp->forward_hook);
}
