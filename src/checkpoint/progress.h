/* SPDX-License-Identifier: MIT */
/* How far a run has come, as the options of saves and loads say it. */
#ifndef CHECKPOINT_PROGRESS_H
#define CHECKPOINT_PROGRESS_H

#include "shoal/checkpoint.h"

/* SHOAL_ERR_INVALID for a number that is negative, and if only some of those that make up a batch are said. */
shoal_status progress_check(const shoal_checkpoint_progress *progress);

/* SHOAL_ERR_INVALID if both say how many samples a step has, and differ. */
shoal_status progress_compare(const shoal_checkpoint_progress *now, const shoal_checkpoint_progress *saved);

#endif
