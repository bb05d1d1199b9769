/* SPDX-License-Identifier: MIT */
/*
 * A process that outlives `shoal run` for a moment: when the launcher is gone, for whatever reason, it kills every
 * process group of the launcher's ranks. PR_SET_PDEATHSIG alone would reach the ranks, but not the processes that a
 * rank started (a program behind `sh -c`), nor a set-uid program.
 */
#ifndef RUN_WATCHDOG_H
#define RUN_WATCHDOG_H

#include <stdbool.h>
#include <sys/types.h>

struct run_watchdog {
    pid_t pid;
    int fd; /* write end of a pipe; its last holder is the launcher. Closed when a program is executed. */
};

/* `command` ("shoal train") is whose ranks they are: ps shows the process as "shoal train: watchdog of 1234". False, with
   errno, when there can be none. */
bool run_watchdog_start(struct run_watchdog *watchdog, const char *command, int max_groups);

/* The caller's process group, which it leads, ends with the launcher. Called by a rank before its program. */
bool run_watchdog_join(const struct run_watchdog *watchdog);

/* All groups are gone: nobody is needed to look after them. */
void run_watchdog_stop(struct run_watchdog *watchdog);

#endif
