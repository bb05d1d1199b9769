/* SPDX-License-Identifier: MIT */
/* The calls of shoal/fsdp_unit.h about units: settings, hooks, prefetching, and gathering by hand. For explicit
   calls and for modules. */
#include <math.h>

#include "base/callback.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "parallel/fsdp/engine/state/context.h"
#include "parallel/fsdp/engine/state/custom.h"
#include "parallel/fsdp/engine/state/failure.h"
#include "parallel/fsdp/engine/state/handle.h"
#include "parallel/fsdp/engine/agree/marks.h"
#include "parallel/fsdp/engine/step/prefetch.h"
#include "parallel/fsdp/engine/step/prepare.h"
#include "parallel/fsdp/engine/reduce/reduction.h"
#include "parallel/fsdp/engine/state/unit.h"
#include "shoal/fsdp_unit.h"

/* Settings ----------------------------------------------------------------------------------------------- */

/* What a setter does to each unit; all are checked before the first is changed. */
struct change {
    const char *call;
    /* NULL if the change is allowed at any time. */
    shoal_status (*check)(struct fsdp_unit *unit, void *change);
    void (*apply)(struct fsdp_unit *unit, const struct change *change);
    bool is_on;
    double factor;
    shoal_reshard reshard;
    void *context; /* of the function that is set */
    shoal_all_reduce_hook all_reduce;
    shoal_fsdp_accumulated_hook accumulated;
    shoal_custom_all_gather all_gather;
    shoal_custom_reduce_scatter reduce_scatter;
};

static shoal_status apply_change(struct fsdp_unit *unit, void *context)
{
    const struct change *change = context;
    change->apply(unit, change);
    return SHOAL_OK;
}

static shoal_status check_idle(struct fsdp_unit *unit, void *context)
{
    const struct change *change = context;
    return fsdp_unit_check_idle(unit, change->call);
}

/* Modules read these settings when they use them, so they may change between a forward pass and its backward pass. */
static shoal_status check_explicit_idle(struct fsdp_unit *unit, void *context)
{
    return unit->watch ? SHOAL_OK : check_idle(unit, context);
}

static shoal_status check_nothing(struct fsdp_unit *unit, void *context)
{
    (void)unit;
    (void)context;
    return SHOAL_OK;
}

static shoal_status set_units(shoal_fsdp_unit *handle, struct change *change)
{
    fsdp_unit_visitor check = change->check ? change->check : check_nothing;
    TRY(fsdp_handle_each(change->call, handle, check, change));
    return fsdp_handle_each(change->call, handle, apply_change, change);
}

static void set_sync(struct fsdp_unit *unit, const struct change *change)
{
    unit->config.sync = change->is_on;
    unit->config.all_reduce = change->is_on;
}

shoal_status shoal_fsdp_set_sync(shoal_fsdp_unit *unit, bool is_on)
{
    return set_units(unit, &(struct change){.call = "set_sync", .apply = set_sync, .is_on = is_on});
}

static void set_all_reduce(struct fsdp_unit *unit, const struct change *change)
{
    unit->config.all_reduce = change->is_on;
}

shoal_status shoal_fsdp_set_all_reduce(shoal_fsdp_unit *unit, bool is_on)
{
    return set_units(unit,
                     &(struct change){.call = "set_all_reduce", .apply = set_all_reduce, .is_on = is_on});
}

/* The root of modules keeps its parameters by default; it is the first unit. */
static shoal_reshard effective_reshard(const struct fsdp_unit *unit, shoal_reshard wanted)
{
    bool is_root = unit->watch && unit->number == 0;
    return is_root && wanted == SHOAL_RESHARD_DEFAULT ? SHOAL_RESHARD_NEVER
                                                      : fsdp_effective_reshard(unit, wanted);
}

static shoal_status check_reshard(struct fsdp_unit *unit, void *context)
{
    const struct change *change = context;
    if ((int)change->reshard < 0 || change->reshard > SHOAL_RESHARD_PARTLY) {
        return error_set(SHOAL_ERR_INVALID, "%s: %s: %d is none of SHOAL_RESHARD_*", change->call, unit->name,
                         (int)change->reshard);
    }
    shoal_status sharded = fsdp_check_sharded(unit->config.sharded, change->reshard);
    if (sharded != SHOAL_OK) {
        return error_prefix(sharded, "%s: %s", change->call, unit->name);
    }
    if (change->reshard == SHOAL_RESHARD_PARTLY) {
        shoal_status status = fsdp_check_reshard_ranks(unit->mesh, unit->config.reshard_ranks);
        if (status != SHOAL_OK) {
            return error_prefix(status, "%s: %s", change->call, unit->name);
        }
    }
    if (!unit->is_prepared) {
        return SHOAL_OK;
    }
    TRY(check_explicit_idle(unit, context));
    bool needs_neighbours = effective_reshard(unit, change->reshard) == SHOAL_RESHARD_PARTLY;
    return needs_neighbours && !unit->gather.neighbours
               ? error_set(SHOAL_ERR_STATE,
                           "%s: %s has had its first forward pass, and SHOAL_RESHARD_PARTLY can be set only "
                           "before it",
                           change->call, unit->name)
               : SHOAL_OK;
}

static void set_reshard(struct fsdp_unit *unit, const struct change *change)
{
    unit->config.wanted_reshard = change->reshard;
    unit->config.reshard = unit->is_prepared ? effective_reshard(unit, change->reshard) : change->reshard;
}

shoal_status shoal_fsdp_set_reshard(shoal_fsdp_unit *unit, shoal_reshard reshard)
{
    return set_units(
        unit, &(struct change){
                  .call = "set_reshard", .check = check_reshard, .apply = set_reshard, .reshard = reshard});
}

static shoal_status check_reshard_after_backward(struct fsdp_unit *unit, void *context)
{
    const struct change *change = context;
    return change->is_on && fsdp_unit_stays(unit)
               ? error_set(SHOAL_ERR_INVALID,
                           "%s: %s: is_on is true, but sharded is %s (%d): whole parameters stay then",
                           change->call, unit->name, fsdp_sharded_name(unit->config.sharded),
                           (int)unit->config.sharded)
               : check_explicit_idle(unit, context);
}

static void set_reshard_after_backward(struct fsdp_unit *unit, const struct change *change)
{
    unit->config.reshard_after_backward = change->is_on;
}

shoal_status shoal_fsdp_set_reshard_after_backward(shoal_fsdp_unit *unit, bool is_on)
{
    return set_units(unit, &(struct change){.call = "set_reshard_after_backward",
                                            .check = check_reshard_after_backward,
                                            .apply = set_reshard_after_backward,
                                            .is_on = is_on});
}

static void set_unshard_in_backward(struct fsdp_unit *unit, const struct change *change)
{
    unit->config.unshard_in_backward = change->is_on;
}

shoal_status shoal_fsdp_set_unshard_in_backward(shoal_fsdp_unit *unit, bool is_on)
{
    return set_units(unit, &(struct change){.call = "set_unshard_in_backward",
                                            .check = check_explicit_idle,
                                            .apply = set_unshard_in_backward,
                                            .is_on = is_on});
}

static void set_force_sum(struct fsdp_unit *unit, const struct change *change)
{
    unit->config.force_sum = change->is_on;
}

shoal_status shoal_fsdp_set_force_sum(shoal_fsdp_unit *unit, bool is_on)
{
    return set_units(unit, &(struct change){.call = "set_force_sum",
                                            .check = check_explicit_idle,
                                            .apply = set_force_sum,
                                            .is_on = is_on});
}

static shoal_status check_factor(struct fsdp_unit *unit, void *context)
{
    const struct change *change = context;
    if (!(change->factor >= 0.0) || isinf(change->factor)) {
        return error_set(
            SHOAL_ERR_INVALID,
            "%s: %s: factor is %g, but must be a finite number of 0 (the number of ranks) or more",
            change->call, unit->name, change->factor);
    }
    return fsdp_unit_check_idle(unit, change->call);
}

static void set_divide_factor(struct fsdp_unit *unit, const struct change *change)
{
    unit->config.divide_factor = change->factor;
}

shoal_status shoal_fsdp_set_divide_factor(shoal_fsdp_unit *unit, double factor)
{
    return set_units(unit, &(struct change){.call = "set_divide_factor",
                                            .check = check_factor,
                                            .apply = set_divide_factor,
                                            .factor = factor});
}

static void set_reduce_unused(struct fsdp_unit *unit, const struct change *change)
{
    unit->config.reduce_unused = change->is_on;
}

shoal_status shoal_fsdp_set_reduce_unused(shoal_fsdp_unit *unit, bool is_on)
{
    return set_units(unit, &(struct change){.call = "set_reduce_unused",
                                            .check = check_idle,
                                            .apply = set_reduce_unused,
                                            .is_on = is_on});
}

shoal_status shoal_fsdp_set_unit_name(shoal_fsdp_unit *handle, const char *name)
{
    struct fsdp_unit *unit = NULL;
    TRY(fsdp_handle_one("set_unit_name", handle, &unit));
    if (!name) {
        return error_set(SHOAL_ERR_INVALID, "set_unit_name: %s: name is NULL", unit->name);
    }
    if (unit->watch) {
        return error_set(SHOAL_ERR_UNSUPPORTED,
                         "set_unit_name: %s: the unit of a module has the name of the module", unit->name);
    }
    char *copy = mem_copy_string(name);
    if (!copy) {
        return SHOAL_ERR_NO_MEMORY;
    }
    mem_free(unit->name);
    unit->name = copy;
    return SHOAL_OK;
}

/* Functions of the program ------------------------------------------------------------------------------- */

static void set_all_reduce_hook(struct fsdp_unit *unit, const struct change *change)
{
    unit->hooks.all_reduce = change->all_reduce;
    unit->hooks.all_reduce_context = change->context;
}

shoal_status shoal_fsdp_set_all_reduce_hook(shoal_fsdp_unit *unit, shoal_all_reduce_hook hook, void *context)
{
    return set_units(unit, &(struct change){.call = "set_all_reduce_hook",
                                            .check = check_idle,
                                            .apply = set_all_reduce_hook,
                                            .all_reduce = hook,
                                            .context = context});
}

static void set_all_gather(struct fsdp_unit *unit, const struct change *change)
{
    unit->hooks.all_gather = change->all_gather;
}

shoal_status shoal_fsdp_set_custom_all_gather(shoal_fsdp_unit *unit, const shoal_custom_all_gather *custom)
{
    struct change change = {.call = "set_custom_all_gather", .check = check_idle, .apply = set_all_gather};
    TRY(fsdp_handle_each(change.call, unit, check_nothing, NULL));
    TRY(fsdp_custom_read_gather(change.call, custom, &change.all_gather));
    return set_units(unit, &change);
}

static void set_reduce_scatter(struct fsdp_unit *unit, const struct change *change)
{
    unit->hooks.reduce_scatter = change->reduce_scatter;
}

shoal_status shoal_fsdp_set_custom_reduce_scatter(shoal_fsdp_unit *unit,
                                                  const shoal_custom_reduce_scatter *custom)
{
    struct change change = {
        .call = "set_custom_reduce_scatter", .check = check_idle, .apply = set_reduce_scatter};
    TRY(fsdp_handle_each(change.call, unit, check_nothing, NULL));
    TRY(fsdp_custom_read_scatter(change.call, custom, &change.reduce_scatter));
    return set_units(unit, &change);
}

static shoal_status check_accumulated_hook(struct fsdp_unit *unit, void *context)
{
    const struct change *change = context;
    return unit->watch ? error_set(SHOAL_ERR_UNSUPPORTED,
                                   "%s: %s: gradients of modules have hooks of their own "
                                   "(shoal_on_accumulated)",
                                   change->call, unit->name)
                       : fsdp_unit_check_idle(unit, change->call);
}

static void set_accumulated_hook(struct fsdp_unit *unit, const struct change *change)
{
    unit->hooks.accumulated = change->accumulated;
    unit->hooks.accumulated_context = change->context;
}

shoal_status shoal_fsdp_set_accumulated_hook(shoal_fsdp_unit *unit, shoal_fsdp_accumulated_hook hook,
                                             void *context)
{
    return set_units(unit, &(struct change){.call = "set_accumulated_hook",
                                            .check = check_accumulated_hook,
                                            .apply = set_accumulated_hook,
                                            .accumulated = hook,
                                            .context = context});
}

/* Prefetching -------------------------------------------------------------------------------------------- */

/* Checks for NULL before anything else, because other checks clear the error text of the call that should have given
   the handle. */
static shoal_status check_given(const char *call, const shoal_fsdp_unit *unit, shoal_fsdp_unit *const *units,
                                size_t n_units)
{
    for (size_t i = 0; unit && units && i < n_units; i++) {
        struct fsdp_unit *found;
        if (!units[i]) {
            shoal_status status = fsdp_handle_one(call, NULL, &found);
            return error_set(status, "%s (units[%zu])", shoal_error_text(), i);
        }
    }
    return SHOAL_OK;
}

static shoal_status fill_list(const char *call, const struct fsdp_unit *unit, shoal_fsdp_unit *const *units,
                              size_t n_units, struct fsdp_unit **list)
{
    for (size_t i = 0; i < n_units; i++) {
        shoal_status status = fsdp_handle_one(call, units[i], &list[i]);
        if (status != SHOAL_OK) {
            return error_set(status, "%s (units[%zu])", shoal_error_text(), i);
        }
        /* Units of modules have no context before the first forward pass, which checks the lists again (prepare.c). */
        if (unit->context && list[i]->context != unit->context) {
            return error_set(SHOAL_ERR_INVALID, "%s: %s does not have the context of %s (units[%zu])", call,
                             list[i]->name, unit->name, i);
        }
    }
    return SHOAL_OK;
}

static shoal_status make_list(const char *call, const struct fsdp_unit *unit, shoal_fsdp_unit *const *units,
                              size_t n_units, struct fsdp_unit ***list_out)
{
    *list_out = NULL;
    if (n_units == 0) {
        return SHOAL_OK;
    }
    if (!units) {
        return error_set(SHOAL_ERR_INVALID, "%s: %s: units is NULL, but n_units is %zu", call, unit->name,
                         n_units);
    }
    struct fsdp_unit **list = mem_alloc_zeroed(n_units, sizeof list[0]);
    if (!list) {
        return SHOAL_ERR_NO_MEMORY;
    }
    shoal_status status = fill_list(call, unit, units, n_units, list);
    if (status != SHOAL_OK) {
        mem_free(list);
        return status;
    }
    *list_out = list;
    return SHOAL_OK;
}

shoal_status shoal_fsdp_set_forward_prefetch(shoal_fsdp_unit *handle, shoal_fsdp_unit *const *units,
                                             size_t n_units)
{
    struct fsdp_unit *unit = NULL;
    struct fsdp_unit **list;
    TRY(check_given("set_forward_prefetch", handle, units, n_units));
    TRY(fsdp_handle_one("set_forward_prefetch", handle, &unit));
    TRY(make_list("set_forward_prefetch", unit, units, n_units, &list));
    fsdp_list_set(&unit->prefetch.forward, &unit->prefetch.n_forward, list, n_units);
    return SHOAL_OK;
}

shoal_status shoal_fsdp_set_backward_prefetch(shoal_fsdp_unit *handle, shoal_fsdp_unit *const *units,
                                              size_t n_units)
{
    struct fsdp_unit *unit = NULL;
    struct fsdp_unit **list;
    TRY(check_given("set_backward_prefetch", handle, units, n_units));
    TRY(fsdp_handle_one("set_backward_prefetch", handle, &unit));
    TRY(make_list("set_backward_prefetch", unit, units, n_units, &list));
    fsdp_list_set(&unit->prefetch.backward, &unit->prefetch.n_backward, list, n_units);
    return SHOAL_OK;
}

/* By hand ------------------------------------------------------------------------------------------------ */

static shoal_status unshard(struct fsdp_unit *unit)
{
    TRY(unit->watch ? unit->watch->prepare(unit) : fsdp_prepare(unit->context));
    TRY(fsdp_unit_land(unit));
    TRY(fsdp_mark_unshard(unit));
    return fsdp_unit_unshard(unit);
}

shoal_status shoal_fsdp_unshard(shoal_fsdp_unit *handle)
{
    struct fsdp_unit *unit = NULL;
    TRY(fsdp_handle_one("unshard", handle, &unit));
    TRY(fsdp_unit_check_failure(unit));
    return fsdp_unit_end_call(unit, "unshard", unshard(unit));
}

shoal_status shoal_fsdp_wait(shoal_fsdp_unit *handle)
{
    struct fsdp_unit *unit = NULL;
    TRY(fsdp_handle_one("wait", handle, &unit));
    TRY(fsdp_unit_check_failure(unit));
    if (!unit->gather.is_pending && unit->state != FSDP_UNSHARDED && unit->n_params > 0) {
        return error_set(SHOAL_ERR_STATE, "wait: no gather of %s was started (shoal_fsdp_unshard)",
                         unit->name);
    }
    TRY(fsdp_unit_end_call(unit, "wait", fsdp_unit_wait(unit)));
    unit->gather.is_held = true;
    return unit->watch ? unit->watch->held(unit) : SHOAL_OK;
}

shoal_status shoal_fsdp_reshard(shoal_fsdp_unit *handle)
{
    struct fsdp_unit *unit = NULL;
    TRY(fsdp_handle_one("reshard", handle, &unit));
    TRY(fsdp_unit_check_failure(unit));
    if (unit->gather.is_pending || unit->state != FSDP_SHARDED) { /* a capture would refuse it half way */
        TRY(callback_check_capture("reshard"));
    }
    return fsdp_unit_end_call(unit, "reshard", fsdp_unit_give_up(unit));
}
