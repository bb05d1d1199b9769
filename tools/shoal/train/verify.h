/* SPDX-License-Identifier: MIT */
/* --verify: the same steps again, in one process. */
#ifndef TRAIN_VERIFY_H
#define TRAIN_VERIFY_H

#include "train/report.h"

/* Once the world of the ranks is closed, on rank 0. `job` says what they did; only its numbers are looked at. */
shoal_status train_verify(const struct train_job *job, const struct train_report *report, uint64_t digest,
                          bool *is_same_out);

#endif
