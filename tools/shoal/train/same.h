/* SPDX-License-Identifier: MIT */
/* What ranks must have in common before they train together. */
#ifndef TRAIN_SAME_H
#define TRAIN_SAME_H

#include "train/job.h"

/* Compares options and data of all ranks; a launcher may have given them different ones. All get the same error. */
shoal_status train_same(struct train_job *job);

/* Of a check that each rank makes for itself: if one fails all do, and the first rank that has a reason says it. */
shoal_status train_same_status(struct train_job *job, shoal_status status);

#endif
