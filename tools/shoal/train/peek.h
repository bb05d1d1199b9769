/* SPDX-License-Identifier: MIT */
/* --resume: which checkpoint is loaded. */
#ifndef TRAIN_PEEK_H
#define TRAIN_PEEK_H

#include "train/job.h"

/* Looks for the newest checkpoint: *step_out is its step, -1 if there is none. Fails on all ranks if it is not the one
   whose configuration was read. Collective; call after train_save_prepare. */
shoal_status train_peek(struct train_job *job, int64_t *step_out);

/*
 * Reports a load that has failed on all ranks; the error is the same on all ranks. If only files of the newest
 * checkpoints are damaged, it says which ones to remove. Collective.
 */
shoal_status train_peek_fail(struct train_job *job, shoal_status status);

#endif
