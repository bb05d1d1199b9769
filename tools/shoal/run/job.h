/* SPDX-License-Identifier: MIT */
/*
 * Starts the ranks of `shoal run`, forwards their output, and ends them.
 *
 *   every rank ends with 0                    -> exit code 0
 *   a rank ends otherwise                     -> it is named, the others get SIGTERM; its exit code
 *   the launcher gets SIGINT, SIGTERM, ...    -> all ranks get it; 128 + its number
 *   it gets SIGUSR1 or SIGUSR2                -> all ranks get it; if one ends with 128 + its number, all may
 *
 * A rank that does not end within the grace period is killed, and so are processes that ended ranks have left behind.
 * After a signal the launcher waits longer for ranks that hold (run/hold.h).
 *
 * With several hosts the launcher runs this code with agents instead of ranks, and each agent starts a worker on its
 * host, which runs it with the ranks there (run/worker.h). Both are patient: after a failure the other ranks have the
 * grace period to end by themselves, so that they can report what they know. Then they get SIGTERM, and after another
 * grace period they are killed.
 */
#ifndef RUN_JOB_H
#define RUN_JOB_H

#include "run/rank.h"

/* Runs the plan, of which command, tells_codes, n_ranks, has_labels, grace_s, program and the fields of several hosts
   are set. Returns the exit code. */
int run_job(const struct run_plan *plan);

/* RUN_KEY_BYTES of random text. False, with errno, when there is none. */
bool run_make_key(char *key_out);

/* Opens /dev/null as standard files that happen to be closed: a pipe, or a file, must not get their number. */
void run_fill_standard_files(void);

#endif
