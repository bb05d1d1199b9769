/* SPDX-License-Identifier: MIT */
/* The ranks of `shoal train --ranks N`: this program again, N times, as `shoal run` starts one. */
#ifndef TRAIN_RANKS_H
#define TRAIN_RANKS_H

#include <stdbool.h>

/*
 * Starts the ranks with the argv of command_train, and returns the exit code when all have ended. With writes_trace,
 * when one rank fails, the others get time to write what they recorded.
 */
int train_ranks_start(int n_ranks, bool writes_trace, int argc, char **argv);

/* Columns of the terminal that standard output is; 0 if it is none. */
int train_ranks_columns(void);

#endif
