/* SPDX-License-Identifier: MIT */
/*
 * The validation loss (--val): the mean over a fixed set of windows that the training does not see, at the end of the
 * data or in another file. Ranks share the windows. Each forward pass has the same windows whatever the number of ranks
 * is, and the losses are added in their order, so the bits do not depend on it.
 */
#ifndef TRAIN_VALIDATE_H
#define TRAIN_VALIDATE_H

#include "train/job.h"

/* Opens the file, if it is another one, and chooses windows, which all ranks must have alike. Does nothing without
   --val. */
shoal_status train_validate_prepare(struct train_job *job);
void train_validate_free(struct train_job *job);

/* "128 windows of 64 tokens, the last 10 % of the data", for people; "" without --val. */
const char *train_validate_text(const struct train_job *job);

/* Whether the loss is due after `step` steps. */
bool train_validate_is_due(const struct train_job *job, int64_t step);

/* Computes the loss with dropout off, and changes nothing else. Collective. */
shoal_status train_validate(struct train_job *job, double *loss_out);

#endif
