/* SPDX-License-Identifier: MIT */
/*
 * Reduces gradients: from the unit's buffer, by a reduce-scatter and, with replicas, an all-reduce, to the shards.
 *
 * Reductions advance in the order in which they began, and only at fixed calls of the step, never because something
 * happens to have finished. So all ranks start the same collectives in the same order.
 */
#include "parallel/fsdp/engine/reduce/reduction.h"

#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "device/device.h"
#include "kernel/moves.h"
#include "parallel/fsdp/engine/agree/common.h"
#include "parallel/fsdp/engine/agree/compare.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/custom.h"
#include "parallel/fsdp/engine/state/factors.h"
#include "parallel/fsdp/engine/reduce/grads.h"
#include "parallel/fsdp/engine/reduce/landing.h"
#include "parallel/fsdp/engine/state/lanes.h"
#include "parallel/fsdp/engine/agree/marks.h"
#include "parallel/fsdp/engine/state/memory.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/engine/reduce/partial.h"
#include "parallel/fsdp/engine/state/pool.h"
#include "parallel/fsdp/engine/reduce/scatter.h"
#include "parallel/fsdp/engine/state/unit.h"
#include "tensor/dtype.h"

/* Starting ----------------------------------------------------------------------------------------------- */

/* Places in the buffer must not change while a reduction of the unit is in flight. */
static shoal_status settle_reductions(struct fsdp_unit *unit)
{
    return fsdp_unit_is_reducing(unit) ? fsdp_drain(unit->context, 0) : SHOAL_OK;
}

shoal_status fsdp_unit_begin_grads(struct fsdp_unit *unit)
{
    if (unit->grads.has_begun) {
        return SHOAL_OK;
    }
    TRY(settle_reductions(unit));
    for (size_t i = 0; i < unit->n_params && !unit->grads.buffer; i++) {
        unit->params[i].is_reduced = unit->params[i].requires_grad;
    }
    TRY(fsdp_unit_take_buffer(unit));
    TRY(fsdp_unit_need_grads(unit));
    unit->grads.has_begun = true;
    return SHOAL_OK;
}

/* Puts gradients that kernels could not write in the buffer there. `is_new`: kernels wrote some since the last time. */
static shoal_status collect_grads(struct fsdp_unit *unit, bool is_new)
{
    if (unit->watch) {
        TRY(settle_reductions(unit));
        return unit->watch->collect(unit);
    }
    fsdp_unit_collect_written(unit, is_new);
    return SHOAL_OK;
}

shoal_status fsdp_unit_take_cast(struct fsdp_unit *unit)
{
    if (!unit->watch || !unit->watch->has_cast(unit)) {
        return SHOAL_OK;
    }
    TRY(collect_grads(unit, /*is_new=*/false));
    if (unit->grads.buffer) {
        fsdp_unit_clear_unset(unit);
        unit->grads.has_accumulated = true;
    }
    return SHOAL_OK;
}

shoal_status fsdp_unit_lend_grads(struct fsdp_unit *unit)
{
    bool has_own = unit->watch && unit->config.sharded == SHOAL_SHARDED_STATE;
    return has_own && unit->grads.buffer && unit->grads.has_accumulated ? unit->watch->lend(unit) : SHOAL_OK;
}

static struct fsdp_reduction reduction_of(struct fsdp_unit *unit)
{
    const struct fsdp_mesh *mesh = unit->mesh;
    return (struct fsdp_reduction){
        .unit = unit,
        .buffer = unit->grads.buffer,
        .factors = fsdp_factors_choose(mesh->n_shards, mesh->n_replicas, unit->grads.dtype,
                                       unit->config.divide_factor, unit->config.force_sum),
        .all_reduces = unit->config.all_reduce};
}

static shoal_status need_reductions(struct fsdp_context *context)
{
    return mem_grow((void **)&context->reductions.items, &context->reductions.capacity,
                    context->reductions.n + 1, sizeof context->reductions.items[0]);
}

/* Adds a reduction in flight, which has the unit's buffer from now on. */
static void add_reduction(struct fsdp_unit *unit, const struct fsdp_reduction *reduction)
{
    struct fsdp_context *context = unit->context;
    context->reductions.items[context->reductions.n] = *reduction;
    context->reductions.items[context->reductions.n++].n_gathers = fsdp_count_gathers(context);
    context->reductions.last = unit;
    fsdp_unit_forget_buffer(unit);
}

/* A hook gets the results of all parameters in one piece. With one shard they lie in the buffer like this anyway. */
static shoal_status need_output(struct fsdp_reduction *reduction)
{
    const struct fsdp_unit *unit = reduction->unit;
    if (!unit->hooks.all_reduce || unit->mesh->n_shards == 1) {
        return SHOAL_OK;
    }
    TRY(device_memory_allocate(unit->device, unit->grads.output_bytes, &reduction->output));
    struct moves moves;
    moves_begin(&moves, unit->device);
    moves_clear(&moves, reduction->output, unit->grads.output_bytes);
    moves_end(&moves);
    fsdp_memory_add(&unit->context->memory, FSDP_MEMORY_OTHER, unit->grads.output_bytes);
    return SHOAL_OK;
}

static void drop_output(struct fsdp_reduction *reduction)
{
    const struct fsdp_unit *unit = reduction->unit;
    if (!address_is_none(reduction->output)) {
        fsdp_memory_remove(&unit->context->memory, FSDP_MEMORY_OTHER, unit->grads.output_bytes);
        device_memory_free(unit->device, reduction->output);
        reduction->output = ADDRESS_NONE;
    }
}

static shoal_status start_reduction(struct fsdp_unit *unit)
{
    TRY(need_reductions(unit->context));
    struct fsdp_reduction reduction = reduction_of(unit);
    size_t n_elements = unit->grads.buffer_bytes / dtype_bytes(unit->grads.dtype);
    kernel_of(unit->device)
        ->divide(unit->grads.dtype, reduction.buffer->data, n_elements, reduction.factors.before);
    TRY(need_output(&reduction));
    if (unit->mesh->n_shards > 1) {
        shoal_status status = fsdp_mark_reduction(unit, PURPOSE_FSDP_REDUCE);
        status = status == SHOAL_OK ? fsdp_start_scatter(&reduction) : status;
        if (status != SHOAL_OK) {
            drop_output(&reduction);
            return status;
        }
    }
    add_reduction(unit, &reduction);
    return SHOAL_OK;
}

/* Ending ------------------------------------------------------------------------------------------------- */

static shoal_status wait_for_work(struct fsdp_reduction *reduction)
{
    if (!reduction->work) {
        return SHOAL_OK;
    }
    shoal_status status = fsdp_common_wait(reduction->unit->context, reduction->work);
    shoal_work_free(reduction->work);
    reduction->work = NULL;
    return fsdp_tell_reduction(reduction->unit, status);
}

/* Gives the buffer back, even if the reduction failed: ranks must not differ in which buffers are free. */
static void drop_reduction(struct fsdp_reduction *reduction)
{
    (void)wait_for_work(reduction);
    fsdp_drop_scatter(reduction);
    drop_output(reduction);
    fsdp_pool_give_back(reduction->buffer);
}

/* Adds the results to the gradients of the shards, and calls hooks. */
static shoal_status land(struct fsdp_reduction *reduction)
{
    struct fsdp_unit *unit = reduction->unit;
    shoal_status status = fsdp_land_params(reduction);
    drop_reduction(reduction);
    return status == SHOAL_OK ? fsdp_run_landed(unit) : status;
}

static void remove_first(struct fsdp_context *context)
{
    context->reductions.n--;
    memmove(&context->reductions.items[0], &context->reductions.items[1],
            context->reductions.n * sizeof context->reductions.items[0]);
}

/* Removes the oldest reduction without landing it: it has failed, or its results are kept for the replicas. */
static shoal_status drop_first(struct fsdp_context *context, shoal_status status)
{
    struct fsdp_reduction reduction = context->reductions.items[0];
    remove_first(context);
    drop_reduction(&reduction);
    return status;
}

static shoal_status land_first(struct fsdp_context *context)
{
    struct fsdp_reduction reduction = context->reductions.items[0];
    remove_first(context);
    return land(&reduction);
}

static size_t count_parts(const struct fsdp_unit *unit)
{
    size_t count = 0;
    for (size_t i = 0; i < unit->n_params; i++) {
        count += unit->params[i].is_reduced ? 1 : 0;
    }
    return count;
}

/* What a hook gets has zeros between the results. The buffer has old data there. */
static void clear_between(const struct fsdp_reduction *reduction)
{
    const struct fsdp_unit *unit = reduction->unit;
    struct moves moves;
    moves_begin(&moves, unit->device);
    for (size_t i = 0; i < unit->n_params; i++) {
        const struct fsdp_param *param = &unit->params[i];
        size_t bytes = param->padded_count * dtype_bytes(unit->grads.dtype);
        if (param->is_reduced) {
            moves_clear(&moves, address_add(fsdp_reduction_output(reduction, param), (ptrdiff_t)bytes),
                        fsdp_round_up(bytes) - bytes);
        }
    }
    moves_end(&moves);
}

/* Runs the all-reduce hook once. The hook may leave work to be waited for in reduction->work. */
static shoal_status run_hook(struct fsdp_reduction *reduction)
{
    const struct fsdp_unit *unit = reduction->unit;
    const struct fsdp_mesh *mesh = unit->mesh;
    if (!unit->hooks.all_reduce || reduction->was_hooked) {
        return SHOAL_OK;
    }
    if (address_is_none(reduction->output)) {
        clear_between(reduction);
    }
    const shoal_reduced_gradients reduced = {
        .struct_size = sizeof reduced,
        .data =
            address_pointer(address_is_none(reduction->output) ? reduction->buffer->data : reduction->output),
        .count = unit->grads.output_bytes / dtype_bytes(unit->grads.dtype),
        .dtype = unit->grads.dtype,
        .shards = mesh->reduce,
        .replicas = mesh->replicate,
        .unit = unit->name,
        .n_parts = count_parts(unit),
        .layout = unit,
        .device = unit->device};
    reduction->was_hooked = true;
    error_clear();
    unit->context->n_callbacks++;
    shoal_status status = unit->hooks.all_reduce(unit->hooks.all_reduce_context, &reduced, &reduction->work);
    unit->context->n_callbacks--;
    if (status != SHOAL_OK) {
        status = fsdp_mark_failure(unit, error_prefix(status, "%s: its all-reduce hook", unit->name));
        fsdp_custom_drop_work(&reduction->work);
    }
    return status;
}

static shoal_status end_all_reduce(struct fsdp_reduction *reduction)
{
    TRY(wait_for_work(reduction));
    TRY(run_hook(reduction));
    return wait_for_work(reduction);
}

/* All-reduces come first in the list. Ends them. */
static shoal_status end_all_reduces(struct fsdp_context *context)
{
    while (context->reductions.n > 0 && context->reductions.items[0].is_all_reduce) {
        shoal_status status = end_all_reduce(&context->reductions.items[0]);
        TRY(status == SHOAL_OK ? land_first(context) : drop_first(context, status));
    }
    return SHOAL_OK;
}

/* Waits for the barrier beside a custom reduce-scatter, if there is one. */
static shoal_status end_comparison(struct fsdp_reduction *reduction)
{
    shoal_work *compared = reduction->compared;
    TRY(compared ? fsdp_common_wait(reduction->unit->context, compared) : SHOAL_OK);
    return fsdp_custom_end_comparison(&reduction->compared);
}

/* Ends the reduce-scatter, and starts what follows it: the all-reduce over the replicas or, without replicas, the hook.
   If the replicas are not reduced in this pass, keeps the results for them. */
static shoal_status finish_scatter_start_all_reduce(struct fsdp_reduction *reduction)
{
    TRY(wait_for_work(reduction));
    TRY(fsdp_tell_reduction(reduction->unit, end_comparison(reduction)));
    fsdp_end_scatter(reduction);
    if (!reduction->unit->mesh->replicate) {
        TRY(run_hook(reduction));
        reduction->is_all_reduce = reduction->work != NULL;
        return SHOAL_OK;
    }
    if (!reduction->all_reduces) {
        return fsdp_partial_put(reduction);
    }
    TRY(fsdp_partial_add(reduction));
    return fsdp_tell_reduction(reduction->unit, fsdp_start_all_reduce(reduction));
}

/* Ends the oldest reduce-scatter, which is first in the list. Its gradients land, unless an all-reduce follows or they
   are kept for the replicas. */
static shoal_status end_scatter(struct fsdp_context *context)
{
    struct fsdp_reduction *first = &context->reductions.items[0];
    shoal_status status = finish_scatter_start_all_reduce(first);
    if (status != SHOAL_OK || (first->unit->mesh->replicate && !first->all_reduces)) {
        return drop_first(context, status);
    }
    return first->is_all_reduce ? SHOAL_OK : land_first(context);
}

static size_t count_scatters(const struct fsdp_context *context)
{
    size_t n = 0;
    for (size_t i = 0; i < context->reductions.n; i++) {
        n += !context->reductions.items[i].is_all_reduce;
    }
    return n;
}

/* Ends reduce-scatters until at most `n_left` are in flight. The all-reduce that follows the last one stays in flight
   while the step goes on. */
static shoal_status end_scatters(struct fsdp_context *context, size_t n_left)
{
    while (count_scatters(context) > n_left) {
        TRY(fsdp_mark_wait(context->reductions.items[0].unit, context->reductions.items[0].n_gathers));
        TRY(end_all_reduces(context));
        TRY(end_scatter(context));
    }
    return SHOAL_OK;
}

shoal_status fsdp_drain(struct fsdp_context *context, size_t n_left)
{
    TRY(end_scatters(context, n_left));
    return n_left == 0 ? end_all_reduces(context) : SHOAL_OK;
}

shoal_status fsdp_unit_land(struct fsdp_unit *unit)
{
    bool is_gathered = unit->gather.is_pending || unit->state == FSDP_UNSHARDED;
    return unit->hooks.accumulated && !is_gathered && fsdp_unit_is_reducing(unit)
               ? fsdp_drain(unit->context, 0)
               : SHOAL_OK;
}

static bool has_dtype(const struct fsdp_unit *unit, shoal_dtype dtype)
{
    bool has_all = true;
    for (size_t i = 0; i < unit->n_params; i++) {
        has_all = has_all && unit->params[i].dtype == dtype;
    }
    return has_all;
}

/*
 * Whether gradients of the unit can become those of the shards at once, with the same bits: there is one shard, nothing
 * is sent, divided or shown to a hook, and the reduction would convert to the dtype that shards have anyway. Units that
 * keep a buffer, or have one from an earlier pass, use it.
 */
static bool is_alone(const struct fsdp_unit *unit)
{
    const struct fsdp_mesh *mesh = unit->mesh;
    const struct fsdp_unit_config *config = &unit->config;
    if (!unit->watch || mesh->n_shards > 1 || mesh->replicate || unit->hooks.all_reduce || !config->sync ||
        config->reduce_unused || config->sharded == SHOAL_SHARDED_STATE || unit->grads.buffer ||
        unit->grads.has_partial || !has_dtype(unit, unit->grads.dtype)) {
        return false;
    }
    const struct fsdp_factors factors =
        fsdp_factors_choose(1, 1, unit->grads.dtype, config->divide_factor, config->force_sum);
    return factors.before == 1.0 && factors.after == 1.0;
}

/* The reductions before it have landed first: hooks see the gradients of units in their order. */
static shoal_status end_alone(struct fsdp_unit *unit)
{
    TRY(settle_reductions(unit));
    TRY(end_scatters(unit->context, 0));
    return unit->watch->land_alone(unit);
}

shoal_status fsdp_unit_end_grads(struct fsdp_unit *unit)
{
    struct fsdp_context *context = unit->context;
    bool is_new = unit->grads.has_begun;
    unit->grads.has_begun = false;
    if (is_alone(unit)) {
        return end_alone(unit);
    }
    shoal_status status = collect_grads(unit, is_new);
    if (status == SHOAL_OK && !unit->grads.buffer && unit->watch && unit->config.sync) {
        status = fsdp_land_nothing(unit);
    }
    if (status != SHOAL_OK || !unit->grads.buffer) {
        return fsdp_tell_reduction(unit, status);
    }
    fsdp_unit_clear_unset(unit);
    if (!unit->config.sync) {
        unit->grads.has_accumulated = true;
        return SHOAL_OK;
    }
    TRY(end_scatters(context, (size_t)context->config.max_reduces - 1));
    return fsdp_tell_reduction(unit, start_reduction(unit));
}

shoal_status fsdp_unit_reduce_partial(struct fsdp_unit *unit)
{
    for (size_t i = 0; i < unit->n_params; i++) {
        unit->params[i].is_reduced = unit->params[i].is_partial;
    }
    TRY(fsdp_unit_take_buffer(unit));
    TRY(end_scatters(unit->context, (size_t)unit->context->config.max_reduces - 1));
    TRY(need_reductions(unit->context));
    struct fsdp_reduction reduction = reduction_of(unit);
    TRY(need_output(&reduction));
    fsdp_partial_take(&reduction);
    add_reduction(unit, &reduction);
    return SHOAL_OK;
}

void fsdp_drop_reductions(struct fsdp_context *context)
{
    for (size_t i = 0; i < context->reductions.n; i++) {
        drop_reduction(&context->reductions.items[i]);
    }
    context->reductions.n = 0;
}
