/* SPDX-License-Identifier: MIT */
/* What a trained model writes. */
#ifndef TRAIN_SAMPLE_H
#define TRAIN_SAMPLE_H

#include "train/job.h"

/* Whether the model has the tokens of the prompt, if a sample is wanted. */
shoal_status train_sample_check(const struct train_job *job);

/* Prints the prompt and n_sample tokens that the model draws after it: bytes as text, other tokens as numbers. */
shoal_status train_sample(const struct train_job *job, shoal_module *whole);

#endif
