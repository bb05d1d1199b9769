/* SPDX-License-Identifier: MIT */
/* The ranks of `shoal train --ranks N`: this program again, N times, as `shoal run` starts one. */
#ifndef TRAIN_RANKS_H
#define TRAIN_RANKS_H

#include <stdbool.h>

/*
 * argv as command_train has it. Returns the exit code when all have ended. writes_trace: when one fails the others
 * have time to write what they recorded.
 */
int train_ranks_start(int n_ranks, bool writes_trace, int argc, char **argv);

/* Columns of the terminal that standard output is; 0: it is none. */
int train_ranks_columns(void);

#endif
