/* SPDX-License-Identifier: MIT */
/* Adds reduced gradients to the gradients of the shards, and calls hooks. */
#include "parallel/fsdp/engine/reduce/landing.h"

#include "base/error.h"
#include "base/trace.h"
#include "base/try.h"
#include "device/device.h"
#include "kernel/moves.h"
#include "parallel/fsdp/engine/agree/compare.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/reduce/grads.h"
#include "parallel/fsdp/engine/agree/marks.h"
#include "parallel/fsdp/engine/state/memory.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/engine/state/pool.h"
#include "parallel/fsdp/engine/reduce/reduction.h"
#include "parallel/fsdp/engine/reduce/scatter.h"
#include "parallel/fsdp/engine/state/unit.h"
#include "tensor/dtype.h"

static shoal_status add_to_shard(const struct fsdp_unit *unit, struct fsdp_param *param, shoal_dtype dtype,
                                 struct address gradient, struct moves *moves)
{
    if (address_is_none(param->shard_grad)) {
        size_t bytes = param->shard_count * dtype_bytes(param->dtype);
        TRY(device_memory_allocate(unit->device, bytes, &param->shard_grad));
        fsdp_memory_add(&unit->context->memory, FSDP_MEMORY_GRADIENTS, bytes);
    }
    moves_add(moves, (struct kernel_move){.dst = param->shard_grad,
                                          .src = gradient,
                                          .count = param->shard_count,
                                          .dst_dtype = param->dtype,
                                          .src_dtype = dtype,
                                          .is_added = param->has_grad});
    param->has_grad = true;
    return SHOAL_OK;
}

static shoal_status land_param(const struct fsdp_reduction *reduction, struct fsdp_param *param,
                               struct moves *moves)
{
    const struct fsdp_unit *unit = reduction->unit;
    struct address from = fsdp_reduction_output(reduction, param);
    kernel_of(unit->device)->divide(unit->grads.dtype, from, param->padded_count, reduction->factors.after);
    if (address_is_none(param->shard_grad) && reduction->buffer && fsdp_lands_in_place(unit, param)) {
        fsdp_block_keep(reduction->buffer);
        param->grad_block = reduction->buffer;
        param->shard_grad = from;
        param->has_grad = true;
        return SHOAL_OK;
    }
    return add_to_shard(unit, param, unit->grads.dtype, from, moves);
}

shoal_status fsdp_land_whole(const struct fsdp_unit *unit, struct fsdp_param *param, shoal_dtype dtype,
                             struct address gradient)
{
    struct moves moves;
    uint64_t begin_ticks = trace_begin();
    moves_begin(&moves, unit->device);
    shoal_status status = add_to_shard(unit, param, dtype, gradient, &moves);
    moves_end(&moves);
    trace_end(begin_ticks, TRACE_OP, "fsdp.land_gradient");
    return status;
}

shoal_status fsdp_land_params(struct fsdp_reduction *reduction)
{
    struct fsdp_unit *unit = reduction->unit;
    if (unit->watch) {
        TRY(fsdp_tell_reduction(unit, unit->watch->landing(unit)));
    }
    struct moves moves;
    shoal_status status = SHOAL_OK;
    uint64_t begin_ticks = trace_begin();
    moves_begin(&moves, unit->device);
    for (size_t i = 0; i < unit->n_params && status == SHOAL_OK; i++) {
        struct fsdp_param *param = &unit->params[i];
        status = param->is_reduced ? land_param(reduction, param, &moves) : SHOAL_OK;
    }
    moves_end(&moves);
    trace_end(begin_ticks, TRACE_OP, "fsdp.land_gradients");
    return status;
}

shoal_fsdp_shard fsdp_shard_of(const struct fsdp_param *param)
{
    return (shoal_fsdp_shard){.struct_size = sizeof(shoal_fsdp_shard),
                              .data = address_pointer(param->shard),
                              .grad = param->has_grad ? address_pointer(param->shard_grad) : NULL,
                              .count = param->shard_count,
                              .offset = param->begin,
                              .length = param->length};
}

/* Drops the gradient of a shard, and frees its memory. */
static void free_shard_grad(struct fsdp_unit *unit, struct fsdp_param *param)
{
    fsdp_param_drop_grad(param);
    if (!address_is_none(param->shard_grad)) {
        fsdp_memory_remove(&unit->context->memory, FSDP_MEMORY_GRADIENTS,
                           param->shard_count * dtype_bytes(param->dtype));
        device_memory_free(unit->device, param->shard_grad);
        param->shard_grad = ADDRESS_NONE;
    }
}

static shoal_status run_hook(struct fsdp_unit *unit, struct fsdp_param *param)
{
    shoal_fsdp_shard shard = fsdp_shard_of(param);
    error_clear();
    unit->context->n_asked++;
    unit->context->n_callbacks++;
    shoal_status status = unit->hooks.accumulated(unit->hooks.accumulated_context, param->id, &shard);
    unit->context->n_callbacks--;
    if (status != SHOAL_OK) {
        return error_prefix(status, "%s: the hook for the gradient of %s", unit->name, param->name);
    }
    if (!shard.grad) {
        free_shard_grad(unit, param);
    }
    return SHOAL_OK;
}

static shoal_status run_hooks(struct fsdp_unit *unit)
{
    for (size_t i = 0; unit->hooks.accumulated && i < unit->n_params; i++) {
        if (unit->params[i].is_reduced) {
            TRY(run_hook(unit, &unit->params[i]));
        }
    }
    return SHOAL_OK;
}

shoal_status fsdp_run_landed(struct fsdp_unit *unit)
{
    shoal_status status = unit->watch ? unit->watch->landed(unit) : run_hooks(unit);
    return status == SHOAL_OK ? SHOAL_OK : fsdp_mark_failure(unit, status);
}

shoal_status fsdp_land_nothing(struct fsdp_unit *unit)
{
    char nothing = 0;
    struct fsdp_reduction reduction = {.unit = unit, .output = address_of(&nothing), .factors.after = 1.0};
    TRY(fsdp_land_params(&reduction));
    return fsdp_run_landed(unit);
}
