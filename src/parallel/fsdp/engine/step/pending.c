/* SPDX-License-Identifier: MIT */
/* Pending gradients: where they are, and their reduction without a backward pass. */
#include "parallel/fsdp/engine/step/pending.h"

#include "base/error.h"
#include "base/try.h"
#include "parallel/fsdp/engine/agree/common.h"
#include "parallel/fsdp/engine/agree/meshes.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/engine/agree/purpose.h"
#include "parallel/fsdp/engine/reduce/grads.h"
#include "parallel/fsdp/engine/reduce/partial.h"
#include "parallel/fsdp/engine/reduce/reduction.h"
#include "parallel/fsdp/engine/state/unit.h"

/* The gradient is in the buffer or, if kernels cannot write there, in grads.data. */
static void find_full(const struct fsdp_unit *unit, const struct fsdp_param *param,
                      shoal_pending_gradient *pending)
{
    bool is_apart = !unit->watch && !param->is_direct && param->compute == unit->grads.dtype;
    pending->full = address_pointer(is_apart ? fsdp_written_at(unit, param) : fsdp_region_of(unit, param));
    pending->full_dtype = unit->grads.dtype;
    pending->full_count = param->count;
    pending->n_blocks = is_apart || param->outer == 1 ? 1 : unit->mesh->n_shards;
}

void fsdp_unit_get_pending(const struct fsdp_unit *unit, const struct fsdp_param *param,
                           shoal_pending_gradient *pending_out)
{
    /* Some gradients that have a place in the buffer are still on their tensors. */
    bool is_on_tensor = unit->watch && unit->config.sharded == SHOAL_SHARDED_STATE && !param->has_whole;
    *pending_out = (shoal_pending_gradient){.struct_size = sizeof *pending_out};
    if (unit->grads.buffer && unit->grads.has_accumulated && param->is_reduced && !is_on_tensor) {
        find_full(unit, param, pending_out);
    }
    if (unit->grads.has_partial && param->is_partial) {
        pending_out->partial = address_pointer(fsdp_partial_at(unit, param));
        pending_out->partial_dtype = unit->grads.dtype;
        pending_out->partial_count = param->shard_count;
    }
}

/* Does what the end of a backward pass does that reduces, but has added no gradients. */
static shoal_status reduce_pending(struct fsdp_unit *unit)
{
    TRY(fsdp_unit_end_grads(unit));
    return unit->grads.has_partial && !fsdp_unit_is_reducing(unit) ? fsdp_unit_reduce_partial(unit)
                                                                   : SHOAL_OK;
}

static shoal_status synchronize_unit(struct fsdp_unit *unit)
{
    bool reduces = unit->config.sync;
    bool all_reduces = unit->config.all_reduce;
    bool reduces_unused = unit->config.reduce_unused;
    unit->config.sync = true;
    unit->config.all_reduce = true;
    unit->config.reduce_unused = reduces_unused && unit->grads.is_owed;
    shoal_status status = reduce_pending(unit);
    unit->config.sync = reduces;
    unit->config.all_reduce = all_reduces;
    unit->config.reduce_unused = reduces_unused;
    return status;
}

shoal_status fsdp_synchronize(struct fsdp_context *context)
{
    for (size_t i = 0; i < context->n_units; i++) {
        if (context->units[i]->step.phase != FSDP_IDLE) {
            return error_set(SHOAL_ERR_STATE, "synchronize: %s is in the middle of a step",
                             context->units[i]->name);
        }
    }
    struct purpose purpose = fsdp_context_purpose(context, PURPOSE_FSDP_SYNCHRONIZE);
    TRY(fsdp_agree_on_meshes(context));
    TRY(fsdp_compare_all(context, &purpose));
    for (size_t i = 0; i < context->n_units && context->is_prepared; i++) {
        TRY(synchronize_unit(context->units[i]));
    }
    return fsdp_drain(context, 0);
}
