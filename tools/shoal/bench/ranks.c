/* SPDX-License-Identifier: MIT */
/* The ranks of a benchmark: starting them or finding the launcher's, waiting for them, and what their times come to. */
#include "bench/ranks.h"
#include "bench/launched.h"
#include "common/tool.h"

#include "shoal/group.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Ends the waits of the others on the page if the rank has failed. */
static bool run_rank(const struct bench_ranks *ranks, int rank)
{
    bool is_good = ranks->run(ranks->context, ranks->page, rank);
    if (!is_good) {
        measure_page_fail(ranks->page);
    }
    return is_good;
}

/* Ranks as processes ----------------------------------------------------------------------------------- */

/* In the child. Goes with its parent; exit without the parent's handlers. */
static _Noreturn void run_child(const struct bench_ranks *ranks, int rank, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
        _exit(TOOL_FAILED);
    }
    bool is_good = run_rank(ranks, rank);
    bool is_written = fflush(stdout) == 0;
    _exit(is_good && is_written ? TOOL_DONE : TOOL_FAILED);
}

static bool is_success(int rank, int wait_status)
{
    if (WIFSIGNALED(wait_status) && WTERMSIG(wait_status) != SIGPIPE) {
        fprintf(stderr, "%s: rank %d ended by signal %d (%s)\n", tool_name(), rank, WTERMSIG(wait_status),
                strsignal(WTERMSIG(wait_status)));
    }
    return WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0;
}

/* Only ranks whose number is in `children`: others are somebody else's. */
static bool wait_for_children(struct measure_page *page, const pid_t *children, int n_children)
{
    bool is_good = true;
    bool has_reader = true;
    for (int n_left = n_children; n_left > 0;) {
        int wait_status;
        pid_t pid = waitpid(-1, &wait_status, 0);
        if (pid < 0 && errno != EINTR) {
            fprintf(stderr, "%s: waitpid: %s\n", tool_name(), strerror(errno));
            return false;
        }
        for (int rank = 0; rank < n_children; rank++) {
            if (pid > 0 && children[rank] == pid) {
                n_left--;
                has_reader = has_reader && !(WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGPIPE);
                if (!is_success(rank, wait_status)) {
                    is_good = false;
                    measure_page_fail(page);
                }
            }
        }
    }
    if (!has_reader) {
        (void)raise(SIGPIPE); /* a pipeline ends without a word, as others do */
    }
    return is_good;
}

static bool run_processes(const struct bench_ranks *ranks)
{
    pid_t children[MEASURE_MAX_RANKS];
    pid_t parent = getpid();
    int n_children = 0;
    fflush(stdout);
    for (; n_children < ranks->request->n_ranks; n_children++) {
        children[n_children] = fork();
        if (children[n_children] == 0) {
            run_child(ranks, n_children, parent);
        }
        if (children[n_children] < 0) {
            fprintf(stderr, "%s: fork: %s\n", tool_name(), strerror(errno));
            measure_page_fail(ranks->page);
            break;
        }
    }
    /* With too few the world of the others does not open: its deadline ends them. */
    return wait_for_children(ranks->page, children, n_children) && n_children == ranks->request->n_ranks;
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
    thread->is_good = run_rank(ranks, thread->rank);
    return NULL;
}

static bool run_threads(const struct bench_ranks *ranks)
{
    struct thread threads[MEASURE_MAX_RANKS];
    int n_threads = 0;
    for (; n_threads < ranks->request->n_ranks; n_threads++) {
        struct thread *thread = &threads[n_threads];
        *thread = (struct thread){.ranks = ranks, .rank = n_threads};
        int error = pthread_create(&thread->handle, NULL, run_thread, thread);
        if (error != 0) {
            fprintf(stderr, "%s: the thread of rank %d could not be created: %s\n", tool_name(), n_threads,
                    strerror(error));
            measure_page_fail(ranks->page);
            break;
        }
    }
    bool is_good = n_threads == ranks->request->n_ranks;
    for (int rank = 0; rank < n_threads; rank++) {
        pthread_join(threads[rank].handle, NULL);
        is_good = is_good && threads[rank].is_good;
    }
    return is_good;
}

/* Ranks that a launcher started ------------------------------------------------------------------------ */

static bool is_launched(const struct bench_ranks *ranks)
{
    return bench_place()->is_launched && !ranks->is_apart;
}

/* This process is one of them. All of them return the same. */
static bool run_launched(const struct bench_ranks *ranks)
{
    int rank = bench_place()->rank;
    bool is_good = run_rank(ranks, rank);
    size_t n_times = ranks->request->iterations > 0 ? (size_t)ranks->request->iterations : 0;
    return measure_page_agree(ranks->page, is_good) && measure_page_collect(ranks->page, rank, n_times);
}

/* All of them ------------------------------------------------------------------------------------------ */

bool bench_ranks_settle(struct measure_request *request, int standard, bool is_threads)
{
    const struct tool_place *place = bench_place();
    const char *given = request->n_ranks > 0 ? "--ranks" : is_threads ? "--threads" : NULL;
    if (!tool_place_may_start(place, given)) {
        return false;
    }
    if (place->n_ranks > MEASURE_MAX_RANKS) {
        (void)tool_refuse("%s has started %d ranks, but a benchmark has at most %d", place->launcher,
                          place->n_ranks, MEASURE_MAX_RANKS);
        return false;
    }
    request->n_ranks = place->is_launched     ? place->n_ranks
                       : request->n_ranks > 0 ? request->n_ranks
                                              : standard;
    return true;
}

bool bench_ranks_begin(struct bench_ranks *ranks)
{
    static int number;
    (void)snprintf(ranks->key, sizeof(ranks->key), "shoal bench %s %ld %d", ranks->bench, (long)getpid(),
                   number++);
    if (is_launched(ranks)) {
        ranks->page = bench_launched_open(ranks->transport) ? bench_launched_map(ranks->request) : NULL;
        return ranks->page;
    }
    ranks->page = measure_page_map(ranks->request, NULL);
    if (!ranks->page) {
        fprintf(stderr, "%s: shared memory: %s\n", tool_name(), strerror(errno));
    }
    return ranks->page;
}

void bench_ranks_end(struct bench_ranks *ranks)
{
    if (ranks->page) {
        measure_page_unmap(ranks->page);
        ranks->page = NULL;
    }
}

bool bench_ranks_run(const struct bench_ranks *ranks)
{
    if (is_launched(ranks)) {
        return run_launched(ranks);
    }
    if (bench_place()->is_launched) {
        return bench_place()->rank > 0 || run_threads(ranks);
    }
    return ranks->is_threads ? run_threads(ranks) : run_processes(ranks);
}

shoal_status bench_ranks_open_world(const struct bench_ranks *ranks, int rank, shoal_world **world_out)
{
    shoal_world_options options = SHOAL_WORLD_OPTIONS_INIT;
    options.n_ranks = ranks->request->n_ranks;
    options.rank = rank;
    options.transport = ranks->transport;
    if (is_launched(ranks)) {
        /* A rank that has failed already is not waited for. */
        if (!measure_page_agree(ranks->page, true)) {
            return SHOAL_ERR_CANCELLED;
        }
        options.exchange = bench_launched_exchange;
    } else {
        options.key = ranks->key;
    }
    return shoal_world_open(&options, world_out);
}

/* Others may wait for this rank in the world, on the page or in the control world. */
bool bench_ranks_agree(const struct bench_ranks *ranks, shoal_world *world, bool is_good)
{
    if (!is_good) {
        measure_page_fail(ranks->page);
        (void)shoal_group_abort(shoal_world_group(world), "a rank of the benchmark has failed");
    }
    return measure_page_agree(ranks->page, is_good);
}

bool bench_ranks_close_world(const struct bench_ranks *ranks, int rank, shoal_world *world, bool is_good)
{
    is_good = bench_ranks_agree(ranks, world, is_good);
    return bench_ranks_check(ranks->bench, rank, shoal_world_close(world), "closing the world") && is_good;
}

bool bench_ranks_gather(void *blocks, size_t block_bytes)
{
    return !bench_place()->is_launched || bench_launched_gather(blocks, block_bytes);
}

const char *bench_ranks_text(const struct measure_request *request, bool is_threads)
{
    static char text[128];
    const struct tool_place *place = bench_place();
    if (place->is_launched) {
        (void)snprintf(text, sizeof text, "%d ranks of %s", request->n_ranks, place->launcher);
    } else {
        (void)snprintf(text, sizeof text, "%d ranks as %s", request->n_ranks,
                       is_threads ? "threads" : "processes");
    }
    return text;
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
    if (status != SHOAL_OK && status != SHOAL_ERR_CANCELLED) {
        fprintf(stderr, "shoal bench %s: rank %d: %s: %s\n", bench, rank, what, shoal_error_text());
    }
    return status == SHOAL_OK;
}
