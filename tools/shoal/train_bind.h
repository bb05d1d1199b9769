/* SPDX-License-Identifier: MIT */
/* Ranks that keep to processors of their own. */
#ifndef TRAIN_BIND_H
#define TRAIN_BIND_H

#include "train_job.h"

/*
 * Ranks of one machine that may use the same processors divide them, in whole cores, if there are two or more for each rank,
 * and as many as it has threads. Otherwise nothing changes. Collective. job->n_bound: how many this rank has then, 0: all.
 */
shoal_status train_bind(struct train_job *job);

#endif
