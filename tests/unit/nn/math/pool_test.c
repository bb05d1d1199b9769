/* SPDX-License-Identifier: MIT */
/* The pool: every part runs once, whoever calls, nested calls, several callers, forks, other numbers of threads. */
#include "nn/math/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit/nn/fixture.h"

#define N_PARTS 100

struct counts {
    _Atomic int part[N_PARTS];
    _Atomic int inner;
};

static void count_part(void *context, size_t part)
{
    struct counts *counts = context;
    atomic_fetch_add(&counts->part[part], 1);
}

static void check_counts(const struct counts *counts, int expected)
{
    for (int i = 0; i < N_PARTS; i++) {
        CHECK_INT(counts->part[i], expected);
    }
}

static void run_jobs(int n_jobs)
{
    struct counts counts = {.inner = 0};
    for (int i = 0; i < n_jobs; i++) {
        nn_parallel(N_PARTS, count_part, &counts);
    }
    check_counts(&counts, n_jobs);
}

TEST(every_part_runs_once)
{
    for (int n_threads = 1; n_threads <= 5; n_threads++) {
        REQUIRE_OK(shoal_nn_set_threads(n_threads));
        run_jobs(50);
    }
    REQUIRE_OK(shoal_nn_set_threads(2));
    run_jobs(50);
    nn_parallel(0, count_part, NULL);
}

static void count_inner(void *context, size_t part)
{
    struct counts *counts = context;
    (void)part;
    atomic_fetch_add(&counts->inner, 1);
}

static void count_nested(void *context, size_t part)
{
    count_part(context, part);
    nn_parallel(3, count_inner, context);
}

TEST(bodies_may_call_again)
{
    struct counts counts = {.inner = 0};
    REQUIRE_OK(shoal_nn_set_threads(4));
    nn_parallel(N_PARTS, count_nested, &counts);
    check_counts(&counts, 1);
    CHECK_INT(counts.inner, 3 * N_PARTS);
}

static void *call_often(void *unused)
{
    (void)unused;
    run_jobs(200);
    return NULL;
}

TEST(several_threads_may_call)
{
    pthread_t threads[4];
    REQUIRE_OK(shoal_nn_set_threads(3));
    for (int i = 0; i < 4; i++) {
        REQUIRE(pthread_create(&threads[i], NULL, call_often, NULL) == 0);
    }
    for (int i = 0; i < 4; i++) {
        (void)pthread_join(threads[i], NULL);
    }
}

/* The child makes threads of its own, also when another thread of the parent had the pool. */
TEST(forked_children_have_a_pool)
{
#if defined(__SANITIZE_THREAD__)
    test_skip("the thread sanitizer allows no threads in forked children");
    return;
#endif
    pthread_t other;
    REQUIRE_OK(shoal_nn_set_threads(3));
    run_jobs(10);
    REQUIRE(pthread_create(&other, NULL, call_often, NULL) == 0);
    for (int i = 0; i < 5; i++) {
        pid_t child = fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            run_jobs(10);
            _exit(test_has_failed() ? 1 : 0);
        }
        int status = -1;
        REQUIRE(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    (void)pthread_join(other, NULL);
}

static void *fork_often(void *unused)
{
    (void)unused;
    for (int i = 0; i < 20; i++) {
        run_jobs(1);
        pid_t child = fork();
        if (child == 0) {
            _exit(0);
        }
        int status = -1;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    }
    return NULL;
}

/* Each fork ends the threads of the pool and waits for them, while others fork and make new ones. */
TEST(several_threads_may_fork)
{
    pthread_t threads[3];
    REQUIRE_OK(shoal_nn_set_threads(4));
    for (int i = 0; i < 3; i++) {
        REQUIRE(pthread_create(&threads[i], NULL, fork_often, NULL) == 0);
    }
    for (int i = 0; i < 3; i++) {
        (void)pthread_join(threads[i], NULL);
    }
}

TEST(parts_depend_on_the_work_alone)
{
    for (int n_threads = 1; n_threads <= 8; n_threads *= 2) {
        REQUIRE_OK(shoal_nn_set_threads(n_threads));
        CHECK_INT(nn_parts(0, 1), 1);
        CHECK_INT(nn_parts(1000, 1), 1);
        CHECK_INT(nn_parts(1 << 20, 1), 32);
        CHECK_INT(nn_parts(8, 1 << 20), 8);
        CHECK_INT(nn_parts(SIZE_MAX, SIZE_MAX), NN_MAX_PARTS);
    }
    for (size_t n = 0; n < 50; n++) {
        for (size_t n_parts = 1; n_parts < 10; n_parts++) {
            CHECK_INT(nn_part_first(n, n_parts, 0), 0);
            CHECK_INT(nn_part_first(n, n_parts, n_parts), n);
            for (size_t i = 0; i < n_parts; i++) {
                size_t count = nn_part_first(n, n_parts, i + 1) - nn_part_first(n, n_parts, i);
                CHECK(count == n / n_parts || count == n / n_parts + 1);
            }
        }
    }
}
