/* SPDX-License-Identifier: MIT */
/* shoal_group_close with operations that cannot end, because the peer does not do its part. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "comm/group/groups.h"
#include "comm/lane/handles.h"
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/shoal.h"

enum {
    COUNT = 1000000, /* more than any stream takes without a receiver */
    N_RANKS = 3
};

static const int everybody[N_RANKS] = {0, 1, 2};
static int32_t unread[N_RANKS][COUNT];

/* Most time here is waited out to the end, which sanitizers do not make longer: half of their factor is ample. */
static double scaled(double seconds)
{
    return seconds * (1 + test_time_scale()) / 2;
}

static shoal_group *make(shoal_world *world, int n_ranks, const char *tag, double timeout_s)
{
    shoal_group *group = NULL;
    CHECK_OK(shoal_group_create(world, everybody, n_ranks, tag, &group));
    if (group) {
        CHECK_OK(shoal_group_set_timeout(group, scaled(timeout_s)));
    }
    return group;
}

static void check_cancelled(shoal_work *work, const char *what)
{
    char text[128];
    (void)snprintf(text, sizeof text, "the group was closed before the %s had ended", what);
    CHECK(shoal_work_test(work));
    CHECK_STATUS(shoal_work_wait(work, 0), SHOAL_ERR_CANCELLED);
    CHECK_ERROR_TEXT(text);
    shoal_work_free(work);
}

/* Cancelled in time for the close: all members free the group, which is a new one afterwards. */
TEST_RANKS(a_send_that_nobody_receives, N_RANKS)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    for (int i = 0; i < 2; i++) {
        shoal_group *group = make(world, N_RANKS, "unread", 2);
        REQUIRE(group);
        shoal_work *work = NULL;
        if (self->rank == 0) {
            REQUIRE_OK(shoal_group_send_start(group, unread[0], COUNT, SHOAL_I32, 1, 0, &work));
        }
        CHECK_OK(shoal_group_close(group));
        CHECK_STRING(shoal_error_text(), "");
        CHECK_STATUS(shoal_group_barrier(group), SHOAL_ERR_STATE);
        if (work) {
            check_cancelled(work, "transfer");
        }
    }
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    CHECK_OK(shoal_world_close(world));
}

/* Every member has one, and a receive besides; what can be received is. */
TEST_RANKS(sends_and_receives_of_all, N_RANKS)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = make(world, N_RANKS, "all", 2);
    REQUIRE(group);
    int next = (self->rank + 1) % N_RANKS;
    int before = (self->rank + N_RANKS - 1) % N_RANKS;
    int32_t out = self->rank;
    int32_t in = -1;
    int32_t never = 0;
    shoal_work *works[4];
    REQUIRE_OK(shoal_group_send_start(group, unread[self->rank], COUNT, SHOAL_I32, next, 0, &works[0]));
    REQUIRE_OK(shoal_group_recv_start(group, &never, 1, SHOAL_I32, before, 1, &works[1]));
    REQUIRE_OK(shoal_group_send_start(group, &out, 1, SHOAL_I32, next, 2, &works[2]));
    REQUIRE_OK(shoal_group_recv_start(group, &in, 1, SHOAL_I32, before, 2, &works[3]));
    CHECK_OK(shoal_group_close(group));
    check_cancelled(works[0], "transfer");
    check_cancelled(works[1], "transfer");
    for (int i = 2; i < 4; i++) {
        CHECK_OK(shoal_work_wait(works[i], 0));
        shoal_work_free(works[i]);
    }
    CHECK_INT(in, before);
    CHECK_OK(shoal_world_close(world));
}

struct sender {
    shoal_group *group;
    int rank;
};

static void *send_in_vain(void *context)
{
    const struct sender *sender = context;
    CHECK_STATUS(shoal_group_send(sender->group, unread[sender->rank], COUNT, SHOAL_I32, 1 - sender->rank, 0),
                 SHOAL_ERR_CANCELLED);
    CHECK_ERROR_TEXT("the group was closed before the transfer had ended");
    return NULL;
}

/* Another thread is in a blocking send. */
TEST_RANKS(a_blocking_send_of_another_thread, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = make(world, 2, "blocking", 4);
    REQUIRE(group);
    CHECK_OK(shoal_group_barrier(group));
    struct sender sender = {.group = group, .rank = self->rank};
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, send_in_vain, &sender) == 0);
    test_pause(0.2); /* the send has begun, or else this tests less */
    CHECK_OK(shoal_group_close(group));
    REQUIRE(pthread_join(thread, NULL) == 0);
    CHECK_OK(shoal_world_close(world));
}

/* A member comes to the close so late that the time of the others is nearly up: the data still arrives. */
TEST_RANKS(a_late_member_takes_no_time_from_transfers, 2)
{
    enum {
        N_MESSAGES = 8
    };
    static int32_t in[2][N_MESSAGES][COUNT];
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = make(world, 2, "late", 20);
    REQUIRE(group);
    CHECK_OK(shoal_group_barrier(group));
    shoal_work *works[N_MESSAGES];
    if (self->rank == 0) {
        unread[0][COUNT - 1] = 7;
        for (int i = 0; i < N_MESSAGES; i++) {
            REQUIRE_OK(shoal_group_send_start(group, unread[0], COUNT, SHOAL_I32, 1, i, &works[i]));
        }
        CHECK_OK(shoal_group_set_timeout(group, scaled(2)));
        CHECK_OK(shoal_group_close(group));
    } else {
        test_pause(scaled(1.2));
        for (int i = 0; i < N_MESSAGES; i++) {
            REQUIRE_OK(shoal_group_recv_start(group, in[1][i], COUNT, SHOAL_I32, 0, i, &works[i]));
        }
        CHECK_OK(shoal_group_close(group));
    }
    for (int i = 0; i < N_MESSAGES; i++) {
        CHECK_OK(shoal_work_wait(works[i], 0));
        CHECK(self->rank == 0 || in[1][i][COUNT - 1] == 7);
        shoal_work_free(works[i]);
    }
    CHECK_OK(shoal_world_close(world));
}

/* On the group itself it stands where others have their close; all hear of both calls. */
TEST_RANKS(a_collective_that_nobody_joins, N_RANKS)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = make(world, N_RANKS, "alone", 4);
    REQUIRE(group);
    float value = 1;
    shoal_work *work = NULL;
    if (self->rank == 1) {
        REQUIRE_OK(shoal_group_all_reduce_start(group, &value, &value, 1, SHOAL_F32, SHOAL_SUM, &work));
    }
    shoal_status status = shoal_group_close(group);
    if (work) {
        /* The others may have seen the difference before this rank closes, which it does alone then. */
        CHECK(status == SHOAL_ERR_MISMATCH || status == SHOAL_OK);
        CHECK_STATUS(shoal_work_wait(work, -1), SHOAL_ERR_MISMATCH);
        shoal_work_free(work);
    } else {
        CHECK_STATUS(status, SHOAL_ERR_MISMATCH);
        CHECK_ERROR_TEXT("shoal_group_close of group [0,1,2] tag \"alone\"");
    }
    CHECK_OK(status == SHOAL_OK ? SHOAL_OK : shoal_group_close(group));
    CHECK_OK(shoal_world_close(world));
}

/* On a lane over the group, which sharding makes for itself, nothing stands in its place: it is cancelled. */
TEST_RANKS(a_collective_on_a_lane_that_nobody_joins, N_RANKS)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    for (int i = 0; i < 2; i++) {
        shoal_group *group = make(world, N_RANKS, "lanes", 2);
        REQUIRE(group);
        shoal_group *lane = NULL;
        REQUIRE_OK(group_create_lane(group, 0, N_RANKS, "own", &lane));
        CHECK_OK(shoal_group_barrier(lane));
        static float many[N_RANKS][20000];
        float few = 1;
        shoal_work *works[2] = {NULL};
        if (self->rank == 1) {
            /* One that is posted, and one that a thread runs. */
            REQUIRE_OK(shoal_group_all_reduce_start(lane, &few, &few, 1, SHOAL_F32, SHOAL_SUM, &works[0]));
            REQUIRE_OK(
                shoal_group_all_reduce_start(lane, many[1], many[1], 20000, SHOAL_F32, SHOAL_SUM, &works[1]));
        }
        CHECK_OK(shoal_group_close(group));
        for (int k = 0; k < 2 && works[k]; k++) {
            check_cancelled(works[k], "operation");
        }
    }
    /* A rank that has closed its world before rank 1 has freed the lane would be the reason instead. */
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    CHECK_OK(shoal_world_close(world));
}

/* Both ranks have one: neither takes the other's time to close. */
TEST_RANKS(a_world_with_sends_that_nobody_receives, 2)
{
    struct rank_key key = rank_key(self, 0);
    shoal_world_options options = rank_world_options(self, &key);
    options.close_timeout_s = scaled(2);
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    shoal_group *all = shoal_world_group(world);
    shoal_work *work = NULL;
    REQUIRE_OK(shoal_group_send_start(all, unread[self->rank], COUNT, SHOAL_I32, 1 - self->rank, 0, &work));
    test_barrier(self);
    (void)CHECK_OK(shoal_world_close(world));
    shoal_status status = shoal_work_wait(work, 0);
    CHECK(status == SHOAL_ERR_CANCELLED || status == SHOAL_ERR_PEER); /* the peer may have left first */
    shoal_work_free(work);
}

/* While the flight record is written ----------------------------------------------------------------------- */

struct writer {
    shoal_world *world;
    _Atomic bool has_begun;
    _Atomic bool may_end;
};

static int write_slowly(void *context, const char *text, size_t bytes)
{
    struct writer *writer = context;
    (void)text;
    (void)bytes;
    atomic_store(&writer->has_begun, true);
    while (!atomic_load(&writer->may_end)) {
        test_pause(0.001);
    }
    return 0;
}

static void *dump(void *context)
{
    struct writer *writer = context;
    CHECK_OK(shoal_world_dump(writer->world, write_slowly, writer));
    return NULL;
}

/* The members have met and are gone when the time is up: the repeated close needs none of them. */
TEST_RANKS(a_close_that_a_dump_holds_up, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = make(world, 2, "dumped", 20);
    REQUIRE(group);
    for (int i = 0; i < 200; i++) { /* a record that does not fit one piece */
        CHECK_OK(shoal_group_barrier(group));
    }
    if (self->rank == 0) {
        CHECK_OK(shoal_group_set_timeout(group, scaled(1)));
        struct writer writer = {.world = world};
        pthread_t thread;
        REQUIRE(pthread_create(&thread, NULL, dump, &writer) == 0);
        while (!atomic_load(&writer.has_begun)) {
            test_pause(0.001);
        }
        test_barrier(self);
        CHECK_STATUS(shoal_group_close(group), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("a call of shoal_world_dump still reads group [0,1] tag \"dumped\"");
        atomic_store(&writer.may_end, true);
        REQUIRE(pthread_join(thread, NULL) == 0);
    } else {
        test_barrier(self);
    }
    CHECK_OK(shoal_group_close(group));
    group = make(world, 2, "dumped", 20);
    CHECK_OK(shoal_group_barrier(group));
    CHECK_OK(shoal_group_close(group));
    CHECK_OK(shoal_world_close(world));
}

/* Groups that fail ------------------------------------------------------------------------------------------ */

/* Until this rank has heard of it, which takes a moment. */
static void await_failure(shoal_group *group)
{
    shoal_status status;
    while ((status = shoal_group_error(group)) == SHOAL_OK) {
        test_pause(0.001);
    }
    CHECK_STATUS(status, SHOAL_ERR_CANCELLED);
}

/* The server may still be reading what it was told. */
static bool come_down_to(size_t n_blocks)
{
    for (int i = 0; i < 5000 && test_live_blocks() > n_blocks; i++) {
        test_pause(0.001);
    }
    return test_live_blocks() <= n_blocks;
}

/* A rank remembers what has failed, also of groups that it never made, but not for ever. */
TEST_RANKS(failed_groups_do_not_fill_the_memory, 2)
{
    enum {
        N_FIRST = GROUPS_NEWS_KEPT + 200,
        N_ALL = 2 * N_FIRST
    };
    test_deadline(120);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    size_t n_first = 0;
    for (int i = 0; i < N_ALL && !test_has_failed(); i++) {
        char tag[32];
        (void)snprintf(tag, sizeof tag, "fails %d", i);
        bool must_look = i + 1 == N_FIRST || i + 1 == N_ALL;
        if (self->rank == 0 || must_look) {
            shoal_group *group = make(world, 2, tag, 20);
            REQUIRE(group);
            if (self->rank == 0) {
                CHECK_OK(shoal_group_abort(group, "not this one"));
            }
            await_failure(group);
            CHECK_OK(shoal_group_close(group));
        }
        if (must_look) {
            test_barrier(self);
            n_first = i + 1 == N_FIRST ? test_live_blocks() : n_first;
            CHECK(i + 1 == N_FIRST || come_down_to(n_first + 16));
            test_barrier(self);
        }
    }
    /* The last ones are remembered. */
    shoal_group *group = make(world, 2, "fails 2000", 20);
    REQUIRE(group);
    CHECK_STATUS(shoal_group_barrier(group), SHOAL_ERR_CANCELLED);
    CHECK_ERROR_TEXT("not this one");
    CHECK_OK(shoal_world_close(world));
}
