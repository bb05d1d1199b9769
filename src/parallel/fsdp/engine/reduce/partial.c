/* SPDX-License-Identifier: MIT */
/* Keeps gradients that were reduced over the shards, until they are reduced over the replicas. */
#include "parallel/fsdp/engine/reduce/partial.h"

#include "base/error.h"
#include "base/try.h"
#include "kernel/moves.h"
#include "parallel/fsdp/engine/reduce/grads.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/engine/reduce/reduction.h"
#include "parallel/fsdp/engine/reduce/scatter.h"
#include "parallel/fsdp/engine/state/unit.h"
#include "tensor/dtype.h"

/* Gradients that are kept have the layout of the backward pass that left them. A later pass can add to them only if the
   same parameters got gradients. */
static shoal_status check_partial(const struct fsdp_unit *unit)
{
    for (size_t i = 0; unit->grads.has_partial && i < unit->n_params; i++) {
        const struct fsdp_param *param = &unit->params[i];
        if (param->is_reduced != param->is_partial) {
            return error_set(SHOAL_ERR_STATE,
                             "%s: parameter %s has %s gradient, unlike in the previous backward pass, whose "
                             "gradients have not been reduced over the replicas yet",
                             unit->name, param->name, param->is_reduced ? "a" : "no");
        }
    }
    return SHOAL_OK;
}

struct address fsdp_partial_at(const struct fsdp_unit *unit, const struct fsdp_param *wanted)
{
    size_t offset = 0;
    for (const struct fsdp_param *param = unit->params; param != wanted; param++) {
        offset += param->is_partial ? fsdp_round_up(param->padded_count * dtype_bytes(unit->grads.dtype)) : 0;
    }
    return address_add(unit->grads.partial, (ptrdiff_t)offset);
}

shoal_status fsdp_partial_make(struct fsdp_unit *unit)
{
    size_t bytes = 0;
    for (size_t i = 0; i < unit->n_params; i++) {
        const struct fsdp_param *param = &unit->params[i];
        bytes += param->is_partial ? fsdp_round_up(param->padded_count * dtype_bytes(unit->grads.dtype)) : 0;
    }
    TRY(fsdp_unit_need_memory(unit, &unit->grads.partial, &unit->grads.partial_capacity, bytes));
    unit->grads.has_partial = true;
    return SHOAL_OK;
}

/* Between the output and what is kept. is_kept: what is written is kept. */
static void move_outputs(const struct fsdp_reduction *reduction, bool is_kept, bool is_added)
{
    const struct fsdp_unit *unit = reduction->unit;
    struct moves moves;
    moves_begin(&moves, unit->device);
    for (size_t i = 0; i < unit->n_params; i++) {
        const struct fsdp_param *param = &unit->params[i];
        if (param->is_reduced) {
            struct address kept = address_add(unit->grads.partial, (ptrdiff_t)param->output_offset);
            struct address output = fsdp_reduction_output(reduction, param);
            moves_add(&moves, (struct kernel_move){.dst = is_kept ? kept : output,
                                                   .src = is_kept ? output : kept,
                                                   .count = param->padded_count,
                                                   .dst_dtype = unit->grads.dtype,
                                                   .src_dtype = unit->grads.dtype,
                                                   .is_added = is_added});
        }
    }
    moves_end(&moves);
}

shoal_status fsdp_partial_put(const struct fsdp_reduction *reduction)
{
    struct fsdp_unit *unit = reduction->unit;
    TRY(check_partial(unit));
    TRY(fsdp_unit_need_memory(unit, &unit->grads.partial, &unit->grads.partial_capacity,
                              unit->grads.output_bytes));
    for (size_t i = 0; i < unit->n_params; i++) {
        unit->params[i].is_partial = unit->params[i].is_reduced;
    }
    move_outputs(reduction, /*is_kept=*/true, /*is_added=*/unit->grads.has_partial);
    unit->grads.has_partial = true;
    return SHOAL_OK;
}

shoal_status fsdp_partial_add(struct fsdp_reduction *reduction)
{
    struct fsdp_unit *unit = reduction->unit;
    TRY(check_partial(unit));
    if (unit->grads.has_partial) {
        move_outputs(reduction, /*is_kept=*/false, /*is_added=*/true);
    }
    unit->grads.has_partial = false;
    return SHOAL_OK;
}

void fsdp_partial_take(const struct fsdp_reduction *reduction)
{
    move_outputs(reduction, /*is_kept=*/false, /*is_added=*/false);
    reduction->unit->grads.has_partial = false;
}
