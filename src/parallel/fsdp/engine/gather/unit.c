/* SPDX-License-Identifier: MIT */
/* Gathers a unit and gives it up, as its settings of resharding say; unit.h has the states. */
#include "parallel/fsdp/engine/state/unit.h"

#include "base/error.h"
#include "base/try.h"
#include "device/device.h"
#include "kernel/moves.h"
#include "parallel/fsdp/engine/agree/compare.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/gather/gather.h"
#include "parallel/fsdp/engine/state/in_flight.h"
#include "parallel/fsdp/engine/agree/marks.h"
#include "parallel/fsdp/engine/state/memory.h"
#include "parallel/fsdp/engine/state/param.h"
#include "tensor/dtype.h"

void fsdp_note(struct fsdp_unit *unit, enum fsdp_event event)
{
    struct fsdp_context *context = unit->context;
    if (context->listener.hear) {
        context->listener.hear(context->listener.context, event, unit);
    }
}

bool fsdp_unit_is_reducing(const struct fsdp_unit *unit)
{
    const struct fsdp_context *context = unit->context;
    for (size_t i = 0; context && i < context->reductions.n; i++) {
        if (context->reductions.items[i].unit == unit) {
            return true;
        }
    }
    return false;
}

shoal_status fsdp_unit_check_idle(const struct fsdp_unit *unit, const char *what)
{
    return unit->step.phase == FSDP_IDLE && !unit->gather.is_pending && !fsdp_unit_is_reducing(unit)
               ? SHOAL_OK
               : error_set(SHOAL_ERR_STATE, "%s: %s is in the middle of a step", what, unit->name);
}

void fsdp_unit_set_sharded(struct fsdp_unit *unit, shoal_sharded sharded)
{
    unit->config.sharded = sharded;
    unit->config.reshard_after_backward = !fsdp_unit_stays(unit);
}

/* Gathering ---------------------------------------------------------------------------------------------- */

shoal_status fsdp_unit_unshard(struct fsdp_unit *unit)
{
    bool is_skipped = unit->step.phase == FSDP_PRE_BACKWARD && !unit->config.unshard_in_backward;
    if (unit->gather.is_pending || unit->state == FSDP_UNSHARDED || is_skipped || unit->n_params == 0) {
        return SHOAL_OK;
    }
    if (unit->watch) {
        shoal_status status = unit->watch->gathering(unit);
        if (status != SHOAL_OK) {
            return error_prefix(fsdp_tell_of(unit, status), "%s: gathering parameters", unit->name);
        }
    }
    fsdp_note(unit, FSDP_EVENT_UNSHARD);
    if (unit->state == FSDP_SHARDED) {
        unit->gather.n_asked = unit->context->n_asked;
    }
    shoal_status status = fsdp_mark_gather(unit);
    if (status == SHOAL_OK) {
        status = fsdp_gather_start(unit);
    }
    if (status != SHOAL_OK) {
        return error_prefix(fsdp_tell_of(unit, status), "%s: gathering parameters", unit->name);
    }
    unit->gather.is_pending = true;
    return SHOAL_OK;
}

static void drop_kept(struct fsdp_unit *unit)
{
    for (size_t i = 0; i < unit->n_params; i++) {
        struct fsdp_param *param = &unit->params[i];
        if (!address_is_none(param->kept)) {
            fsdp_memory_remove(&unit->context->memory, FSDP_MEMORY_OTHER,
                               param->kept_count * dtype_bytes(param->compute));
            device_memory_free(unit->device, param->kept);
            param->kept = ADDRESS_NONE;
        }
    }
}

shoal_status fsdp_unit_wait(struct fsdp_unit *unit)
{
    TRY(fsdp_end_unshard(unit));
    if (!unit->gather.is_pending) {
        return SHOAL_OK;
    }
    shoal_status status = fsdp_gather_finish(unit);
    unit->gather.is_pending = false;
    if (status != SHOAL_OK) {
        return error_prefix(fsdp_tell_of(unit, status), "%s: gathering parameters", unit->name);
    }
    drop_kept(unit);
    unit->state = FSDP_UNSHARDED;
    return unit->watch ? unit->watch->unsharded(unit) : SHOAL_OK;
}

void fsdp_unit_forget_gather(struct fsdp_unit *unit)
{
    fsdp_drop_unshard(unit);
    fsdp_gather_drop(unit);
}

struct address fsdp_unit_param(const struct fsdp_unit *unit, const struct fsdp_param *param)
{
    return fsdp_gather_data(unit, param);
}

/* Giving up ---------------------------------------------------------------------------------------------- */

static shoal_status keep_part(struct fsdp_unit *unit)
{
    struct moves moves;
    moves_begin(&moves, unit->device);
    for (size_t i = 0; i < unit->n_params; i++) {
        struct fsdp_param *param = &unit->params[i];
        size_t element_bytes = dtype_bytes(param->compute);
        size_t bytes = param->kept_count * element_bytes;
        shoal_status status = device_memory_allocate(unit->device, bytes, &param->kept);
        if (status != SHOAL_OK) {
            drop_kept(unit);
            return status;
        }
        fsdp_memory_add(&unit->context->memory, FSDP_MEMORY_OTHER, bytes);
        ptrdiff_t begin = (ptrdiff_t)(param->kept_begin * element_bytes);
        moves_copy(&moves, param->compute, param->kept, address_add(fsdp_unit_param(unit, param), begin),
                   param->kept_count);
    }
    moves_end(&moves);
    return SHOAL_OK;
}

shoal_status fsdp_unit_reshard(struct fsdp_unit *unit, bool is_after_forward)
{
    if (unit->state == FSDP_SHARDED || (is_after_forward && unit->config.reshard == SHOAL_RESHARD_NEVER)) {
        return SHOAL_OK;
    }
    bool keeps =
        is_after_forward && unit->config.reshard == SHOAL_RESHARD_PARTLY && unit->state == FSDP_UNSHARDED;
    if (keeps) {
        TRY(keep_part(unit));
    } else {
        drop_kept(unit);
    }
    if (unit->state == FSDP_UNSHARDED) {
        fsdp_note(unit, FSDP_EVENT_RESHARD);
        if (unit->watch) {
            unit->watch->resharding(unit);
        }
    }
    unit->state = keeps ? FSDP_KEPT : FSDP_SHARDED;
    unit->gather.is_held = false;
    return fsdp_gather_give_up(unit);
}

shoal_status fsdp_unit_give_up(struct fsdp_unit *unit)
{
    if (!unit->context) {
        return SHOAL_OK;
    }
    TRY(fsdp_unit_wait(unit));
    return fsdp_unit_reshard(unit, /*is_after_forward=*/false);
}
