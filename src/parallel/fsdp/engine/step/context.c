/* SPDX-License-Identifier: MIT */
/* Creates and frees contexts and units. */
#include "parallel/fsdp/engine/state/context.h"

#include <math.h>
#include <stdio.h>

#include "base/error.h"
#include "device/device.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/lane/handles.h"
#include "parallel/fsdp/engine/state/handle.h"
#include "parallel/fsdp/engine/state/lanes.h"
#include "parallel/fsdp/engine/agree/marks.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/engine/state/pool.h"
#include "parallel/fsdp/engine/state/steps.h"
#include "parallel/fsdp/engine/step/prefetch.h"
#include "parallel/fsdp/engine/step/step.h"
#include "parallel/fsdp/engine/reduce/reduction.h"
#include "parallel/fsdp/engine/state/unit.h"
#include "tensor/dtype.h"

static shoal_status check_floating(shoal_dtype dtype, const char *what)
{
    if (dtype == 0) {
        return SHOAL_OK;
    }
    TRY(dtype_check(dtype, what));
    return shoal_dtype_is_floating(dtype)
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID, "%s: %s is not a floating-point dtype", what,
                           shoal_dtype_name(dtype));
}

shoal_status fsdp_check_reshard_ranks(const struct fsdp_mesh *mesh, int n_ranks)
{
    return n_ranks >= 1 && n_ranks <= mesh->n_shards && mesh->n_shards % n_ranks == 0
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID,
                           "reshard_ranks: %d does not divide the %d shards, as SHOAL_RESHARD_PARTLY needs",
                           n_ranks, mesh->n_shards);
}

const char *fsdp_reshard_name(shoal_reshard reshard)
{
    static const char *const names[] = {"default", "always", "never", "partly"};
    return (int)reshard >= 0 && reshard <= SHOAL_RESHARD_PARTLY ? names[reshard] : "?";
}

const char *fsdp_sharded_name(shoal_sharded sharded)
{
    static const char *const names[] = {"parameters", "gradients", "state"};
    return (int)sharded >= 0 && sharded <= SHOAL_SHARDED_STATE ? names[sharded] : "?";
}

shoal_status fsdp_check_sharded(shoal_sharded sharded, shoal_reshard reshard)
{
    if ((int)sharded < 0 || sharded > SHOAL_SHARDED_STATE) {
        return error_set(SHOAL_ERR_INVALID, "sharded is %d, which is none of SHOAL_SHARDED_*", (int)sharded);
    }
    bool is_given_up = reshard == SHOAL_RESHARD_ALWAYS || reshard == SHOAL_RESHARD_PARTLY;
    return sharded != SHOAL_SHARDED_PARAMETERS && is_given_up
               ? error_set(SHOAL_ERR_INVALID,
                           "reshard is %s (%d), but sharded is %s (%d): whole parameters stay then, and "
                           "reshard must be default or never",
                           fsdp_reshard_name(reshard), (int)reshard, fsdp_sharded_name(sharded), (int)sharded)
               : SHOAL_OK;
}

shoal_status fsdp_check_not_sharded(const char *why, shoal_sharded sharded)
{
    return sharded == SHOAL_SHARDED_PARAMETERS
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID, "%s, but sharded is %s (%d): every rank keeps everything", why,
                           fsdp_sharded_name(sharded), (int)sharded);
}

shoal_status fsdp_check_options(const struct fsdp_mesh *mesh, const shoal_fsdp_options *options)
{
    TRY(check_floating(options->param_dtype, "param_dtype"));
    TRY(check_floating(options->reduce_dtype, "reduce_dtype"));
    if ((int)options->reshard < 0 || options->reshard > SHOAL_RESHARD_PARTLY) {
        return error_set(SHOAL_ERR_INVALID, "reshard is %d, which is none of SHOAL_RESHARD_*",
                         (int)options->reshard);
    }
    TRY(fsdp_check_sharded(options->sharded, options->reshard));
    if (options->reshard == SHOAL_RESHARD_PARTLY) {
        TRY(fsdp_check_reshard_ranks(mesh, options->reshard_ranks));
    }
    if (!(options->divide_factor >= 0.0) || isinf(options->divide_factor)) {
        return error_set(
            SHOAL_ERR_INVALID,
            "divide_factor is %g, but must be a finite number of 0 (the number of ranks) or more",
            options->divide_factor);
    }
    if (options->forward_prefetch < -1) {
        return error_set(SHOAL_ERR_INVALID,
                         "forward_prefetch is %d, but must be -1 (none), 0 (the default) or more",
                         options->forward_prefetch);
    }
    TRY(device_check(options->device, "device"));
    if (!device_has_data(options->device)) {
        return error_set(SHOAL_ERR_INVALID, "device %s has no data", device_name(options->device));
    }
    if (options->max_reduces < 0) {
        return error_set(SHOAL_ERR_INVALID, "max_reduces is %d, but must be 0 (the default) or more",
                         options->max_reduces);
    }
    return SHOAL_OK;
}

static void forget_landed(struct fsdp_unit *unit)
{
    for (size_t i = 0; i < unit->n_params; i++) {
        struct fsdp_param *param = &unit->params[i];
        if (param->grad_block && param->grad_block->symmetric) {
            fsdp_param_drop_grad(param);
        }
    }
}

/* Waits for everything in flight, and drops it. */
static void drop_in_flight(struct fsdp_context *context)
{
    fsdp_drop_reductions(context);
    fsdp_drop_mark(context);
    for (size_t i = 0; i < context->n_units; i++) {
        fsdp_unit_forget_gather(context->units[i]);
        context->units[i]->gather.is_pending = false;
    }
}

/*
 * The world that is being closed has freed the groups, and frees windows and symmetric memory after this: drops all
 * pointers to them. What was in flight has ended with the groups. It is dropped after the groups are forgotten, because
 * a reduction that has failed would tell them.
 */
static void world_ends(struct owned *owned)
{
    struct fsdp_context *context = (struct fsdp_context *)owned;
    context->is_closed = true;
    for (size_t i = 0; i < context->n_domains; i++) {
        fsdp_domain_forget_lanes(context->domains[i]);
    }
    context->common = NULL;
    context->all_ranks = NULL;
    context->common_parent = NULL;
    drop_in_flight(context);
    for (size_t i = 0; i < context->n_units; i++) {
        struct fsdp_unit *unit = context->units[i];
        if (unit->state == FSDP_UNSHARDED && unit->watch) {
            unit->watch->resharding(unit);
        }
        unit->state = FSDP_SHARDED;
        unit->gather.window = NULL;
        forget_landed(unit);
    }
    for (size_t i = 0; i < context->n_domains; i++) {
        fsdp_domain_forget_memory(context->domains[i]);
    }
}

shoal_status fsdp_context_check(const struct fsdp_context *context)
{
    return context->is_closed ? error_set(SHOAL_ERR_STATE, "the world was closed") : SHOAL_OK;
}

shoal_status fsdp_context_need_domain(struct fsdp_context *context, const struct fsdp_mesh *mesh,
                                      uint32_t root, struct fsdp_domain **domain_out)
{
    for (size_t i = 0; i < context->n_domains; i++) {
        if (fsdp_mesh_is_same(&context->domains[i]->mesh, mesh)) {
            *domain_out = context->domains[i];
            return SHOAL_OK;
        }
    }
    TRY(mem_grow((void **)&context->domains, &context->domains_capacity, context->n_domains + 1,
                 sizeof context->domains[0]));
    TRY(fsdp_domain_create(mesh, root, &context->memory, domain_out));
    context->domains[context->n_domains++] = *domain_out;
    return SHOAL_OK;
}

shoal_status fsdp_context_create(const struct fsdp_mesh *mesh, const shoal_fsdp_options *options,
                                 uint32_t root, struct fsdp_context **context_out)
{
    TRY(fsdp_check_options(mesh, options));
    struct fsdp_context *context = mem_alloc_zeroed(1, sizeof *context);
    if (!context) {
        return SHOAL_ERR_NO_MEMORY;
    }
    struct fsdp_domain *first;
    shoal_status status = fsdp_context_need_domain(context, mesh, root, &first);
    if (status != SHOAL_OK) {
        mem_free(context->domains);
        mem_free(context);
        return status;
    }
    context->options = *options;
    context->backend = &fsdp_issue_backend;
    context->config.forward_prefetch = options->forward_prefetch == 0 ? 1 : options->forward_prefetch;
    context->config.max_reduces = options->max_reduces == 0 ? 1 : options->max_reduces;
    context->owned.destroy = world_ends;
    owned_list_add(world_owned(mesh->world), &context->owned);
    *context_out = context;
    return SHOAL_OK;
}

void fsdp_unit_end_handles(struct fsdp_unit *unit)
{
    for (size_t i = 0; i < unit->n_params; i++) {
        fsdp_param_handle_free(unit->param_handles[i]);
        unit->param_handles[i] = NULL;
    }
    fsdp_unit_handle_free(unit->handle);
    unit->handle = NULL;
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
    fsdp_unit_end_handles(unit);
    mem_free(unit->param_handles);
    mem_free(unit->params);
    mem_free(unit->name);
    device_memory_free(unit->device, unit->gather.full);
    device_memory_free(unit->device, unit->grads.data);
    device_memory_free(unit->device, unit->grads.partial);
    mem_free(unit->step.order);
    mem_free(unit->grads.purpose_details);
    mem_free(unit->grads.purpose_words);
    fsdp_list_set(&unit->prefetch.forward, &unit->prefetch.n_forward, NULL, 0);
    fsdp_list_set(&unit->prefetch.backward, &unit->prefetch.n_backward, NULL, 0);
    unit->context = NULL;
    unit->is_gone = true;
    if (unit->prefetch.n_listed == 0) {
        mem_free(unit);
    }
}

void fsdp_context_free(struct fsdp_context *context)
{
    if (!context) {
        return;
    }
    if (!context->is_closed) {
        owned_list_remove(world_owned(context->domains[0]->mesh.world), &context->owned);
        if (context->common_parent) {
            group_let_go(context->common_parent);
        }
    }
    drop_in_flight(context);
    for (size_t i = 0; i < context->n_units; i++) {
        fsdp_unit_free(context->units[i]);
    }
    for (size_t i = 0; i < context->n_domains; i++) {
        fsdp_domain_free(context->domains[i], !context->is_closed);
    }
    mem_free(context->domains);
    mem_free(context->units);
    fsdp_passes_free(&context->passes);
    mem_free(context->reductions.items);
    mem_free(context);
}

shoal_status fsdp_unit_create_alone(const char *name, struct fsdp_unit **unit_out)
{
    struct fsdp_unit *unit = mem_alloc_zeroed(1, sizeof *unit);
    if (!unit) {
        return SHOAL_ERR_NO_MEMORY;
    }
    unit->name = mem_copy_string(name);
    unit->handle = mem_alloc_zeroed(1, sizeof *unit->handle);
    if (!unit->name || !unit->handle) {
        mem_free(unit->name);
        mem_free(unit->handle);
        mem_free(unit);
        return SHOAL_ERR_NO_MEMORY;
    }
    unit->handle->unit = unit;
    unit->config.reshard_after_backward = true;
    unit->config.unshard_in_backward = true;
    unit->config.sync = true;
    unit->config.all_reduce = true;
    *unit_out = unit;
    return SHOAL_OK;
}

shoal_status fsdp_context_adopt(struct fsdp_context *context, struct fsdp_domain *domain,
                                struct fsdp_unit *unit)
{
    TRY(mem_grow((void **)&context->units, &context->units_capacity, context->n_units + 1,
                 sizeof context->units[0]));
    unit->context = context;
    unit->domain = domain;
    unit->mesh = &domain->mesh;
    unit->number = (int)context->n_units;
    context->units[context->n_units++] = unit;
    return SHOAL_OK;
}

shoal_status fsdp_unit_create(struct fsdp_context *context, struct fsdp_domain *domain,
                              struct fsdp_unit **unit_out)
{
    char name[32];
    struct fsdp_unit *unit;
    const shoal_fsdp_options *options = &context->options;
    (void)snprintf(name, sizeof name, "unit %zu", context->n_units);
    TRY(fsdp_unit_create_alone(name, &unit));
    unit->root = domain->root;
    unit->config.wanted_reshard = options->reshard;
    unit->config.reshard = options->reshard;
    unit->config.reshard_ranks = options->reshard_ranks;
    unit->config.divide_factor = options->divide_factor;
    unit->config.force_sum = options->force_sum;
    unit->config.param_dtype = options->param_dtype;
    unit->config.reduce_dtype = options->reduce_dtype;
    fsdp_unit_set_sharded(unit, options->sharded);
    shoal_status status = fsdp_context_adopt(context, domain, unit);
    if (status != SHOAL_OK) {
        fsdp_unit_free(unit);
        return status;
    }
    *unit_out = unit;
    return SHOAL_OK;
}

bool fsdp_unit_counts(const struct fsdp_unit *unit)
{
    return !unit->context->common || !unit->mesh->replicate || shoal_group_rank(unit->mesh->replicate) == 0;
}

static shoal_status check_device(const struct fsdp_param *param, const struct fsdp_param *first)
{
    return param->device == first->device
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID,
                           "parameter %.128s is on device %s, but parameter %.128s of the same unit is on %s",
                           param->name, device_name(param->device), first->name, device_name(first->device));
}

shoal_status fsdp_unit_set_device(struct fsdp_unit *unit)
{
    for (size_t i = 0; i < unit->n_params; i++) {
        TRY(check_device(&unit->params[i], &unit->params[0]));
        unit->device = unit->params[i].device;
    }
    return SHOAL_OK;
}

shoal_status fsdp_unit_add_param(struct fsdp_unit *unit, const struct fsdp_param *param)
{
    TRY(unit->n_params > 0 ? check_device(param, &unit->params[0]) : SHOAL_OK);
    TRY(mem_grow((void **)&unit->params, &unit->params_capacity, unit->n_params + 1, sizeof unit->params[0]));
    TRY(mem_grow((void **)&unit->param_handles, &unit->handles_capacity, unit->n_params + 1,
                 sizeof unit->param_handles[0]));
    shoal_fsdp_param *handle = mem_alloc_zeroed(1, sizeof *handle);
    if (!handle) {
        return SHOAL_ERR_NO_MEMORY;
    }
    *handle = (shoal_fsdp_param){.unit = unit, .index = unit->n_params};
    unit->param_handles[unit->n_params] = handle;
    unit->device = param->device;
    unit->params[unit->n_params++] = *param;
    return SHOAL_OK;
}
