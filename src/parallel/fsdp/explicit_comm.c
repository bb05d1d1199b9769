/* SPDX-License-Identifier: MIT */
/* The calls of shoal/fsdp.h about communication of the program's own, and gradients that wait for some. */
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "parallel/fsdp/custom.h"
#include "parallel/fsdp/explicit.h"
#include "parallel/fsdp/pending.h"

/* One unit of a context, or all: *begin_out to *end_out. */
static shoal_status find_units(const shoal_fsdp *fsdp, const char *call, int unit,
                               struct fsdp_context **context_out, size_t *begin_out, size_t *end_out)
{
    TRY(explicit_check(call, fsdp));
    size_t n_units = fsdp->context->n_units;
    if (unit < -1 || (unit >= 0 && (size_t)unit >= n_units)) {
        return error_set(SHOAL_ERR_INVALID, "%s: there is no unit %d: there are %zu", call, unit, n_units);
    }
    *context_out = fsdp->context;
    *begin_out = unit < 0 ? 0 : (size_t)unit;
    *end_out = unit < 0 ? n_units : (size_t)unit + 1;
    for (size_t i = *begin_out; i < *end_out; i++) {
        TRY(fsdp_unit_check_idle((*context_out)->units[i], call));
    }
    return SHOAL_OK;
}

shoal_status shoal_fsdp_set_all_reduce_hook(shoal_fsdp *fsdp, int unit, shoal_all_reduce_hook hook,
                                            void *context)
{
    struct fsdp_context *all = NULL;
    size_t begin = 0;
    size_t end = 0;
    TRY(find_units(fsdp, "set_all_reduce_hook", unit, &all, &begin, &end));
    for (size_t i = begin; i < end; i++) {
        all->units[i]->hook = hook;
        all->units[i]->hook_context = context;
    }
    return SHOAL_OK;
}

static shoal_status show_landed(const struct fsdp_unit *unit, struct fsdp_param *param)
{
    shoal_fsdp_shard shard = explicit_shard(param);
    error_clear();
    shoal_status status = unit->landed_hook(unit->landed_context, param->id, &shard);
    if (status != SHOAL_OK) {
        return error_prefix(status, "%s: the hook for the gradient of %s", unit->name, param->name);
    }
    if (!shard.grad) {
        mem_free(param->shard_grad);
        param->shard_grad = NULL;
        param->has_grad = false;
    }
    return SHOAL_OK;
}

static shoal_status show_all_landed(struct fsdp_unit *unit)
{
    for (size_t i = 0; i < unit->n_params; i++) {
        if (unit->params[i].is_reduced) {
            TRY(show_landed(unit, &unit->params[i]));
        }
    }
    return SHOAL_OK;
}

shoal_status shoal_fsdp_set_landed_hook(shoal_fsdp *fsdp, int unit, shoal_fsdp_landed_hook hook,
                                        void *context)
{
    struct fsdp_context *all = NULL;
    size_t begin = 0;
    size_t end = 0;
    TRY(find_units(fsdp, "set_landed_hook", unit, &all, &begin, &end));
    for (size_t i = begin; i < end; i++) {
        all->units[i]->landed = hook ? show_all_landed : NULL;
        all->units[i]->landed_hook = hook;
        all->units[i]->landed_context = context;
    }
    return SHOAL_OK;
}

shoal_status shoal_fsdp_set_custom_all_gather(shoal_fsdp *fsdp, int unit,
                                              const shoal_custom_all_gather *custom)
{
    struct fsdp_context *all = NULL;
    size_t begin = 0;
    size_t end = 0;
    shoal_custom_all_gather read;
    TRY(find_units(fsdp, "set_custom_all_gather", unit, &all, &begin, &end));
    TRY(fsdp_custom_read_gather("set_custom_all_gather", custom, &read));
    for (size_t i = begin; i < end; i++) {
        all->units[i]->custom_gather = read;
    }
    return SHOAL_OK;
}

shoal_status shoal_fsdp_set_custom_reduce_scatter(shoal_fsdp *fsdp, int unit,
                                                  const shoal_custom_reduce_scatter *custom)
{
    struct fsdp_context *all = NULL;
    size_t begin = 0;
    size_t end = 0;
    shoal_custom_reduce_scatter read;
    TRY(find_units(fsdp, "set_custom_reduce_scatter", unit, &all, &begin, &end));
    TRY(fsdp_custom_read_scatter("set_custom_reduce_scatter", custom, &read));
    for (size_t i = begin; i < end; i++) {
        all->units[i]->custom_scatter = read;
    }
    return SHOAL_OK;
}

shoal_status shoal_fsdp_set_reduce_unused(shoal_fsdp *fsdp, int unit, bool is_on)
{
    struct fsdp_context *all = NULL;
    size_t begin = 0;
    size_t end = 0;
    TRY(find_units(fsdp, "set_reduce_unused", unit, &all, &begin, &end));
    for (size_t i = begin; i < end; i++) {
        all->units[i]->reduces_unused = is_on;
    }
    return SHOAL_OK;
}

/* Gradients that are kept ---------------------------------------------------------------------------------- */

shoal_status shoal_fsdp_get_pending(shoal_fsdp *fsdp, int id, shoal_pending_gradient *pending_out)
{
    struct fsdp_unit *unit = NULL;
    struct fsdp_param *param = NULL;
    TRY(explicit_find_param("get_pending", fsdp, id, &unit, &param));
    if (!pending_out) {
        return error_set(SHOAL_ERR_INVALID, "get_pending: pending_out is NULL");
    }
    TRY(explicit_check_ended(fsdp, "get_pending"));
    TRY(fsdp_unit_check_idle(unit, "get_pending"));
    fsdp_unit_get_pending(unit, param, pending_out);
    return SHOAL_OK;
}

shoal_status shoal_fsdp_synchronize(shoal_fsdp *fsdp)
{
    TRY(explicit_check("synchronize", fsdp));
    TRY(explicit_check_failure(fsdp));
    TRY(explicit_check_ended(fsdp, "synchronize"));
    return explicit_end_call(fsdp, fsdp_synchronize(fsdp->context));
}
