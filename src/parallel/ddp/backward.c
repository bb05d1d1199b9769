/* SPDX-License-Identifier: MIT */
#include "parallel/ddp/backward.h"

#include <stdatomic.h>

#include "autograd/backward.h"
#include "autograd/hooks.h"
#include "autograd/leaf.h"
#include "base/error.h"
#include "base/try.h"
#include "comm/lane/handles.h"
#include "op/tracer.h"
#include "parallel/ddp/block.h"
#include "parallel/ddp/capture.h"
#include "parallel/ddp/gradient.h"
#include "parallel/ddp/order.h"
#include "parallel/ddp/pass.h"
#include "parallel/ddp/purpose.h"
#include "parallel/ddp/reached.h"
#include "parallel/ddp/reduction.h"
#include "shoal/autograd.h"
#include "tensor/scope.h"
#include "tensor/tensor.h"

/* What a failed backward pass left ----------------------------------------------------------------------- */

/* Whether a backward pass has failed on its way to parameters of the module since the last call. */
static bool has_failed_before(struct ddp *ddp)
{
    bool has_failed = false;
    for (size_t i = 0; i < ddp->n_params; i++) {
        struct ddp_param *param = &ddp->params[i];
        const struct leaf *leaf = leaf_of(param->tensor);
        if (leaf && leaf->number == param->leaf) {
            has_failed = has_failed || leaf->n_failures != param->n_failures;
            param->n_failures = leaf->n_failures;
        }
    }
    return has_failed;
}

void ddp_notice_failure(struct ddp *ddp)
{
    bool has_failed = has_failed_before(ddp);
    if (has_failed && !ddp->backward.is_running) { /* other ranks may wait in that backward pass */
        ddp->lane.is_broken = ddp->lane.is_broken || ddp->wanted_sync;
    }
    if (!ddp->backward.is_running || ddp->backward.number == backward_number()) {
        return;
    }
    ddp->backward.is_running = false;
    ddp->lane.is_broken = ddp->lane.is_broken || ddp->backward.syncs;
    for (size_t i = 0; i < ddp->n_params; i++) {
        struct ddp_param *param = &ddp->params[i];
        param->is_left = param->is_left || param->n_arrived > 0 || ddp->backward.n_started > 0;
    }
}

void ddp_give_up_failed(struct ddp *ddp)
{
    ddp_notice_failure(ddp);
    if (ddp->world && ddp->lane.is_broken) {
        ddp_close(ddp);
    }
}

/* The beginning ------------------------------------------------------------------------------------------ */

/* A hook of the program may have closed the world in the middle of the pass. */
static shoal_status check_open(const struct ddp *ddp)
{
    return ddp->world ? SHOAL_OK : error_set(SHOAL_ERR_STATE, "the world of the module's group is closed");
}

static shoal_status end_backward(void *context)
{
    struct ddp *ddp = context;
    if (!ddp->backward.syncs) {
        ddp->backward.is_running = false;
        return SHOAL_OK;
    }
    shoal_status status = check_open(ddp);
    if (status == SHOAL_OK) {
        status = ddp_check_reached(ddp);
    }
    if (status == SHOAL_OK) {
        status = ddp_end_pass(ddp);
    }
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "ddp");
}

static void clear_progress(struct ddp *ddp)
{
    ddp->backward.n_arrivals = 0;
    ddp->backward.n_started = 0;
    for (size_t i = 0; i < ddp->buckets.plan.n_buckets; i++) {
        ddp->backward.n_ready[i] = 0;
    }
    for (size_t i = 0; i < ddp->n_params; i++) {
        struct ddp_param *param = &ddp->params[i];
        param->n_arrived = 0;
        param->stamp = 0;
        param->has_part = false;
    }
}

static shoal_status begin(struct ddp *ddp)
{
    uint64_t number = backward_number();
    TRY(check_open(ddp));
    if (ddp->backward.is_running && ddp->backward.number == number) {
        return SHOAL_OK;
    }
    TRY(world_check(ddp->world)); /* gradients are in memory that the ranks share */
    ddp_notice_failure(ddp);
    TRY(ddp_check_left(ddp));
    ddp->backward.syncs = ddp->wants_sync;
    ddp->backward.number = number;
    if (ddp->backward.syncs && ddp->lane.is_broken) {
        TRY(ddp_open_again(ddp));
    }
    TRY(ddp_need_places(ddp));
    ddp->order.generation = ddp_order_generation(ddp->order.shared);
    clear_progress(ddp);
    if (ddp->backward.syncs) {
        TRY(ddp_find_frozen(ddp));
    }
    ddp->backward.is_running = true; /* even if the next call fails: others may be in this pass already */
    /* Relaxed: see pass.c. */
    atomic_store_explicit(&ddp->backward.pass, ddp->backward.syncs ? number : 0, memory_order_relaxed);
    TRY(backward_on_end(end_backward, ddp, ddp_let_go));
    ddp_keep(ddp);
    return SHOAL_OK;
}

/* Hooks on a leaf ---------------------------------------------------------------------------------------- */

static shoal_status arrive(struct ddp_param *param)
{
    struct ddp *ddp = param->ddp;
    TRY(begin(ddp));
    if (ddp->backward.syncs &&
        ddp->buckets.plan.places[param - ddp->params].bucket < ddp->backward.n_started) {
        param->n_expected = SIZE_MAX; /* from now on it is sent at the end of the pass */
        return error_set(SHOAL_ERR_STATE,
                         "parameter %s gets another gradient after its gradient was sent: it is used more "
                         "often than in the first backward pass",
                         param->path);
    }
    return ddp_make_room(param);
}

static shoal_tensor *before_adding(void *context, shoal_tensor *gradient)
{
    shoal_tensor *added = NULL;
    struct op_tracer *tracer = op_capture_running();
    shoal_status status = tracer ? ddp_capture_gradient(context, tracer, gradient, &added) : arrive(context);
    if (status != SHOAL_OK) {
        (void)scope_fail(error_prefix(status, "ddp"));
    }
    return added;
}

static shoal_status after_adding(void *context, shoal_tensor *leaf)
{
    struct ddp_param *param = context;
    struct ddp *ddp = param->ddp;
    if (op_capture_running()) {
        return ddp_capture_added(param);
    }
    TRY(check_open(ddp));
    if (!ddp_is_ours(param)) {
        TRY(ddp_take_in(param, shoal_grad(leaf)));
    }
    param->version = shoal_tensor_version(param->gradient);
    param->is_local = true;
    param->has_part = true;
    param->n_arrived++;
    param->stamp = ++ddp->backward.n_arrivals;
    return ddp->backward.syncs && param->n_arrived == param->n_expected ? ddp_mark_ready(param) : SHOAL_OK;
}

shoal_status ddp_add_hooks(struct ddp_param *param)
{
    TRY(hook_on_final_gradient(param->tensor, before_adding, param, &param->on_gradient));
    TRY(hook_on_accumulated(param->tensor, after_adding, param, &param->on_accumulated));
    param->leaf = leaf_of(param->tensor)->number;
    param->n_failures = leaf_of(param->tensor)->n_failures;
    return SHOAL_OK;
}

shoal_status ddp_watch_param(struct ddp_param *param)
{
    const struct leaf *leaf = leaf_of(param->tensor);
    if (leaf && leaf->number == param->leaf) {
        return SHOAL_OK;
    }
    ddp_remove_hooks(param);
    return leaf ? ddp_add_hooks(param) : SHOAL_OK;
}
