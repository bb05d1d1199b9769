/* SPDX-License-Identifier: MIT */
/* The passes of a step, unit by unit. */
#include "parallel/fsdp/engine/step/step.h"

#include "base/try.h"
#include "parallel/fsdp/engine/agree/marks.h"
#include "parallel/fsdp/engine/reduce/grads.h"
#include "parallel/fsdp/engine/reduce/reduction.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/unit.h"
#include "parallel/fsdp/engine/step/prefetch.h"
#include "parallel/fsdp/engine/step/prepare.h"

/* Actions ------------------------------------------------------------------------------------------------ */

static shoal_status begin_forward(struct fsdp_unit *unit)
{
    const struct fsdp_backend *backend = unit->context->backend;
    unit->step.phase = FSDP_FORWARD;
    TRY(backend->gather(unit));
    return backend->ahead_in_forward(unit);
}

/* A forward pass that is recomputed inside the backward pass of its unit. */
static shoal_status gather_again(struct fsdp_unit *unit)
{
    return unit->context->backend->gather(unit);
}

static shoal_status end_forward(struct fsdp_unit *unit)
{
    if (!unit->context->passes.is_backward) {
        TRY(unit->context->backend->reshard(unit, /*is_after_forward=*/true));
        TRY(fsdp_order_add(unit));
    }
    unit->step.was_forward = true;
    unit->was_loaded = false;
    unit->step.phase = FSDP_IDLE;
    return SHOAL_OK;
}

static shoal_status begin_backward(struct fsdp_unit *unit)
{
    const struct fsdp_backend *backend = unit->context->backend;
    unit->context->passes.is_backward = true;
    fsdp_order_keep(unit->context);
    TRY(backend->begin_backward(unit->context));
    unit->step.phase = FSDP_PRE_BACKWARD;
    TRY(backend->begin_gradients(unit));
    TRY(backend->gather(unit));
    return backend->ahead_in_backward(unit, fsdp_order_take(unit));
}

static shoal_status end_backward(struct fsdp_unit *unit)
{
    unit->step.phase = FSDP_POST_BACKWARD;
    fsdp_note(unit, FSDP_EVENT_POST_BACKWARD);
    if (unit->config.reshard_after_backward) {
        TRY(unit->context->backend->reshard(unit, /*is_after_forward=*/false));
    }
    return unit->context->backend->end_gradients(unit);
}

static bool reduces_unused(const struct fsdp_unit *unit)
{
    return unit->config.reduce_unused && unit->context->is_prepared;
}

static bool may_differ(const struct fsdp_context *context)
{
    bool may = false;
    for (size_t i = 0; i < context->n_units; i++) {
        may = may || reduces_unused(context->units[i]);
    }
    return may;
}

/* The unit had no backward pass here, but may have had one on other ranks. It takes part with zeros, at the same place
   in the order of reductions on all ranks. This is also needed when gradients only accumulate, because buffers are made
   by all ranks together. */
static shoal_status reduce_unused(struct fsdp_unit *unit)
{
    if (!unit->watch) {
        TRY(fsdp_unit_begin_grads(unit));
    }
    return end_backward(unit);
}

/* The unit had no backward pass in this one. If earlier backward passes left gradients, the first pass that reduces
   takes them. */
static shoal_status end_skipped(struct fsdp_unit *unit)
{
    if (reduces_unused(unit)) {
        return reduce_unused(unit);
    }
    bool is_left_over = unit->grads.has_accumulated || (unit->watch && unit->watch->has_kept(unit));
    return unit->config.sync && is_left_over ? end_backward(unit) : SHOAL_OK;
}

static shoal_status do_nothing(struct fsdp_unit *unit)
{
    (void)unit;
    return SHOAL_OK;
}

/* Events ------------------------------------------------------------------------------------------------- */

enum event {
    PRE_FORWARD,
    POST_FORWARD,
    PRE_BACKWARD,  /* an output got its gradient */
    POST_BACKWARD, /* the program, or the engine, says that the backward pass of the unit is over */
    INPUTS_DONE,   /* all inputs have their gradients */
    PASS_DONE,     /* the whole backward pass is over */
    N_EVENTS
};

#define N_PHASES (FSDP_POST_BACKWARD + 1)

/* What happens to a unit at an event, by the phase that it is in: idle, forward, pre-backward, post-backward. The actions
   change the phase. */
static shoal_status (*const actions[N_EVENTS][N_PHASES])(struct fsdp_unit *unit) = {
    [PRE_FORWARD] = {begin_forward, begin_forward, gather_again, begin_forward},
    [POST_FORWARD] = {end_forward, end_forward, do_nothing, end_forward},
    [PRE_BACKWARD] = {begin_backward, begin_backward, do_nothing, begin_backward},
    [POST_BACKWARD] = {end_backward, end_backward, end_backward, end_backward},
    [INPUTS_DONE] = {do_nothing, do_nothing, end_backward, do_nothing},
    [PASS_DONE] = {end_skipped, end_skipped, end_backward, do_nothing},
};

static shoal_status tell(struct fsdp_unit *unit, enum event event)
{
    return actions[event][unit->step.phase](unit);
}

shoal_status fsdp_unit_pre_forward(struct fsdp_unit *unit)
{
    shoal_status status = fsdp_prepare(unit->context);
    return status == SHOAL_OK ? tell(unit, PRE_FORWARD) : fsdp_mark_unmade(unit->context, status);
}

shoal_status fsdp_unit_post_forward(struct fsdp_unit *unit)
{
    return tell(unit, POST_FORWARD);
}

shoal_status fsdp_unit_pre_backward(struct fsdp_unit *unit)
{
    return tell(unit, PRE_BACKWARD);
}

shoal_status fsdp_unit_post_backward(struct fsdp_unit *unit)
{
    return tell(unit, POST_BACKWARD);
}

shoal_status fsdp_unit_finish_backward(struct fsdp_unit *unit)
{
    return tell(unit, INPUTS_DONE);
}

/* Ends --------------------------------------------------------------------------------------------------- */

shoal_status fsdp_end_forwards(struct fsdp_context *context, size_t n_order)
{
    fsdp_forget_forwards(context, n_order);
    for (size_t i = 0; i < context->n_units; i++) {
        struct fsdp_unit *unit = context->units[i];
        if (unit->step.n_order == 0) { /* also if it was gathered ahead and not used */
            unit->step.phase = FSDP_IDLE;
            TRY(context->backend->give_up(unit, fsdp_unit_stays(unit)));
        }
    }
    return SHOAL_OK;
}

/* A unit without a backward pass is still gathered; its parameters may change now. */
shoal_status fsdp_settle_units(struct fsdp_context *context)
{
    for (size_t i = 0; i < context->n_units; i++) {
        struct fsdp_unit *unit = context->units[i];
        unit->step.phase = FSDP_IDLE;
        unit->step.was_forward = false;
        unit->step.n_order = 0;
        TRY(context->backend->give_up(unit, !unit->config.reshard_after_backward));
    }
    context->passes.order.n = 0;
    fsdp_order_keep(context); /* if there was no backward pass */
    return SHOAL_OK;
}

/* If ranks may differ in which units had a backward pass, the rest is reduced in the order of a backward pass. */
static shoal_status end_units(struct fsdp_context *context)
{
    bool is_reverse = may_differ(context);
    for (size_t i = 0; i < context->n_units; i++) {
        struct fsdp_unit *unit = context->units[is_reverse ? context->n_units - 1 - i : i];
        TRY(tell(unit, PASS_DONE));
        unit->grads.is_owed = unit->grads.is_owed || (reduces_unused(unit) && !unit->config.sync);
    }
    return SHOAL_OK;
}

shoal_status fsdp_end_backward(struct fsdp_context *context)
{
    const struct fsdp_backend *backend = context->backend;
    /* Does something only if no unit had a backward pass on this rank. */
    TRY(backend->begin_backward(context));
    TRY(end_units(context));
    TRY(backend->end_backward(context));
    context->passes.is_backward = false;
    if (context->backward.is_not_last) {
        for (size_t i = 0; i < context->n_units; i++) {
            context->units[i]->step.phase = FSDP_IDLE;
        }
        return SHOAL_OK;
    }
    TRY(backend->end_step(context));
    return fsdp_settle_units(context);
}

shoal_status fsdp_reset(struct fsdp_context *context)
{
    shoal_status status = SHOAL_OK;
    fsdp_drop_reductions(context);
    fsdp_drop_mark(context);
    for (size_t i = 0; i < context->n_units; i++) {
        struct fsdp_unit *unit = context->units[i];
        fsdp_unit_forget_gather(unit);
        unit->gather.is_pending = false;
        unit->state = unit->gather.window ? FSDP_UNSHARDED : unit->state;
        unit->step.phase = FSDP_IDLE;
        shoal_status mine = fsdp_unit_reshard(unit, /*is_after_forward=*/false);
        status = status == SHOAL_OK ? mine : status;
        fsdp_unit_drop_grads(unit);
        unit->step.was_forward = false;
        unit->step.n_order = 0;
    }
    context->passes.order.n = 0;
    context->passes.forwards.n = 0;
    context->passes.is_backward = false;
    context->backward.has_failed = false;
    return status;
}
