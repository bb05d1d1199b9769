/* SPDX-License-Identifier: MIT */
#include "parallel/ddp/capture.h"

#include <stdio.h>

#include "autograd/backward.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/try.h"
#include "op/dependence.h"
#include "parallel/ddp/block.h"
#include "parallel/ddp/gradient.h"
#include "parallel/ddp/reached.h"
#include "parallel/functional.h"
#include "shoal/autograd.h"
#include "shoal/ops.h"
#include "tensor/scope.h"
#include "tensor/tensor.h"

/* What a collective is for, with a path. Longer ones are cut. */
#define WHAT_BYTES 512

/* A parameter. */
struct captured {
    size_t n_arrived;       /* in the running backward pass */
    shoal_tensor *gradient; /* the one that the capture gave the leaf, one reference; NULL if it gave none */
    bool is_averaged;       /* whether `gradient` is averaged over the ranks */
    shoal_tensor *aside;    /* an averaged gradient, while more arrive in this backward pass; one reference */
};

struct ddp_capture {
    struct ddp *ddp;
    struct op_tracer *tracer;
    uint64_t backward; /* the number of the last backward pass that reached the module */
    bool syncs;        /* whether that pass reduces */
    struct captured params[];
};

/* Beginning ---------------------------------------------------------------------------------------------- */

static void end_capture(void *context)
{
    struct ddp_capture *capture = context;
    struct ddp *ddp = capture->ddp;
    for (size_t i = 0; i < ddp->n_params; i++) {
        shoal_tensor_unref(capture->params[i].gradient);
        shoal_tensor_unref(capture->params[i].aside);
    }
    ddp->capture = NULL;
    mem_free(capture);
    ddp_let_go(ddp);
}

/* The state of a gradient on which the captured backward pass depends. */
static uint64_t state_of_param(const struct ddp_param *param)
{
    const shoal_tensor *kept = shoal_grad(param->tensor);
    bool is_ours = ddp_is_ours(param);
    bool is_averaged = kept && (is_ours ? param->is_reduced : kept->is_averaged);
    bool is_apart = is_ours && !param->is_reduced && param->has_aside;
    return (is_averaged ? 1u : 0u) | (is_apart ? 2u : 0u);
}

static uint64_t state_of(const void *owner)
{
    const struct ddp *ddp = owner;
    uint64_t state = hash_bytes(1, &ddp->wants_sync, sizeof ddp->wants_sync);
    state = hash_bytes(state, &ddp->lane.generation, sizeof ddp->lane.generation);
    state = hash_bytes(state, &ddp->lane.is_broken, sizeof ddp->lane.is_broken);
    for (size_t i = 0; i < ddp->n_params; i++) {
        uint64_t word = state_of_param(&ddp->params[i]);
        state = hash_bytes(state, &word, sizeof word);
    }
    return state;
}

static shoal_status depend(struct ddp *ddp, struct op_tracer *tracer)
{
    static const struct op_dependence_kind kind = {.state = state_of};
    if (!ddp->dependence) {
        TRY(op_dependence_create(&kind, ddp, &ddp->dependence));
    }
    return tracer->capture->depend(tracer, ddp->dependence);
}

/* The module is kept until the capture ends. */
static shoal_status need_capture(struct ddp *ddp, struct op_tracer *tracer)
{
    if (ddp->capture) {
        return ddp->capture->tracer == tracer
                   ? SHOAL_OK
                   : error_set(SHOAL_ERR_STATE, "another capture of the module is running");
    }
    TRY(depend(ddp, tracer));
    struct ddp_capture *capture =
        mem_alloc_zeroed(1, sizeof *capture + ddp->n_params * sizeof capture->params[0]);
    if (!capture) {
        return SHOAL_ERR_NO_MEMORY;
    }
    capture->ddp = ddp;
    capture->tracer = tracer;
    shoal_status status = tracer->capture->at_end(tracer, end_capture, capture);
    if (status != SHOAL_OK) {
        mem_free(capture);
        return status;
    }
    ddp_keep(ddp);
    ddp->capture = capture;
    return SHOAL_OK;
}

/* Does what the beginning of an eager backward pass does, except that it does not look for a failed pass, because a
   capture may run inside a backward pass. */
shoal_status ddp_capture_ready(struct ddp *ddp)
{
    if (!ddp->world) {
        return error_set(SHOAL_ERR_STATE, "the world of the module's group is closed");
    }
    if (ddp->backward.is_running) {
        return error_set(SHOAL_ERR_STATE,
                         "a backward pass of the module is running, or has failed: call shoal_ddp_reset "
                         "before a capture");
    }
    TRY(ddp_check_left(ddp));
    return ddp->lane.is_broken ? ddp_open_again(ddp) : SHOAL_OK;
}

/* Buffers ------------------------------------------------------------------------------------------------ */

static shoal_status send_buffer(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    const struct ddp *ddp = context;
    (void)next;
    char what[WHAT_BYTES];
    (void)snprintf(what, sizeof what, "buffer %s", entry->path);
    shoal_tensor *first = functional_broadcast(entry->tensor, 0, ddp->buffers.lane, what);
    return first && shoal_copy_(entry->tensor, first) ? SHOAL_OK : shoal_scope_error();
}

static shoal_status send_buffers(struct ddp *ddp)
{
    TRY(shoal_scope_set_grad(false));
    return shoal_module_walk(ddp->module, SHOAL_WALK_BUFFERS, send_buffer, ddp);
}

static shoal_status send_buffers_in_scope(struct ddp *ddp)
{
    TRY(shoal_scope_begin());
    shoal_status status = send_buffers(ddp);
    if (status != SHOAL_OK) {
        (void)scope_fail(status);
    }
    return shoal_scope_end();
}

shoal_status ddp_capture_forward(struct ddp *ddp, struct op_tracer *tracer)
{
    bool sends = ddp->buffers.are_sent && ddp->wants_sync && scope_will_record();
    TRY(need_capture(ddp, tracer));
    return sends ? send_buffers_in_scope(ddp) : SHOAL_OK;
}

/* Gradients ---------------------------------------------------------------------------------------------- */

static struct captured *captured_of(const struct ddp_param *param)
{
    return &param->ddp->capture->params[param - param->ddp->params];
}

/* Whether the gradient that the leaf has is the same on all ranks, and is not to be reduced again. */
static bool is_averaged(const struct ddp_param *param)
{
    const struct captured *captured = captured_of(param);
    const shoal_tensor *kept = shoal_grad(param->tensor);
    if (!kept || kept == captured->gradient) {
        return kept && captured->is_averaged;
    }
    return ddp_is_ours(param) ? param->is_reduced : kept->is_averaged;
}

static shoal_status note_gradient(const struct ddp_param *param, bool is_averaged)
{
    struct captured *captured = captured_of(param);
    shoal_tensor_unref(captured->gradient);
    captured->gradient = shoal_tensor_ref(shoal_grad(param->tensor));
    captured->gradient->is_averaged = is_averaged; /* whoever runs the graph sets this on the results */
    captured->is_averaged = is_averaged;
    return SHOAL_OK;
}

/* Takes the gradient off the leaf. */
static shoal_status take_gradient(const struct ddp_param *param)
{
    struct op_tracer *tracer = param->ddp->capture->tracer;
    TRY(tracer->capture->note_leaf(tracer, param->tensor));
    return shoal_set_grad(param->tensor, NULL);
}

/* Reduces this rank's gradient over all ranks, and adds what was averaged before. */
static shoal_status reduce(const struct ddp_param *param, shoal_tensor *local, shoal_tensor **reduced_out)
{
    const struct ddp *ddp = param->ddp;
    struct captured *captured = captured_of(param);
    struct functional_reduce how = {.op = ddp->config.reduce, .factor = ddp->config.factor};
    char what[WHAT_BYTES];
    (void)snprintf(what, sizeof what, "gradient of %s", param->path);
    local = functional_cast(local, param->tensor->dtype);
    shoal_tensor *reduced = functional_all_reduce(local, how, ddp->lane.group, what);
    if (captured->aside) {
        reduced = shoal_add(reduced, captured->aside);
        shoal_tensor_unref(captured->aside);
        captured->aside = NULL;
    }
    *reduced_out = reduced;
    return reduced ? SHOAL_OK : shoal_scope_error();
}

/* Handles the last gradient of a parameter in a backward pass that reduces. */
static shoal_status reduce_last(const struct ddp_param *param, shoal_tensor *gradient,
                                shoal_tensor **added_out)
{
    shoal_tensor *kept = shoal_grad(param->tensor);
    if (!kept || is_averaged(param)) {
        return reduce(param, gradient, added_out); /* autograd adds it */
    }
    shoal_tensor *sum = shoal_add(kept, functional_cast(gradient, kept->dtype));
    if (!sum) {
        return shoal_scope_error();
    }
    TRY(take_gradient(param));
    return reduce(param, sum, added_out);
}

/* More gradients will arrive: sets aside what was averaged, so that it is not reduced again. */
static shoal_status set_aside(const struct ddp_param *param)
{
    struct captured *captured = captured_of(param);
    if (!is_averaged(param)) {
        return SHOAL_OK;
    }
    captured->aside = shoal_tensor_ref(shoal_grad(param->tensor));
    return take_gradient(param);
}

/* The end of a backward pass ----------------------------------------------------------------------------- */

/*
 * A parameter that this step does not use on this rank. With reduce_unused it keeps its gradient, as in an eager
 * backward pass in which no rank uses it. If another rank did use it, that rank would have captured other
 * collectives, and ranks compare their plans before the first run.
 */
static shoal_status leave_missing(const struct ddp_param *param)
{
    return param->ddp->config.reduce_unused
               ? SHOAL_OK
               : error_set(SHOAL_ERR_STATE,
                           "parameter %s got no gradient: use it in every backward pass, or freeze it",
                           param->path);
}

/* Handles a gradient that did not arrive, or arrived less often than in an eager backward pass. */
static shoal_status reduce_late(const struct ddp_param *param)
{
    shoal_tensor *reduced;
    shoal_tensor *kept = shoal_grad(param->tensor);
    if (!kept || is_averaged(param)) {
        return leave_missing(param);
    }
    struct op_tracer *tracer = param->ddp->capture->tracer;
    TRY(tracer->capture->note_leaf(tracer, param->tensor));
    TRY(reduce(param, kept, &reduced));
    TRY(shoal_set_grad(param->tensor, reduced));
    return note_gradient(param, true);
}

static shoal_status end_backward(void *context)
{
    struct ddp *ddp = context;
    shoal_status reached = ddp->capture->syncs ? ddp_check_reached(ddp) : SHOAL_OK;
    if (reached != SHOAL_OK) {
        return error_prefix(reached, "ddp");
    }
    for (size_t i = 0; ddp->capture->syncs && i < ddp->n_params; i++) {
        const struct ddp_param *param = &ddp->params[i];
        if (shoal_requires_grad(param->tensor) && captured_of(param)->n_arrived < param->n_expected) {
            shoal_status status = reduce_late(param);
            if (status != SHOAL_OK) {
                return error_prefix(status, "ddp");
            }
        }
    }
    return SHOAL_OK;
}

static shoal_status check_left(const struct ddp *ddp)
{
    for (size_t i = 0; i < ddp->n_params; i++) {
        const struct ddp_param *param = &ddp->params[i];
        if (param->is_left && ddp_is_ours(param) && shoal_tensor_version(param->gradient) == param->version) {
            return error_set(SHOAL_ERR_STATE,
                             "parameter %s has the gradient that a failed backward pass left", param->path);
        }
    }
    return SHOAL_OK;
}

static shoal_status begin_backward(struct ddp *ddp, struct op_tracer *tracer)
{
    TRY(need_capture(ddp, tracer));
    struct ddp_capture *capture = ddp->capture;
    if (capture->backward == backward_number()) {
        return SHOAL_OK;
    }
    TRY(ddp_capture_ready(ddp));
    TRY(check_left(ddp));
    TRY(backward_on_end(end_backward, ddp, NULL)); /* the capture keeps it */
    capture->backward = backward_number();
    capture->syncs = ddp->wants_sync;
    for (size_t i = 0; i < ddp->n_params; i++) {
        capture->params[i].n_arrived = 0;
    }
    return SHOAL_OK;
}

/* In a graph a leaf has one gradient, so it cannot have a local and an averaged one at the same time. */
static shoal_status check_apart(const struct ddp_param *param)
{
    bool is_apart = ddp_is_ours(param) && !param->is_reduced && param->has_aside;
    if (is_apart || (!param->ddp->capture->syncs && is_averaged(param))) {
        return error_set(SHOAL_ERR_STATE,
                         "parameter %s has a gradient that was averaged, and gets or has one that was not "
                         "(shoal_ddp_set_sync): remove it, or capture the backward passes without "
                         "synchronization in one step with the next one that synchronizes",
                         param->path);
    }
    return SHOAL_OK;
}

shoal_status ddp_capture_gradient(struct ddp_param *param, struct op_tracer *tracer, shoal_tensor *gradient,
                                  shoal_tensor **added_out)
{
    TRY(begin_backward(param->ddp, tracer));
    struct captured *captured = captured_of(param);
    *added_out = NULL;
    TRY(check_apart(param));
    captured->n_arrived++;
    if (!param->ddp->capture->syncs) {
        return SHOAL_OK;
    }
    if (captured->n_arrived > param->n_expected) {
        return error_set(SHOAL_ERR_STATE,
                         "parameter %s gets another gradient after its gradient was sent: run a backward "
                         "pass before the capture, so that it is known how often the parameter is used",
                         param->path);
    }
    return captured->n_arrived == param->n_expected ? reduce_last(param, gradient, added_out)
                                                    : set_aside(param);
}

shoal_status ddp_capture_added(struct ddp_param *param)
{
    const struct ddp_capture *capture = param->ddp->capture;
    if (!capture) {
        return error_set(SHOAL_ERR_STATE, "the capture in which the gradient was computed is over");
    }
    return note_gradient(param, capture->syncs && captured_of(param)->n_arrived == param->n_expected);
}
