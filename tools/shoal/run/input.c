/* SPDX-License-Identifier: MIT */
/* What is typed, on its way to rank 0. See run/input.h. */
#include "run/input.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

bool run_input_open(struct run_input *input)
{
    *input = (struct run_input){.rank_fd = STDIN_FILENO, .pipe_fd = -1};
    if (!isatty(STDIN_FILENO)) {
        return true;
    }
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return false;
    }
    input->rank_fd = ends[0];
    input->pipe_fd = ends[1];
    return fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0;
}

void run_input_started(struct run_input *input)
{
    if (input->rank_fd > STDERR_FILENO) {
        (void)close(input->rank_fd);
    }
    input->rank_fd = -1;
}

void run_input_close(struct run_input *input)
{
    if (input->pipe_fd >= 0) {
        (void)close(input->pipe_fd);
    }
    input->pipe_fd = -1;
}

/* Reading in the background would stop the launcher. */
static bool may_read(void)
{
    return tcgetpgrp(STDIN_FILENO) == getpgrp();
}

bool run_input_poll(const struct run_input *input, struct pollfd *poll_out)
{
    *poll_out = (struct pollfd){.fd = -1};
    if (input->pipe_fd < 0) {
        return true;
    }
    if (input->begin < input->end) {
        *poll_out = (struct pollfd){.fd = input->pipe_fd, .events = POLLOUT};
        return true;
    }
    if (!may_read()) {
        return false;
    }
    *poll_out = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
    return true;
}

static void read_typed(struct run_input *input)
{
    ssize_t n_bytes = read(STDIN_FILENO, input->bytes, sizeof input->bytes);
    if (n_bytes > 0) {
        input->begin = 0;
        input->end = (size_t)n_bytes;
    } else if (n_bytes == 0 || (errno != EAGAIN && errno != EINTR)) {
        run_input_close(input);
    }
}

void run_input_move(struct run_input *input)
{
    struct pollfd look;
    if (input->pipe_fd >= 0 && input->begin == input->end && run_input_poll(input, &look) &&
        poll(&look, 1, 0) > 0) {
        read_typed(input);
    }
    if (input->pipe_fd < 0 || input->begin == input->end) {
        return;
    }
    ssize_t n_bytes = write(input->pipe_fd, input->bytes + input->begin, input->end - input->begin);
    if (n_bytes > 0) {
        input->begin += (size_t)n_bytes;
    } else if (n_bytes < 0 && errno != EAGAIN && errno != EINTR) {
        run_input_close(input); /* rank 0 reads no more */
    }
}
