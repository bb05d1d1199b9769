/* SPDX-License-Identifier: MIT */
/* A step of `shoal train` as a compiled one. */
#ifndef TRAIN_STEP_H
#define TRAIN_STEP_H

#include "train/job.h"

/* From now on forward and backward of this job run as a plan. */
shoal_status train_step_compile(struct train_job *job);

#endif
