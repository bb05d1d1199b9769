/* SPDX-License-Identifier: MIT */
/* All steps of a training, and what they came to. */
#ifndef TRAIN_LOOP_H
#define TRAIN_LOOP_H

#include "train/report.h"

struct train_log;

/* Runs the steps from job->schedule.step on, and saves checkpoints. Of the digests, sets verify_digest. log: NULL where
   there is none. Collective. */
shoal_status train_loop(struct train_job *job, struct train_report *report, struct train_log *log,
                        struct train_result *result);

#endif
