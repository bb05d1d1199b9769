/* SPDX-License-Identifier: MIT */
/* Clipping the gradients of shards, for both ways in. Replicas have equal gradients and are not asked. */
#include "parallel/clip.h"

#include "base/error.h"
#include "base/try.h"
#include "parallel/fsdp/explicit.h"
#include "parallel/fsdp/wrapper.h"
#include "shoal/autograd.h"
#include "shoal/fully_shard.h"
#include "tensor/tensor.h"

/* Raw pointers ------------------------------------------------------------------------------------------- */

static shoal_status walk_params(void *owner, bool is_written, clip_visitor visit, void *context)
{
    const struct fsdp_context *units = owner;
    (void)is_written;
    for (size_t i = 0; i < units->n_units; i++) {
        const struct fsdp_unit *unit = units->units[i];
        for (size_t k = 0; k < unit->n_params; k++) {
            const struct fsdp_param *param = &unit->params[k];
            if (param->has_grad) {
                TRY(visit(context, param->dtype, param->shard_grad, param->shard_count));
            }
        }
    }
    return SHOAL_OK;
}

static shoal_status clip_norm(const char *call, shoal_fsdp *fsdp, const struct clip_norm *norm,
                              double *norm_out)
{
    double found;
    TRY(explicit_check(call, fsdp));
    TRY(clip_check_norm(call, norm));
    TRY(explicit_check_failure(fsdp));
    TRY(explicit_check_landed(fsdp, call));
    struct clip_source source = {.walk = walk_params, .owner = fsdp->context};
    shoal_status status =
        explicit_end_call(fsdp, clip_by_norm(&source, fsdp->context->mesh.reduce, norm, &found));
    if (status != SHOAL_OK) {
        return error_prefix(status, "%s", call);
    }
    if (norm_out) {
        *norm_out = found;
    }
    return SHOAL_OK;
}

shoal_status shoal_fsdp_clip_grad_norm(shoal_fsdp *fsdp, double max_norm, double *norm_out)
{
    return clip_norm("clip_grad_norm", fsdp, &(struct clip_norm){.max_norm = max_norm, .power = 2.0},
                     norm_out);
}

shoal_status shoal_fsdp_clip_grad_p_norm(shoal_fsdp *fsdp, double power, double max_norm, bool must_be_finite,
                                         double *norm_out)
{
    struct clip_norm norm = {.max_norm = max_norm, .power = power, .must_be_finite = must_be_finite};
    return clip_norm("clip_grad_p_norm", fsdp, &norm, norm_out);
}

shoal_status shoal_fsdp_clip_grad_value(shoal_fsdp *fsdp, double max_value)
{
    TRY(explicit_check("clip_grad_value", fsdp));
    TRY(clip_check_value("clip_grad_value", max_value));
    TRY(explicit_check_failure(fsdp));
    TRY(explicit_check_landed(fsdp, "clip_grad_value"));
    struct clip_source source = {.walk = walk_params, .owner = fsdp->context};
    shoal_status status = clip_by_value(&source, max_value);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "clip_grad_value");
}

/* Modules ------------------------------------------------------------------------------------------------ */

/* The tensor that is the gradient now, whoever put it there. */
static shoal_status visit_gradient(const char *name, const shoal_tensor *parameter, bool is_written,
                                   clip_visitor visit, void *context)
{
    shoal_tensor *gradient = shoal_grad(parameter);
    void *data;
    if (!gradient) {
        return SHOAL_OK;
    }
    if (!gradient->is_contiguous) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "the gradient of parameter %s is not contiguous", name);
    }
    TRY(is_written ? tensor_wait_writable(gradient, /*overwrites=*/false) : tensor_wait_readable(gradient));
    TRY(tensor_address(gradient, &data));
    if (is_written) {
        storage_bump_version(gradient->storage);
    }
    return visit(context, gradient->dtype, data, (size_t)gradient->count);
}

static shoal_status walk_tensors(void *owner, bool is_written, clip_visitor visit, void *context)
{
    const struct fsdp_root *root = owner;
    for (size_t i = 0; i < root->n_wrappers; i++) {
        const struct fsdp_wrapper *wrapper = root->wrappers[i];
        for (size_t k = 0; k < wrapper->n_tensors; k++) {
            TRY(visit_gradient(wrapper->unit->params[k].name, wrapper->tensors[k].sharded, is_written, visit,
                               context));
        }
    }
    return SHOAL_OK;
}

static shoal_status find_landed(const char *call, shoal_module *module, struct fsdp_wrapper **wrapper_out)
{
    TRY(fsdp_find_root(call, module, wrapper_out));
    return (*wrapper_out)->root->context->n_reductions == 0
               ? SHOAL_OK
               : error_set(SHOAL_ERR_STATE,
                           "%s: gradients are on their way until a backward that is the last one ends "
                           "(shoal_fully_shard_set_is_last_backward)",
                           call);
}

static shoal_status clip_modules(const char *call, shoal_module *module, const struct clip_norm *norm,
                                 double *norm_out)
{
    struct fsdp_wrapper *wrapper;
    double found;
    TRY(find_landed(call, module, &wrapper));
    TRY(clip_check_norm(call, norm));
    struct clip_source source = {.walk = walk_tensors, .owner = wrapper->root};
    shoal_status status = clip_by_norm(&source, wrapper->root->context->mesh.reduce, norm, &found);
    if (status != SHOAL_OK) {
        return error_prefix(status, "%s", call);
    }
    if (norm_out) {
        *norm_out = found;
    }
    return SHOAL_OK;
}

shoal_status shoal_fully_shard_clip_grad_norm(shoal_module *root, double max_norm, double *norm_out)
{
    return clip_modules("fully_shard_clip_grad_norm", root,
                        &(struct clip_norm){.max_norm = max_norm, .power = 2.0}, norm_out);
}

shoal_status shoal_fully_shard_clip_grad_p_norm(shoal_module *root, double power, double max_norm,
                                                bool must_be_finite, double *norm_out)
{
    struct clip_norm norm = {.max_norm = max_norm, .power = power, .must_be_finite = must_be_finite};
    return clip_modules("fully_shard_clip_grad_p_norm", root, &norm, norm_out);
}

shoal_status shoal_fully_shard_clip_grad_value(shoal_module *root, double max_value)
{
    struct fsdp_wrapper *wrapper;
    TRY(find_landed("fully_shard_clip_grad_value", root, &wrapper));
    TRY(clip_check_value("fully_shard_clip_grad_value", max_value));
    struct clip_source source = {.walk = walk_tensors, .owner = wrapper->root};
    shoal_status status = clip_by_value(&source, max_value);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "fully_shard_clip_grad_value");
}
