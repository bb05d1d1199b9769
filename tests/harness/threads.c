/* SPDX-License-Identifier: MIT */
/* Ranks as threads of the test program: the launcher under which the thread sanitizer sees everything. */
#include "harness/harness.h"

#include <pthread.h>

#include "harness/test.h"

struct thread_rank {
    struct rank self;
    const struct test_case *test;
    pthread_t thread;
    bool has_started;
};

static void *run_rank(void *argument)
{
    struct thread_rank *rank = argument;
    harness_set_thread_rank(rank->self.rank);
    rank->test->run_rank(&rank->self);
    harness_rank_leave(rank->self.rank, /*has_returned=*/true);
    return NULL;
}

void harness_run_threads(const struct test_case *test)
{
    struct thread_rank ranks[HARNESS_MAX_RANKS];
    for (int i = 0; i < test->n_ranks; i++) {
        ranks[i] = (struct thread_rank){
            .self = {.rank = i, .n_ranks = test->n_ranks, .is_process = false, .shared = harness_shared()},
            .test = test,
        };
        ranks[i].has_started = pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]) == 0;
        if (!ranks[i].has_started) {
            test_failed(__FILE__, __LINE__, "rank %d could not be started", i);
            harness_rank_leave(i, /*has_returned=*/false);
        }
    }
    for (int i = 0; i < test->n_ranks; i++) {
        if (ranks[i].has_started) {
            (void)pthread_join(ranks[i].thread, NULL);
        }
    }
}
