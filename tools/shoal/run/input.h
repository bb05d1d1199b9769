/* SPDX-License-Identifier: MIT */
/*
 * Standard input of rank 0. A file or a pipe is passed on as it is. A terminal is not: it belongs to the launcher's
 * process group, and would stop a reader in any other group. So typed input goes through a pipe.
 */
#ifndef RUN_INPUT_H
#define RUN_INPUT_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>

struct run_input {
    int rank_fd; /* for rank 0 */
    int pipe_fd; /* what is typed is written here; -1 if it is not a terminal, or closed */
    size_t begin, end;
    char bytes[4096];
};

/* False, with errno, on failure. */
bool run_input_open(struct run_input *input);
/* The launcher's copy of what rank 0 has by now. */
void run_input_started(struct run_input *input);
void run_input_close(struct run_input *input);

/* Gives what to wait for. Returns false if there is nothing: look again after a while, the terminal belongs to
   others. */
bool run_input_poll(const struct run_input *input, struct pollfd *poll_out);
/* Moves what can be moved without waiting. */
void run_input_move(struct run_input *input);

#endif
