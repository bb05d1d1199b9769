/* SPDX-License-Identifier: MIT */
/* Calls for a module that is wrapped: settings, clipping, and starting over. */
#include <math.h>

#include "base/error.h"
#include "base/try.h"
#include "kernel/kernel.h"
#include "parallel/ddp/ddp.h"

/* Added to the norm before dividing by it: what PyTorch does. */
#define CLIP_EPSILON 1e-6

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

/* NULL in *gradient_out: there is none. */
static shoal_status find_gradient(const struct ddp_param *param, shoal_tensor **gradient_out)
{
    shoal_tensor *gradient = shoal_grad(param->tensor);
    *gradient_out = gradient;
    if (gradient && ddp_is_ours(param) && param->is_local) {
        return error_set(SHOAL_ERR_STATE,
                         "the gradient of parameter %s has not been sent yet: it is not that "
                         "of the other ranks",
                         param->path);
    }
    if (gradient && !gradient->is_contiguous) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "the gradient of parameter %s is not contiguous",
                         param->path);
    }
    return SHOAL_OK;
}

static shoal_status find_norm(const struct ddp *ddp, double *norm_out)
{
    struct kernel_squares squares;
    kernel_squares_init(&squares);
    for (size_t i = 0; i < ddp->n_params; i++) {
        shoal_tensor *gradient;
        TRY(find_gradient(&ddp->params[i], &gradient));
        if (gradient) {
            void *data;
            TRY(storage_wait_readable(gradient->storage));
            TRY(tensor_address(gradient, &data));
            TRY(kernel_squares_add(&squares, gradient->dtype, data, (size_t)gradient->count));
        }
    }
    kernel_squares_normalise(&squares);
    *norm_out = sqrt(kernel_squares_round(&squares));
    return SHOAL_OK;
}

static shoal_status scale(const struct ddp *ddp, double factor)
{
    for (size_t i = 0; i < ddp->n_params; i++) {
        shoal_tensor *gradient = shoal_grad(ddp->params[i].tensor);
        if (gradient) {
            void *data;
            TRY(storage_wait_writable(gradient->storage, /*forgives_failure=*/false));
            TRY(tensor_address(gradient, &data));
            storage_bump_version(gradient->storage);
            TRY(kernel_scale(gradient->dtype, data, data, (size_t)gradient->count, factor));
        }
    }
    return SHOAL_OK;
}

shoal_status shoal_ddp_clip_grad_norm(shoal_module *module, double max_norm, double *norm_out)
{
    struct ddp *ddp;
    double norm = 0.0;
    TRY(find("ddp_clip_grad_norm", module, &ddp));
    if (!(max_norm >= 0.0)) {
        return error_set(SHOAL_ERR_INVALID, "ddp_clip_grad_norm: max_norm is %g", max_norm);
    }
    shoal_status status = find_norm(ddp, &norm);
    if (status == SHOAL_OK) {
        double factor = max_norm / (norm + CLIP_EPSILON);
        status = factor < 1.0 ? scale(ddp, factor) : SHOAL_OK;
    }
    if (status != SHOAL_OK) {
        return error_prefix(status, "ddp_clip_grad_norm");
    }
    if (norm_out) {
        *norm_out = norm;
    }
    return SHOAL_OK;
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
