/* SPDX-License-Identifier: MIT */
/* The files that a training writes, and those that it reads. */
#ifndef TRAIN_OUTPUTS_H
#define TRAIN_OUTPUTS_H

#include "config/options.h"

/* Of settled options, before anything is written: whether every output is a file of its own. If one is not, `text` says
   which. */
bool train_outputs_are_apart(const struct train_options *options, char *text, size_t bytes);

#endif
