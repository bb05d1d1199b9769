/* SPDX-License-Identifier: MIT */
/* Clips gradients by norm or by value: see clip.h. */
#include "parallel/clip.h"

#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/fp_mode.h"
#include "base/mem.h"
#include "base/try.h"
#include "device/device.h"
#include "kernel/table.h"
#include "op/operand.h"
#include "tensor/memory.h"
#include "transport/purpose.h"

/* Added to the norm before dividing by it, as in PyTorch. */
#define CLIP_EPSILON 1e-6

/* What is added up over the gradients. */
struct total {
    double power;
    struct kernel_squares sums;
    double largest; /* in place of the sums, if the power is infinite */
};

/* One call for all pieces; `to` has room for the bins, or for the largest number. */
static shoal_status add_pieces(shoal_device device, const struct kernel_piece *pieces, size_t n_pieces,
                               double power, struct address to)
{
    const struct kernel_table *kernels = kernel_of(device);
    return isinf(power) ? kernels->largest_list(pieces, n_pieces, to)
                        : kernels->powers_list(pieces, n_pieces, power, to);
}

static shoal_status add_to_total(void *context, shoal_dtype dtype, struct address data, size_t count)
{
    struct total *total = context;
    const struct kernel_piece piece = {.data = data, .count = count, .dtype = dtype};
    void *to = isinf(total->power) ? (void *)&total->largest : total->sums.bins;
    return add_pieces(SHOAL_CPU, &piece, 1, total->power, address_of(to));
}

/* Adds up in memory of the device, and reads the result once. */
static shoal_status add_list(const struct clip_source *source, struct total *total)
{
    struct memory *sums;
    const bool is_largest = isinf(total->power);
    const size_t bytes = is_largest ? sizeof total->largest : sizeof total->sums;
    TRY(memory_create(source->device, bytes, &sums));
    const struct kernel_move zeros = {
        .dst = sums->base, .count = bytes / sizeof(uint64_t), .dst_dtype = SHOAL_U64};
    kernel_of(source->device)->move(&zeros, 1);
    shoal_status status =
        add_pieces(source->device, source->pieces, source->n_pieces, total->power, sums->base);
    if (status == SHOAL_OK) {
        void *target = is_largest ? (void *)&total->largest : &total->sums;
        status = op_read_bytes(source->device, target, sums->base, bytes, source->timeout_s);
    }
    memory_unref(sums);
    return status;
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

/* Lists --------------------------------------------------------------------------------------------------- */

struct collected {
    struct kernel_piece *pieces;
    size_t n;
    size_t capacity;
};

static shoal_status collect(void *context, shoal_dtype dtype, struct address data, size_t count)
{
    struct collected *collected = context;
    TRY(mem_grow((void **)&collected->pieces, &collected->capacity, collected->n + 1,
                 sizeof collected->pieces[0]));
    collected->pieces[collected->n++] = (struct kernel_piece){.data = data, .count = count, .dtype = dtype};
    return SHOAL_OK;
}

/* Whether the gradients are visited, and handled one by one. */
static bool is_walked(const struct clip_source *source)
{
    return source->walk && device_is_host(source->device);
}

/* The pieces of a source that is not walked. The caller frees the collected ones. */
static shoal_status list_pieces(const struct clip_source *source, bool is_written,
                                struct collected *collected, struct clip_source *list_out)
{
    *collected = (struct collected){.pieces = NULL};
    *list_out = *source;
    if (!source->walk) {
        return SHOAL_OK;
    }
    shoal_status status = source->walk(source->owner, is_written, collect, collected);
    *list_out = (struct clip_source){.device = source->device,
                                     .timeout_s = source->timeout_s,
                                     .pieces = collected->pieces,
                                     .n_pieces = collected->n};
    return status;
}

static shoal_status add_pieces_of(const struct clip_source *source, struct total *total)
{
    struct collected collected;
    struct clip_source list;
    shoal_status status = list_pieces(source, /*is_written=*/false, &collected, &list);
    if (status == SHOAL_OK && list.n_pieces > 0) {
        status = add_list(&list, total);
    }
    mem_free(collected.pieces);
    return status;
}

/* Scales the pieces, or limits them. */
static shoal_status change_pieces(const struct clip_source *source, bool is_scaled, double number)
{
    struct collected collected;
    struct clip_source list;
    shoal_status status = list_pieces(source, /*is_written=*/true, &collected, &list);
    if (status == SHOAL_OK && list.n_pieces > 0) { /* otherwise there may be no device */
        const struct kernel_table *kernels = kernel_of(source->device);
        status = is_scaled ? kernels->scale_list(list.pieces, list.n_pieces, number)
                           : kernels->clamp_list(list.pieces, list.n_pieces, number);
    }
    mem_free(collected.pieces);
    return status;
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
    TRY(is_walked(source) ? source->walk(source->owner, false, add_to_total, &total)
                          : add_pieces_of(source, &total));
    kernel_squares_normalise(&total.sums);
    TRY(share_total(&total, group));
    uint64_t mode = fp_mode_enter();
    compute_outcome(&total, norm->max_norm, outcome_out);
    fp_mode_leave(mode);
    return SHOAL_OK;
}

static shoal_status scale(void *context, shoal_dtype dtype, struct address data, size_t count)
{
    const double *factor = context;
    const struct kernel_piece piece = {.data = data, .count = count, .dtype = dtype};
    return kernel_scale_list(&piece, 1, *factor);
}

static shoal_status scale_all(const struct clip_source *source, double factor)
{
    return is_walked(source) ? source->walk(source->owner, true, scale, &factor)
                             : change_pieces(source, /*is_scaled=*/true, factor);
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
        TRY(scale_all(source, outcome.factor));
    }
    *norm_out = outcome.norm;
    return SHOAL_OK;
}

static shoal_status clamp(void *context, shoal_dtype dtype, struct address data, size_t count)
{
    const double *limit = context;
    const struct kernel_piece piece = {.data = data, .count = count, .dtype = dtype};
    return kernel_clamp_list(&piece, 1, *limit);
}

shoal_status clip_by_value(const struct clip_source *source, double max_value)
{
    return is_walked(source) ? source->walk(source->owner, true, clamp, &max_value)
                             : change_pieces(source, /*is_scaled=*/false, max_value);
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
