/* SPDX-License-Identifier: MIT */
/* Schedules of learning rates. The kinds are rows of schedules.def; a rate is made of IEEE operations only. */
#include "shoal_nn/schedule.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>

#include "common/check.h"
#include "common/struct_size.h"
#include "optim/named_items.h"
#include "shoal/fp_mode.h"
#include "common/try.h"

enum {
    USES_N_STEPS = 1 << 0,
    USES_MIN_LR = 1 << 1
};

/* Rates of steps behind the warm-up ----------------------------------------------------------------------- */

static double constant_rate(const shoal_nn_schedule *schedule, int64_t step)
{
    (void)step;
    return schedule->lr;
}

/* sin(t)^2 for t from 0 to pi / 4, with an error of a few units in the last place. */
static double squared_sine(double t)
{
    static const double terms[] = {-1.0 / 121645100408832000.0,
                                   1.0 / 355687428096000.0,
                                   -1.0 / 1307674368000.0,
                                   1.0 / 6227020800.0,
                                   -1.0 / 39916800.0,
                                   1.0 / 362880.0,
                                   -1.0 / 5040.0,
                                   1.0 / 120.0,
                                   -1.0 / 6.0};
    double square = t * t;
    double series = 0.0;
    for (size_t i = 0; i < sizeof(terms) / sizeof(terms[0]); i++) {
        series = square * (terms[i] + series);
    }
    double sine = t + t * series;
    return sine * sine;
}

/* (1 + cos(pi x)) / 2 is 1 - sin(pi x / 2)^2, and sin(pi (1 - x) / 2)^2: both ends are exact. */
static double cosine_rate(const shoal_nn_schedule *schedule, int64_t step)
{
    const double half_pi = 0x1.921fb54442d18p0;
    double length = (double)(schedule->n_steps - schedule->n_warmup);
    double range = schedule->lr - schedule->min_lr;
    if (step >= schedule->n_steps) {
        return schedule->min_lr;
    }
    int64_t n_done = step - schedule->n_warmup;
    int64_t n_left = schedule->n_steps - step;
    if (n_done <= n_left) {
        return schedule->lr - range * squared_sine(half_pi * ((double)n_done / length));
    }
    return schedule->min_lr + range * squared_sine(half_pi * ((double)n_left / length));
}

static double inverse_sqrt_rate(const shoal_nn_schedule *schedule, int64_t step)
{
    double lr = schedule->lr * sqrt(((double)schedule->n_warmup + 1) / ((double)step + 1));
    return lr > schedule->min_lr ? lr : schedule->min_lr;
}

/* The table ------------------------------------------------------------------------------------------------ */

static const struct kind {
    const char *name;
    double (*rate)(const shoal_nn_schedule *schedule, int64_t step);
    unsigned uses;
} kinds[] = {
#define SCHEDULE(kind, name, rate, uses) [kind] = {name, rate, uses},
#include "optim/schedules.def"
#undef SCHEDULE
};

static const struct kind *find_kind(shoal_nn_schedule_kind kind)
{
    bool is_kind = (int)kind > 0 && (size_t)kind < sizeof(kinds) / sizeof(kinds[0]);
    return is_kind ? &kinds[kind] : NULL;
}

/* Checks ---------------------------------------------------------------------------------------------------- */

static shoal_status check_not_negative(const char *call, const char *name, int64_t value)
{
    return value >= 0 ? SHOAL_OK
                      : shoal_fail(SHOAL_ERR_INVALID, "%s: %s: %" PRId64 " is negative", call, name, value);
}

static shoal_status check_unused(const char *call, const shoal_nn_schedule *schedule, const struct kind *kind)
{
    bool has_steps = schedule->n_steps != 0 && !(kind->uses & USES_N_STEPS);
    bool has_minimum = schedule->min_lr != 0 && !(kind->uses & USES_MIN_LR);
    if (has_steps || has_minimum) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: %s must be 0: a schedule of kind %s does not use it", call,
                          has_steps ? "n_steps" : "min_lr", kind->name);
    }
    return SHOAL_OK;
}

static shoal_status check_schedule(const char *call, const shoal_nn_schedule *schedule)
{
    const struct kind *kind = find_kind(schedule->kind);
    if (!kind) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: kind: %d is not a shoal_nn_schedule_kind", call,
                          (int)schedule->kind);
    }
    NN_TRY(nn_check_number(call, "lr", schedule->lr, (double)INFINITY));
    NN_TRY(nn_check_number(call, "min_lr", schedule->min_lr, (double)INFINITY));
    NN_TRY(check_not_negative(call, "n_warmup", schedule->n_warmup));
    NN_TRY(check_not_negative(call, "n_steps", schedule->n_steps));
    NN_TRY(check_unused(call, schedule, kind));
    if (schedule->min_lr > schedule->lr) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: min_lr: %g is above lr, which is %g", call,
                          schedule->min_lr, schedule->lr);
    }
    if ((kind->uses & USES_N_STEPS) && schedule->n_steps <= schedule->n_warmup) {
        return shoal_fail(SHOAL_ERR_INVALID,
                          "%s: n_steps: %" PRId64 " is not above n_warmup, which is %" PRId64, call,
                          schedule->n_steps, schedule->n_warmup);
    }
    return SHOAL_OK;
}

/* Every version has the step, which calls count on in the caller's struct. */
static shoal_status read_schedule(const char *call, const shoal_nn_schedule *given,
                                  shoal_nn_schedule *schedule_out)
{
    enum {
        LEAST_BYTES = offsetof(shoal_nn_schedule, step) + sizeof(int64_t)
    };
    *schedule_out = (shoal_nn_schedule)SHOAL_NN_SCHEDULE_INIT;
    NN_TRY(nn_struct_check(call, "schedule", given));
    if (given->struct_size < LEAST_BYTES) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: schedule: struct_size %zu is not at least %d", call,
                          given->struct_size, (int)LEAST_BYTES);
    }
    NN_TRY(nn_struct_read(call, "schedule", given, schedule_out, sizeof(*schedule_out)));
    return check_schedule(call, schedule_out);
}

/* Calls ----------------------------------------------------------------------------------------------------- */

static shoal_status compute_rate(const char *call, const shoal_nn_schedule *schedule, int64_t step,
                                 double *lr_out)
{
    NN_TRY(check_not_negative(call, "step", step));
    uint64_t mode = shoal_fp_mode_enter();
    if (step < schedule->n_warmup) {
        *lr_out = schedule->lr * (((double)step + 1) / ((double)schedule->n_warmup + 1));
    } else {
        *lr_out = kinds[schedule->kind].rate(schedule, step);
    }
    shoal_fp_mode_leave(mode);
    return SHOAL_OK;
}

shoal_status shoal_nn_schedule_at(const shoal_nn_schedule *given, int64_t step, double *lr_out)
{
    static const char call[] = "nn_schedule_at";
    shoal_nn_schedule schedule;
    if (!lr_out) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: lr_out is NULL", call);
    }
    NN_TRY(read_schedule(call, given, &schedule));
    return compute_rate(call, &schedule, step, lr_out);
}

shoal_status shoal_nn_schedule_next(shoal_nn_schedule *schedule, shoal_nn_optimizer *optimizer)
{
    static const char call[] = "nn_schedule_next";
    shoal_nn_schedule own;
    double lr = 0;
    NN_TRY(read_schedule(call, schedule, &own));
    NN_TRY(compute_rate(call, &own, own.step, &lr));
    if (schedule->step == INT64_MAX) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: step: there is none after %" PRId64, call, schedule->step);
    }
    NN_TRY(shoal_nn_optimizer_set_lr(optimizer, lr));
    schedule->step++;
    return SHOAL_OK;
}

/* Items ----------------------------------------------------------------------------------------------------- */

static shoal_status accept_loaded(void *context)
{
    const shoal_nn_schedule *schedule = context;
    return check_not_negative("nn_schedule_add_items: what was loaded", "step", schedule->step);
}

shoal_status shoal_nn_schedule_add_items(shoal_nn_schedule *schedule, shoal_items *items, const char *prefix)
{
    static const char call[] = "nn_schedule_add_items";
    if (!items || !prefix) {
        return shoal_fail(SHOAL_ERR_INVALID, "%s: %s is NULL", call, items ? "prefix" : "items");
    }
    shoal_nn_schedule own;
    NN_TRY(read_schedule(call, schedule, &own));
    shoal_items *added;
    NN_TRY(shoal_items_create(&added));
    shoal_status status = nn_add_integer(call, added, prefix, "step", &schedule->step);
    if (status == SHOAL_OK) {
        status = shoal_items_on_loaded(added, accept_loaded, schedule, NULL);
    }
    if (status == SHOAL_OK) {
        status = shoal_items_append(items, added);
    }
    shoal_items_free(added);
    return status;
}
