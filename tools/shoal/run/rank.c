/* SPDX-License-Identifier: MIT */
/* Starting a rank and seeing how it ends. See run/rank.h. */
#include "run/rank.h"
#include "run/hold.h"
#include "common/place.h"

#include "bootstrap/meet/environment.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Pipes between the launcher and a rank that is being started: [0] is read, [1] is written. */
struct rank_pipes {
    int streams[RUN_N_STREAMS][2];
    int control[2]; /* of agents */
    int report[2];  /* closed by a successful exec, otherwise a struct start_failure comes */
};

struct start_failure {
    int error;
    bool is_program;
};

static void close_pair(int *pair)
{
    for (int end = 0; end < 2; end++) {
        if (pair[end] >= 0) {
            (void)close(pair[end]);
        }
        pair[end] = -1;
    }
}

static void close_pipes(struct rank_pipes *pipes)
{
    for (int i = 0; i < RUN_N_STREAMS; i++) {
        close_pair(pipes->streams[i]);
    }
    close_pair(pipes->control);
    close_pair(pipes->report);
}

/* The pipe is made large enough for what an agent reads first, so that nobody waits for it to read. */
static bool open_control(struct rank_pipes *pipes, const struct run_agent *agent)
{
    if (pipe2(pipes->control, O_CLOEXEC) != 0 || fcntl(pipes->control[1], F_SETFL, O_NONBLOCK) != 0) {
        return false;
    }
    int capacity = fcntl(pipes->control[1], F_GETPIPE_SZ);
    if ((size_t)capacity < agent->input_bytes + PIPE_BUF &&
        fcntl(pipes->control[1], F_SETPIPE_SZ, (int)agent->input_bytes + PIPE_BUF) < 0) {
        return false;
    }
    ssize_t n_bytes = write(pipes->control[1], agent->input, agent->input_bytes);
    errno = n_bytes >= 0 ? E2BIG : errno;
    return n_bytes == (ssize_t)agent->input_bytes;
}

static bool open_pipes(struct rank_pipes *pipes, const struct run_agent *agent)
{
    *pipes = (struct rank_pipes){.streams = {{-1, -1}, {-1, -1}}, .control = {-1, -1}, .report = {-1, -1}};
    if (agent && agent->input && !open_control(pipes, agent)) {
        return false;
    }
    for (int i = 0; i < RUN_N_STREAMS; i++) {
        /* Only the launcher's end must not block: that is a property of the end, not of the pipe. */
        if (pipe2(pipes->streams[i], O_CLOEXEC) != 0 ||
            fcntl(pipes->streams[i][0], F_SETFL, O_NONBLOCK) != 0) {
            return false;
        }
    }
    return pipe2(pipes->report, O_CLOEXEC) == 0;
}

static bool set_number(const char *name, int value)
{
    char text[16];
    (void)snprintf(text, sizeof text, "%d", value);
    return setenv(name, text, /*overwrite=*/1) == 0;
}

static bool set_environment(const struct run_plan *plan, int rank)
{
    if (plan->hold_fd >= 0 && !run_hold_pass(plan->hold_fd)) {
        return false;
    }
    if (plan->agents || plan->is_rank_foreign) {
        return true;
    }
    int n_ranks = plan->n_ranks_all > 0 ? plan->n_ranks_all : plan->n_ranks;
    return environment_note_outer() && set_number("SHOAL_RANK", plan->first_rank + rank) &&
           set_number("SHOAL_RANKS", n_ranks) && setenv("SHOAL_KEY", plan->key, /*overwrite=*/1) == 0 &&
           (!plan->path || setenv(TOOL_PLACE_AGAIN, plan->key, /*overwrite=*/1) == 0);
}

static bool set_files(const struct run_plan *plan, int rank, const struct rank_pipes *pipes)
{
    bool has_input = rank == 0 && !plan->has_control;
    int input = pipes->control[0] >= 0 ? pipes->control[0]
                : has_input            ? plan->input_fd
                                       : open("/dev/null", O_RDONLY | O_CLOEXEC);
    return input >= 0 && dup2(input, STDIN_FILENO) >= 0 && dup2(pipes->streams[0][1], STDOUT_FILENO) >= 0 &&
           dup2(pipes->streams[1][1], STDERR_FILENO) >= 0 && setrlimit(RLIMIT_NOFILE, &plan->file_limit) == 0;
}

/* A rank dies with the launcher. It may be gone already: then the signal was missed. */
static bool tie_to_launcher(const struct run_plan *plan, pid_t launcher)
{
    return setpgid(0, 0) == 0 && prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == launcher &&
           run_watchdog_join(&plan->watchdog);
}

static void reset_signals(const struct run_plan *plan)
{
    (void)sigaction(SIGPIPE, &plan->pipe_action, NULL);
    (void)sigprocmask(SIG_SETMASK, &plan->signal_mask, NULL);
}

static _Noreturn void become_program(const struct run_plan *plan, int rank, pid_t launcher,
                                     const struct rank_pipes *pipes)
{
    struct start_failure failure = {0};
    if (tie_to_launcher(plan, launcher) && set_files(plan, rank, pipes) && set_environment(plan, rank)) {
        reset_signals(plan);
        failure.is_program = true;
        char **program = plan->agents ? plan->agents[rank].program : plan->program;
        if (plan->path && !plan->agents) {
            char title[64];
            (void)snprintf(title, sizeof title, "%s: rank %d", plan->command, rank);
            program[0] = title;
            (void)execv(plan->path, program);
        } else {
            (void)execvp(program[0], program);
        }
    }
    failure.error = errno;
    (void)!write(pipes->report[1], &failure, sizeof failure);
    _exit(EXIT_FAILURE);
}

/* Waits until the child has become its program, or could not. */
static struct start_failure read_report(int fd)
{
    struct start_failure failure = {0};
    ssize_t n_bytes;
    do {
        n_bytes = read(fd, &failure, sizeof failure);
    } while (n_bytes < 0 && errno == EINTR);
    return n_bytes == (ssize_t)sizeof failure ? failure : (struct start_failure){0};
}

static struct start_failure fork_rank(struct run_rank *rank, const struct run_plan *plan,
                                      struct rank_pipes *pipes)
{
    pid_t launcher = getpid();
    rank->pid = fork();
    if (rank->pid == 0) {
        become_program(plan, rank->rank, launcher, pipes);
    }
    if (rank->pid < 0) {
        return (struct start_failure){.error = errno};
    }
    (void)close(pipes->report[1]);
    pipes->report[1] = -1;
    struct start_failure failure = read_report(pipes->report[0]);
    if (failure.error != 0) {
        run_rank_reap(rank);
    }
    return failure;
}

int run_rank_start(struct run_rank *rank, const struct run_plan *plan, bool *is_program_out)
{
    struct rank_pipes pipes;
    struct start_failure failure = {0};
    rank->control_fd = -1;
    if (!open_pipes(&pipes, plan->agents ? &plan->agents[rank->rank] : NULL)) {
        failure.error = errno;
    } else {
        failure = fork_rank(rank, plan, &pipes);
    }
    for (int i = 0; i < RUN_N_STREAMS && failure.error == 0; i++) {
        struct run_stream *stream = &rank->streams[i];
        stream->fd = pipes.streams[i][0];
        pipes.streams[i][0] = -1;
        /* Between the lines of agents and workers there are reports. */
        stream->is_raw = !plan->has_labels && plan->n_ranks == 1 && !plan->agents && !plan->host;
        if (plan->has_labels && !plan->agents) {
            (void)snprintf(stream->label, sizeof stream->label, "[%d] ", plan->first_rank + rank->rank);
        }
    }
    if (failure.error == 0) {
        rank->control_fd = pipes.control[1];
        pipes.control[1] = -1;
    }
    close_pipes(&pipes);
    *is_program_out = failure.is_program;
    return failure.error;
}

bool run_rank_look(struct run_rank *rank)
{
    siginfo_t news = {0};
    if (rank->has_ended || waitid(P_PID, (id_t)rank->pid, &news, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        news.si_pid == 0) {
        return false;
    }
    rank->has_ended = true;
    rank->death_signal = news.si_code == CLD_EXITED ? 0 : news.si_status;
    rank->exit_code = news.si_code == CLD_EXITED ? news.si_status : 128 + news.si_status;
    return true;
}

void run_rank_signal(const struct run_rank *rank, int number)
{
    unsigned char byte = (unsigned char)number;
    if (rank->control_fd >= 0 && number != SIGKILL) {
        /* An agent that reads no more has ended, or is killed after the grace. */
        (void)!write(rank->control_fd, &byte, 1);
        return;
    }
    (void)kill(-rank->pid, number);
}

void run_rank_reap(struct run_rank *rank)
{
    if (rank->control_fd >= 0) {
        (void)close(rank->control_fd);
        rank->control_fd = -1;
    }
    while (waitpid(rank->pid, NULL, 0) < 0 && errno == EINTR) {
    }
}
