/* SPDX-License-Identifier: MIT */
/* Gradients that wait: where they are, and a reduction of them without a backward. */
#include "parallel/fsdp/pending.h"

#include "base/error.h"
#include "base/try.h"
#include "tensor/dtype.h"

/* Of all places of parameters in the buffer, as they were when the partial sums were put away. */
static size_t partial_offset(const struct fsdp_unit *unit, const struct fsdp_param *wanted)
{
    size_t offset = 0;
    for (const struct fsdp_param *param = unit->params; param != wanted; param++) {
        offset +=
            param->is_partial ? fsdp_round_up(param->padded_count * dtype_bytes(unit->reduce_dtype)) : 0;
    }
    return offset;
}

/* In the buffer, or where kernels add to them and that is not the buffer. */
static void find_full(const struct fsdp_unit *unit, const struct fsdp_param *param,
                      shoal_pending_gradient *pending)
{
    bool is_apart = !unit->watch && !param->is_direct && param->compute == unit->reduce_dtype;
    pending->full = is_apart ? unit->grads + param->grad_offset : unit->buffer->data + param->reduce_offset;
    pending->full_dtype = unit->reduce_dtype;
    pending->full_count = param->count;
    pending->n_blocks = is_apart || param->outer == 1 ? 1 : unit->context->mesh.n_shards;
}

void fsdp_unit_get_pending(const struct fsdp_unit *unit, const struct fsdp_param *param,
                           shoal_pending_gradient *pending_out)
{
    *pending_out = (shoal_pending_gradient){.full = NULL};
    if (unit->buffer && unit->has_accumulated && param->is_reduced) {
        find_full(unit, param, pending_out);
    }
    if (unit->has_partial && param->is_partial) {
        pending_out->partial = unit->partial + partial_offset(unit, param);
        pending_out->partial_dtype = unit->reduce_dtype;
        pending_out->partial_count = param->shard_count;
    }
}

/* As if a backward that reduces had ended, in which nothing was added. */
static shoal_status reduce_pending(struct fsdp_unit *unit)
{
    TRY(fsdp_unit_end_grads(unit));
    return unit->has_partial && !fsdp_unit_is_reducing(unit) ? fsdp_unit_reduce_partial(unit) : SHOAL_OK;
}

static shoal_status synchronize_unit(struct fsdp_unit *unit)
{
    bool reduces = unit->reduces;
    bool all_reduces = unit->all_reduces;
    bool reduces_unused = unit->reduces_unused;
    unit->reduces = true;
    unit->all_reduces = true;
    unit->reduces_unused = reduces_unused && unit->is_owed;
    shoal_status status = reduce_pending(unit);
    unit->reduces = reduces;
    unit->all_reduces = all_reduces;
    unit->reduces_unused = reduces_unused;
    return status;
}

shoal_status fsdp_synchronize(struct fsdp_context *context)
{
    for (size_t i = 0; i < context->n_units; i++) {
        if (context->units[i]->phase != FSDP_IDLE) {
            return error_set(SHOAL_ERR_STATE, "synchronize: %s is in the middle of a step",
                             context->units[i]->name);
        }
    }
    for (size_t i = 0; i < context->n_units && context->is_prepared; i++) {
        TRY(synchronize_unit(context->units[i]));
    }
    return fsdp_drain(context, 0);
}
