/* SPDX-License-Identifier: MIT */
/* What the launcher of this process says in its environment: rows of launchers.def. Read anew at each call. */
#ifndef BOOTSTRAP_MEET_ENVIRONMENT_H
#define BOOTSTRAP_MEET_ENVIRONMENT_H

#include <stdbool.h>
#include <stddef.h>

#include "shoal/status.h"

#define ENVIRONMENT_KEY_BYTES 1024
#define ENVIRONMENT_HOSTS_BYTES 160
/* More ranks than this are taken for a mistake. */
#define ENVIRONMENT_RANKS_MAX 4096

struct environment {
    const char *launcher; /* "alone": no launcher has set variables */
    int rank;
    int n_ranks;
    char key[ENVIRONMENT_KEY_BYTES]; /* the same on all ranks of a job, and on no others */
    /* By what the ranks seem to be on several hosts; "" if nothing says so. */
    char hosts_text[ENVIRONMENT_HOSTS_BYTES];
};

/* SHOAL_ERR_INVALID: only some of a launcher's variables are set, one is wrong, or SHOAL_RANK and SHOAL_RANKS are others
   than those of an mpirun that was started after they were set. The text names them. */
shoal_status environment_read(struct environment *environment_out);

/* Of a launcher that is about to set SHOAL_RANK for a rank: notes what an MPI further out has said to the launcher, so that
   it does not contradict. False, with errno, if there is no memory. */
bool environment_note_outer(void);

/* Whether the launcher of that name (struct environment) starts ranks of an MPI. */
bool environment_starts_mpi(const char *launcher);

/*
 * Whether the launchers that have left variables here can have started an MPI whose MPI_COMM_WORLD has n_ranks ranks.
 * One that says the same number is enough: others may be of a launcher further out. SHOAL_ERR_INVALID: each says
 * another number. `library` is the name of the MPI, for the text.
 */
shoal_status environment_check_mpi(int n_ranks, const char *library);

/* Writes "torchrun: rank 1 of 4", or the error of environment_read. */
void environment_describe(char *text, size_t bytes);

#endif
