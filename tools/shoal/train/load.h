/* SPDX-License-Identifier: MIT */
/* Weights of GPT-2 that another tool wrote: --load DIR. */
#ifndef TRAIN_LOAD_H
#define TRAIN_LOAD_H

#include "train/job.h"

/* What the model in the directory looks like goes into job->gpt. Before the model is made. */
shoal_status train_load_shape(struct train_job *job);
/* Collective: the values, into the model as ranks share it. */
shoal_status train_load(struct train_job *job);

#endif
