/* SPDX-License-Identifier: MIT */
/*
 * One rank of `shoal run`: a child that leads a process group of its own and writes into two pipes. An ended
 * rank is left a zombie until the launcher is done with its group, so that no number can be reused meanwhile.
 */
#ifndef RUN_RANK_H
#define RUN_RANK_H

#include "run_output.h"
#include "run_watchdog.h"

#include <signal.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/types.h>

enum {
    RUN_MAX_RANKS = 1024,
    RUN_N_STREAMS = 2, /* standard output and standard error */
    RUN_KEY_BYTES = 33
};

struct run_rank {
    int rank;
    pid_t pid;
    bool has_ended;
    int exit_code;    /* 128 + signal for one that was killed */
    int death_signal; /* 0: none */
    struct run_stream streams[RUN_N_STREAMS];
};

/* What all ranks of a run have in common. */
struct run_plan {
    const char *command; /* in front of what the launcher says: "shoal run" */
    bool tells_codes;    /* names a rank that ended with another exit code than 0: it may have said nothing */
    int n_ranks;
    bool has_labels;
    double grace_s;
    char **program;          /* and its arguments, ended by NULL */
    char key[RUN_KEY_BYTES]; /* unique to the run */
    int input_fd;            /* standard input of rank 0; the others have none */
    struct run_watchdog watchdog;
    /* As the launcher found them: */
    sigset_t signal_mask;
    struct sigaction pipe_action;
    struct rlimit file_limit;
};

/* 0, or the errno of what failed: with *is_program_out, executing the program. The streams' sinks are set by the
   caller. Nothing is left behind on failure. */
int run_rank_start(struct run_rank *rank, const struct run_plan *plan, bool *is_program_out);

/* Looks whether it has ended; false when that is no news. */
bool run_rank_look(struct run_rank *rank);

/* To the whole group, what the rank left behind included. */
void run_rank_signal(const struct run_rank *rank, int number);

/* The zombie goes. */
void run_rank_reap(const struct run_rank *rank);

#endif
