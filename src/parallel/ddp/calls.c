/* SPDX-License-Identifier: MIT */
/* Calls for a module that is wrapped: settings, clipping, and starting over. */
#include "base/error.h"
#include "base/try.h"
#include "parallel/clip.h"
#include "parallel/ddp/ddp.h"

static shoal_status find(const char *call, const shoal_module *module, struct ddp **ddp_out)
{
    error_clear();
    if (!module) {
        return error_set(SHOAL_ERR_INVALID, "%s: module is NULL", call);
    }
    *ddp_out = ddp_of(module);
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
    void *data;
    if (!gradient) {
        return SHOAL_OK;
    }
    if (ddp_is_ours(param) && param->is_local) {
        return error_set(SHOAL_ERR_STATE,
                         "the gradient of parameter %s has not been sent yet: it is not that "
                         "of the other ranks",
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

/* A walk that only looks: whether all gradients can be clipped, before the first one is. */
static shoal_status look(void *context, shoal_dtype dtype, void *data, size_t count)
{
    (void)context;
    (void)dtype;
    (void)data;
    (void)count;
    return SHOAL_OK;
}

static shoal_status clip_norm(const char *call, const shoal_module *module, const struct clip_norm *norm,
                              double *norm_out)
{
    struct ddp *ddp;
    double found;
    TRY(find(call, module, &ddp));
    TRY(clip_check_norm(call, norm));
    shoal_status status = clip_by_norm(&(struct clip_source){.walk = walk, .owner = ddp}, NULL, norm, &found);
    if (status != SHOAL_OK) {
        return error_prefix(status, "%s", call);
    }
    if (norm_out) {
        *norm_out = found;
    }
    return SHOAL_OK;
}

shoal_status shoal_ddp_clip_grad_norm(shoal_module *module, double max_norm, double *norm_out)
{
    return clip_norm("ddp_clip_grad_norm", module, &(struct clip_norm){.max_norm = max_norm, .power = 2.0},
                     norm_out);
}

shoal_status shoal_ddp_clip_grad_p_norm(shoal_module *module, double power, double max_norm,
                                        bool must_be_finite, double *norm_out)
{
    struct clip_norm norm = {.max_norm = max_norm, .power = power, .must_be_finite = must_be_finite};
    return clip_norm("ddp_clip_grad_p_norm", module, &norm, norm_out);
}

shoal_status shoal_ddp_clip_grad_value(shoal_module *module, double max_value)
{
    struct ddp *ddp;
    TRY(find("ddp_clip_grad_value", module, &ddp));
    TRY(clip_check_value("ddp_clip_grad_value", max_value));
    struct clip_source source = {.walk = walk, .owner = ddp};
    shoal_status status = walk(ddp, false, look, NULL);
    if (status == SHOAL_OK) {
        status = clip_by_value(&source, max_value);
    }
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "ddp_clip_grad_value");
}

/* Starting over ------------------------------------------------------------------------------------------ */

shoal_status shoal_ddp_reset(shoal_module *module)
{
    struct ddp *ddp;
    TRY(find("ddp_reset", module, &ddp));
    if (shoal_in_backward()) {
        return error_set(SHOAL_ERR_STATE, "ddp_reset: inside a backward");
    }
    ddp_notice_failure(ddp);
    ddp->is_broken = true;
    ddp_close(ddp);
    for (size_t i = 0; i < ddp->n_params; i++) {
        if (shoal_grad(ddp->params[i].tensor)) {
            TRY(shoal_set_grad(ddp->params[i].tensor, NULL));
        }
    }
    return SHOAL_OK;
}
