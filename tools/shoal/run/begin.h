/* SPDX-License-Identifier: MIT */
/* How the launcher begins with its ranks. */
#ifndef RUN_BEGIN_H
#define RUN_BEGIN_H

#include "run/rank.h"

/* The launcher has two pipes a rank; the ranks keep the limit that they would have without it, which is noted in the
   plan. */
void run_raise_file_limit(struct run_plan *plan);

/* Starts a rank. Returns TOOL_DONE, or after a message the exit code of a run that did not begin. */
int run_begin_rank(struct run_rank *rank, const struct run_plan *plan);

#endif
