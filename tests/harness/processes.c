/* SPDX-License-Identifier: MIT */
/*
 * Ranks as processes. Each is forked into its own process group and writes into a pipe; the launcher prints
 * its lines with a label, waits for its end, and judges it:
 *
 *   body returned, exit code 0                -> the rank passed
 *   any other exit code, signal, early exit   -> the test fails and says which rank and how; the others get a
 *                                                short time to end by themselves, then they are killed
 *   deadline                                  -> the same, for all that still run
 *   expected to be ended by a signal          -> the rank passed if that is how it ended, and only then
 *
 * An ended rank is left a zombie until its whole group was killed, so that no number can be reused.
 */
#include "harness/harness.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness/test.h"

/* What the other ranks get to end by themselves, and perhaps to fail usefully, after one has failed. */
#define GRACE_SECONDS 2.0
/* Between two looks at children that have not ended; their pipes wake the launcher at once. */
#define POLL_MS 20
/* Between the end of a pipe and the end of its process there is next to nothing. */
#define POLL_ENDING_MS 1
#define LINE_BYTES 1024

struct process_rank {
    pid_t pid;  /* 0: not started */
    int output; /* read end of its pipe; -1 once closed */
    bool is_over;
    bool was_killed; /* by the launcher */
    char line[LINE_BYTES];
    size_t line_bytes;
};

struct launch {
    const struct test_case *test;
    int64_t kill_at_ns; /* the end of the grace; INT64_MAX while nothing has failed */
    int first_failed;   /* the rank that started the grace */
    struct process_rank ranks[HARNESS_MAX_RANKS];
};

static void run_child(struct launch *launch, int rank, int output)
{
    (void)setpgid(0, 0);
    /* A launcher that is killed takes its ranks along. */
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)dup2(output, STDOUT_FILENO);
    (void)dup2(output, STDERR_FILENO);
    (void)close(output);
    for (int i = 0; i <= rank; i++) {
        (void)close(launch->ranks[i].output);
    }
    atomic_store(&harness_control()->processes[rank], (int)getpid());
    harness_memory_begin();
    harness_descriptors_begin();
    struct rank self = {
        .rank = rank, .n_ranks = launch->test->n_ranks, .is_process = true, .shared = harness_shared()};
    launch->test->run_rank(&self);
    harness_memory_end();
    harness_descriptors_end();
    harness_rank_leave(rank, /*has_returned=*/true);
    harness_child_exit();
}

static void start_rank(struct launch *launch, int rank)
{
    struct process_rank *process = &launch->ranks[rank];
    int ends[2];
    process->output = -1;
    if (pipe2(ends, O_CLOEXEC) != 0) {
        test_failed(__FILE__, __LINE__, "rank %d: no pipe: %s", rank, strerror(errno));
        process->is_over = true;
        return;
    }
    process->output = ends[0];
    (void)fcntl(ends[0], F_SETFL, O_NONBLOCK);
    (void)fflush(NULL);
    process->pid = fork();
    if (process->pid == 0) {
        run_child(launch, rank, ends[1]);
    }
    (void)close(ends[1]);
    if (process->pid < 0) {
        test_failed(__FILE__, __LINE__, "rank %d could not be forked: %s", rank, strerror(errno));
        process->pid = 0;
        process->is_over = true;
        return;
    }
    /* Also done by the child: whoever is second finds it done. */
    (void)setpgid(process->pid, process->pid);
}

static void print_line(struct process_rank *process, int rank)
{
    if (process->line_bytes > 0) {
        harness_print("[rank %d] %.*s\n", rank, (int)process->line_bytes, process->line);
        process->line_bytes = 0;
    }
}

static void close_output(struct process_rank *process, int rank)
{
    print_line(process, rank);
    (void)close(process->output);
    process->output = -1;
}

/* Reads what is there and prints whole lines; false when there was nothing. */
static bool read_output(struct process_rank *process, int rank)
{
    char buffer[4096];
    ssize_t bytes = read(process->output, buffer, sizeof buffer);
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) {
        return false;
    }
    if (bytes <= 0) {
        close_output(process, rank);
        return false;
    }
    for (ssize_t i = 0; i < bytes; i++) {
        if (buffer[i] == '\n' || process->line_bytes == LINE_BYTES) {
            print_line(process, rank);
        }
        if (buffer[i] != '\n') {
            process->line[process->line_bytes++] = buffer[i];
        }
    }
    return true;
}

static void note_failure(struct launch *launch, int rank)
{
    harness_mark_failed();
    if (launch->kill_at_ns == INT64_MAX) {
        launch->first_failed = rank;
        launch->kill_at_ns = harness_now_ns() + (int64_t)(GRACE_SECONDS * harness_time_scale() * 1e9);
    }
}

static void judge_rank(struct launch *launch, int rank, int wait_status)
{
    const char *name = harness_name();
    bool has_returned = atomic_load(&harness_control()->has_returned[rank]) != 0;
    int doom = harness_doom(rank);
    if (launch->ranks[rank].was_killed) {
        harness_print("%s: rank %d was still running and was killed\n", name, rank);
    } else if (doom != 0 && WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == doom) {
        return;
    } else if (doom != 0 && has_returned) {
        harness_print("%s: rank %d came to its end, but was to be ended by signal %d\n", name, rank, doom);
    } else if (WIFSIGNALED(wait_status)) {
        harness_print("%s: rank %d was ended by signal %d (%s)\n", name, rank, WTERMSIG(wait_status),
                      strsignal(WTERMSIG(wait_status)));
    } else if (WEXITSTATUS(wait_status) != 0) {
        harness_print("%s: rank %d ended with exit code %d\n", name, rank, WEXITSTATUS(wait_status));
    } else if (!has_returned) {
        harness_print("%s: rank %d ended with exit code 0 before its test was over\n", name, rank);
    } else {
        return;
    }
    note_failure(launch, rank);
}

/* Takes note of ranks that have ended, and of what they left behind in their groups. */
static void reap_ranks(struct launch *launch)
{
    for (int i = 0; i < launch->test->n_ranks; i++) {
        struct process_rank *process = &launch->ranks[i];
        siginfo_t info = {.si_pid = 0};
        if (process->is_over || waitid(P_PID, (id_t)process->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
            info.si_pid == 0) {
            continue;
        }
        (void)kill(-process->pid, SIGKILL);
        int wait_status = 0;
        (void)waitpid(process->pid, &wait_status, 0);
        process->is_over = true;
        /* The last words come before the verdict. Somebody who left the group may still hold the pipe. */
        while (process->output >= 0 && read_output(process, i)) {
        }
        if (process->output >= 0) {
            close_output(process, i);
        }
        if (atomic_load(&harness_control()->has_returned[i]) == 0) {
            harness_rank_leave(i, /*has_returned=*/false);
        }
        judge_rank(launch, i, wait_status);
    }
}

static void kill_ranks(struct launch *launch)
{
    for (int i = 0; i < launch->test->n_ranks; i++) {
        struct process_rank *process = &launch->ranks[i];
        if (!process->is_over && !process->was_killed) {
            process->was_killed = true;
            (void)kill(-process->pid, SIGKILL);
        }
    }
}

/* Sleeps until a rank has written something, closed its output, or a short time has passed. */
static void wait_for_output(struct launch *launch)
{
    struct pollfd polled[HARNESS_MAX_RANKS];
    bool is_one_ending = false;
    for (int i = 0; i < launch->test->n_ranks; i++) {
        /* poll leaves out negative descriptors. */
        polled[i] = (struct pollfd){.fd = launch->ranks[i].output, .events = POLLIN};
        is_one_ending = is_one_ending || (launch->ranks[i].output < 0 && !launch->ranks[i].is_over);
    }
    int timeout_ms = is_one_ending ? POLL_ENDING_MS : POLL_MS;
    if (poll(polled, (nfds_t)launch->test->n_ranks, timeout_ms) <= 0) {
        return;
    }
    for (int i = 0; i < launch->test->n_ranks; i++) {
        if (polled[i].fd >= 0 && polled[i].revents != 0) {
            (void)read_output(&launch->ranks[i], i);
        }
    }
}

static bool are_all_over(const struct launch *launch)
{
    for (int i = 0; i < launch->test->n_ranks; i++) {
        if (!launch->ranks[i].is_over) {
            return false;
        }
    }
    return true;
}

static void enforce_deadline(struct launch *launch, bool *is_past)
{
    int64_t now_ns = harness_now_ns();
    if (!*is_past && now_ns >= atomic_load(&harness_control()->deadline_ns)) {
        *is_past = true;
        char unfinished[256];
        harness_list_unfinished(unfinished, sizeof unfinished);
        harness_print("%s: the deadline passed; ranks that had not finished:%s\n", harness_name(),
                      unfinished);
        harness_mark_failed();
        kill_ranks(launch);
    } else if (now_ns >= launch->kill_at_ns) {
        launch->kill_at_ns = INT64_MAX - 1;
        harness_print("%s: rank %d failed, so the others are ended\n", harness_name(), launch->first_failed);
        kill_ranks(launch);
    }
}

void harness_run_processes(const struct test_case *test)
{
    struct launch *launch = calloc(1, sizeof *launch);
    if (!launch) {
        test_failed(__FILE__, __LINE__, "no memory for the ranks");
        return;
    }
    launch->test = test;
    launch->kill_at_ns = INT64_MAX;
    for (int i = 0; i < test->n_ranks; i++) {
        start_rank(launch, i);
        if (launch->ranks[i].is_over) {
            note_failure(launch, i);
            harness_rank_leave(i, /*has_returned=*/false);
        }
    }
    bool is_past_deadline = false;
    while (!are_all_over(launch)) {
        wait_for_output(launch);
        reap_ranks(launch);
        enforce_deadline(launch, &is_past_deadline);
    }
    for (int i = 0; i < test->n_ranks; i++) {
        if (launch->ranks[i].output >= 0) {
            (void)close(launch->ranks[i].output);
        }
    }
    free(launch);
}

uint64_t test_process_number(int pid)
{
    struct stat about;
    uint64_t number = stat("/proc/self/ns/pid", &about) == 0 ? (uint64_t)about.st_ino : 0;
    return number << 32 | (uint32_t)pid;
}
