/* SPDX-License-Identifier: MIT */
/* Kills the ranks of a launcher that is gone. See run/watchdog.h. */
#include "run/watchdog.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
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

/*
 * The memory that the system shows as the command line: arguments, and behind them the environment, which this process
 * does not read any more. Returns false if the system does not say where it is.
 */
static bool find_command_line(char **begin_out, size_t *bytes_out)
{
    char text[1024];
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    ssize_t n_bytes = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0) {
        (void)close(fd);
    }
    text[n_bytes > 0 ? n_bytes : 0] = '\0';
    const char *at = strrchr(text, ')'); /* behind field 2, which may contain anything */
    uintptr_t ends[2] = {0};             /* fields 48 and 51 */
    for (int field = 2; at && field <= 51; field++) {
        ends[0] = field == 48 ? (uintptr_t)strtoull(at, NULL, 10) : ends[0];
        ends[1] = field == 51 ? (uintptr_t)strtoull(at, NULL, 10) : ends[1];
        at = strchr(at + 1, ' ');
    }
    *begin_out = (char *)ends[0]; /* NOLINT(performance-no-int-to-ptr): the system tells it as a number */
    *bytes_out = (size_t)(ends[1] - ends[0]);
    return ends[0] != 0 && ends[1] > ends[0];
}

/* Without this, ps would show the launcher twice. */
static void name_process(const char *command, pid_t launcher)
{
    char *begin;
    size_t bytes;
    char title[64];
    (void)prctl(PR_SET_NAME, "shoal watchdog");
    int length = snprintf(title, sizeof title, "%s: watchdog of %ld", command, (long)launcher);
    if (find_command_line(&begin, &bytes) && length > 0 && (size_t)length < bytes) {
        memset(begin, 0, bytes);
        memcpy(begin, title, (size_t)length);
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

bool run_watchdog_start(struct run_watchdog *watchdog, const char *command, int max_groups)
{
    int ends[2];
    pid_t launcher = getpid();
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return false;
    }
    pid_t *groups = calloc((size_t)max_groups, sizeof *groups);
    watchdog->pid = groups ? fork() : -1;
    if (watchdog->pid == 0) {
        (void)close(ends[1]);
        name_process(command, launcher);
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
