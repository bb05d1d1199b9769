/* SPDX-License-Identifier: MIT */
/* Starting the ranks of a benchmark, waiting for them, and what their times come to. */
#include "bench/ranks.h"
#include "common/tool.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Ranks as processes ----------------------------------------------------------------------------------- */

/* In the child. Goes with its parent; exit without the parent's handlers. */
static _Noreturn void run_child(const struct bench_ranks *ranks, int rank, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(TOOL_FAILED);
    }
    bool is_good = ranks->run(ranks->context, ranks->page, rank);
    bool is_written = fflush(stdout) == 0;
    _exit(is_good && is_written ? TOOL_DONE : TOOL_FAILED);
}

static bool is_success(int rank, int wait_status)
{
    if (WIFSIGNALED(wait_status)) {
        fprintf(stderr, "shoal bench: rank %d ended by signal %d (%s)\n", rank, WTERMSIG(wait_status),
                strsignal(WTERMSIG(wait_status)));
    }
    return WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0;
}

/* Only ranks whose number is in `children`: others are somebody else's. */
static bool wait_for_children(struct measure_page *page, const pid_t *children, int n_children)
{
    bool is_good = true;
    for (int n_left = n_children; n_left > 0;) {
        int wait_status;
        pid_t pid = waitpid(-1, &wait_status, 0);
        if (pid < 0 && errno != EINTR) {
            perror("shoal bench: waitpid");
            return false;
        }
        for (int rank = 0; rank < n_children; rank++) {
            if (pid > 0 && children[rank] == pid) {
                n_left--;
                if (!is_success(rank, wait_status)) {
                    is_good = false;
                    measure_page_fail(page);
                }
            }
        }
    }
    return is_good;
}

static bool run_processes(const struct bench_ranks *ranks)
{
    pid_t children[MEASURE_MAX_RANKS];
    pid_t parent = getpid();
    int n_children = 0;
    fflush(stdout);
    for (; n_children < ranks->n_ranks; n_children++) {
        children[n_children] = fork();
        if (children[n_children] == 0) {
            run_child(ranks, n_children, parent);
        }
        if (children[n_children] < 0) {
            perror("shoal bench: fork");
            measure_page_fail(ranks->page);
            break;
        }
    }
    /* With too few the world of the others does not open: its deadline ends them. */
    return wait_for_children(ranks->page, children, n_children) && n_children == ranks->n_ranks;
}

/* Ranks as threads ------------------------------------------------------------------------------------- */

struct thread {
    const struct bench_ranks *ranks;
    pthread_t handle;
    int rank;
    bool is_good;
};

static void *run_thread(void *context)
{
    struct thread *thread = context;
    const struct bench_ranks *ranks = thread->ranks;
    thread->is_good = ranks->run(ranks->context, ranks->page, thread->rank);
    return NULL;
}

static bool run_threads(const struct bench_ranks *ranks)
{
    struct thread threads[MEASURE_MAX_RANKS];
    int n_threads = 0;
    for (; n_threads < ranks->n_ranks; n_threads++) {
        struct thread *thread = &threads[n_threads];
        *thread = (struct thread){.ranks = ranks, .rank = n_threads};
        int error = pthread_create(&thread->handle, NULL, run_thread, thread);
        if (error != 0) {
            fprintf(stderr, "shoal bench: the thread of rank %d could not be created: %s\n", n_threads,
                    strerror(error));
            measure_page_fail(ranks->page);
            break;
        }
    }
    bool is_good = n_threads == ranks->n_ranks;
    for (int rank = 0; rank < n_threads; rank++) {
        pthread_join(threads[rank].handle, NULL);
        is_good = is_good && threads[rank].is_good;
    }
    return is_good;
}

bool bench_ranks_run(const struct bench_ranks *ranks)
{
    return ranks->is_threads ? run_threads(ranks) : run_processes(ranks);
}

/* Times ------------------------------------------------------------------------------------------------ */

static int compare_times(const void *left, const void *right)
{
    int64_t a = *(const int64_t *)left;
    int64_t b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

double bench_ranks_median_ns(struct measure_page *page, int n_ranks, size_t first, size_t n_times)
{
    int64_t *longest = calloc(n_times, sizeof(longest[0]));
    if (!longest) {
        return -1.0;
    }
    for (int rank = 0; rank < n_ranks; rank++) {
        const int64_t *times = measure_page_times(page, rank) + first;
        for (size_t i = 0; i < n_times; i++) {
            longest[i] = times[i] > longest[i] ? times[i] : longest[i];
        }
    }
    qsort(longest, n_times, sizeof(longest[0]), compare_times);
    size_t middle = n_times / 2;
    double median_ns = (double)(longest[n_times - 1 - middle] + longest[middle]) * 0.5;
    free(longest);
    return median_ns;
}

bool bench_ranks_check(const char *bench, int rank, shoal_status status, const char *what)
{
    if (status != SHOAL_OK) {
        fprintf(stderr, "shoal bench %s: rank %d: %s: %s\n", bench, rank, what, shoal_error_text());
    }
    return status == SHOAL_OK;
}
