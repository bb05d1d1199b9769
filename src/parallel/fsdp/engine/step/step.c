/* SPDX-License-Identifier: MIT */
/* The passes of a step, unit by unit. */
#include "parallel/fsdp/engine/step/step.h"

#include "base/try.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/reduce/grads.h"
#include "parallel/fsdp/engine/agree/marks.h"
#include "parallel/fsdp/engine/step/prefetch.h"
#include "parallel/fsdp/engine/step/prepare.h"
#include "parallel/fsdp/engine/reduce/reduction.h"
#include "parallel/fsdp/engine/state/unit.h"

shoal_status fsdp_unit_pre_forward(struct fsdp_unit *unit)
{
    struct fsdp_context *context = unit->context;
    TRY(fsdp_prepare(context));
    if (unit->phase == FSDP_PRE_BACKWARD) { /* recomputed inside its backward pass */
        TRY(fsdp_unit_unshard(unit));
        return fsdp_unit_wait(unit);
    }
    unit->phase = FSDP_FORWARD;
    TRY(fsdp_unit_land(unit));
    TRY(fsdp_unit_unshard(unit));
    TRY(fsdp_unit_wait(unit));
    return fsdp_prefetch_forward(unit);
}

shoal_status fsdp_unit_post_forward(struct fsdp_unit *unit)
{
    struct fsdp_context *context = unit->context;
    if (unit->phase == FSDP_PRE_BACKWARD) {
        return SHOAL_OK;
    }
    if (!context->backward.is_running) {
        TRY(fsdp_unit_reshard(unit));
        TRY(fsdp_order_add(unit));
    }
    unit->was_forward = true;
    unit->was_loaded = false;
    unit->phase = FSDP_IDLE;
    return SHOAL_OK;
}

shoal_status fsdp_unit_pre_backward(struct fsdp_unit *unit)
{
    if (unit->phase == FSDP_PRE_BACKWARD) {
        return SHOAL_OK;
    }
    unit->context->backward.is_running = true;
    fsdp_order_keep(unit->context);
    TRY(fsdp_mark_forwards(unit->context));
    unit->phase = FSDP_PRE_BACKWARD;
    TRY(fsdp_unit_land(unit));
    TRY(fsdp_unit_take_cast(unit));
    TRY(fsdp_unit_lend_grads(unit));
    TRY(fsdp_unit_unshard(unit));
    TRY(fsdp_unit_wait(unit));
    return fsdp_prefetch_backward(unit);
}

shoal_status fsdp_unit_post_backward(struct fsdp_unit *unit)
{
    unit->phase = FSDP_POST_BACKWARD;
    fsdp_note(unit, FSDP_EVENT_POST_BACKWARD);
    if (unit->config.reshard_after_backward) {
        TRY(fsdp_unit_reshard(unit));
    }
    return fsdp_unit_end_grads(unit);
}

shoal_status fsdp_end_forwards(struct fsdp_context *context, size_t n_order)
{
    fsdp_forget_forwards(context, n_order);
    for (size_t i = 0; i < context->n_units; i++) {
        struct fsdp_unit *unit = context->units[i];
        if (unit->prefetch.n_order == 0) {
            unit->phase = FSDP_IDLE;
            bool stays = fsdp_unit_stays(unit) && !unit->gather.is_pending;
            TRY(stays ? SHOAL_OK : fsdp_unit_give_up(unit)); /* also if it was gathered ahead and not used */
        }
    }
    return SHOAL_OK;
}

/* Waits for a gather that nobody used. Otherwise its memory could be given to another unit too early. */
static shoal_status settle_unit(struct fsdp_unit *unit)
{
    bool reshards = unit->gather.is_pending || unit->config.reshard_after_backward;
    TRY(fsdp_unit_wait(unit));
    unit->phase = FSDP_IDLE;
    unit->was_forward = false;
    unit->prefetch.n_order = 0;
    if (reshards) { /* a unit without a backward pass is still gathered; its parameters may change now */
        TRY(fsdp_unit_reshard(unit));
    }
    return SHOAL_OK;
}

/* The unit had no backward pass here, but may have had one on other ranks. It takes part with zeros, at the same place
   in the order of reductions on all ranks. This is also needed when gradients only accumulate, because buffers are made
   by all ranks together. */
static shoal_status reduce_unused(struct fsdp_unit *unit)
{
    if (!unit->watch) {
        TRY(fsdp_unit_begin_grads(unit));
    }
    return fsdp_unit_post_backward(unit);
}

static bool may_differ(const struct fsdp_context *context)
{
    bool may = false;
    for (size_t i = 0; i < context->n_units; i++) {
        may = may || context->units[i]->config.reduce_unused;
    }
    return may && context->is_prepared;
}

/* Whether earlier backward passes left gradients. The first pass that reduces takes them, even if it skips the unit. */
static bool is_left_over(const struct fsdp_unit *unit)
{
    if (unit->phase == FSDP_POST_BACKWARD || !unit->config.sync) {
        return false;
    }
    return unit->grads.has_accumulated || (unit->watch && unit->watch->has_kept(unit));
}

/* If ranks may differ in which units had a backward pass, the rest is reduced in the order of a backward pass. */
static shoal_status end_units(struct fsdp_context *context)
{
    bool is_reverse = may_differ(context);
    for (size_t i = 0; i < context->n_units; i++) {
        struct fsdp_unit *unit = context->units[is_reverse ? context->n_units - 1 - i : i];
        if (unit->phase == FSDP_PRE_BACKWARD) {
            TRY(fsdp_unit_post_backward(unit));
        } else if (is_reverse && unit->phase != FSDP_POST_BACKWARD && unit->config.reduce_unused) {
            TRY(reduce_unused(unit));
        } else if (is_left_over(unit)) {
            TRY(fsdp_unit_post_backward(unit));
        }
        unit->grads.is_owed =
            unit->grads.is_owed || (is_reverse && unit->config.reduce_unused && !unit->config.sync);
    }
    return SHOAL_OK;
}

shoal_status fsdp_end_backward(struct fsdp_context *context)
{
    TRY(fsdp_mark_forwards(context)); /* does something only if no unit had a backward pass on this rank */
    TRY(end_units(context));
    TRY(fsdp_mark_gathers(context));
    TRY(fsdp_end_mark(context));
    context->backward.is_running = false;
    if (context->backward.is_not_last) {
        for (size_t i = 0; i < context->n_units; i++) {
            context->units[i]->phase = FSDP_IDLE;
        }
        return SHOAL_OK;
    }
    TRY(fsdp_drain(context, 0));
    TRY(fsdp_mark_backward(context));
    TRY(fsdp_end_gathers_mark(context));
    for (size_t i = 0; i < context->n_units; i++) {
        TRY(settle_unit(context->units[i]));
    }
    context->passes.order.n = 0;
    fsdp_order_keep(context); /* if there was no backward pass */
    return SHOAL_OK;
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
        unit->phase = FSDP_IDLE;
        shoal_status mine = fsdp_unit_reshard(unit);
        status = status == SHOAL_OK ? mine : status;
        fsdp_unit_drop_grads(unit);
        unit->was_forward = false;
        unit->prefetch.n_order = 0;
    }
    context->passes.order.n = 0;
    context->passes.forwards.n = 0;
    context->backward.is_running = false;
    context->backward.has_failed = false;
    return status;
}
