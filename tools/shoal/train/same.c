/* SPDX-License-Identifier: MIT */
/*
 * Checks that all ranks run the same training. mpirun and torchrun start a command on each machine, and nothing ensures
 * that it is the same command with the same data. Ranks that differ would train a mixture, or wait for each other for
 * ever.
 */
#include "train/same.h"

#include "base/error.h"
#include "base/try.h"
#include "shoal/group.h"

#include <stdio.h>

enum {
    N_MARKS = TRAIN_MAX_MARKS + 1 /* options, and the data */
};

static shoal_status check_mark(shoal_group *group, const struct train_mark *mark)
{
    shoal_status status = mark->kind == TRAIN_MARK_REAL
                              ? shoal_group_check_equal_real(group, mark->name, mark->real)
                              : shoal_group_check_equal_integer(group, mark->name, mark->integer);
    return status == SHOAL_ERR_INVALID && mark->kind == TRAIN_MARK_CODE
               ? error_set(status, "%s is not the same on all ranks", mark->name)
               : status;
}

shoal_status train_same(struct train_job *job)
{
    struct train_mark marks[N_MARKS];
    if (job->n_ranks == 1) {
        return SHOAL_OK;
    }
    size_t n_marks = train_options_marks(job->options, marks);
    marks[n_marks++] =
        (struct train_mark){.name = "the data", .kind = TRAIN_MARK_CODE, .integer = (int64_t)job->data->hash};
    for (size_t i = 0; i < n_marks; i++) {
        shoal_status status = check_mark(job->group, &marks[i]);
        if (status != SHOAL_OK) {
            /* All ranks have been told the same, unless it is the group that has failed. */
            return status == SHOAL_ERR_INVALID ? train_job_agree(job, status) : status;
        }
    }
    return SHOAL_OK;
}

shoal_status train_same_status(struct train_job *job, shoal_status status)
{
    char text[ERROR_TEXT_BYTES];
    int64_t speaker = status == SHOAL_OK ? job->n_ranks : job->rank;
    if (job->n_ranks == 1) {
        return train_job_agree(job, status);
    }
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    TRY(shoal_group_all_reduce(job->group, &speaker, &speaker, 1, SHOAL_I64, SHOAL_MIN));
    if (speaker == job->n_ranks) {
        return SHOAL_OK;
    }
    status = status == SHOAL_OK ? error_set(SHOAL_ERR_STATE, "rank %d cannot go on", (int)speaker)
                                : error_set(status, "%s", text);
    job->is_agreed = true;
    job->speaker = (int)speaker;
    return status;
}
