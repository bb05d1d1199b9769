/* SPDX-License-Identifier: MIT */
/*
 * The hosts of `shoal run --hosts FILE`. A line of the file is
 *
 *   NAME [slots=N]     N: how many ranks the host takes, 1 by default
 *
 * and # begins a comment. Ranks fill the hosts in the order of the file.
 */
#ifndef RUN_HOSTS_H
#define RUN_HOSTS_H

#include <stdbool.h>

#include "run/report.h"

struct run_host {
    char name[RUN_HOST_BYTES];
    int line; /* of the file */
    int slots;
    int n_ranks; /* that it got */
    int first_rank;
};

struct run_hosts {
    struct run_host *hosts;
    int n_hosts;
    int n_used; /* those that got ranks, the first of the file */
    int n_ranks;
};

/* Reads the file and gives each host its ranks. If n_ranks is 0, there are as many as there are slots. Returns false if
   it fails, after a message that names the line. */
bool run_hosts_read(const char *path, int n_ranks, struct run_hosts *hosts_out);
void run_hosts_free(struct run_hosts *hosts);

#endif
