/* SPDX-License-Identifier: MIT */
/* The calls of shoal/fsdp_unit.h about all units of a context together. For explicit calls and for modules. */
#include "base/error.h"
#include "base/try.h"
#include "parallel/clip.h"
#include "parallel/fsdp/engine/agree/common.h"
#include "parallel/fsdp/engine/agree/marks.h"
#include "parallel/fsdp/engine/agree/meshes.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/failure.h"
#include "parallel/fsdp/engine/state/handle.h"
#include "parallel/fsdp/engine/state/memory.h"
#include "parallel/fsdp/engine/step/pending.h"
#include "parallel/fsdp/engine/agree/purpose.h"
#include "parallel/fsdp/engine/state/way.h"
#include "shoal/fsdp_unit.h"

static shoal_status find_unit(shoal_fsdp *fsdp, int unit, shoal_fsdp_unit **unit_out)
{
    TRY(fsdp_handle_there(fsdp));
    size_t n_units = fsdp->context->n_units;
    if (unit < SHOAL_FSDP_ALL_UNITS || (unit >= 0 && (size_t)unit >= n_units)) {
        return error_set(SHOAL_ERR_INVALID, "there is no unit %d: there are %zu", unit, n_units);
    }
    *unit_out = unit == SHOAL_FSDP_ALL_UNITS ? &fsdp->all : fsdp->context->units[unit]->handle;
    return SHOAL_OK;
}

shoal_fsdp_unit *shoal_fsdp_unit_of(shoal_fsdp *fsdp, int unit)
{
    shoal_fsdp_unit *found = NULL;
    if (find_unit(fsdp, unit, &found) != SHOAL_OK) {
        fsdp_handle_not_found("unit_of");
    }
    return found;
}

shoal_status shoal_fsdp_set_is_last_backward(shoal_fsdp *fsdp, bool is_last)
{
    TRY(fsdp_handle_check("set_is_last_backward", fsdp));
    fsdp->context->backward.is_not_last = !is_last;
    return SHOAL_OK;
}

shoal_status shoal_fsdp_synchronize(shoal_fsdp *fsdp)
{
    TRY(fsdp_handle_check("synchronize", fsdp));
    TRY(fsdp_check_failure(fsdp->context));
    TRY(fsdp->way->check_ended(fsdp, "synchronize"));
    return fsdp->way->end_call(fsdp, "synchronize", fsdp_synchronize(fsdp->context));
}

shoal_status shoal_fsdp_zero_grad(shoal_fsdp *fsdp)
{
    TRY(fsdp_handle_alive("zero_grad", fsdp));
    return fsdp->way->zero_grad(fsdp);
}

shoal_status shoal_fsdp_reset(shoal_fsdp *fsdp)
{
    TRY(fsdp_handle_check("reset", fsdp));
    return fsdp->way->reset(fsdp);
}

shoal_status shoal_fsdp_memory(const shoal_fsdp *fsdp, shoal_fsdp_memory_report *report_out)
{
    TRY(fsdp_handle_alive("memory", fsdp));
    return fsdp_memory_report("memory", fsdp->context, report_out);
}

/* Clipping ------------------------------------------------------------------------------------------------ */

static shoal_status check_landed(const char *call, const shoal_fsdp *fsdp)
{
    TRY(fsdp_check_failure(fsdp->context));
    TRY(fsdp->way->check_ended(fsdp, call));
    return fsdp->context->reductions.n == 0
               ? SHOAL_OK
               : error_set(SHOAL_ERR_STATE,
                           "%s: gradients are still being reduced until the last backward pass ends "
                           "(shoal_fsdp_set_is_last_backward)",
                           call);
}

/* Compares with all ranks that they clip this model, with these arguments. */
static shoal_status compare(struct fsdp_context *context, enum purpose_id id, const int64_t *details,
                            size_t n_details)
{
    struct purpose purpose = fsdp_context_purpose(context, id);
    purpose.details = details;
    purpose.n_details = n_details;
    TRY(fsdp_agree_on_meshes(context));
    return fsdp_compare_all(context, &purpose);
}

static struct clip_source gradients_of(shoal_fsdp *fsdp)
{
    const struct fsdp_context *context = fsdp->context;
    shoal_device device = SHOAL_CPU;
    for (size_t i = 0; i < context->n_units; i++) { /* all with parameters have the same */
        device = context->units[i]->n_params > 0 ? context->units[i]->device : device;
    }
    return (struct clip_source){.walk = fsdp->way->walk_gradients,
                                .owner = fsdp,
                                .device = device,
                                .timeout_s = fsdp_mesh_timeout(&context->domains[0]->mesh)};
}

/* The ranks over which the norm is summed: the shards, since all replicas have the same gradients. With several domains
   all ranks, each of which counts what fsdp_unit_counts says. */
static shoal_group *norm_group(const struct fsdp_context *context)
{
    return context->common ? context->common : context->domains[0]->mesh.reduce;
}

shoal_status shoal_fsdp_clip_grad_norm(shoal_fsdp *fsdp, double max_norm, double power, bool must_be_finite,
                                       double *norm_out)
{
    static const char call[] = "clip_grad_norm";
    struct clip_norm norm = {.max_norm = max_norm, .power = power, .must_be_finite = must_be_finite};
    int64_t details[CLIP_NORM_DETAILS];
    double found = 0.0;
    TRY(fsdp_handle_check(call, fsdp));
    TRY(clip_check_norm(call, &norm));
    TRY(check_landed(call, fsdp));
    const struct clip_source source = gradients_of(fsdp);
    clip_say_norm(&norm, details);
    shoal_status status = compare(fsdp->context, PURPOSE_FSDP_CLIP, details, CLIP_NORM_DETAILS);
    if (status == SHOAL_OK) {
        status = clip_by_norm(&source, norm_group(fsdp->context), &norm, &found);
        status = fsdp_mark_own_failure(fsdp->context, status); /* others may wait to add up the norm */
    }
    TRY(fsdp->way->end_call(fsdp, call, status));
    if (norm_out) {
        *norm_out = found;
    }
    return SHOAL_OK;
}

shoal_status shoal_fsdp_clip_grad_value(shoal_fsdp *fsdp, double max_value)
{
    static const char call[] = "clip_grad_value";
    int64_t details[CLIP_VALUE_DETAILS];
    TRY(fsdp_handle_check(call, fsdp));
    TRY(clip_check_value(call, max_value));
    TRY(check_landed(call, fsdp));
    const struct clip_source source = gradients_of(fsdp);
    clip_say_value(max_value, details);
    shoal_status status = compare(fsdp->context, PURPOSE_FSDP_CLIP_VALUE, details, CLIP_VALUE_DETAILS);
    status = status == SHOAL_OK ? clip_by_value(&source, max_value) : status;
    return fsdp->way->end_call(fsdp, call, status);
}
