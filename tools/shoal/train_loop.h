/* SPDX-License-Identifier: MIT */
/* All steps of a training, and what they came to. */
#ifndef TRAIN_LOOP_H
#define TRAIN_LOOP_H

#include "train_report.h"

/* Collective: from job->schedule.step to the last one, with checkpoints. The digests are not set but for verify_digest. */
shoal_status train_loop(struct train_job *job, struct train_report *report, struct train_result *result);

#endif
