/* SPDX-License-Identifier: MIT */
/* The calls of shoal/fsdp.h about single units: settings, gathering by hand, and forwards without a backward. */
#include <math.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "parallel/fsdp/explicit.h"

/* Settings ----------------------------------------------------------------------------------------------- */

/* A number and a truth: each setter takes one of them. */
struct setting {
    double number;
    bool is_on;
};

typedef void (*unit_setter)(struct fsdp_unit *unit, const struct setting *setting);

/* Of one unit, or with -1 of all that there are. */
static shoal_status set_units(const char *call, const shoal_fsdp *fsdp, int number, unit_setter set,
                              struct setting setting)
{
    struct fsdp_unit *unit = NULL;
    TRY(explicit_check(call, fsdp));
    if (number != -1) {
        TRY(explicit_find_unit(call, fsdp, number, &unit));
        set(unit, &setting);
        return SHOAL_OK;
    }
    for (size_t i = 0; i < fsdp->context->n_units; i++) {
        set(fsdp->context->units[i], &setting);
    }
    return SHOAL_OK;
}

static void set_reshard_after_backward(struct fsdp_unit *unit, const struct setting *setting)
{
    unit->reshards_after_backward = setting->is_on;
}

static void set_unshard_in_backward(struct fsdp_unit *unit, const struct setting *setting)
{
    unit->unshards_in_backward = setting->is_on;
}

static void set_force_sum(struct fsdp_unit *unit, const struct setting *setting)
{
    unit->forces_sum = setting->is_on;
}

static void set_divide_factor(struct fsdp_unit *unit, const struct setting *setting)
{
    unit->divide_factor = setting->number;
}

shoal_status shoal_fsdp_set_reshard_after_backward(shoal_fsdp *fsdp, int unit, bool is_on)
{
    return set_units("set_reshard_after_backward", fsdp, unit, set_reshard_after_backward,
                     (struct setting){.is_on = is_on});
}

shoal_status shoal_fsdp_set_unshard_in_backward(shoal_fsdp *fsdp, int unit, bool is_on)
{
    return set_units("set_unshard_in_backward", fsdp, unit, set_unshard_in_backward,
                     (struct setting){.is_on = is_on});
}

shoal_status shoal_fsdp_set_force_sum(shoal_fsdp *fsdp, int unit, bool is_on)
{
    return set_units("set_force_sum", fsdp, unit, set_force_sum, (struct setting){.is_on = is_on});
}

shoal_status shoal_fsdp_set_divide_factor(shoal_fsdp *fsdp, int unit, double factor)
{
    TRY(explicit_check("set_divide_factor", fsdp));
    if (!(factor >= 0.0) || isinf(factor)) {
        return error_set(SHOAL_ERR_INVALID, "set_divide_factor: factor is %g", factor);
    }
    return set_units("set_divide_factor", fsdp, unit, set_divide_factor, (struct setting){.number = factor});
}

shoal_status shoal_fsdp_set_is_last_backward(shoal_fsdp *fsdp, bool is_last)
{
    TRY(explicit_check("set_is_last_backward", fsdp));
    fsdp->context->is_not_last = !is_last;
    return SHOAL_OK;
}

/* Prefetching -------------------------------------------------------------------------------------------- */

static shoal_status copy_units(const shoal_fsdp *fsdp, const char *call, const int *units, size_t n_units,
                               struct fsdp_unit ***list_out)
{
    *list_out = NULL;
    if (n_units == 0) {
        return SHOAL_OK;
    }
    if (!units) {
        return error_set(SHOAL_ERR_INVALID, "%s: units is NULL with %zu of them", call, n_units);
    }
    struct fsdp_unit **list = mem_alloc_zeroed(n_units, sizeof list[0]);
    if (!list) {
        return SHOAL_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < n_units; i++) {
        shoal_status status = explicit_find_unit(call, fsdp, units[i], &list[i]);
        if (status != SHOAL_OK) {
            mem_free(list);
            return status;
        }
    }
    *list_out = list;
    return SHOAL_OK;
}

shoal_status shoal_fsdp_set_forward_prefetch(shoal_fsdp *fsdp, int number, const int *units, size_t n_units)
{
    struct fsdp_unit *unit = NULL;
    struct fsdp_unit **list;
    TRY(explicit_find_unit("set_forward_prefetch", fsdp, number, &unit));
    TRY(copy_units(fsdp, "set_forward_prefetch", units, n_units, &list));
    fsdp_list_set(&unit->forward_list, &unit->n_forward_list, list, n_units);
    return SHOAL_OK;
}

shoal_status shoal_fsdp_set_backward_prefetch(shoal_fsdp *fsdp, int number, const int *units, size_t n_units)
{
    struct fsdp_unit *unit = NULL;
    struct fsdp_unit **list;
    TRY(explicit_find_unit("set_backward_prefetch", fsdp, number, &unit));
    TRY(copy_units(fsdp, "set_backward_prefetch", units, n_units, &list));
    fsdp_list_set(&unit->backward_list, &unit->n_backward_list, list, n_units);
    return SHOAL_OK;
}

/* By hand ------------------------------------------------------------------------------------------------ */

shoal_status shoal_fsdp_unshard(shoal_fsdp *fsdp, int number)
{
    struct fsdp_unit *unit = NULL;
    TRY(explicit_find_unit_of_step("unshard", fsdp, number, &unit));
    shoal_status status = fsdp_prepare(fsdp->context);
    return explicit_end_call(fsdp, status == SHOAL_OK ? fsdp_unit_unshard(unit) : status);
}

shoal_status shoal_fsdp_wait(shoal_fsdp *fsdp, int number)
{
    struct fsdp_unit *unit = NULL;
    TRY(explicit_find_unit_of_step("wait", fsdp, number, &unit));
    if (!unit->is_pending && unit->state != FSDP_UNSHARDED && unit->n_params > 0) {
        return error_set(SHOAL_ERR_STATE, "wait: nobody gathers %s (shoal_fsdp_unshard)", unit->name);
    }
    TRY(explicit_end_call(fsdp, fsdp_unit_wait(unit)));
    unit->is_held = true;
    return SHOAL_OK;
}

shoal_status shoal_fsdp_reshard(shoal_fsdp *fsdp, int number)
{
    struct fsdp_unit *unit = NULL;
    TRY(explicit_find_unit_of_step("reshard", fsdp, number, &unit));
    return explicit_end_call(fsdp, fsdp_unit_give_up(unit));
}

/* Forwards without a backward ---------------------------------------------------------------------------- */

/* What was kept for the backward; gathers that nobody came for. */
static shoal_status settle_unit(struct fsdp_unit *unit)
{
    bool reshards = unit->is_pending || unit->reshards_after_backward;
    TRY(fsdp_unit_wait(unit));
    unit->was_forward = false;
    return reshards ? fsdp_unit_reshard(unit) : SHOAL_OK;
}

static shoal_status settle_units(struct fsdp_context *context)
{
    for (size_t i = 0; i < context->n_units; i++) {
        TRY(settle_unit(context->units[i]));
    }
    fsdp_forget_forwards(context, 0);
    return SHOAL_OK;
}

shoal_status shoal_fsdp_end_forward(shoal_fsdp *fsdp)
{
    TRY(explicit_check("end_forward", fsdp));
    TRY(explicit_check_failure(fsdp));
    TRY(explicit_check_ended(fsdp, "end_forward"));
    for (size_t i = 0; i < fsdp->context->n_units; i++) {
        const struct fsdp_unit *unit = fsdp->context->units[i];
        if (unit->phase == FSDP_FORWARD) {
            return error_set(SHOAL_ERR_STATE, "end_forward: %s has had no post_forward", unit->name);
        }
    }
    return explicit_end_call(fsdp, settle_units(fsdp->context));
}
