/* SPDX-License-Identifier: MIT */
/* Children of tests: a function in a forked process, and whole programs with their output. */
#include "harness/harness.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness/test.h"

void harness_child_exit(void)
{
    (void)fflush(NULL);
    int code = test_has_failed() ? 1 : 0;
    if (HARNESS_HAS_ASAN) {
        /* The leak sanitizer's search at exit takes seconds per process on some machines (4 s on aarch64). The
           blocks of the library were counted already, and thread ranks are searched with the program. */
        _exit(code);
    }
    /* Not _exit: coverage is written, and races are counted, at exit. */
    exit(code);
}

/* waitpid that signals cannot end. */
static int wait_for(pid_t pid)
{
    int wait_status = 0;
    while (waitpid(pid, &wait_status, 0) < 0 && errno == EINTR) {
    }
    return wait_status;
}

void test_in_child(void (*body)(void *context), void *context)
{
    (void)fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) {
        test_failed(__FILE__, __LINE__, "no child process: %s", strerror(errno));
        return;
    }
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        harness_memory_begin();
        harness_descriptors_begin();
        body(context);
        harness_memory_end();
        harness_descriptors_end();
        harness_child_exit();
    }
    int wait_status = wait_for(pid);
    if (WIFSIGNALED(wait_status)) {
        test_failed(__FILE__, __LINE__, "the child was ended by signal %d (%s)", WTERMSIG(wait_status),
                    strsignal(WTERMSIG(wait_status)));
    } else if (WEXITSTATUS(wait_status) != 0) {
        test_failed(__FILE__, __LINE__, "the child ended with exit code %d", WEXITSTATUS(wait_status));
    }
}

/* The search for leaks takes seconds on some machines; the harness of a program that is run counts its own memory. */
static void search_no_leaks(void)
{
    char options[1024];
    const char *given = getenv("ASAN_OPTIONS");
    (void)snprintf(options, sizeof options, "%s:detect_leaks=0", given ? given : "");
    (void)setenv("ASAN_OPTIONS", options, 1);
}

static void run_program(const char *const *arguments, const char *const *environment, int output)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)dup2(output, STDOUT_FILENO);
    (void)dup2(output, STDERR_FILENO);
    search_no_leaks();
    for (; environment && *environment; environment++) {
        /* putenv takes char * for history's sake and does not change the string. */
        (void)putenv(strdup(*environment));
    }
    /* So does execvp. */
    (void)execvp(arguments[0], (char *const *)(uintptr_t)arguments);
    (void)fprintf(stderr, "%s cannot be run: %s\n", arguments[0], strerror(errno));
    _exit(127);
}

/* Reads to the end of the pipe, beyond the buffer too, so that the writer is never stopped. */
static void read_all(int input, char *output, size_t output_bytes)
{
    size_t used = 0;
    char buffer[4096];
    ssize_t bytes;
    while ((bytes = read(input, buffer, sizeof buffer)) > 0 || (bytes < 0 && errno == EINTR)) {
        size_t room = output_bytes - 1 - used;
        size_t taken = bytes < 0 ? 0 : (size_t)bytes;
        taken = taken < room ? taken : room;
        memcpy(output + used, buffer, taken);
        used += taken;
    }
    output[used] = '\0';
}

int test_run_program(const char *const *arguments, const char *const *environment, char *output,
                     size_t output_bytes)
{
    int ends[2];
    output[0] = '\0';
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return -1;
    }
    (void)fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        run_program(arguments, environment, ends[1]);
    }
    (void)close(ends[1]);
    if (pid > 0) {
        read_all(ends[0], output, output_bytes);
    }
    (void)close(ends[0]);
    if (pid < 0) {
        return -1;
    }
    int wait_status = wait_for(pid);
    return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

static char program_path[PATH_MAX];

void harness_set_program(const char *name)
{
    char folder[PATH_MAX - NAME_MAX - 2];
    const char *slash = strrchr(name, '/');
    if (!slash || !getcwd(folder, sizeof folder)) {
        /* Found on the path, if at all: the file that runs. */
        ssize_t bytes = readlink("/proc/self/exe", program_path, sizeof program_path - 1);
        program_path[bytes > 0 ? bytes : 0] = '\0';
    } else if (name[0] == '/') {
        (void)snprintf(program_path, sizeof program_path, "%s", name);
    } else {
        (void)snprintf(program_path, sizeof program_path, "%s/%s", folder, name);
    }
}

const char *test_program(void)
{
    return program_path;
}
