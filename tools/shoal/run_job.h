/* SPDX-License-Identifier: MIT */
/*
 * The ranks of `shoal run`, started, listened to and ended.
 *
 *   every rank ends with 0                    -> 0
 *   a rank ends otherwise                     -> it is named, the others get SIGTERM; its exit code
 *   the launcher gets SIGINT, SIGTERM, ...    -> all ranks get it; 128 + its number
 *
 * Who does not end within the grace is killed, and so is what ended ranks have left behind.
 */
#ifndef RUN_JOB_H
#define RUN_JOB_H

#include "run_rank.h"

/* The plan: command, tells_codes, n_ranks, has_labels, grace_s and program. Returns the exit code. */
int run_job(const struct run_plan *plan);

#endif
