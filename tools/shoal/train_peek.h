/* SPDX-License-Identifier: MIT */
/* --resume looks at the numbers of a checkpoint first: what does not fit is told in options of the command. */
#ifndef TRAIN_PEEK_H
#define TRAIN_PEEK_H

#include "train_job.h"

/*
 * Collective, after train_model_make. *step_out: that of the newest checkpoint; -1: there is none. An agreed error if
 * it is of another model, seed or number of samples in a step, or of more steps than this run has.
 */
shoal_status train_peek(struct train_job *job, int64_t *step_out);

/*
 * Collective, of a load that has failed on all ranks: an agreed error. If only files of the newest checkpoints are damaged,
 * it says which to remove.
 */
shoal_status train_peek_fail(struct train_job *job, shoal_status status);

#endif
