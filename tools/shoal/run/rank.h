/* SPDX-License-Identifier: MIT */
/*
 * One rank of `shoal run`: a child process that leads a process group of its own and writes into two pipes. A rank that
 * has ended stays a zombie until the launcher is done with its group, so that the number of the group cannot be reused.
 *
 * With ranks on several hosts (run/agents.c, run/mpirun.c) the children of the launcher are agents: an ssh for each
 * host, or one mpirun.
 */
#ifndef RUN_RANK_H
#define RUN_RANK_H

#include "run/output.h"
#include "run/watchdog.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/types.h>

enum {
    RUN_MAX_RANKS = 1024,
    RUN_N_STREAMS = 2, /* standard output and standard error */
    RUN_KEY_BYTES = 33
};

struct run;

struct run_rank {
    int rank;
    pid_t pid;
    bool has_ended;
    int exit_code;    /* 128 + signal for one that was killed */
    int death_signal; /* 0 if there is none */
    int control_fd;   /* of an agent that has a control pipe, where it is written; otherwise -1 */
    int n_reported;   /* of an agent: how many of its ranks have ended */
    bool was_judged;  /* an agent: its end was looked at */
    bool is_holding;  /* an agent: its worker waits for ranks that hold */
    struct run *run;  /* an agent: for its reports */
    struct run_stream streams[RUN_N_STREAMS];
};

/* A child that is no rank itself. */
struct run_agent {
    char *name;     /* for messages: "the agent of b (ssh)" */
    char **program; /* and its arguments, ended by NULL */
    int n_ranks;    /* that it starts */
    /* What its standard input begins with; bytes behind it are signals. NULL if it has the launcher's. */
    const char *input;
    size_t input_bytes;
};

/* What all ranks of a run have in common. */
struct run_plan {
    const char *command; /* in front of what the launcher says: "shoal run" */
    bool tells_codes;    /* names a rank that ended with another exit code than 0: it may have said nothing */
    int n_ranks;
    bool has_labels;
    double grace_s;
    char **program; /* and its arguments, ended by NULL */
    /* The file of the program; ranks are then called "COMMAND: rank N" in lists of processes. NULL if program[0] is looked
       for in PATH. */
    const char *path;
    /* Ranks begin with the launcher's signals blocked, and call run_signals_unblock when they are ready for them. */
    bool has_masked_ranks;
    char key[RUN_KEY_BYTES]; /* unique to the run; made by run_job if it is empty */
    int input_fd;            /* standard input of rank 0; the others have none */
    struct run_watchdog watchdog;
    int hold_fd; /* run/hold.h; -1 if there is none */
    /* Ranks of several hosts: */
    /* n_ranks children of the launcher are these; NULL if they are the ranks. */
    const struct run_agent *agents;
    int n_ranks_all; /* of the job; 0 means n_ranks */
    bool is_patient; /* when a rank fails, the others have the grace to end by themselves */
    /* Of a worker, on the ranks' own host: */
    /* Reports go to the launcher, and nothing is said here; NULL if this is no worker. */
    const char *host;
    int first_rank;       /* of those of this host */
    bool has_control;     /* standard input carries signals, one byte each; its end ends the ranks */
    bool is_rank_foreign; /* another launcher has told the rank its place */
    /* For ranks; the rest as the launcher found it: */
    sigset_t signal_mask;
    struct sigaction pipe_action;
    struct rlimit file_limit;
};

/* 0, or the errno of what failed: with *is_program_out, executing the program. The streams' sinks are set by the
   caller. Nothing is left behind on failure. */
int run_rank_start(struct run_rank *rank, const struct run_plan *plan, bool *is_program_out);

/* Looks whether it has ended; false when that is no news. */
bool run_rank_look(struct run_rank *rank);

/* To the whole group, what the rank left behind included. An agent with a control pipe passes it on; SIGKILL ends the agent
   itself, and its worker ends the ranks when it sees the end of the pipe. */
void run_rank_signal(const struct run_rank *rank, int number);

/* The zombie goes. */
void run_rank_reap(struct run_rank *rank);

#endif
