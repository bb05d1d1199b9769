/* SPDX-License-Identifier: MIT */
/* Lanes between real ranks: lanes that do not wait for each other, works nobody waits for, aborts, many threads. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/shoal.h"

/* Staged, not posted: an operation that its peers need us for. */
#define LARGE ((size_t)1 << 19)

static shoal_group *create_lane(shoal_world *world, const char *tag)
{
    int ranks[16];
    int n_ranks = shoal_world_n_ranks(world);
    for (int i = 0; i < n_ranks; i++) {
        ranks[i] = i;
    }
    shoal_group *group = NULL;
    CHECK_OK(shoal_group_create(world, ranks, n_ranks, tag, &group));
    return group;
}

/* Progress on one lane must never depend on somebody waiting on another. */
static void cross_lanes(struct rank *self, size_t count)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *lanes[2] = {create_lane(world, "a"), create_lane(world, "b")};
    float *data = calloc(2 * count, sizeof *data);
    REQUIRE(data && lanes[0] && lanes[1]);
    for (size_t i = 0; i < 2 * count; i++) {
        data[i] = (float)(self->rank + 1);
    }
    int first = self->rank % 2;
    for (int round = 0; round < 5; round++) {
        shoal_work *works[2] = {NULL, NULL};
        for (int i = 0; i < 2; i++) {
            int lane = i == 0 ? first : 1 - first;
            float *part = data + (size_t)lane * count;
            CHECK_OK(shoal_group_all_reduce_start(lanes[lane], part, part, count, SHOAL_F32, SHOAL_MAX,
                                                  &works[lane]));
        }
        for (int i = 0; i < 2; i++) {
            int lane = i == 0 ? first : 1 - first;
            CHECK_OK(shoal_work_wait(works[lane], -1));
            shoal_work_free(works[lane]);
        }
    }
    CHECK_DOUBLE((double)data[0], self->n_ranks);
    CHECK_DOUBLE((double)data[2 * count - 1], self->n_ranks);
    free(data);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(two_lanes_in_opposite_order_small, 2)
{
    cross_lanes(self, 16);
}

TEST_RANKS(two_lanes_in_opposite_order_large, 2)
{
    cross_lanes(self, LARGE);
}

/* As PyTorch's test barrier_implies_wait: works that were dropped are complete after a barrier. */
TEST_RANKS(barrier_ends_dropped_works, 4)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = shoal_world_group(world);
    int64_t values[16];
    for (int i = 0; i < 16; i++) {
        shoal_work *work = NULL;
        values[i] = self->rank + i;
        CHECK_OK(shoal_group_all_reduce_start(group, &values[i], &values[i], 1, SHOAL_I64, SHOAL_SUM, &work));
        shoal_work_free(work);
    }
    CHECK_OK(shoal_group_barrier(group));
    for (int i = 0; i < 16; i++) {
        CHECK_INT(values[i], 4 * i + 6);
    }
    CHECK_INT(shoal_group_sequence(group), 17);
    CHECK_OK(shoal_world_close(world));
}

/* Posted or queued, collective or not: the text says how long, what, and where. */
TEST_RANKS(a_wait_that_is_too_short_says_for_what, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = create_lane(world, "x");
    float *data = calloc(LARGE, sizeof *data);
    float received[3]; /* of its own: it is written while the all_reduce may read */
    REQUIRE(data && group);
    if (self->rank == 0) {
        shoal_work *works[3] = {NULL, NULL, NULL};
        CHECK_OK(shoal_group_barrier_start(group, &works[0]));
        CHECK_OK(shoal_group_all_reduce_start(group, data, data, LARGE, SHOAL_F32, SHOAL_SUM, &works[1]));
        CHECK_OK(shoal_group_recv_start(group, received, 3, SHOAL_F32, 1, 7, &works[2]));
        CHECK_STATUS(shoal_work_wait(works[0], 0.1), SHOAL_ERR_TIMEOUT);
        CHECK(!strstr(shoal_error_text(), "waited 0.0"));
        CHECK_ERROR_TEXT("s (timeout_s) for barrier #0 on group [0,1] tag \"x\", which is still in progress");
        CHECK_STATUS(shoal_work_wait(works[1], 0.1), SHOAL_ERR_TIMEOUT);
        CHECK(!strstr(shoal_error_text(), "waited 0.0"));
        CHECK_ERROR_TEXT("s (timeout_s) for all_reduce f32 sum count 524288 #1 on group [0,1] tag \"x\"");
        CHECK_STATUS(shoal_work_wait(works[2], 0.1), SHOAL_ERR_TIMEOUT);
        CHECK(!strstr(shoal_error_text(), "waited 0.0"));
        CHECK_ERROR_TEXT(
            "s (timeout_s) for \"rank 0 receives f32 count 3 from rank 1 tag 7\" (group [0,1] tag \"x\")");
        test_barrier(self);
        for (int i = 2; i >= 0; i--) {
            CHECK_OK(shoal_work_wait(works[i], -1));
            shoal_work_free(works[i]);
        }
    } else {
        test_barrier(self);
        CHECK_OK(shoal_group_send(group, data, 3, SHOAL_F32, 0, 7));
        CHECK_OK(shoal_group_barrier(group));
        CHECK_OK(shoal_group_all_reduce(group, data, data, LARGE, SHOAL_F32, SHOAL_SUM));
    }
    free(data);
    CHECK_OK(shoal_world_close(world));
}

/* How long it was, which knob that comes from, which group, and who is missing. */
TEST_RANKS(a_timeout_names_the_knob_and_the_group, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = create_lane(world, "x");
    REQUIRE(group);
    CHECK_OK(shoal_group_barrier(group));
    shoal_group *swapped = NULL;
    CHECK_OK(shoal_group_create(world, self->rank == 0 ? (const int[]){0, 1} : (const int[]){1, 0}, 2, "y",
                                &swapped));
    CHECK_OK(shoal_group_set_timeout(swapped, 0.25));
    CHECK_STATUS(shoal_group_barrier(swapped), SHOAL_ERR_TIMEOUT);
    CHECK_ERROR_TEXT(self->rank == 0 ? "did not call it; rank 1 has called nothing on this group"
                                     : "did not call it; rank 0 has called nothing on this group");
    if (self->rank == 0) {
        CHECK_OK(shoal_group_set_timeout(group, 0.25));
        CHECK_STATUS(shoal_group_barrier(group), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("barrier #1 on group [0,1] tag \"x\": 0.25 s passed (SHOAL_TIMEOUT, "
                         "shoal_group_set_timeout) and rank 1 did not call it; rank 1 called #0 last on this "
                         "group");
    }
    test_barrier(self);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(test_alone_makes_progress, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = shoal_world_group(world);
    static const size_t counts[] = {8, LARGE};
    for (size_t i = 0; i < 2; i++) {
        float *data = calloc(counts[i], sizeof *data);
        REQUIRE(data);
        data[counts[i] - 1] = 1.0f;
        shoal_work *work = NULL;
        CHECK_OK(shoal_group_all_reduce_start(group, data, data, counts[i], SHOAL_F32, SHOAL_SUM, &work));
        int64_t deadline_ns = clock_deadline_after(20 * test_time_scale());
        while (!shoal_work_test(work) && clock_now_ns() < deadline_ns) {
        }
        CHECK_OK(shoal_work_wait(work, 0));
        CHECK_DOUBLE((double)data[counts[i] - 1], 2.0);
        shoal_work_free(work);
        free(data);
    }
    CHECK_OK(shoal_world_close(world));
}

struct aborter {
    shoal_group *group;
    pthread_t thread;
    shoal_work *work;
    shoal_status status;
};

static void *wait_on(void *context)
{
    struct aborter *aborter = context;
    aborter->status = shoal_work_wait(aborter->work, -1);
    return NULL;
}

/* Rank 0 waits, in a thread, for what rank 1 never calls; another thread aborts; rank 1 hears of it. */
static void abort_from_another_thread(struct rank *self, size_t count)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = create_lane(world, "doomed");
    float *data = calloc(count, sizeof *data);
    REQUIRE(data && group);
    if (self->rank == 0) {
        struct aborter aborter = {.group = group};
        CHECK_OK(shoal_group_all_reduce_start(group, data, data, count, SHOAL_F32, SHOAL_SUM, &aborter.work));
        REQUIRE(pthread_create(&aborter.thread, NULL, wait_on, &aborter) == 0);
        CHECK_OK(shoal_group_abort(group, "enough"));
        (void)pthread_join(aborter.thread, NULL);
        CHECK_STATUS(aborter.status, SHOAL_ERR_CANCELLED);
        shoal_work_free(aborter.work);
        test_barrier(self);
    } else {
        test_barrier(self);
        CHECK_STATUS(shoal_group_barrier(group), SHOAL_ERR_CANCELLED);
        CHECK_ERROR_TEXT("aborted by rank 0: enough");
    }
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    free(data);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(abort_small, 2)
{
    abort_from_another_thread(self, 4);
}

TEST_RANKS(abort_large, 2)
{
    abort_from_another_thread(self, LARGE);
}

/* Several threads of a rank, each with a lane of its own and calls of many kinds. */
#define N_LANES 3
#define N_CALLS 150

struct user {
    pthread_t thread;
    shoal_group *group;
    uint64_t salt;
    int n_wrong;
};

static void use_once(struct user *user, struct test_random *random, int i)
{
    static const size_t counts[] = {1, 100, 5000, 70000};
    size_t count = counts[test_random_below(random, 4)];
    int32_t *data = malloc(count * sizeof *data);
    if (!data) {
        user->n_wrong++;
        return;
    }
    int rank = shoal_group_rank(user->group);
    int n_ranks = shoal_group_n_ranks(user->group);
    for (size_t k = 0; k < count; k++) {
        data[k] = rank + i;
    }
    shoal_status status;
    if (test_random_below(random, 2) == 0) {
        status = shoal_group_all_reduce(user->group, data, data, count, SHOAL_I32, SHOAL_SUM);
    } else {
        shoal_work *work = NULL;
        status = shoal_group_all_reduce_start(user->group, data, data, count, SHOAL_I32, SHOAL_SUM, &work);
        if (status == SHOAL_OK) {
            (void)shoal_work_test(work);
            status = shoal_work_wait(work, -1);
        }
        shoal_work_free(work);
    }
    int32_t expected = n_ranks * i + n_ranks * (n_ranks - 1) / 2;
    user->n_wrong += status != SHOAL_OK || data[0] != expected || data[count - 1] != expected;
    free(data);
}

static void *use_lane(void *context)
{
    struct user *user = context;
    struct test_random random = test_random_begin(user->salt);
    for (int i = 0; i < N_CALLS; i++) {
        use_once(user, &random, i);
    }
    return NULL;
}

TEST_RANKS(threads_on_lanes_of_their_own, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    struct user users[N_LANES];
    for (int i = 0; i < N_LANES; i++) {
        char tag[2] = {(char)('a' + i), '\0'};
        /* The same calls on all ranks. */
        users[i] = (struct user){.group = create_lane(world, tag), .salt = (uint64_t)i};
        REQUIRE(users[i].group);
        REQUIRE(pthread_create(&users[i].thread, NULL, use_lane, &users[i]) == 0);
    }
    for (int i = 0; i < N_LANES; i++) {
        (void)pthread_join(users[i].thread, NULL);
        CHECK_INT(users[i].n_wrong, 0);
    }
    CHECK_OK(shoal_world_close(world));
}
