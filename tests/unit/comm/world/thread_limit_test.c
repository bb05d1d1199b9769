/* SPDX-License-Identifier: MIT */
/*
 * A limit on the threads of the user (ulimit -u): whatever thread the library cannot create because of it, the call fails
 * with a text that names the limit, neither memory nor descriptors are lost, other ranks hear of it, and everything works
 * when the limit is gone.
 *
 * The kernel holds root to no such limit, so a process of root becomes a user that nobody else is. Of any other user all
 * processes count, and only the limit that allows no thread at all can be tried.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/group.h"
#include "shoal/work.h"
#include "shoal/world.h"

#if defined(__SANITIZE_THREAD__)
#define HAS_THREAD_SANITIZER 1
#else
#define HAS_THREAD_SANITIZER 0
#endif

/* Enough for the collective to need the thread of the lane. */
#define COUNT 200000
#define MOST_THREADS 24

/* A user of its own, as long as tests that run at the same time have other process numbers. */
static bool become_nobody_else(int number)
{
    if (geteuid() != 0) {
        return false;
    }
    uid_t user = (uid_t)(1000000 + number % 1000000);
    bool is_done = setresuid(user, user, user) == 0;
    CHECK(is_done);
    return is_done;
}

static void set_limit(rlim_t n_threads)
{
    struct rlimit limit = {.rlim_cur = 0};
    CHECK(getrlimit(RLIMIT_NPROC, &limit) == 0);
    limit.rlim_cur = n_threads < limit.rlim_max ? n_threads : limit.rlim_max;
    CHECK(setrlimit(RLIMIT_NPROC, &limit) == 0);
}

static int lowest_free_fd(void)
{
    int fd = dup(STDIN_FILENO);
    (void)close(fd);
    return fd;
}

/* One work, waited for. */
/* `status` is that of the call that has set *work. */
static shoal_status finish(shoal_status status, shoal_work *const *work)
{
    if (status == SHOAL_OK) {
        status = shoal_work_wait(*work, -1);
        shoal_work_free(*work);
    }
    return status;
}

/* A collective that a lane's thread carries on, and messages that the thread of point to point does. */
static shoal_status use_group(shoal_group *group)
{
    static float values[COUNT];
    shoal_work *work = NULL;
    shoal_work *other = NULL;
    int self = shoal_group_rank(group);
    shoal_status status = finish(
        shoal_group_all_reduce_start(group, values, values, COUNT, SHOAL_F32, SHOAL_SUM, &work), &work);
    if (status == SHOAL_OK) {
        status = shoal_group_recv_start(group, values, COUNT, SHOAL_F32, self, 0, &work);
    }
    if (status != SHOAL_OK) {
        return status;
    }
    status = finish(shoal_group_send_start(group, values, COUNT, SHOAL_F32, self, 0, &other), &other);
    shoal_status received = shoal_work_wait(work, status == SHOAL_OK ? -1 : 0);
    shoal_work_free(work);
    return status == SHOAL_OK ? received : status;
}

static shoal_status use_world(const struct rank *self, int round)
{
    struct rank_key key = rank_key(self, round);
    shoal_world_options options = rank_world_options(self, &key);
    shoal_world *world = NULL;
    shoal_status status = shoal_world_open(&options, &world);
    if (status != SHOAL_OK) {
        CHECK(strstr(shoal_error_text(), "RLIMIT_NPROC"));
        return status;
    }
    status = use_group(shoal_world_group(world));
    CHECK(status == SHOAL_OK || strstr(shoal_error_text(), "RLIMIT_NPROC"));
    shoal_status closed = shoal_world_close(world);
    return status == SHOAL_OK ? closed : status;
}

/* With 1, 2, … threads, until there are enough. */
static void open_within_limits(void *context)
{
    struct rank self = {.rank = 0, .n_ranks = 1};
    bool is_alone = become_nobody_else((int)getpid());
    int n_refused = 0;
    int fd = lowest_free_fd();
    (void)context;
    REQUIRE_OK(use_world(&self, 0)); /* what is made once per process is there now */
    size_t n_blocks = test_live_blocks();
    shoal_status status = SHOAL_ERR_SYSTEM;
    for (int n_threads = 1; status != SHOAL_OK && n_threads < (is_alone ? MOST_THREADS : 2); n_threads++) {
        set_limit((rlim_t)n_threads);
        status = use_world(&self, n_threads);
        set_limit(RLIM_INFINITY);
        CHECK(status == SHOAL_OK || status == SHOAL_ERR_SYSTEM);
        n_refused += status != SHOAL_OK;
        CHECK_INT(test_live_blocks(), n_blocks);
        CHECK_INT(lowest_free_fd(), fd);
    }
    CHECK(n_refused > 0);
    CHECK(status == SHOAL_OK || !is_alone);
    CHECK_OK(use_world(&self, MOST_THREADS));
}

TEST(threads_that_a_limit_refuses)
{
    if (HAS_THREAD_SANITIZER) {
        test_skip("no threads in forked processes under the thread sanitizer");
        return;
    }
    test_in_child(open_within_limits, NULL);
}

/* Rank 1 cannot create the thread of its lane. Both calls fail, or both succeed with the right sum; nobody waits. */
TEST_PROCESSES(one_rank_has_no_threads_left, 2)
{
    static float values[COUNT];
    shoal_work *work = NULL;
    struct rank_key key = rank_key(self, 0);
    (void)become_nobody_else((int)getppid());
    shoal_world_options options = rank_world_options(self, &key);
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    shoal_group *group = shoal_world_group(world);
    REQUIRE_OK(shoal_group_barrier(group));
    if (self->rank == 1) {
        set_limit(1);
    }
    for (int i = 0; i < COUNT; i++) {
        values[i] = (float)(self->rank + 1);
    }
    shoal_status status = finish(
        shoal_group_all_reduce_start(group, values, values, COUNT, SHOAL_F32, SHOAL_SUM, &work), &work);
    if (status == SHOAL_OK) {
        CHECK(values[0] == 3.0F && values[COUNT - 1] == 3.0F);
    } else {
        CHECK(status == SHOAL_ERR_SYSTEM || status == SHOAL_ERR_PEER);
        CHECK(strstr(shoal_error_text(), "RLIMIT_NPROC"));
    }
    set_limit(RLIM_INFINITY);
    (void)shoal_world_close(world);
}
