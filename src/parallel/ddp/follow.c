/* SPDX-License-Identifier: MIT */
#include "parallel/ddp/confirm.h"
#include "parallel/ddp/follow.h"

#include <stdio.h>

#include "base/callback.h"
#include "base/changes.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/try.h"
#include "comm/group/calls.h"
#include "comm/call/collectives.h"
#include "comm/lane/handles.h"
#include "module/module.h"
#include "op/tracer.h"
#include "parallel/claim.h"
#include "parallel/ddp/agree.h"
#include "parallel/ddp/backward.h"
#include "parallel/ddp/block.h"
#include "parallel/ddp/capture.h"
#include "parallel/ddp/collect.h"
#include "parallel/ddp/order.h"
#include "parallel/ddp/purpose.h"
#include "parallel/ddp/values.h"
#include "shoal/work.h"
#include "tensor/scope.h"
#include "tensor/tensor.h"

/* A list of names. */
struct naming {
    const struct ddp *ddp;
    struct text text;
    size_t n_names;
};

/* Looking ------------------------------------------------------------------------------------------------ */

/* Gives what has changed: "parameters" or "buffers"; NULL if nothing has. */
static shoal_status find_change(const struct ddp *ddp, const char **changed_out)
{
    struct ddp_look look;
    size_t n_buffers;
    TRY(ddp_look(ddp, &look));
    TRY(shoal_module_count(ddp->module, SHOAL_WALK_BUFFERS, &n_buffers));
    bool sends_buffers = n_buffers > 0 && !ddp->config.options.keeps_buffers;
    *changed_out = NULL;
    if (!look.has_same_params || look.places != ddp->places) {
        *changed_out = "parameters";
    } else if (look.buffers != ddp->buffers.places || sends_buffers != ddp->buffers.are_sent) {
        *changed_out = "buffers";
    }
    return SHOAL_OK;
}

static shoal_status add_new(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct naming *naming = context;
    const struct ddp *ddp = naming->ddp;
    if (entry->kind == SHOAL_WALK_MODULES) {
        *next = claim_value(entry->module, CLAIMANT_FSDP) ? SHOAL_WALK_SKIP : SHOAL_WALK_ON;
    } else if (!ddp_has_param(ddp, entry->tensor) && !ddp_is_ignored(&ddp->config.options, entry->tensor)) {
        text_add_name(&naming->text, naming->n_names++ == 0 ? ", new: " : ", ", entry->path);
    }
    return SHOAL_OK;
}

/* "parameters of net, new: layer.w, late", for the error if other ranks do something else. */
static void write_words(const struct ddp *ddp, const char *changed, char *words)
{
    struct naming naming = {.ddp = ddp, .text = text_begin(words, PURPOSE_WORDS_BYTES)};
    text_add(&naming.text, "%s of %.64s", changed, shoal_module_type(ddp->module));
    (void)!shoal_module_walk(ddp->module, SHOAL_WALK_MODULES | SHOAL_WALK_PARAMETERS, add_new, &naming);
}

/* Wrapping again ----------------------------------------------------------------------------------------- */

/* The lanes of the module on which another rank may be in a step instead, eager or compiled. */
static size_t list_lanes(const struct ddp *ddp, shoal_group **lanes)
{
    size_t n = 0;
    lanes[n++] = ddp->lane.group;
    if (ddp->buffers.are_sent) {
        lanes[n++] = ddp->buffers.lane;
    }
    return n;
}

/* Compares that all ranks wrap the module again. */
static shoal_status compare(struct ddp *ddp, const char *changed)
{
    char words[PURPOSE_WORDS_BYTES];
    struct purpose purpose = ddp_purpose(ddp, PURPOSE_DDP_CHANGED);
    write_words(ddp, changed, words);
    purpose.words = words;
    shoal_group *lanes[2];
    shoal_work *announced[2] = {NULL, NULL};
    size_t n = list_lanes(ddp, lanes);
    shoal_status status = SHOAL_OK;
    for (size_t i = 0; i < n && status == SHOAL_OK; i++) {
        status = collectives_barrier_start(lanes[i], &purpose, &announced[i]);
    }
    if (status == SHOAL_OK) {
        status = ddp_order_compare(ddp->order.shared, &purpose, lanes, n);
    }
    for (size_t i = 0; i < n; i++) {
        if (announced[i] && status == SHOAL_OK) {
            status = shoal_work_wait(announced[i], -1.0);
        } else if (announced[i]) {
            work_forget(announced[i]);
        }
        shoal_work_free(announced[i]);
    }
    return status;
}

/* Makes what the new lists need, so that taking them over cannot fail. (Gradients that leave the block need memory, too;
   without it they are released, and using them is an error.) The hooks are added beside the old ones: no backward pass
   is running. */
static shoal_status make_ready(struct ddp *ddp, struct ddp *fresh)
{
    for (size_t i = 0; i < fresh->n_params; i++) {
        fresh->params[i].ddp = ddp;
        TRY(ddp_add_hooks(&fresh->params[i]));
    }
    for (size_t i = 0; i < fresh->inner.n_modules; i++) {
        TRY(claim_cover(fresh->inner.modules[i], CLAIMANT_DDP, ddp));
    }
    return ddp_open_lists(fresh);
}

/* A parameter that stays keeps its gradient, and what is known of it. */
static void keep_state(const struct ddp *ddp, struct ddp_param *param)
{
    struct ddp_param *old = ddp_find_param(ddp, param->tensor);
    if (!old) {
        return;
    }
    param->gradient = old->gradient;
    param->aside = old->aside;
    param->has_aside = old->has_aside;
    param->is_reduced = old->is_reduced;
    param->is_local = old->is_local;
    param->is_left = old->is_left;
    param->version = old->version;
    param->n_expected = old->n_expected;
    old->gradient = NULL;
    old->aside = ADDRESS_NONE;
}

/* A parameter that leaves takes its gradient along, with what was set aside. Nobody watches that from now on, so it
   counts as this rank's own if the parameter comes back. */
static void let_leave(const struct ddp *ddp, struct ddp_param *param)
{
    shoal_tensor *gradient = shoal_grad(param->tensor);
    if (gradient && !ddp_find_param(ddp, param->tensor)) {
        (void)!ddp_add_aside(param); /* it fails only if the gradient cannot be read any more */
        error_clear();
        gradient->is_averaged = false;
    }
}

/* Takes the lists of `fresh` over; it has the old ones then. */
static void take_over(struct ddp *ddp, struct ddp *fresh)
{
    struct ddp old = *ddp;
    ddp_leave_block(ddp);
    old.buckets.block = NULL;
    old.buckets.memory = ADDRESS_NONE;
    for (size_t i = 0; i < fresh->n_params; i++) {
        keep_state(ddp, &fresh->params[i]);
    }
    ddp->params = fresh->params;
    ddp->n_params = fresh->n_params;
    ddp->params_capacity = fresh->params_capacity;
    ddp->frozen = fresh->frozen;
    ddp->n_frozen = fresh->n_frozen;
    ddp->frozen_capacity = fresh->frozen_capacity;
    ddp->inner = fresh->inner;
    ddp->buckets = fresh->buckets;
    ddp->buckets.is_learning = true;
    ddp->buffers.are_sent = fresh->buffers.are_sent;
    ddp->buffers.places = fresh->buffers.places;
    ddp->buffers.lane = fresh->buffers.lane;
    ddp->backward.n_ready = fresh->backward.n_ready;
    ddp->backward.works = fresh->backward.works;
    ddp->backward.fences = fresh->backward.fences;
    ddp->backward.frozen_set = NULL;
    ddp->backward.n_frozen_set = 0;
    ddp->device = fresh->n_params > 0 ? fresh->device : ddp->device; /* all may be frozen for a while */
    ddp->places = fresh->places;
    for (size_t i = 0; i < old.n_params; i++) {
        let_leave(ddp, &old.params[i]);
    }
    *fresh = old;
}

/* Call when the ranks have the same new lists. */
static shoal_status wrap_together(struct ddp *ddp, struct ddp *fresh, shoal_group *lane,
                                  const struct ddp_tensors *list)
{
    TRY(ddp_confirm(lane, make_ready(ddp, fresh)));
    if (!ddp->config.options.keeps_parameters) {
        TRY(ddp_broadcast(lane, list)); /* if it fails, the next forward pass wraps again */
    }
    take_over(ddp, fresh);
    return SHOAL_OK;
}

/* Children that are new are not covered if the module was not wrapped again. The walk lists old modules and new ones, so
   old ones keep their mark. */
static void uncover_new(const struct ddp *ddp, const struct ddp *fresh)
{
    for (size_t i = 0; i < fresh->inner.n_modules; i++) {
        size_t k = 0;
        while (k < ddp->inner.n_modules && ddp->inner.modules[k] != fresh->inner.modules[i]) {
            k++;
        }
        if (k == ddp->inner.n_modules && claim_is_by(fresh->inner.modules[i], CLAIMANT_DDP, ddp)) {
            claim_uncover(fresh->inner.modules[i], CLAIMANT_DDP);
        }
    }
}

static shoal_status wrap_again(struct ddp *ddp, const char *changed)
{
    shoal_group *lane;
    if (ddp->lane.is_broken) {
        TRY(ddp_open_again(ddp));
    }
    struct ddp fresh = {.group = ddp->group,
                        .module = ddp->module,
                        .config = ddp->config,
                        .lane = ddp->lane,
                        .order = ddp->order};
    struct ddp_collector collector = {.ddp = &fresh, .options = &ddp->config.options, .again = ddp};
    shoal_status status = compare(ddp, changed);
    if (status != SHOAL_OK) {
        char reason[ERROR_TEXT_BYTES];
        (void)snprintf(reason, sizeof reason, "%s", shoal_error_text());
        ddp->lane.is_broken = ddp->lane.is_broken || group_failure(ddp->lane.group) != SHOAL_OK;
        return error_set(status, "%s", reason);
    }
    status = ddp_open_lane(ddp->group, "ddp", &lane);
    if (status == SHOAL_OK) {
        status = ddp_agree(&collector, lane, ddp_collect(&collector));
    }
    if (status == SHOAL_OK) {
        status = wrap_together(ddp, &fresh, lane, &collector.list);
    }
    if (status != SHOAL_OK) {
        uncover_new(ddp, &fresh);
    }
    char text[ERROR_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    ddp_tensors_free(&collector.list);
    ddp_free_lists(&fresh);
    return status == SHOAL_OK ? SHOAL_OK : error_set(status, "%s", text);
}

/* Ranks wait for each other here. In a capture, this is no part of the step; if a rank gives the step up, the others
   are told. */
static shoal_status wrap_in_capture(struct ddp *ddp, const char *changed)
{
    if (ddp->capture) {
        return error_set(SHOAL_ERR_STATE, "the %s of the module have changed while a step is captured",
                         changed);
    }
    TRY(shoal_scope_begin());
    shoal_status status = op_set_tracer(NULL);
    if (status == SHOAL_OK) {
        uint32_t depth = callback_pause_capture();
        status = world_call_meet(&ddp->lane.group, 1);
        if (status == SHOAL_OK) {
            status = wrap_again(ddp, changed);
        }
        world_call_part(status == SHOAL_OK);
        callback_resume_capture(depth);
    }
    if (status != SHOAL_OK) {
        (void)scope_fail(status);
    }
    return shoal_scope_end();
}

/* Parameters may be frozen and thawed between steps. */
static shoal_status watch_params(struct ddp *ddp)
{
    for (size_t i = 0; i < ddp->n_params; i++) {
        TRY(ddp_watch_param(&ddp->params[i]));
    }
    return SHOAL_OK;
}

shoal_status ddp_follow(struct ddp *ddp)
{
    const char *changed;
    if (ddp->looked == changes_latest()) {
        return SHOAL_OK;
    }
    TRY(watch_params(ddp));
    TRY(find_change(ddp, &changed));
    if (changed) {
        if (!ddp->world || !ddp->wants_sync || !scope_will_record()) {
            return SHOAL_OK; /* the next forward pass will look again */
        }
        shoal_status status = op_capture_running() ? wrap_in_capture(ddp, changed) : wrap_again(ddp, changed);
        if (status != SHOAL_OK) {
            return error_prefix(status, "ddp: the module has other %s than when it was wrapped", changed);
        }
    }
    ddp->looked = changes_latest();
    return SHOAL_OK;
}

/* Modules inside ----------------------------------------------------------------------------------------- */

/* If the root is being called, it has looked already, or its hook will. */
static shoal_status before_inner(void *context, const shoal_forward_call *call)
{
    struct ddp *ddp = context;
    if (call->module == ddp->module || call->is_recompute || ddp->looked == changes_latest()) {
        return SHOAL_OK;
    }
    if (op_capture_running()) {
        TRY(ddp_capture_ready(ddp));
    } else {
        ddp_give_up_failed(ddp);
    }
    return ddp_follow(ddp);
}

shoal_status ddp_guard(struct ddp *ddp)
{
    return module_guard_tree(ddp->module, before_inner, ddp, &ddp->guard);
}
