/* SPDX-License-Identifier: MIT */
/*
 * Calls that ask the server of a rank whose process is stopped: they keep their deadlines, and say which rank does not
 * answer. Rank 0 holds the store, and the shared memory of groups that it is the first member of.
 *
 * And calls of a process that was stopped past their deadline: what had come counts, and the group has one reason.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "comm/group/group.h"
#include "fixtures/rank_world.h"
#include "shoal/shoal.h"

enum {
    N_LANES = 20
};

/* Rank 0 sleeps from the first barrier to the second: rank 1 stops it in between. */
static shoal_world *open_and_stop(struct rank *self, double timeout_s)
{
    struct rank_key key = rank_key(self, 0);
    shoal_world_options options = rank_world_options(self, &key);
    options.timeout_s = timeout_s;
    shoal_world *world = NULL;
    (void)CHECK_OK(shoal_world_open(&options, &world));
    test_barrier(self);
    if (self->rank == 1) {
        test_signal(0, SIGSTOP);
    }
    return world;
}

static void go_on_and_close(struct rank *self, shoal_world *world)
{
    if (self->rank == 1) {
        test_signal(0, SIGCONT);
    }
    test_barrier(self);
    (void)shoal_world_close(world);
}

static double seconds_since(int64_t start_ns)
{
    return (double)(clock_now_ns() - start_ns) * 1e-9;
}

/* Far from what the call may take, and far from what it took when it did not keep its time. */
static void check_took_less(int64_t start_ns, double seconds)
{
    double took_s = seconds_since(start_ns);
    if (took_s >= seconds * test_time_scale()) {
        test_failed(__FILE__, __LINE__, "took %.3f s", took_s);
    }
}

TEST_PROCESSES(store_calls_keep_their_time, 2)
{
    shoal_world *world = open_and_stop(self, 1.0);
    REQUIRE(world);
    if (self->rank == 1) {
        static const char *const keys[] = {"one", "two"};
        static char large[1 << 20];
        shoal_store *store = shoal_world_store(world);
        char value[8];
        size_t bytes;
        int64_t sum;
        bool answer;
        int64_t start_ns = clock_now_ns();
        CHECK_STATUS(shoal_store_get(store, "one", value, sizeof value, 0.3, &bytes), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("rank 0 does not answer");
        CHECK_ERROR_TEXT("the key \"one\"");
        check_took_less(start_ns, 3.0);
        start_ns = clock_now_ns();
        CHECK_STATUS(shoal_store_wait(store, keys, 2, 0.0), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("rank 0 does not answer");
        check_took_less(start_ns, 3.0);
        start_ns = clock_now_ns();
        CHECK_STATUS(shoal_store_set(store, "one", large, sizeof large), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("rank 0 does not answer");
        CHECK_STATUS(shoal_store_add(store, "n", 1, &sum), SHOAL_ERR_TIMEOUT);
        CHECK_STATUS(shoal_store_check(store, keys, 2, &answer), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("rank 0 does not answer");
        check_took_less(start_ns, 8.0);
    }
    go_on_and_close(self, world);
}

static void *start_barrier(void *context)
{
    shoal_work *work = NULL;
    CHECK_STATUS(shoal_group_barrier_start(context, &work), SHOAL_ERR_TIMEOUT);
    CHECK_ERROR_TEXT("rank 0");
    return NULL;
}

/* Of several threads each has the deadline of its own call, not that of the one that came first and its own. */
TEST_PROCESSES(starts_on_a_new_group_keep_their_time, 2)
{
    shoal_world *world = open_and_stop(self, 2.0);
    REQUIRE(world);
    if (self->rank == 1) {
        pthread_t threads[4];
        int64_t start_ns = clock_now_ns();
        for (int i = 0; i < 4; i++) {
            CHECK_INT(pthread_create(&threads[i], NULL, start_barrier, shoal_world_group(world)), 0);
        }
        for (int i = 0; i < 4; i++) {
            (void)pthread_join(threads[i], NULL);
        }
        check_took_less(start_ns, 3.9);
        CHECK_STATUS(shoal_group_error(shoal_world_group(world)), SHOAL_ERR_TIMEOUT);
    }
    go_on_and_close(self, world);
}

/* Rank 1 gives up its first call on a group while it connects. Its second call must not meet the first of the others. */
TEST_PROCESSES(calls_after_a_connection_that_failed_meet_nobody, 3)
{
    shoal_world *world = open_and_stop(self, (self->rank == 1 ? 0.5 : 20.0) * test_time_scale());
    REQUIRE(world);
    shoal_group *group = shoal_world_group(world);
    int64_t start_ns = clock_now_ns();
    for (int call = 0; call < 3; call++) {
        float value = (float)call;
        CHECK_STATUS(shoal_group_all_reduce(group, &value, &value, 1, SHOAL_F32, SHOAL_SUM),
                     SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("rank 0");
        if (call == 0 && self->rank == 1) {
            test_signal(0, SIGCONT);
        }
    }
    CHECK_STATUS(shoal_group_error(group), SHOAL_ERR_TIMEOUT);
    check_took_less(start_ns, 10.0);
    go_on_and_close(self, world);
}

static void *wait_on_lane(void *context)
{
    CHECK_STATUS(shoal_group_barrier(context), SHOAL_ERR_CANCELLED);
    CHECK_ERROR_TEXT("aborted by rank 1");
    return NULL;
}

/* Nor does aborting wait for a rank that is stopped, or for one of many lanes to be connected. */
TEST_PROCESSES(abort_waits_for_nobody, 2)
{
    shoal_group *lanes[N_LANES];
    shoal_world *world = open_and_stop(self, 30.0);
    REQUIRE(world);
    if (self->rank == 1) {
        pthread_t thread;
        shoal_group *all = shoal_world_group(world);
        for (int i = 0; i < N_LANES; i++) {
            char word[16];
            (void)snprintf(word, sizeof word, "lane %d", i);
            REQUIRE_OK(group_create_lane(all, 0, 2, word, &lanes[i]));
        }
        /* A call that waits for the server to connect its lane hears of it too. */
        CHECK_INT(pthread_create(&thread, NULL, wait_on_lane, lanes[0]), 0);
        test_pause(0.1);
        int64_t start_ns = clock_now_ns();
        CHECK_OK(shoal_group_abort(all, NULL));
        check_took_less(start_ns, 10.0); /* of 30 */
        (void)pthread_join(thread, NULL);
        for (int i = 0; i < N_LANES; i++) {
            CHECK_STATUS(shoal_group_barrier(lanes[i]), SHOAL_ERR_CANCELLED);
        }
        test_signal(0, SIGCONT);
    }
    test_barrier(self);
    /* Rank 0 reads the message as soon as it goes on. */
    shoal_group *lane = NULL;
    REQUIRE_OK(group_create_lane(shoal_world_group(world), 0, 2, "lane 1", &lane));
    CHECK_STATUS(shoal_group_barrier(lane), SHOAL_ERR_CANCELLED);
    CHECK_ERROR_TEXT("aborted by rank 1");
    (void)shoal_world_close(world);
}

/* Rank 0 is stopped until after the deadline of a call, to which rank 1 has done its part in time. */
TEST_PROCESSES(what_came_while_a_rank_was_stopped_counts, 2)
{
    struct rank_key key = rank_key(self, 0);
    shoal_world_options options = rank_world_options(self, &key);
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    shoal_group *all = shoal_world_group(world);
    REQUIRE_OK(shoal_group_barrier(all));
    double timeout_s = 1.0 * test_time_scale();
    REQUIRE_OK(shoal_group_set_timeout(all, timeout_s));
    float value = (float)self->rank + 1;
    if (self->rank == 0) {
        shoal_work *work = NULL;
        REQUIRE_OK(shoal_group_all_reduce_start(all, &value, &value, 1, SHOAL_F32, SHOAL_SUM, &work));
        test_barrier(self);
        CHECK_OK(shoal_work_wait(work, 20 * test_time_scale()));
        shoal_work_free(work);
    } else {
        test_barrier(self);
        test_pause(0.1); /* rank 0 waits by now, most likely */
        test_signal(0, SIGSTOP);
        CHECK_OK(shoal_group_all_reduce(all, &value, &value, 1, SHOAL_F32, SHOAL_SUM));
        test_pause(timeout_s + 0.1);
        test_signal(0, SIGCONT);
    }
    CHECK(value == 3);
    test_barrier(self);
    CHECK_OK(shoal_group_error(all));
    test_barrier(self);
    CHECK_OK(shoal_world_close(world));
}

/* Rank 0 is stopped in a call for which rank 1 waits: the group fails there, with one text for both. */
TEST_PROCESSES(a_rank_that_was_stopped_has_the_reason_of_the_group, 2)
{
    enum {
        N_ELEMENTS = 100000
    };
    static float values[N_ELEMENTS];
    struct rank_key key = rank_key(self, 0);
    shoal_world_options options = rank_world_options(self, &key);
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    shoal_group *all = shoal_world_group(world);
    char *text = self->shared; /* of rank 1 */
    REQUIRE_OK(shoal_group_barrier(all));
    REQUIRE_OK(shoal_group_set_timeout(all, 0.5 * test_time_scale()));
    test_barrier(self);
    if (self->rank == 0) {
        CHECK_STATUS(shoal_group_all_reduce(all, values, values, N_ELEMENTS, SHOAL_F32, SHOAL_SUM),
                     SHOAL_ERR_TIMEOUT);
        char own[1024];
        (void)snprintf(own, sizeof own, "%s", shoal_error_text());
        test_barrier(self);
        /* If its own deadline had passed too, it adds for whom it waited. */
        size_t length = strlen(text);
        REQUIRE(strncmp(own, text, length) == 0);
        CHECK_STRING(own + length, own[length] == '\0' ? "" : "; rank 0 waited for rank 1");
    } else {
        test_pause(0.1); /* rank 0 waits by now, most likely */
        test_signal(0, SIGSTOP);
        CHECK_STATUS(shoal_group_all_reduce(all, values, values, N_ELEMENTS, SHOAL_F32, SHOAL_SUM),
                     SHOAL_ERR_TIMEOUT);
        (void)snprintf(text, 1024, "%s", shoal_error_text());
        test_pause(0.3); /* a reason that is younger need not have been seen */
        test_signal(0, SIGCONT);
        test_barrier(self);
    }
    test_barrier(self);
    (void)shoal_world_close(world);
}

/*
 * Rank 0 is stopped while messages to it are on their way, and the others close with less time than such messages are
 * waited for. Each of them is seen to have closed by the other.
 */
TEST_PROCESSES(ranks_that_close_in_time_are_not_named, 3)
{
    struct rank_key key = rank_key(self, 0);
    shoal_world_options options = rank_world_options(self, &key);
    options.close_timeout_s = 1.6 * test_time_scale();
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    shoal_group *all = shoal_world_group(world);
    _Atomic int *n_closed = self->shared;
    REQUIRE_OK(shoal_group_barrier(all));
    REQUIRE_OK(shoal_group_set_timeout(all, 0.3));
    test_barrier(self);
    if (self->rank == 1) {
        test_signal(0, SIGSTOP);
    }
    if (self->rank != 0) {
        CHECK_STATUS(shoal_group_barrier(all), SHOAL_ERR_TIMEOUT);
        CHECK_STATUS(shoal_world_close(world), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("closing the world: rank 0 did not close it");
        (void)atomic_fetch_add(n_closed, 1);
    }
    if (self->rank == 1) {
        while (atomic_load(n_closed) < 2) {
            test_pause(0.001);
        }
        test_signal(0, SIGCONT);
    }
    test_barrier(self);
    if (self->rank == 0) {
        (void)shoal_world_close(world);
    }
}

/* Rank 0 is silent. Rank 1 gives up first; rank 2, which has much more time, is told so, and says for whom it waited. */
TEST_PROCESSES(a_rank_that_another_one_fails_says_for_whom_it_waited, 3)
{
    if (getenv("SHOAL_PRETEND_HOSTS")) {
        return; /* what crosses hosts is not shared memory */
    }
    for (int starts = 0; starts < 2; starts++) {
        struct rank_key key = rank_key(self, starts);
        shoal_world_options options = rank_world_options(self, &key);
        options.transport = "shm";
        options.timeout_s = (self->rank == 1 ? 0.3 : 60) * test_time_scale();
        shoal_world *world = NULL;
        REQUIRE_OK(shoal_world_open(&options, &world));
        shoal_group *group = shoal_world_group(world);
        test_barrier(self);
        if (self->rank > 0) {
            float value = 1;
            shoal_work *work = NULL;
            shoal_status status = SHOAL_OK;
            if (starts) {
                REQUIRE_OK(
                    shoal_group_all_reduce_start(group, &value, &value, 1, SHOAL_F32, SHOAL_SUM, &work));
                status = shoal_work_wait(work, -1);
            } else {
                status = shoal_group_all_reduce(group, &value, &value, 1, SHOAL_F32, SHOAL_SUM);
            }
            CHECK_STATUS(status, SHOAL_ERR_TIMEOUT);
            CHECK_ERROR_TEXT(self->rank == 1 ? "rank 0 did not call it" : "; rank 2 waited for rank 0");
            shoal_work_free(work);
        }
        test_barrier(self);
        (void)shoal_world_close(world);
    }
}
