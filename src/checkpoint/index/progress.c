/* SPDX-License-Identifier: MIT */
#include "checkpoint/index/progress.h"

#include <inttypes.h>

#include "base/error.h"

static bool has_batch(const shoal_checkpoint_progress *progress)
{
    return progress->n_ranks > 0 && progress->batch > 0 && progress->n_accumulate > 0;
}

/* Counts the samples of one step. Returns false if they are more than can be counted. */
static bool count_samples(const shoal_checkpoint_progress *progress, int64_t *n_samples_out)
{
    return !__builtin_mul_overflow(progress->n_ranks, progress->batch, n_samples_out) &&
           !__builtin_mul_overflow(*n_samples_out, progress->n_accumulate, n_samples_out);
}

shoal_status progress_check(const shoal_checkpoint_progress *progress)
{
    const struct {
        const char *name;
        int64_t value;
    } rows[] = {{"n_ranks", progress->n_ranks},
                {"batch", progress->batch},
                {"n_accumulate", progress->n_accumulate},
                {"sample", progress->sample}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].value < 0) {
            return error_set(SHOAL_ERR_INVALID, "options: progress.%s is %" PRId64 ", below 0", rows[i].name,
                             rows[i].value);
        }
    }
    bool is_said = has_batch(progress);
    if (!is_said && (progress->n_ranks > 0 || progress->batch > 0 || progress->n_accumulate > 0)) {
        return error_set(SHOAL_ERR_INVALID,
                         "options: progress has n_ranks %" PRId64 ", batch %" PRId64
                         " and n_accumulate %" PRId64 "; all of them or none",
                         progress->n_ranks, progress->batch, progress->n_accumulate);
    }
    int64_t n_samples;
    return is_said && !count_samples(progress, &n_samples)
               ? error_set(SHOAL_ERR_INVALID, "options: progress has too many samples in a step")
               : SHOAL_OK;
}

shoal_status progress_compare(const shoal_checkpoint_progress *now, const shoal_checkpoint_progress *saved)
{
    int64_t n_now = 0;
    int64_t n_saved = 0;
    if (!has_batch(now) || !has_batch(saved)) {
        return SHOAL_OK;
    }
    if (count_samples(now, &n_now) && count_samples(saved, &n_saved) && n_now == n_saved) {
        return SHOAL_OK;
    }
    return error_set(SHOAL_ERR_INVALID,
                     "options.progress: %" PRId64 " samples in a step (%" PRId64 " ranks x %" PRId64
                     " x %" PRId64 "), but the run was saved with %" PRId64 " (%" PRId64 " x %" PRId64
                     " x %" PRId64 "); set allows_other_batch to continue with another batch",
                     n_now, now->n_ranks, now->batch, now->n_accumulate, n_saved, saved->n_ranks,
                     saved->batch, saved->n_accumulate);
}
