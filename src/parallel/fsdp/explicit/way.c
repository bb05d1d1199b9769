/* SPDX-License-Identifier: MIT */
/* The parts of calls on a context that are specific to the explicit calls (engine/way.h). */
#include "base/error.h"
#include "base/try.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/failure.h"
#include "parallel/fsdp/engine/reduce/grads.h"
#include "parallel/fsdp/engine/state/handle.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/engine/step/step.h"
#include "parallel/fsdp/engine/state/unit.h"
#include "parallel/fsdp/engine/state/way.h"
#include "parallel/fsdp/explicit/explicit.h"

shoal_status explicit_check(const char *call, const shoal_fsdp *fsdp)
{
    TRY(fsdp_handle_check(call, fsdp));
    return fsdp->way == &explicit_way
               ? SHOAL_OK
               : error_set(
                     SHOAL_ERR_INVALID,
                     "%s: fsdp is the context of a module, which calls its units itself: only the calls of "
                     "shoal/fsdp_unit.h take it",
                     call);
}

shoal_status explicit_check_ended(const shoal_fsdp *fsdp, const char *what)
{
    if (!fsdp->context->passes.is_backward) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_STATE, "%s: the backward pass has not been ended (shoal_fsdp_end_backward)",
                     what);
}

static shoal_status walk_gradients(void *owner, bool is_written, clip_visitor visit, void *context)
{
    const shoal_fsdp *fsdp = owner;
    for (size_t i = 0; i < fsdp->context->n_units; i++) {
        const struct fsdp_unit *unit = fsdp->context->units[i];
        for (size_t k = 0; k < unit->n_params; k++) {
            const struct fsdp_param *param = &unit->params[k];
            if (param->has_grad && (is_written || fsdp_unit_counts(unit))) {
                TRY(visit(context, param->dtype, param->shard_grad, param->shard_count));
            }
        }
    }
    return SHOAL_OK;
}

static shoal_status zero_grad(shoal_fsdp *fsdp)
{
    for (size_t i = 0; i < fsdp->context->n_units; i++) {
        struct fsdp_unit *unit = fsdp->context->units[i];
        for (size_t k = 0; k < unit->n_params; k++) {
            fsdp_param_drop_grad(&unit->params[k]);
        }
        if (!fsdp->context->passes.is_backward && !fsdp->context->is_closed) {
            fsdp_unit_drop_grads(unit);
        }
    }
    /* A program that clears gradients has used them, so parameters that stay gathered count as out of date, even if the
       program kept the addresses of shards and did not ask again. */
    fsdp->context->n_asked += fsdp->context->options.sharded != SHOAL_SHARDED_PARAMETERS;
    return SHOAL_OK;
}

static shoal_status reset(shoal_fsdp *fsdp)
{
    shoal_status status = fsdp_reset(fsdp->context);
    TRY(fsdp_check_failure(fsdp->context));
    return fsdp_end_call(fsdp->context, "reset", status);
}

static shoal_status end_call(shoal_fsdp *fsdp, const char *call, shoal_status status)
{
    return fsdp_end_call(fsdp->context, call, status);
}

const struct fsdp_way explicit_way = {.check_ended = explicit_check_ended,
                                      .walk_gradients = walk_gradients,
                                      .zero_grad = zero_grad,
                                      .reset = reset,
                                      .end_call = end_call};
