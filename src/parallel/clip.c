/* SPDX-License-Identifier: MIT */
/* Clips gradients by norm or by value: see clip.h. */
#include "parallel/clip.h"

#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/fp_mode.h"
#include "base/try.h"
#include "kernel/kernel.h"
#include "transport/purpose.h"

/* Added to the norm before dividing by it, as in PyTorch. */
#define CLIP_EPSILON 1e-6

/* What a walk over the gradients adds up. */
struct total {
    double power;
    struct kernel_squares sums;
    double largest;
};

static FP_MODE_APART void take_larger(double *largest, double value)
{
    *largest = value > *largest || isnan(value) ? value : *largest;
}

static shoal_status add_to_total(void *context, shoal_dtype dtype, void *data, size_t count)
{
    struct total *total = context;
    if (isinf(total->power)) {
        double largest;
        TRY(kernel_largest(dtype, data, count, &largest));
        uint64_t mode = fp_mode_enter();
        take_larger(&total->largest, largest);
        fp_mode_leave(mode);
        return SHOAL_OK;
    }
    return total->power == 2.0 ? kernel_squares_add(&total->sums, dtype, data, count)
                               : kernel_powers_add(&total->sums, dtype, data, count, total->power);
}

static shoal_status share_total(struct total *total, shoal_group *group)
{
    if (!group) {
        return SHOAL_OK;
    }
    if (isinf(total->power)) {
        return shoal_group_all_reduce(group, &total->largest, &total->largest, 1, SHOAL_F64, SHOAL_MAX);
    }
    return shoal_group_all_reduce(group, total->sums.bins, total->sums.bins, KERNEL_SQUARES_BINS, SHOAL_U64,
                                  SHOAL_SUM);
}

/* The norm, and the factor that scales gradients to the largest norm that is allowed. */
struct outcome {
    double norm;
    double factor;
};

static FP_MODE_APART void compute_outcome(const struct total *total, double max_norm, struct outcome *outcome)
{
    if (isinf(total->power)) {
        outcome->norm = total->largest;
    } else {
        double sum = kernel_squares_round(&total->sums);
        outcome->norm = total->power == 2.0 ? sqrt(sum) : pow(sum, 1.0 / total->power);
    }
    outcome->factor = max_norm / (outcome->norm + CLIP_EPSILON);
}

static shoal_status find_norm(const struct clip_source *source, shoal_group *group,
                              const struct clip_norm *norm, struct outcome *outcome_out)
{
    struct total total = {.power = norm->power};
    kernel_squares_init(&total.sums);
    TRY(source->walk(source->owner, false, add_to_total, &total));
    kernel_squares_normalise(&total.sums);
    TRY(share_total(&total, group));
    uint64_t mode = fp_mode_enter();
    compute_outcome(&total, norm->max_norm, outcome_out);
    fp_mode_leave(mode);
    return SHOAL_OK;
}

static shoal_status scale(void *context, shoal_dtype dtype, void *data, size_t count)
{
    const double *factor = context;
    return kernel_scale(dtype, data, data, count, *factor);
}

shoal_status clip_by_norm(const struct clip_source *source, shoal_group *group, const struct clip_norm *norm,
                          double *norm_out)
{
    struct outcome outcome;
    TRY(find_norm(source, group, norm, &outcome));
    if (norm->must_be_finite && !isfinite(outcome.norm)) {
        return error_set(SHOAL_ERR_STATE,
                         "the norm of the gradients is %g, but must be finite (must_be_finite)",
                         outcome.norm);
    }
    if (!(outcome.factor >= 1.0)) { /* also if it is NaN: then all gradients become NaN, on every rank */
        TRY(source->walk(source->owner, true, scale, &outcome.factor));
    }
    *norm_out = outcome.norm;
    return SHOAL_OK;
}

static shoal_status clamp(void *context, shoal_dtype dtype, void *data, size_t count)
{
    const double *limit = context;
    return kernel_clamp(dtype, data, count, *limit);
}

shoal_status clip_by_value(const struct clip_source *source, double max_value)
{
    return source->walk(source->owner, true, clamp, &max_value);
}

void clip_say_value(double max_value, int64_t details[CLIP_VALUE_DETAILS])
{
    details[0] = DETAIL_REAL;
    memcpy(&details[1], &max_value, sizeof max_value);
}

void clip_say_norm(const struct clip_norm *norm, int64_t details[CLIP_NORM_DETAILS])
{
    clip_say_value(norm->max_norm, details);
    clip_say_value(norm->power, details + 2);
    details[4] = DETAIL_NUMBER;
    details[5] = norm->must_be_finite;
}

shoal_status clip_check_norm(const char *call, const struct clip_norm *norm)
{
    if (!(norm->max_norm >= 0.0)) {
        return error_set(SHOAL_ERR_INVALID, "%s: max_norm is %g, but must be 0 or more", call,
                         norm->max_norm);
    }
    return norm->power > 0.0
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID, "%s: power is %g, but must be above 0 (infinity: the largest)",
                           call, norm->power);
}

shoal_status clip_check_value(const char *call, double max_value)
{
    return max_value >= 0.0
               ? SHOAL_OK
               : error_set(SHOAL_ERR_INVALID, "%s: max_value is %g, but must be 0 or more", call, max_value);
}
