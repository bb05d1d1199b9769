/* SPDX-License-Identifier: MIT */
/*
 * The log of a run (--log FILE): lines of JSON that rank 0 writes, and that `shoal report` reads (report/log.h has the
 * format). Each line is one write at the end of the file, so that also a killed run leaves whole lines.
 */
#ifndef TRAIN_LOG_H
#define TRAIN_LOG_H

#include "train/job.h"
#include "train/report.h"
#include "train/times.h"

/* What each rank tells of a step, with the loss and by the same reduction. */
enum train_slot {
    SLOT_STEP, /* milliseconds, as in train_step_time */
    SLOT_EXPOSED,
    SLOT_HIDDEN,
    SLOT_MEMORY, /* MB */
    N_SLOTS
};

/* What rank 0 knows of a step itself. */
struct train_log_step {
    int64_t step; /* from 1 */
    double loss;
    double lr;
    double norm;       /* of gradients; less than 0 if it was not computed */
    double outside_ms; /* after the step: checkpoints, validation, lines */
    bool has_validation;
    double validation;
    const double *slots; /* N_SLOTS of each rank */
};

struct train_log;

/* Opens the file on rank 0 and writes the first line. Collective. *log_out is NULL where there is no log: without
   --log, and on other ranks. */
shoal_status train_log_open(struct train_job *job, struct train_log **log_out);

/* Do nothing if log is NULL. A failure to write is kept, and later lines are not written. */
void train_log_step(struct train_log *log, const struct train_log_step *step);
/* How much memory each rank has, and for what. Collective; called on all ranks of a run that has a log. */
shoal_status train_log_memory(struct train_log *log, const struct train_job *job, int64_t step);
/* Of each rank's steps, means over the middle half: N_SLOTS numbers, of which memory is not used. Collective; called on all
   ranks of a run that has a log. */
shoal_status train_log_means(struct train_log *log, const struct train_job *job, const double *means);
/* The last lines. */
void train_log_end(struct train_log *log, const struct train_result *result);
/* Why a line could not be written; "" if all were. */
const char *train_log_failure(const struct train_log *log);
void train_log_free(struct train_log *log);

#endif
