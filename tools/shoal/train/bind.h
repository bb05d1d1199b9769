/* SPDX-License-Identifier: MIT */
/* Ranks that keep to processors of their own. */
#ifndef TRAIN_BIND_H
#define TRAIN_BIND_H

#include "train/job.h"

/*
 * Divides the processors of a machine, in whole cores, among the ranks that may use the same ones. It does so only if
 * each rank gets at least two processors, and as many as it has threads; otherwise nothing changes. Collective.
 * job->n_bound is the number of processors of this rank afterwards; 0 means all.
 */
shoal_status train_bind(struct train_job *job);

#endif
