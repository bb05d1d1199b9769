/* SPDX-License-Identifier: MIT */
/*
 * A worker runs the ranks of one host for a launcher on another host. It is started as `shoal run --worker`, never by
 * hand:
 *
 *   shoal run --worker stdin                         by an agent (ssh). What to run comes through the standard input,
 *                                                    as strings that end with a zero byte; signals follow
 *   shoal run --worker mpirun KEY GRACE LABELS -- P  by mpirun: one rank, whose place mpirun has set
 *
 * The worker writes the lines of its ranks with labels, and a report when a rank has ended (run/report.h). Ranks do not
 * outlive their worker. A worker that was started by an agent ends its ranks when its standard input ends.
 */
#ifndef RUN_WORKER_H
#define RUN_WORKER_H

#include <stdbool.h>
#include <stddef.h>

/* "shoal-run 1 NUMBER_OF_BYTES\n" begins what an agent gets. The bytes are strings, in this order: */
#define RUN_WORKER_MAGIC "shoal-run 1 "

enum run_worker_string {
    WORKER_VERSION, /* of the tool: all hosts must have the same */
    WORKER_DIRECTORY,
    WORKER_HOST, /* as the file of hosts calls it */
    WORKER_KEY,
    WORKER_FIRST_RANK,
    WORKER_N_RANKS,
    WORKER_N_RANKS_ALL,
    WORKER_HAS_LABELS,
    WORKER_GRACE,
    WORKER_N_VARIABLES, /* NAME=VALUE, so many of them, follow these */
    WORKER_N_WORDS,     /* and then the words of the program */
    WORKER_N_STRINGS
};

/* argv[0] is "stdin" or "mpirun". Returns the exit code. */
int run_worker(int argc, char **argv);

#endif
