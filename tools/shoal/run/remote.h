/* SPDX-License-Identifier: MIT */
/*
 * `shoal run --hosts FILE`: ranks on several hosts, through an agent for each host (ssh, or the command in SHOAL_RSH),
 * or through one mpirun. Either starts workers (run/worker.h), which start the ranks.
 *
 * - Agents: ranks find rank 0 at SHOAL_ADDRESS, the first host and a random port. SHOAL_TOKEN is random. Both are sent
 *   through the standard input of the agents, so they do not appear on any command line.
 * - mpirun: the ranks find each other through MPI. The flags let surviving ranks report what has happened.
 */
#ifndef RUN_REMOTE_H
#define RUN_REMOTE_H

#include <stdbool.h>

#include "run/hosts.h"
#include "run/rank.h"

enum {
    RUN_MAX_VARIABLES = 256
};

struct run_remote {
    const char *hosts_path; /* NULL means this machine alone */
    const char *launcher;   /* "ssh", "mpirun"; NULL means what is there */
    const char *mpirun;     /* command and options; NULL means mpirun */
    const char *address;    /* HOST or HOST:PORT where rank 0 listens; NULL means the first host */
    /* NAME: passed on to the ranks besides SHOAL_*; NAME=VALUE */
    const char *variables[RUN_MAX_VARIABLES];
    int n_variables;
    char self[4096]; /* path of this program */
    struct run_hosts hosts;
};

/* The plan: command, has_labels, grace_s, program, and n_ranks (0 means all slots). Returns the exit code. */
int run_remote(struct run_remote *remote, const struct run_plan *plan);

/* One of run_remote each, when the hosts are known. */
int run_agents(const struct run_remote *remote, const struct run_plan *plan);
int run_mpirun(const struct run_remote *remote, const struct run_plan *plan);

/* Words of a command, separated by blanks, added to `words`; those point into `text`, which is changed. */
int run_remote_split(char *text, char **words, int n_words, int max_words);

/* Whether the ranks get a variable of the launcher's environment, NAME=VALUE. */
bool run_remote_passes(const struct run_remote *remote, const char *variable);

#endif
