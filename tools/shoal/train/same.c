/* SPDX-License-Identifier: MIT */
/*
 * Checks that all ranks run the same training. mpirun and torchrun start a command on each machine, and nothing ensures
 * that it is the same command with the same data. Ranks that differ would train a mixture, or wait for each other for
 * ever.
 */
#include "train/same.h"
#include "common/meet.h"

#include "base/error.h"
#include "shoal/group.h"

enum {
    N_MARKS = TRAIN_MAX_MARKS + 2 /* options, the data, and the checkpoint */
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

/* Ranks whose products have other bits would not have those of one process. One that cannot compute any says why later. */
static shoal_status check_products(const struct train_job *job)
{
    char text[TRAIN_PRODUCTS_BYTES] = "none"; /* and zeros */
    train_job_products(job, text);
    return shoal_group_check_equal(job->group, "what computes products (SHOAL_PRODUCTS)", text, sizeof text);
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
    marks[n_marks++] = (struct train_mark){.name = "the step of the newest checkpoint",
                                           .integer = job->options->from ? job->options->from->step : -1};
    for (size_t i = 0; i < n_marks; i++) {
        shoal_status status = check_mark(job->group, &marks[i]);
        if (status != SHOAL_OK) {
            /* All ranks have been told the same, unless it is the group that has failed. */
            return status == SHOAL_ERR_INVALID ? train_job_agree(job, status) : status;
        }
    }
    shoal_status status = check_products(job);
    return status == SHOAL_ERR_INVALID ? train_job_agree(job, status) : status;
}

shoal_status train_same_status(struct train_job *job, shoal_status status)
{
    if (job->n_ranks == 1) {
        return train_job_agree(job, status);
    }
    int speaker;
    status = tool_meet(job->group, status, &speaker);
    if (speaker >= 0) {
        job->is_agreed = true;
        job->speaker = speaker;
    }
    return status;
}
