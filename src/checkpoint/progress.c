/* SPDX-License-Identifier: MIT */
#include "checkpoint/progress.h"

#include <inttypes.h>

#include "base/error.h"

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
    return SHOAL_OK;
}
