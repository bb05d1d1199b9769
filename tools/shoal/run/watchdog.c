/* SPDX-License-Identifier: MIT */
/* Kills the ranks of a launcher that is gone. See run/watchdog.h. */
#include "run/watchdog.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* Numbers that came through the pipe. Each was written at once and is small: none comes in pieces. */
static int read_groups(int fd, pid_t *groups, int max_groups)
{
    int n_groups = 0;
    for (;;) {
        pid_t group;
        ssize_t n_bytes = read(fd, &group, sizeof group);
        if (n_bytes == (ssize_t)sizeof group && n_groups < max_groups) {
            groups[n_groups++] = group;
        } else if (n_bytes == 0 || (n_bytes < 0 && errno != EINTR)) {
            return n_groups;
        }
    }
}

/* What the launcher was given (a pipe of its caller, a terminal) must end with the launcher. */
static void leave_outputs(void)
{
    int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd <= STDERR_FILENO; fd++) {
        (void)(nothing >= 0 ? dup2(nothing, fd) : close(fd));
    }
}

static _Noreturn void watch(int fd, pid_t *groups, int max_groups)
{
    /* No signal from a terminal or a group comes here, and none that could be blocked. */
    sigset_t all;
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, NULL);
    (void)setsid();
    leave_outputs();
    int n_groups = read_groups(fd, groups, max_groups);
    for (int i = 0; i < n_groups; i++) {
        (void)kill(-groups[i], SIGKILL);
    }
    _exit(0);
}

bool run_watchdog_start(struct run_watchdog *watchdog, int max_groups)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return false;
    }
    pid_t *groups = calloc((size_t)max_groups, sizeof *groups);
    watchdog->pid = groups ? fork() : -1;
    if (watchdog->pid == 0) {
        (void)close(ends[1]);
        watch(ends[0], groups, max_groups);
    }
    int error = errno;
    free(groups);
    (void)close(ends[0]);
    watchdog->fd = ends[1];
    if (watchdog->pid < 0) {
        (void)close(ends[1]);
        errno = error;
        return false;
    }
    return true;
}

bool run_watchdog_join(const struct run_watchdog *watchdog)
{
    pid_t self = getpid();
    return write(watchdog->fd, &self, sizeof self) == (ssize_t)sizeof self;
}

void run_watchdog_stop(struct run_watchdog *watchdog)
{
    (void)kill(watchdog->pid, SIGKILL);
    (void)close(watchdog->fd);
    while (waitpid(watchdog->pid, NULL, 0) < 0 && errno == EINTR) {
    }
}
