/* SPDX-License-Identifier: MIT */
/*
 * The ranks of `shoal run`, started, listened to and ended.
 *
 *   every rank ends with 0                    -> 0
 *   a rank ends otherwise                     -> it is named, the others get SIGTERM; its exit code
 *   the launcher gets SIGINT, SIGTERM, ...    -> all ranks get it; 128 + its number
 *
 * Who does not end within the grace is killed, and so is what ended ranks have left behind.
 *
 * Ranks of several hosts: the launcher runs this with agents instead of ranks, and each agent starts a worker on its host
 * that runs it with the ranks there (run_worker.h). Both are patient: after a failure the others have the grace to end by
 * themselves, so that they can say what they know of it, then they get SIGTERM, and are killed after the grace again.
 */
#ifndef RUN_JOB_H
#define RUN_JOB_H

#include "run_rank.h"

/* The plan: command, tells_codes, n_ranks, has_labels, grace_s and program, and what is said of several hosts. Returns the exit code. */
int run_job(const struct run_plan *plan);

/* RUN_KEY_BYTES of random text. False, with errno, when there is none. */
bool run_make_key(char *key_out);

/* Opens /dev/null as standard files that happen to be closed: a pipe, or a file, must not get their number. */
void run_fill_standard_files(void);

#endif
