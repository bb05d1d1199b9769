/* SPDX-License-Identifier: MIT */
/* Checks the progress of a run, which is part of the options of saves and loads. */
#ifndef CHECKPOINT_INDEX_PROGRESS_H
#define CHECKPOINT_INDEX_PROGRESS_H

#include "shoal/checkpoint.h"

/* SHOAL_ERR_INVALID if a number is negative, or if only some of the numbers that make up a batch are set. */
shoal_status progress_check(const shoal_checkpoint_progress *progress);

/* SHOAL_ERR_INVALID if both have a number of samples per step, and the numbers differ. */
shoal_status progress_compare(const shoal_checkpoint_progress *now, const shoal_checkpoint_progress *saved);

#endif
