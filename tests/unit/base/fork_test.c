/* SPDX-License-Identifier: MIT */
/* A forked child knows that it is one, and so does its own child. Locks that are held in forks are free in it. */
#include "base/fork.h"

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness/test.h"

static int run_child(uint32_t before)
{
    if (!fork_is_child(before) || fork_check(before) != SHOAL_ERR_STATE) {
        return 1;
    }
    uint32_t own = fork_count();
    pid_t child = fork();
    if (child == 0) {
        _exit(fork_is_child(own) && fork_is_child(before) ? 0 : 1);
    }
    int status = 0;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0 && !fork_is_child(own) ? 0 : 1;
}

TEST(a_child_is_known)
{
    REQUIRE_OK(fork_watch());
    REQUIRE_OK(fork_watch());
    uint32_t before = fork_count();
    CHECK_OK(fork_check(before));
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        _exit(run_child(before));
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    CHECK(!fork_is_child(before));
    CHECK(fork_count() == before);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int first, second; /* equal, under the lock */

__attribute__((constructor)) static void hold_in_forks(void)
{
    fork_hold(FORK_TESTS, &lock);
}

static void *change(void *argument)
{
    enum {
        N_YIELDS = 100
    };
    atomic_bool *is_over = argument;
    while (!atomic_load(is_over)) {
        (void)pthread_mutex_lock(&lock);
        first++;
        for (int i = 0; i < N_YIELDS; i++) {
            (void)sched_yield();
        }
        second++;
        (void)pthread_mutex_unlock(&lock);
    }
    return NULL;
}

TEST(a_child_finds_locks_free_and_what_they_guard_whole)
{
    enum {
        N_FORKS = 50,
        PATIENCE_S = 30
    };
    atomic_bool is_over = false;
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, change, &is_over) == 0);
    for (int i = 0; i < N_FORKS && !test_has_failed(); i++) {
        pid_t child = fork();
        if (child == 0) {
            (void)alarm(PATIENCE_S);
            (void)pthread_mutex_lock(&lock);
            _exit(first == second ? 0 : 1);
        }
        int status = -1;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    }
    atomic_store(&is_over, true);
    (void)pthread_join(thread, NULL);
}
