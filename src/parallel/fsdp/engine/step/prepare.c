/* SPDX-License-Identifier: MIT */
/* Prepares units once, before the first forward pass: layouts, dtypes, lanes of neighbours, and whether whole parameters
   are given up after forward passes. */
#include "parallel/fsdp/engine/step/prepare.h"

#include "base/error.h"
#include "device/device.h"
#include "base/mem.h"
#include "base/try.h"
#include "parallel/fsdp/engine/agree/meshes.h"
#include "parallel/fsdp/engine/gather/encoded.h"
#include "parallel/fsdp/engine/step/same_units.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/lanes.h"
#include "parallel/fsdp/engine/state/param.h"
#include "parallel/fsdp/engine/state/pool.h"
#include "parallel/fsdp/engine/state/unit.h"
#include "tensor/dtype.h"
#include "transport/purpose.h"

/* SHOAL_RESHARD_PARTLY over one rank means never; over as many ranks as there are shards it means always. */
shoal_reshard fsdp_effective_reshard(const struct fsdp_unit *unit, shoal_reshard wanted)
{
    int n_shards = unit->mesh->n_shards;
    if (wanted == SHOAL_RESHARD_DEFAULT) {
        return fsdp_unit_stays(unit) ? SHOAL_RESHARD_NEVER : SHOAL_RESHARD_ALWAYS;
    }
    if (wanted == SHOAL_RESHARD_PARTLY && unit->config.reshard_ranks == 1) {
        return SHOAL_RESHARD_NEVER;
    }
    if (wanted == SHOAL_RESHARD_PARTLY && unit->config.reshard_ranks == n_shards) {
        return SHOAL_RESHARD_ALWAYS;
    }
    return wanted;
}

shoal_dtype fsdp_gathered_dtype(const struct fsdp_unit *unit, const struct fsdp_param *param)
{
    bool is_cast = unit->config.param_dtype != 0 && dtype_is_real(param->dtype);
    return is_cast ? unit->config.param_dtype : param->dtype;
}

static shoal_status choose_dtypes(struct fsdp_unit *unit)
{
    const struct fsdp_param *first = NULL;
    const struct fsdp_param *floating = NULL; /* if all are frozen: one of them may get a gradient later */
    for (size_t i = 0; i < unit->n_params; i++) {
        struct fsdp_param *param = &unit->params[i];
        param->compute = fsdp_gathered_dtype(unit, param);
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
    unit->grads.dtype = unit->config.reduce_dtype != 0 ? unit->config.reduce_dtype : grad_dtype;
    return SHOAL_OK;
}

static void lay_out(struct fsdp_unit *unit)
{
    unit->gather.bytes = 0;
    for (size_t i = 0; i < unit->n_params; i++) {
        struct fsdp_param *param = &unit->params[i];
        param->window_offset = unit->gather.bytes;
        unit->gather.bytes += fsdp_round_up(param->count * dtype_bytes(param->compute));
    }
    fsdp_encoded_lay_out(unit);
}

static shoal_status prepare_kept(struct fsdp_unit *unit)
{
    size_t n = (size_t)unit->config.reshard_ranks;
    size_t place = (size_t)(unit->mesh->shard % unit->config.reshard_ranks);
    TRY(fsdp_domain_need_kept(unit->domain, unit->config.reshard_ranks, &unit->context->memory,
                              &unit->gather.neighbours));
    for (size_t i = 0; i < unit->n_params; i++) {
        struct fsdp_param *param = &unit->params[i];
        size_t padded = (size_t)unit->mesh->n_shards * param->padded_count;
        size_t length = padded / n;
        size_t begin = place * length;
        param->kept_begin = begin < param->count ? begin : param->count;
        param->kept_count = param->count - param->kept_begin;
        param->kept_count = param->kept_count < length ? param->kept_count : length;
    }
    return SHOAL_OK;
}

/* Makes memory for the purposes of the unit's reductions (purpose.c). */
static shoal_status need_reduced_set(struct fsdp_unit *unit)
{
    if (!unit->grads.purpose_details) {
        unit->grads.purpose_details =
            mem_alloc_zeroed(4 + (unit->n_params + 63) / 64, sizeof unit->grads.purpose_details[0]);
    }
    if (!unit->grads.purpose_words) {
        unit->grads.purpose_words = mem_alloc_zeroed(PURPOSE_WORDS_BYTES, 1);
    }
    return unit->grads.purpose_details && unit->grads.purpose_words ? SHOAL_OK : SHOAL_ERR_NO_MEMORY;
}

static shoal_status prepare_unit(struct fsdp_unit *unit)
{
    TRY(need_reduced_set(unit));
    TRY(choose_dtypes(unit));
    lay_out(unit);
    unit->config.reshard = fsdp_effective_reshard(unit, unit->config.reshard);
    if (unit->config.reshard == SHOAL_RESHARD_PARTLY) {
        TRY(prepare_kept(unit));
    }
    unit->is_prepared = true;
    return SHOAL_OK;
}

static shoal_status check_list(const struct fsdp_unit *unit, struct fsdp_unit *const *list, size_t n_list)
{
    for (size_t i = 0; i < n_list; i++) {
        if (!list[i]->is_gone && list[i]->context != unit->context) {
            return error_set(SHOAL_ERR_INVALID,
                             "%s: a prefetch list contains %s, which has another root module", unit->name,
                             list[i]->name);
        }
    }
    return SHOAL_OK;
}

/* Units share memory, so it is on one device. */
static shoal_status check_devices(const struct fsdp_context *context)
{
    const struct fsdp_unit *first = NULL;
    for (size_t i = 0; i < context->n_units; i++) {
        const struct fsdp_unit *unit = context->units[i];
        first = first || unit->n_params == 0 ? first : unit;
        if (first && unit->n_params > 0 && unit->device != first->device) {
            return error_set(SHOAL_ERR_INVALID,
                             "parameters of %s are on device %s, but those of %s are on %s", unit->name,
                             device_name(unit->device), first->name, device_name(first->device));
        }
    }
    for (size_t i = 0; first && i < context->n_domains; i++) {
        fsdp_domain_set_device(context->domains[i], first->device);
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
        TRY(check_list(unit, unit->prefetch.forward, unit->prefetch.n_forward));
        TRY(check_list(unit, unit->prefetch.backward, unit->prefetch.n_backward));
    }
    TRY(check_devices(context));
    TRY(fsdp_agree_on_meshes(context));
    TRY(fsdp_agree(context));
    for (size_t i = 0; i < context->n_units; i++) {
        if (!context->units[i]->is_prepared) {
            TRY(prepare_unit(context->units[i]));
        }
    }
    context->is_prepared = true;
    return SHOAL_OK;
}
