/* SPDX-License-Identifier: MIT */
/* Calls for a module that is wrapped: settings, clipping, and starting over. */
#include "base/error.h"
#include "base/try.h"
#include "parallel/claim.h"
#include "parallel/clip.h"
#include "parallel/ddp/backward.h"
#include "parallel/ddp/block.h"
#include "parallel/ddp/collect.h"
#include "parallel/ddp/purpose.h"
#include "shoal/autograd.h"
#include "shoal/ddp.h"
#include "tensor/scope.h"
#include "tensor/storage.h"
#include "tensor/tensor.h"

static shoal_status find(const char *call, const shoal_module *module, struct ddp **ddp_out)
{
    *ddp_out = module ? ddp_of(module) : NULL;
    if (!module) {
        (void)error_prefix(error_null("module"), "%s", call);
        return SHOAL_ERR_INVALID;
    }
    error_clear();
    return *ddp_out ? SHOAL_OK
                    : error_set(SHOAL_ERR_INVALID, "%s: module %s is not wrapped", call,
                                shoal_module_type(module));
}

bool shoal_ddp_is_wrapped(const shoal_module *module)
{
    return module && ddp_of(module);
}

shoal_status shoal_ddp_set_sync(shoal_module *module, bool is_on)
{
    struct ddp *ddp;
    TRY(find("ddp_set_sync", module, &ddp));
    ddp->wants_sync = is_on;
    return SHOAL_OK;
}

/* Clipping ----------------------------------------------------------------------------------------------- */

static shoal_status visit_gradient(const struct ddp_param *param, bool is_written, clip_visitor visit,
                                   void *context)
{
    shoal_tensor *gradient = shoal_grad(param->tensor);
    struct address data;
    if (!gradient) {
        return SHOAL_OK;
    }
    if (ddp_is_ours(param) && param->is_local) {
        return error_set(
            SHOAL_ERR_STATE,
            "the gradient of parameter %s has not been reduced yet, and differs from those of other ranks",
            param->path);
    }
    if (!gradient->is_contiguous) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "the gradient of parameter %s is not contiguous",
                         param->path);
    }
    TRY(is_written ? tensor_wait_writable(gradient, /*overwrites=*/false) : tensor_wait_readable(gradient));
    TRY(tensor_address(gradient, &data));
    if (is_written) {
        storage_bump_version(gradient->storage);
    }
    return visit(context, gradient->dtype, data, (size_t)gradient->count);
}

static shoal_status walk(void *owner, bool is_written, clip_visitor visit, void *context)
{
    const struct ddp *ddp = owner;
    for (size_t i = 0; i < ddp->n_params; i++) {
        TRY(visit_gradient(&ddp->params[i], is_written, visit, context));
    }
    return SHOAL_OK;
}

/* A parameter that is not wrapped yet. */
static shoal_status check_wrapped(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    const struct ddp *ddp = context;
    if (entry->kind == SHOAL_WALK_MODULES) {
        *next = claim_value(entry->module, CLAIMANT_FSDP) ? SHOAL_WALK_SKIP : SHOAL_WALK_ON;
        return SHOAL_OK;
    }
    if (!shoal_grad(entry->tensor) || ddp_find_param(ddp, entry->tensor) ||
        ddp_is_ignored(&ddp->config.options, entry->tensor)) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_STATE,
                     "the gradient of parameter %s has not been reduced: no forward pass with gradients and "
                     "synchronization on was made since the module has this parameter",
                     entry->path);
}

/* For a walk that only checks whether all gradients can be clipped, before the first one is changed. */
static shoal_status visit_nothing(void *context, shoal_dtype dtype, struct address data, size_t count)
{
    (void)context;
    (void)dtype;
    (void)data;
    (void)count;
    return SHOAL_OK;
}

static shoal_status check_clippable(struct ddp *ddp)
{
    bool has_same;
    TRY(walk(ddp, false, visit_nothing, NULL));
    TRY(ddp_has_same_params(ddp, &has_same));
    return has_same ? SHOAL_OK
                    : shoal_module_walk(ddp->module, SHOAL_WALK_MODULES | SHOAL_WALK_PARAMETERS,
                                        check_wrapped, ddp);
}

/* Collective. Ranks compare their arguments, and whether all of them can clip. */
static shoal_status compare(struct ddp *ddp, const struct purpose *purpose)
{
    return ddp_compare_ready(
        ddp, purpose, check_clippable(ddp),
        "another rank has a gradient that has not been reduced, or that cannot be clipped");
}

shoal_status shoal_ddp_clip_grad_norm(shoal_module *module, double max_norm, double power,
                                      bool must_be_finite, double *norm_out)
{
    const struct clip_norm norm = {.max_norm = max_norm, .power = power, .must_be_finite = must_be_finite};
    struct ddp *ddp;
    double found = 0.0;
    TRY(find("ddp_clip_grad_norm", module, &ddp));
    TRY(clip_check_norm("ddp_clip_grad_norm", &norm));
    int64_t details[CLIP_NORM_DETAILS];
    struct purpose purpose = ddp_purpose(ddp, PURPOSE_DDP_CLIP);
    clip_say_norm(&norm, details);
    purpose.details = details;
    purpose.n_details = CLIP_NORM_DETAILS;
    shoal_status status = compare(ddp, &purpose);
    if (status == SHOAL_OK) {
        const struct clip_source source = {
            .walk = walk, .owner = ddp, .device = ddp->device, .timeout_s = shoal_group_timeout(ddp->group)};
        status = clip_by_norm(&source, NULL, &norm, &found);
    }
    if (status != SHOAL_OK) {
        return error_prefix(status, "ddp_clip_grad_norm");
    }
    if (norm_out) {
        *norm_out = found;
    }
    return SHOAL_OK;
}

shoal_status shoal_ddp_clip_grad_value(shoal_module *module, double max_value)
{
    struct ddp *ddp;
    TRY(find("ddp_clip_grad_value", module, &ddp));
    TRY(clip_check_value("ddp_clip_grad_value", max_value));
    struct clip_source source = {.walk = walk, .owner = ddp, .device = ddp->device};
    int64_t details[CLIP_VALUE_DETAILS];
    struct purpose purpose = ddp_purpose(ddp, PURPOSE_DDP_CLIP_VALUE);
    clip_say_value(max_value, details);
    purpose.details = details;
    purpose.n_details = CLIP_VALUE_DETAILS;
    shoal_status status = compare(ddp, &purpose);
    if (status == SHOAL_OK) {
        status = clip_by_value(&source, max_value);
    }
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "ddp_clip_grad_value");
}

/* Starting over ------------------------------------------------------------------------------------------ */

/* Also parameters that came after the last wrapping may have gradients of the failed backward pass. */
static shoal_status drop_gradient(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    const struct ddp *ddp = context;
    if (entry->kind == SHOAL_WALK_MODULES) {
        *next = claim_value(entry->module, CLAIMANT_FSDP) ? SHOAL_WALK_SKIP : SHOAL_WALK_ON;
        return SHOAL_OK;
    }
    return ddp_is_ignored(&ddp->config.options, entry->tensor) || !shoal_grad(entry->tensor)
               ? SHOAL_OK
               : shoal_set_grad(entry->tensor, NULL);
}

shoal_status shoal_ddp_reset(shoal_module *module)
{
    struct ddp *ddp;
    TRY(find("ddp_reset", module, &ddp));
    if (shoal_in_backward()) {
        return error_set(SHOAL_ERR_STATE, "ddp_reset: cannot be called inside a backward pass");
    }
    ddp_notice_failure(ddp);
    ddp->lane.is_broken = true;
    ddp_close(ddp);
    for (size_t i = 0; i < ddp->n_params; i++) {
        if (shoal_grad(ddp->params[i].tensor)) {
            TRY(shoal_set_grad(ddp->params[i].tensor, NULL));
        }
    }
    return shoal_module_walk(module, SHOAL_WALK_MODULES | SHOAL_WALK_PARAMETERS, drop_gradient, ddp);
}
