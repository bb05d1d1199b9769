/* SPDX-License-Identifier: MIT */
/* --load DIR: a run that begins with the weights of a model. */
#ifndef TRAIN_LOAD_H
#define TRAIN_LOAD_H

#include "train/job.h"
#include "model/describe.h"

/*
 * Looks at the model in the directory of --load, before data is opened and ranks are started: its shape takes the
 * place of defaults, and options->loaded is `loaded`. Options that contradict it are an error that lists all of them.
 */
shoal_status train_load_settle(struct train_options *options, struct model_description *loaded);

/* Loads the values into the model as ranks share it. Collective. */
shoal_status train_load(struct train_job *job);

#endif
