/* SPDX-License-Identifier: MIT */
/* Ranks that are this program again, started as `shoal run` starts one: for commands that have --ranks. */
#ifndef RUN_AGAIN_H
#define RUN_AGAIN_H

#include <stdbool.h>

struct run_again {
    const char *command; /* "shoal train" */
    int n_ranks;
    double grace_s; /* that the others have when one has failed */
    bool unblocks;  /* the command unblocks signals (run/signals.h) when it is ready for them */
    /* The argv of the command, which ranks get, too, and then these words. */
    int argc;
    char **argv;
    int n_more;
    char **more;
};

/* Returns the exit code when all have ended. */
int run_again(const struct run_again *how);

#endif
