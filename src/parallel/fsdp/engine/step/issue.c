/* SPDX-License-Identifier: MIT */
/* The engine's own backend: each action of a step starts work, or waits for it. */
#include "base/try.h"
#include "parallel/fsdp/engine/agree/marks.h"
#include "parallel/fsdp/engine/reduce/reduction.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/unit.h"
#include "parallel/fsdp/engine/step/prefetch.h"
#include "parallel/fsdp/engine/step/step.h"

static shoal_status gather(struct fsdp_unit *unit)
{
    TRY(fsdp_unit_land(unit));
    TRY(fsdp_unit_unshard(unit));
    return fsdp_unit_wait(unit);
}

/* Waits for a gather that nobody used. Otherwise its memory could be given to another unit too early. */
static shoal_status give_up(struct fsdp_unit *unit, bool stays)
{
    bool reshards = unit->gather.is_pending || !stays;
    TRY(fsdp_unit_wait(unit));
    return reshards ? fsdp_unit_reshard(unit, /*is_after_forward=*/false) : SHOAL_OK;
}

static shoal_status begin_gradients(struct fsdp_unit *unit)
{
    TRY(fsdp_unit_take_cast(unit));
    return fsdp_unit_lend_grads(unit);
}

static shoal_status end_backward(struct fsdp_context *context)
{
    TRY(fsdp_mark_gathers(context));
    return fsdp_end_mark(context);
}

static shoal_status end_step(struct fsdp_context *context)
{
    TRY(fsdp_drain(context, 0));
    TRY(fsdp_mark_backward(context));
    return fsdp_end_gathers_mark(context);
}

const struct fsdp_backend fsdp_issue_backend = {.gather = gather,
                                                .ahead_in_forward = fsdp_prefetch_forward,
                                                .ahead_in_backward = fsdp_prefetch_backward,
                                                .reshard = fsdp_unit_reshard,
                                                .give_up = give_up,
                                                .begin_gradients = begin_gradients,
                                                .end_gradients = fsdp_unit_end_grads,
                                                .begin_backward = fsdp_mark_forwards,
                                                .end_backward = end_backward,
                                                .end_step = end_step};
