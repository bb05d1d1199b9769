/* SPDX-License-Identifier: MIT */
/* What units share: making it and them, and, at the first forward, layouts, dtypes and pools. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/world.h"
#include "parallel/fsdp/agree.h"
#include "parallel/fsdp/labels.h"
#include "parallel/fsdp/unit.h"
#include "tensor/dtype.h"

/* Making ------------------------------------------------------------------------------------------------- */

static shoal_status check_floating(shoal_dtype dtype, const char *what)
{
    if (dtype == 0) {
        return SHOAL_OK;
    }
    TRY(dtype_check(dtype, what));
    return shoal_dtype_is_floating(dtype)
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID, "%s: %s is not floating", what, shoal_dtype_name(dtype));
}

shoal_status fsdp_check_reshard_ranks(const struct fsdp_mesh *mesh, int n_ranks)
{
    return n_ranks >= 1 && n_ranks <= mesh->n_shards && mesh->n_shards % n_ranks == 0
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID, "reshard_ranks: %d does not divide the %d shards", n_ranks,
                           mesh->n_shards);
}

shoal_status fsdp_check_options(const struct fsdp_mesh *mesh, const shoal_fsdp_options *options)
{
    TRY(check_floating(options->param_dtype, "param_dtype"));
    TRY(check_floating(options->reduce_dtype, "reduce_dtype"));
    if ((int)options->reshard < 0 || options->reshard > SHOAL_RESHARD_PARTLY) {
        return error_set(SHOAL_ERR_INVALID, "reshard: there is no %d", (int)options->reshard);
    }
    if (options->reshard == SHOAL_RESHARD_PARTLY) {
        TRY(fsdp_check_reshard_ranks(mesh, options->reshard_ranks));
    }
    if (!(options->divide_factor >= 0.0) || isinf(options->divide_factor)) {
        return error_set(SHOAL_ERR_INVALID, "divide_factor: %g", options->divide_factor);
    }
    if (options->forward_prefetch < -1) {
        return error_set(SHOAL_ERR_INVALID, "forward_prefetch: %d", options->forward_prefetch);
    }
    if (options->max_reduces < 0) {
        return error_set(SHOAL_ERR_INVALID, "max_reduces: %d", options->max_reduces);
    }
    return SHOAL_OK;
}

/* Windows and symmetric memory go with the world: nothing may look at them any more. */
static void world_ends(struct owned *owned)
{
    struct fsdp_context *context = (struct fsdp_context *)owned;
    context->is_closed = true;
    for (size_t i = 0; i < context->n_units; i++) {
        struct fsdp_unit *unit = context->units[i];
        if (unit->state == FSDP_UNSHARDED && unit->watch) {
            unit->watch->resharding(unit);
        }
        unit->state = FSDP_SHARDED;
        unit->slot = NULL;
    }
    for (size_t i = 0; i < context->n_kept; i++) {
        fsdp_windows_forget(&context->kept[i]->windows);
    }
    fsdp_windows_forget(&context->windows);
    fsdp_buffers_forget(&context->buffers);
}

static shoal_status follow_deadlines(const struct fsdp_context *context)
{
    const struct fsdp_mesh *mesh = &context->mesh;
    TRY(fsdp_mesh_follow_deadlines(mesh));
    for (size_t i = 0; i < context->n_kept; i++) {
        TRY(fsdp_mesh_follow_deadline(context->kept[i]->windows.group, mesh->shards));
    }
    return SHOAL_OK;
}

shoal_status fsdp_context_check(const struct fsdp_context *context)
{
    return context->is_closed ? error_set(SHOAL_ERR_STATE, "the world was closed")
                              : follow_deadlines(context);
}

shoal_status fsdp_context_create(const struct fsdp_mesh *mesh, const shoal_fsdp_options *options,
                                 struct fsdp_context **context_out)
{
    TRY(fsdp_check_options(mesh, options));
    struct fsdp_context *context = mem_alloc_zeroed(1, sizeof *context);
    if (!context) {
        return SHOAL_ERR_NO_MEMORY;
    }
    context->mesh = *mesh;
    context->options = *options;
    context->n_forward = options->forward_prefetch == 0 ? 1 : options->forward_prefetch;
    context->max_reduces = options->max_reduces == 0 ? 1 : options->max_reduces;
    fsdp_windows_init(&context->windows, mesh->gather);
    fsdp_buffers_init(&context->buffers, mesh->reduce ? mesh->reduce : mesh->replicate);
    context->owned.destroy = world_ends;
    owned_list_add(&mesh->world->owned, &context->owned);
    *context_out = context;
    return SHOAL_OK;
}

static void drop_listed(struct fsdp_unit *unit)
{
    if (--unit->n_listed == 0 && unit->is_gone) {
        mem_free(unit);
    }
}

void fsdp_list_set(struct fsdp_unit ***list, size_t *n_list, struct fsdp_unit **units, size_t n_units)
{
    for (size_t i = 0; i < n_units; i++) {
        units[i]->n_listed++;
    }
    for (size_t i = 0; i < *n_list; i++) {
        drop_listed((*list)[i]);
    }
    mem_free(*list);
    *list = units;
    *n_list = n_units;
}

void fsdp_unit_free(struct fsdp_unit *unit)
{
    if (!unit) {
        return;
    }
    fsdp_unit_forget_gather(unit);
    for (size_t i = 0; i < unit->n_params; i++) {
        fsdp_param_free(&unit->params[i]);
    }
    mem_free(unit->params);
    mem_free(unit->name);
    mem_free(unit->full);
    mem_free(unit->grads);
    mem_free(unit->partial);
    mem_free(unit->order);
    fsdp_list_set(&unit->forward_list, &unit->n_forward_list, NULL, 0);
    fsdp_list_set(&unit->backward_list, &unit->n_backward_list, NULL, 0);
    unit->context = NULL;
    unit->is_gone = true;
    if (unit->n_listed == 0) {
        mem_free(unit);
    }
}

void fsdp_context_free(struct fsdp_context *context)
{
    if (!context) {
        return;
    }
    if (!context->is_closed) {
        owned_list_remove(&context->mesh.world->owned, &context->owned);
    }
    fsdp_drop_reductions(context);
    fsdp_drop_mark(context);
    for (size_t i = 0; i < context->n_units; i++) {
        fsdp_unit_free(context->units[i]);
    }
    for (size_t i = 0; i < context->n_kept; i++) {
        fsdp_windows_free(&context->kept[i]->windows);
        mem_free(context->kept[i]);
    }
    fsdp_windows_free(&context->windows);
    fsdp_buffers_free(&context->buffers);
    mem_free(context->kept);
    mem_free(context->units);
    mem_free(context->order);
    mem_free(context->forwards);
    mem_free(context->last_forwards);
    mem_free(context->reductions);
    mem_free(context);
}

shoal_status fsdp_unit_create_alone(const char *name, struct fsdp_unit **unit_out)
{
    struct fsdp_unit *unit = mem_alloc_zeroed(1, sizeof *unit);
    if (!unit) {
        return SHOAL_ERR_NO_MEMORY;
    }
    unit->name = mem_copy_string(name);
    if (!unit->name) {
        mem_free(unit);
        return SHOAL_ERR_NO_MEMORY;
    }
    unit->reshards_after_backward = true;
    unit->unshards_in_backward = true;
    unit->reduces = true;
    unit->all_reduces = true;
    *unit_out = unit;
    return SHOAL_OK;
}

shoal_status fsdp_context_adopt(struct fsdp_context *context, struct fsdp_unit *unit)
{
    TRY(mem_grow((void **)&context->units, &context->units_capacity, context->n_units + 1,
                 sizeof context->units[0]));
    unit->context = context;
    unit->number = (int)context->n_units;
    context->units[context->n_units++] = unit;
    return SHOAL_OK;
}

shoal_status fsdp_unit_create(struct fsdp_context *context, struct fsdp_unit **unit_out)
{
    char name[32];
    struct fsdp_unit *unit;
    const shoal_fsdp_options *options = &context->options;
    (void)snprintf(name, sizeof name, "unit %zu", context->n_units);
    TRY(fsdp_unit_create_alone(name, &unit));
    unit->reshard = options->reshard;
    unit->reshard_ranks = options->reshard_ranks;
    unit->divide_factor = options->divide_factor;
    unit->forces_sum = options->forces_sum;
    unit->param_dtype = options->param_dtype;
    unit->wanted_reduce = options->reduce_dtype;
    shoal_status status = fsdp_context_adopt(context, unit);
    if (status != SHOAL_OK) {
        fsdp_unit_free(unit);
        return status;
    }
    *unit_out = unit;
    return SHOAL_OK;
}

shoal_status fsdp_unit_add_param(struct fsdp_unit *unit, const struct fsdp_param *param)
{
    TRY(mem_grow((void **)&unit->params, &unit->params_capacity, unit->n_params + 1, sizeof unit->params[0]));
    unit->params[unit->n_params++] = *param;
    return SHOAL_OK;
}

/* Preparing ---------------------------------------------------------------------------------------------- */

/* Fewer neighbours than one or as many as shards are what the other words mean. */
shoal_reshard fsdp_effective_reshard(const struct fsdp_unit *unit, shoal_reshard wanted)
{
    int n_shards = unit->context->mesh.n_shards;
    if (wanted == SHOAL_RESHARD_DEFAULT) {
        return SHOAL_RESHARD_ALWAYS;
    }
    if (wanted == SHOAL_RESHARD_PARTLY && unit->reshard_ranks == 1) {
        return SHOAL_RESHARD_NEVER;
    }
    if (wanted == SHOAL_RESHARD_PARTLY && unit->reshard_ranks == n_shards) {
        return SHOAL_RESHARD_ALWAYS;
    }
    return wanted;
}

static shoal_status choose_dtypes(struct fsdp_unit *unit)
{
    const struct fsdp_param *first = NULL;
    const struct fsdp_param *floating = NULL; /* frozen ones may get gradients later */
    for (size_t i = 0; i < unit->n_params; i++) {
        struct fsdp_param *param = &unit->params[i];
        bool is_cast = unit->param_dtype != 0 && shoal_dtype_is_floating(param->dtype);
        param->compute = is_cast ? unit->param_dtype : param->dtype;
        floating = !floating && shoal_dtype_is_floating(param->dtype) ? param : floating;
        if (!param->requires_grad) {
            continue;
        }
        if (first && param->dtype != first->dtype) {
            return error_set(SHOAL_ERR_UNSUPPORTED,
                             "%s: parameters %s (%s) and %s (%s) get gradients and differ in dtype; put them "
                             "into different units",
                             unit->name, first->name, shoal_dtype_name(first->dtype), param->name,
                             shoal_dtype_name(param->dtype));
        }
        first = first ? first : param;
    }
    first = first ? first : floating;
    shoal_dtype grad_dtype = first ? first->compute : SHOAL_F32;
    unit->reduce_dtype = unit->wanted_reduce != 0 ? unit->wanted_reduce : grad_dtype;
    return SHOAL_OK;
}

static void lay_out(struct fsdp_unit *unit)
{
    unit->window_bytes = 0;
    for (size_t i = 0; i < unit->n_params; i++) {
        struct fsdp_param *param = &unit->params[i];
        param->window_offset = unit->window_bytes;
        unit->window_bytes += fsdp_round_up(param->count * dtype_bytes(param->compute));
    }
}

/* Windows over so many neighbours, for all units that stay over as many. */
static shoal_status need_kept(struct fsdp_context *context, int n_ranks, struct fsdp_kept **kept_out)
{
    shoal_group *neighbours;
    for (size_t i = 0; i < context->n_kept; i++) {
        if (context->kept[i]->n_ranks == n_ranks) {
            *kept_out = context->kept[i];
            return SHOAL_OK;
        }
    }
    TRY(mem_grow((void **)&context->kept, &context->kept_capacity, context->n_kept + 1,
                 sizeof context->kept[0]));
    TRY(fsdp_mesh_neighbours(&context->mesh, n_ranks, &neighbours));
    struct fsdp_kept *kept = mem_alloc_zeroed(1, sizeof *kept);
    if (!kept) {
        return SHOAL_ERR_NO_MEMORY;
    }
    kept->n_ranks = n_ranks;
    fsdp_windows_init(&kept->windows, neighbours);
    context->kept[context->n_kept++] = kept;
    *kept_out = kept;
    return SHOAL_OK;
}

static shoal_status prepare_kept(struct fsdp_unit *unit)
{
    size_t n = (size_t)unit->reshard_ranks;
    size_t place = (size_t)(unit->context->mesh.shard % unit->reshard_ranks);
    TRY(need_kept(unit->context, unit->reshard_ranks, &unit->neighbours));
    if (unit->window_bytes > unit->neighbours->largest_bytes) {
        unit->neighbours->largest_bytes = unit->window_bytes;
    }
    for (size_t i = 0; i < unit->n_params; i++) {
        struct fsdp_param *param = &unit->params[i];
        size_t padded = (size_t)unit->context->mesh.n_shards * param->padded_count;
        size_t length = padded / n;
        size_t begin = place * length;
        param->kept_begin = begin < param->count ? begin : param->count;
        param->kept_count = param->count - param->kept_begin;
        param->kept_count = param->kept_count < length ? param->kept_count : length;
    }
    return SHOAL_OK;
}

static shoal_status prepare_unit(struct fsdp_unit *unit)
{
    struct fsdp_context *context = unit->context;
    TRY(choose_dtypes(unit));
    lay_out(unit);
    unit->reshard = fsdp_effective_reshard(unit, unit->reshard);
    if (unit->reshard == SHOAL_RESHARD_PARTLY) {
        TRY(prepare_kept(unit));
    }
    if (unit->reshard != SHOAL_RESHARD_NEVER && unit->window_bytes > context->largest_bytes) {
        context->largest_bytes = unit->window_bytes;
    }
    size_t reduce_bytes = fsdp_unit_reduce_bytes(unit);
    if (reduce_bytes > context->largest_reduce_bytes) {
        context->largest_reduce_bytes = reduce_bytes;
    }
    unit->is_prepared = true;
    return SHOAL_OK;
}

static shoal_status check_list(const struct fsdp_unit *unit, struct fsdp_unit *const *list, size_t n_list)
{
    for (size_t i = 0; i < n_list; i++) {
        if (!list[i]->is_gone && list[i]->context != unit->context) {
            return error_set(SHOAL_ERR_INVALID, "%s: a list to prefetch names %s, which has another root",
                             unit->name, list[i]->name);
        }
    }
    return SHOAL_OK;
}

shoal_status fsdp_prepare(struct fsdp_context *context)
{
    if (context->is_prepared) {
        return SHOAL_OK;
    }
    for (size_t i = 0; i < context->n_units; i++) {
        const struct fsdp_unit *unit = context->units[i];
        TRY(check_list(unit, unit->forward_list, unit->n_forward_list));
        TRY(check_list(unit, unit->backward_list, unit->n_backward_list));
    }
    TRY(fsdp_agree(context));
    for (size_t i = 0; i < context->n_units; i++) {
        if (!context->units[i]->is_prepared) {
            TRY(prepare_unit(context->units[i]));
        }
    }
    context->is_prepared = true;
    return SHOAL_OK;
}
