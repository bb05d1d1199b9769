/* SPDX-License-Identifier: MIT */
/* How far a run has come, as the options of saves and loads say it. */
#ifndef CHECKPOINT_PROGRESS_H
#define CHECKPOINT_PROGRESS_H

#include "shoal/checkpoint.h"

/* SHOAL_ERR_INVALID for a number that is negative. */
shoal_status progress_check(const shoal_checkpoint_progress *progress);

#endif
