/* SPDX-License-Identifier: MIT */
/* The calls of shoal/fsdp.h that make a step. */
#include <stdio.h>

#include "base/error.h"
#include "base/try.h"
#include "comm/call/collectives.h"
#include "parallel/fsdp/engine/agree/common.h"
#include "parallel/fsdp/engine/agree/compare.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/failure.h"
#include "parallel/fsdp/engine/reduce/grads.h"
#include "parallel/fsdp/engine/state/handle.h"
#include "parallel/fsdp/engine/agree/marks.h"
#include "parallel/fsdp/engine/state/lanes.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/engine/agree/purpose.h"
#include "parallel/fsdp/engine/reduce/reduction.h"
#include "parallel/fsdp/engine/step/step.h"
#include "parallel/fsdp/engine/state/unit.h"
#include "parallel/fsdp/explicit/explicit.h"

static shoal_status find_unit(const char *call, const shoal_fsdp *fsdp, int number,
                              struct fsdp_unit **unit_out)
{
    TRY(explicit_find_unit(call, fsdp, number, unit_out));
    return fsdp_check_failure(fsdp->context);
}

static shoal_status end_step_call(struct fsdp_context *context, const char *call, shoal_status status)
{
    return fsdp_end_call(context, call, fsdp_mark_own_failure(context, status));
}

/* A step ------------------------------------------------------------------------------------------------- */

static shoal_status compare_changed(struct fsdp_context *context, const struct purpose *purpose)
{
    shoal_group *gather = context->domains[0]->mesh.gather;
    if (context->common) {
        return fsdp_common_meet(context, purpose);
    }
    shoal_status status = gather ? collectives_barrier(gather, purpose) : SHOAL_OK;
    return status == SHOAL_OK ? SHOAL_OK : fsdp_tell_all(context, status);
}

/* Compares whether all ranks take parameters that an earlier forward pass left gathered for out of date. */
static shoal_status compare_old(const struct fsdp_unit *unit, bool is_old)
{
    char words[PURPOSE_WORDS_BYTES];
    struct purpose purpose = fsdp_unit_purpose(unit, PURPOSE_FSDP_CHANGED);
    purpose.argument = is_old;
    if (is_old) {
        (void)snprintf(words, sizeof words, "%.100s, whose shards were asked for (update_shard)", unit->name);
        purpose.words = words;
    }
    return compare_changed(unit->context, &purpose);
}

static bool is_gathered(const struct fsdp_unit *unit)
{
    return unit->gather.is_pending || unit->state != FSDP_SHARDED;
}

/* Gives up everything that may be out of date at once, so that the forward pass can gather it again one unit ahead. */
static shoal_status give_up_all_old(struct fsdp_context *context, bool *is_over_out)
{
    *is_over_out = true;
    for (size_t i = 0; i < context->n_units; i++) {
        struct fsdp_unit *unit = context->units[i];
        bool is_old = is_gathered(unit) && unit->gather.n_asked != context->n_asked;
        *is_over_out = *is_over_out && (!is_old || unit->step.phase == FSDP_IDLE);
        TRY(is_old && unit->step.phase == FSDP_IDLE ? fsdp_unit_give_up(unit) : SHOAL_OK);
    }
    return SHOAL_OK;
}

static size_t count_old(const struct fsdp_context *context, bool *is_any_gathered_out)
{
    size_t n_old = 0;
    *is_any_gathered_out = false;
    for (size_t i = 0; i < context->n_units; i++) {
        const struct fsdp_unit *unit = context->units[i];
        *is_any_gathered_out = *is_any_gathered_out || is_gathered(unit);
        n_old +=
            is_gathered(unit) && unit->step.phase == FSDP_IDLE && unit->gather.n_asked != context->n_asked;
    }
    return n_old;
}

/* Compares whether all ranks take the same number of units for out of date. */
static shoal_status compare_all_old(struct fsdp_context *context, size_t n_old)
{
    char words[PURPOSE_WORDS_BYTES];
    struct purpose purpose = fsdp_context_purpose(context, PURPOSE_FSDP_CHANGED);
    purpose.argument = (uint32_t)n_old;
    (void)snprintf(words, sizeof words,
                   "%.100s, of which shards of %zu units were asked for (update_shard, zero_grad)",
                   purpose.words, n_old);
    purpose.words = words;
    return compare_changed(context, &purpose);
}

/*
 * For parameters that stay gathered from step to step (shoal_sharded): compares whether they may be out of date, and
 * gives up those that are. All ranks do this at the first unit of a forward pass. Later in the pass only ranks do it
 * whose program has asked for shards since then; on the others the next collective is a different one, and all get a
 * mismatch.
 */
static shoal_status refresh(struct fsdp_context *context)
{
    bool begins = context->passes.forwards.n == 0;
    bool is_any_gathered;
    bool is_over;
    if (context->passes.is_backward || (!begins && context->n_looked == context->n_asked)) {
        return SHOAL_OK;
    }
    size_t n_old = count_old(context, &is_any_gathered);
    if (!is_any_gathered) {
        return SHOAL_OK;
    }
    TRY(compare_all_old(context, n_old));
    TRY(give_up_all_old(context, &is_over));
    context->n_looked = is_over ? context->n_asked : context->n_looked;
    return SHOAL_OK;
}

/* Reshards the unit if its parameters were gathered before the program asked for shards: they may be out of date. */
static shoal_status reshard_if_stale(struct fsdp_unit *unit)
{
    struct fsdp_context *context = unit->context;
    bool is_old = is_gathered(unit) && unit->gather.n_asked != context->n_asked;
    if (fsdp_unit_stays(unit)) {
        return refresh(context);
    }
    if (!is_gathered(unit) || unit->step.phase != FSDP_IDLE || context->passes.is_backward) {
        return SHOAL_OK;
    }
    if (!unit->gather.is_pending) { /* gathered ahead: ranks that differ find out when they gather again */
        TRY(compare_old(unit, is_old));
    }
    return is_old ? fsdp_unit_give_up(unit) : SHOAL_OK;
}

shoal_status shoal_fsdp_pre_forward(shoal_fsdp *fsdp, int number)
{
    struct fsdp_unit *unit = NULL;
    TRY(find_unit("pre_forward", fsdp, number, &unit));
    TRY(end_step_call(fsdp->context, "pre_forward", reshard_if_stale(unit)));
    if (unit->step.phase != FSDP_PRE_BACKWARD) { /* otherwise it is recomputed inside its backward pass */
        TRY(explicit_check_ended(fsdp, "pre_forward"));
    }
    return end_step_call(fsdp->context, "pre_forward", fsdp_unit_pre_forward(unit));
}

shoal_status shoal_fsdp_post_forward(shoal_fsdp *fsdp, int number)
{
    struct fsdp_unit *unit = NULL;
    TRY(find_unit("post_forward", fsdp, number, &unit));
    if (unit->step.phase != FSDP_FORWARD && unit->step.phase != FSDP_PRE_BACKWARD) {
        return error_set(SHOAL_ERR_STATE, "post_forward: %s has had no pre_forward", unit->name);
    }
    return end_step_call(fsdp->context, "post_forward", fsdp_unit_post_forward(unit));
}

shoal_status shoal_fsdp_pre_backward(shoal_fsdp *fsdp, int number)
{
    struct fsdp_unit *unit = NULL;
    TRY(find_unit("pre_backward", fsdp, number, &unit));
    if (unit->step.phase == FSDP_FORWARD) {
        return error_set(SHOAL_ERR_STATE, "pre_backward: %s has had no post_forward", unit->name);
    }
    if (!fsdp->context->is_prepared || (unit->step.phase != FSDP_PRE_BACKWARD && !unit->step.was_forward)) {
        return error_set(SHOAL_ERR_STATE, "pre_backward: %s has had no forward pass in this step",
                         unit->name);
    }
    if (unit->step.phase != FSDP_PRE_BACKWARD && unit->was_loaded) {
        return error_set(SHOAL_ERR_STATE, "pre_backward: values of %s were loaded after its forward pass",
                         unit->name);
    }
    TRY(end_step_call(fsdp->context, "pre_backward", fsdp_unit_pre_backward(unit)));
    return end_step_call(fsdp->context, "pre_backward", fsdp_unit_begin_grads(unit));
}

shoal_status shoal_fsdp_post_backward(shoal_fsdp *fsdp, int number)
{
    struct fsdp_unit *unit = NULL;
    TRY(find_unit("post_backward", fsdp, number, &unit));
    if (unit->step.phase != FSDP_PRE_BACKWARD) {
        return error_set(SHOAL_ERR_STATE, "post_backward: %s has had no pre_backward", unit->name);
    }
    shoal_status status = fsdp_unit_post_backward(unit);
    fsdp->context->backward.has_failed = fsdp->context->backward.has_failed || status != SHOAL_OK;
    return end_step_call(fsdp->context, "post_backward", status);
}

shoal_status shoal_fsdp_end_backward(shoal_fsdp *fsdp)
{
    TRY(explicit_check("end_backward", fsdp));
    TRY(fsdp_check_failure(fsdp->context));
    if (fsdp->context->backward.has_failed) {
        return error_set(SHOAL_ERR_STATE,
                         "end_backward: a post_backward has failed: shoal_fsdp_reset ends the step");
    }
    return end_step_call(fsdp->context, "end_backward", fsdp_end_backward(fsdp->context));
}

const void *shoal_fsdp_full_param(shoal_fsdp *fsdp, int id)
{
    struct fsdp_unit *unit = NULL;
    struct fsdp_param *param = NULL;
    if (explicit_find_param("full_param", fsdp, id, &unit, &param) != SHOAL_OK) {
        return NULL;
    }
    bool is_its_turn =
        unit->step.phase == FSDP_FORWARD || unit->step.phase == FSDP_PRE_BACKWARD || unit->gather.is_held;
    if (unit->state != FSDP_UNSHARDED || !is_its_turn) {
        (void)error_set(
            SHOAL_ERR_STATE,
            "full_param: parameter %s of %s is only whole between pre_ and post_forward, between pre_ and "
            "post_backward, and between wait and reshard",
            param->name, unit->name);
        return NULL;
    }
    return address_pointer(fsdp_unit_param(unit, param));
}

static bool find_grad(const char *call, shoal_fsdp *fsdp, int id, struct fsdp_unit **unit_out,
                      struct fsdp_param **param_out)
{
    if (explicit_find_param(call, fsdp, id, unit_out, param_out) != SHOAL_OK) {
        return false;
    }
    const struct fsdp_unit *unit = *unit_out;
    const struct fsdp_param *param = *param_out;
    if (!unit->grads.has_begun || !param->requires_grad) {
        (void)error_set(SHOAL_ERR_STATE,
                        param->requires_grad
                            ? "%s: the gradient of parameter %s of %s can only be written between pre_ and "
                              "post_backward"
                            : "%s: parameter %s of %s gets no gradient",
                        call, param->name, unit->name);
        return false;
    }
    return true;
}

void *shoal_fsdp_grad(shoal_fsdp *fsdp, int id)
{
    struct fsdp_unit *unit = NULL;
    struct fsdp_param *param = NULL;
    return find_grad("grad", fsdp, id, &unit, &param) ? address_pointer(fsdp_unit_grad(unit, param)) : NULL;
}

void *shoal_fsdp_grad_to_store(shoal_fsdp *fsdp, int id, bool *has_values_out)
{
    struct fsdp_unit *unit = NULL;
    struct fsdp_param *param = NULL;
    if (!find_grad("grad_to_store", fsdp, id, &unit, &param)) {
        return NULL;
    }
    if (!has_values_out) {
        (void)error_set(SHOAL_ERR_INVALID, "grad_to_store: has_values_out is NULL");
        return NULL;
    }
    return address_pointer(fsdp_unit_grad_to_store(unit, param, has_values_out));
}

/* Forward passes without a backward pass ----------------------------------------------------------------- */

shoal_status shoal_fsdp_end_forward(shoal_fsdp *fsdp)
{
    TRY(explicit_check("end_forward", fsdp));
    TRY(fsdp_check_failure(fsdp->context));
    TRY(explicit_check_ended(fsdp, "end_forward"));
    for (size_t i = 0; i < fsdp->context->n_units; i++) {
        const struct fsdp_unit *unit = fsdp->context->units[i];
        if (unit->step.phase == FSDP_FORWARD) {
            return error_set(SHOAL_ERR_STATE, "end_forward: %s has had no post_forward", unit->name);
        }
    }
    return end_step_call(fsdp->context, "end_forward", fsdp_settle_units(fsdp->context));
}
