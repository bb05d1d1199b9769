/* SPDX-License-Identifier: MIT */
/*
 * shoal_group_abandon: a member frees its part of a group alone. What it did before counts, who needs more of it gets
 * its name, and nothing else changes.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/callback.h"
#include "base/clock.h"
#include "comm/group/groups.h"
#include "comm/group/world.h"
#include "comm/lane/handles.h"
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/shoal.h"

#define N_RANKS 3
/* More than any transport keeps of a message that nobody receives. */
#define LONG ((size_t)1 << 24)

static const int everybody[N_RANKS] = {0, 1, 2};

static shoal_group *make(shoal_world *world, const char *tag)
{
    shoal_group *group = NULL;
    CHECK_OK(shoal_group_create(world, everybody, N_RANKS, tag, &group));
    return group;
}

static shoal_status sum(shoal_group *group, float *value)
{
    return shoal_group_all_reduce(group, value, value, 1, SHOAL_F32, SHOAL_SUM);
}

/* The deadline of 20 s has nothing to do with it. */
static void check_was_soon(int64_t begin_ns)
{
    CHECK((double)(clock_now_ns() - begin_ns) * 1e-9 < 10 * test_time_scale());
}

static void check_others_go_on(shoal_world *world, shoal_group *other)
{
    float value = 1;
    CHECK_OK(sum(other, &value));
    CHECK_DOUBLE((double)value, N_RANKS);
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
}

/* Those who call later get the name of the one that has gone, in collectives and in transfers; all else goes on. */
TEST_RANKS(later_calls_name_the_rank, N_RANKS)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = make(world, "left");
    shoal_group *other = make(world, "other");
    REQUIRE(group && other);
    float value = 1;
    CHECK_OK(sum(group, &value));
    CHECK_OK(sum(other, &value));
    if (self->rank == 1) {
        CHECK_OK(shoal_group_abandon(group));
        CHECK_STRING(shoal_error_text(), "");
        CHECK_STATUS(shoal_group_barrier(group), SHOAL_ERR_STATE);
        CHECK_ERROR_TEXT("this rank has abandoned it");
        CHECK_STATUS(shoal_group_send(group, &value, 1, SHOAL_F32, 0, 0), SHOAL_ERR_STATE);
        CHECK_STATUS(shoal_group_abandon(group), SHOAL_ERR_STATE);
        CHECK_ERROR_TEXT("this rank has abandoned it");
        CHECK_STATUS(shoal_group_close(group), SHOAL_ERR_STATE);
        CHECK_STATUS(shoal_group_abort(group, "?"), SHOAL_ERR_STATE);
        CHECK_STATUS(shoal_group_error(group), SHOAL_ERR_STATE);
        shoal_group *again = NULL;
        CHECK_STATUS(shoal_group_create(world, everybody, N_RANKS, "left", &again), SHOAL_ERR_STATE);
        CHECK_ERROR_TEXT("group [0,1,2] tag \"left\": rank 1 has abandoned it");
        CHECK_ERROR_TEXT("use another tag");
        CHECK_STATUS(shoal_group_find(world, "world/left", &again), SHOAL_ERR_STATE);
        CHECK(!again);
    } else {
        int64_t begin_ns = clock_now_ns();
        CHECK_STATUS(self->rank == 0 ? sum(group, &value)
                                     : shoal_group_recv(group, &value, 1, SHOAL_F32, 1, 3),
                     SHOAL_ERR_PEER);
        CHECK_ERROR_TEXT("rank 1 has abandoned group [0,1,2] tag \"left\"");
        CHECK_STATUS(shoal_group_error(group), SHOAL_ERR_PEER);
        CHECK_STATUS(shoal_group_send(group, &value, 1, SHOAL_F32, 1, 0), SHOAL_ERR_PEER);
        CHECK_ERROR_TEXT("the group has failed before");
        check_was_soon(begin_ns);
        /* The handle stays: closing it is this rank's own business, and so is abandoning it. */
        shoal_group *again = NULL;
        CHECK_OK(shoal_group_create(world, everybody, N_RANKS, "left", &again));
        CHECK(again == group);
        CHECK_OK(self->rank == 0 ? shoal_group_close(group) : shoal_group_abandon(group));
        if (self->rank == 0) {
            again = make(world, "left");
            REQUIRE(again);
            CHECK_STATUS(shoal_group_barrier(again), SHOAL_ERR_PEER);
            CHECK_ERROR_TEXT("rank 1 has abandoned");
        }
    }
    check_others_go_on(world, other);
    CHECK_OK(shoal_world_close(world));
}

/* Peers that are in a call when it happens. */
TEST_RANKS(calls_that_wait_end, N_RANKS)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = make(world, "waits");
    shoal_group *other = make(world, "other");
    REQUIRE(group && other);
    float value = 1;
    float never = 0;
    CHECK_OK(sum(group, &value));
    test_barrier(self);
    if (self->rank == 0) {
        test_pause(0.3);
        CHECK_OK(shoal_group_abandon(group));
    } else {
        int64_t begin_ns = clock_now_ns();
        shoal_work *work = NULL;
        CHECK_OK(shoal_group_recv_start(group, &never, 1, SHOAL_F32, 0, 0, &work));
        CHECK_STATUS(self->rank == 1 ? shoal_group_barrier(group)
                                     : shoal_group_recv(group, &value, 1, SHOAL_F32, 0, 2),
                     SHOAL_ERR_PEER);
        CHECK_ERROR_TEXT("rank 0 has abandoned group");
        CHECK_STATUS(shoal_work_wait(work, -1), SHOAL_ERR_PEER);
        CHECK_ERROR_TEXT("rank 0 has abandoned group");
        shoal_work_free(work);
        check_was_soon(begin_ns);
    }
    check_others_go_on(world, other);
    CHECK_OK(shoal_world_close(world));
}

/* Nobody had used it: neither the one that abandons, nor those who make it later. */
TEST_RANKS(before_it_was_used, N_RANKS)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *other = make(world, "other");
    REQUIRE(other);
    if (self->rank == 2) {
        CHECK_OK(shoal_group_abandon(make(world, "unused")));
    }
    test_barrier(self);
    if (self->rank != 2) {
        shoal_group *group = make(world, "unused");
        REQUIRE(group);
        int64_t begin_ns = clock_now_ns();
        CHECK_STATUS(shoal_group_barrier(group), SHOAL_ERR_PEER);
        CHECK_ERROR_TEXT("rank 2 has abandoned group [0,1,2] tag \"unused\"");
        check_was_soon(begin_ns);
    }
    check_others_go_on(world, other);
    CHECK_OK(shoal_world_close(world));
}

/* What it did before counts, however late the others are: as when all ranks drop a group after its last use. */
TEST_RANKS(what_was_done_before_counts, N_RANKS)
{
    enum {
        N_ROUNDS = 40
    };
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    static float large[N_RANKS][2][50000];
    float *send = large[self->rank][0];
    float *recv = large[self->rank][1];
    for (int i = 0; i < N_ROUNDS && !test_has_failed(); i++) {
        char tag[32];
        (void)snprintf(tag, sizeof tag, "round %d", i);
        shoal_group *group = make(world, tag);
        REQUIRE(group);
        bool is_late = self->rank == i % N_RANKS;
        float value = (float)self->rank;
        if (is_late && i % 4 == 0) {
            test_pause(0.15); /* beyond the next look at the members */
        }
        if (i % 2 == 0) {
            CHECK_OK(shoal_group_broadcast(group, &value, 1, SHOAL_F32, (i + 1) % N_RANKS));
            CHECK_DOUBLE((double)value, (i + 1) % N_RANKS);
        } else {
            send[49999] = (float)self->rank;
            CHECK_OK(shoal_group_all_reduce(group, send, recv, 50000, SHOAL_F32, SHOAL_SUM));
            CHECK_DOUBLE((double)recv[49999], 3);
        }
        int next = (self->rank + 1) % N_RANKS;
        int before = (self->rank + N_RANKS - 1) % N_RANKS;
        int32_t got = -1;
        CHECK_OK(shoal_group_send(group, &self->rank, 1, SHOAL_I32, next, 0));
        CHECK_OK(shoal_group_recv(group, &got, 1, SHOAL_I32, before, 0));
        CHECK_INT(got, before);
        CHECK_OK(shoal_group_abandon(group));
    }
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    CHECK_OK(shoal_world_close(world));
}

/* Works of the one that abandons: what the others have done their part for ends well, the rest is cancelled. */
TEST_RANKS(works_that_have_not_ended, N_RANKS)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = make(world, "works");
    shoal_group *other = make(world, "other");
    REQUIRE(group && other);
    static unsigned char bytes[N_RANKS][LONG];
    float value = 1;
    float never = 0;
    CHECK_OK(sum(group, &value));
    test_barrier(self); /* the others have ended it too */
    shoal_work *works[3] = {NULL, NULL, NULL};
    if (self->rank == 1) {
        REQUIRE_OK(shoal_group_all_reduce_start(group, &value, &value, 1, SHOAL_F32, SHOAL_SUM, &works[0]));
        REQUIRE_OK(shoal_group_recv_start(group, &never, 1, SHOAL_F32, 0, 0, &works[1]));
        REQUIRE_OK(shoal_group_send_start(group, bytes[1], LONG, SHOAL_U8, 0, 1, &works[2]));
        CHECK_OK(shoal_group_abandon(group));
        for (int i = 0; i < 3; i++) {
            CHECK(shoal_work_test(works[i]));
            CHECK_STATUS(shoal_work_wait(works[i], 0), SHOAL_ERR_CANCELLED);
            CHECK_ERROR_TEXT("the group was abandoned before");
            shoal_work_free(works[i]);
        }
    } else {
        test_pause(0.2);
        CHECK_STATUS(sum(group, &value), SHOAL_ERR_PEER);
        CHECK_ERROR_TEXT("rank 1 has abandoned group");
    }
    check_others_go_on(world, other);
    CHECK_OK(shoal_world_close(world));
}

struct waiter {
    shoal_group *group;
    _Atomic bool has_begun;
};

static void *wait_in_barrier(void *context)
{
    struct waiter *waiter = context;
    atomic_store(&waiter->has_begun, true);
    CHECK_OK(shoal_group_barrier(waiter->group));
    return NULL;
}

static void *wait_in_receive(void *context)
{
    struct waiter *waiter = context;
    float value = 0;
    atomic_store(&waiter->has_begun, true);
    CHECK_STATUS(shoal_group_recv_any(waiter->group, &value, 1, SHOAL_F32, 0, NULL), SHOAL_ERR_CANCELLED);
    CHECK_ERROR_TEXT("the group was abandoned before the transfer had ended");
    return NULL;
}

/* Another thread of the rank: a collective is refused, a transfer ends. */
TEST_RANKS(another_thread_is_in_a_call, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = NULL;
    REQUIRE_OK(shoal_group_create(world, everybody, 2, "threads", &group));
    CHECK_OK(shoal_group_barrier(group));
    if (self->rank == 0) {
        struct waiter waiter = {.group = group};
        pthread_t thread;
        REQUIRE(pthread_create(&thread, NULL, wait_in_barrier, &waiter) == 0);
        while (!atomic_load(&waiter.has_begun)) {
            test_pause(0.001);
        }
        test_pause(0.1);
        CHECK_STATUS(shoal_group_abandon(group), SHOAL_ERR_STATE);
        CHECK_ERROR_TEXT("another thread of this rank is in a blocking call");
        test_barrier(self);
        REQUIRE(pthread_join(thread, NULL) == 0);
        CHECK_OK(shoal_group_barrier(group)); /* nothing has changed */
        atomic_store(&waiter.has_begun, false);
        REQUIRE(pthread_create(&thread, NULL, wait_in_receive, &waiter) == 0);
        while (!atomic_load(&waiter.has_begun)) {
            test_pause(0.001);
        }
        test_pause(0.1);
        CHECK_OK(shoal_group_abandon(group));
        REQUIRE(pthread_join(thread, NULL) == 0);
    } else {
        test_barrier(self);
        CHECK_OK(shoal_group_barrier(group));
        CHECK_OK(shoal_group_barrier(group));
    }
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    CHECK_OK(shoal_world_close(world));
}

struct abandoning {
    shoal_group *group;
    shoal_status status;
    pthread_t thread;
};

static void *abandon(void *context)
{
    struct abandoning *call = context;
    call->status = shoal_group_abandon(call->group);
    return NULL;
}

/* Two threads at once: one of them does it. */
TEST_RANKS(two_threads_abandon, 1)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    for (int i = 0; i < 30; i++) {
        char tag[32];
        (void)snprintf(tag, sizeof tag, "two %d", i);
        struct abandoning calls[2];
        shoal_group *group = NULL;
        REQUIRE_OK(shoal_group_create(world, everybody, 1, tag, &group));
        for (int k = 0; k < 2; k++) {
            calls[k] = (struct abandoning){.group = group};
            REQUIRE(pthread_create(&calls[k].thread, NULL, abandon, &calls[k]) == 0);
        }
        for (int k = 0; k < 2; k++) {
            REQUIRE(pthread_join(calls[k].thread, NULL) == 0);
        }
        CHECK(calls[0].status == SHOAL_OK || calls[1].status == SHOAL_OK);
        CHECK_STATUS(calls[0].status == SHOAL_OK ? calls[1].status : calls[0].status, SHOAL_ERR_STATE);
    }
    CHECK_OK(shoal_world_close(world));
}

static void abandon_in_callback(void *context, shoal_status status)
{
    (void)status;
    CHECK_STATUS(shoal_group_abandon(context), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("callback");
}

TEST_RANKS(what_is_refused, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    CHECK_OK(shoal_group_abandon(NULL));
    CHECK_STATUS(shoal_group_abandon(shoal_world_group(world)), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("group_abandon: the world's own group");
    shoal_group *group = NULL;
    shoal_work *work = NULL;
    REQUIRE_OK(shoal_group_create(world, everybody, 2, "refused", &group));
    REQUIRE_OK(shoal_group_barrier_start(group, &work));
    CHECK_OK(shoal_work_on_done(work, abandon_in_callback, group));
    CHECK_OK(shoal_work_wait(work, -1));
    shoal_work_free(work);
    callback_enter_capture();
    CHECK_STATUS(shoal_group_abandon(group), SHOAL_ERR_STATE);
    callback_leave_capture();
    CHECK_OK(shoal_group_barrier(group)); /* nothing has changed */
    group_hold(group);                    /* as models do */
    CHECK_STATUS(shoal_group_abandon(group), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("group_abandon: group [0,1] tag \"refused\" is used by 1 sharded or replicated model");
    group_let_go(group);
    CHECK_OK(shoal_group_abandon(group));
    CHECK_OK(shoal_world_close(world));
}

/* A group that has failed: everybody knows why, and each leaves for itself. */
TEST_RANKS(a_group_that_has_failed, N_RANKS)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = make(world, "failed");
    REQUIRE(group);
    float value = 1;
    CHECK_OK(sum(group, &value));
    test_barrier(self);
    if (self->rank == 0) {
        CHECK_OK(shoal_group_abort(group, "enough"));
        CHECK_OK(shoal_group_abandon(group));
    } else {
        CHECK_STATUS(sum(group, &value), SHOAL_ERR_CANCELLED);
        CHECK_ERROR_TEXT("enough");
        CHECK_OK(self->rank == 1 ? shoal_group_abandon(group) : shoal_group_close(group));
    }
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    CHECK_OK(shoal_world_close(world));
}

/* Members that go one after the other are no sources any more; when the last has gone, nobody can send. */
TEST_RANKS(a_receive_from_any_rank, N_RANKS)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = make(world, "sources");
    REQUIRE(group);
    CHECK_OK(shoal_group_barrier(group));
    int32_t value = self->rank;
    int source = -1;
    if (self->rank == 0) {
        int n_heard[N_RANKS] = {0, 0, 0};
        for (int i = 0; i < 2; i++) {
            CHECK_OK(shoal_group_recv_any(group, &value, 1, SHOAL_I32, 0, &source));
            REQUIRE(source > 0);
            CHECK_INT(value, source);
            n_heard[source]++;
        }
        CHECK_INT(n_heard[1], 1);
        CHECK_INT(n_heard[2], 1);
        CHECK_STATUS(shoal_group_recv_any(group, &value, 1, SHOAL_I32, 0, &source), SHOAL_ERR_PEER);
        CHECK_ERROR_TEXT("has abandoned group");
        CHECK_OK(shoal_group_abandon(group));
    } else {
        test_pause(self->rank == 2 ? 0.4 : 0);
        CHECK_OK(shoal_group_send(group, &value, 1, SHOAL_I32, 0, 0));
        CHECK_OK(shoal_group_abandon(group));
    }
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    CHECK_OK(shoal_world_close(world));
}

/* A stopped member learns of it when it goes on, and nobody waits for it. */
TEST_PROCESSES(a_member_is_stopped, N_RANKS)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = make(world, "stopped");
    REQUIRE(group);
    float value = 1;
    CHECK_OK(sum(group, &value));
    test_barrier(self);
    if (self->rank == 1) {
        test_signal(2, SIGSTOP);
        int64_t begin_ns = clock_now_ns();
        CHECK_OK(shoal_group_abandon(group));
        check_was_soon(begin_ns);
        test_signal(2, SIGCONT);
    } else {
        test_pause(self->rank == 2 ? 0.1 : 0);
        CHECK_STATUS(sum(group, &value), SHOAL_ERR_PEER);
        CHECK_ERROR_TEXT("rank 1 has abandoned");
    }
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    CHECK_OK(shoal_world_close(world));
}

/* It takes no more messages: who abandons a group then is told that this member was not. */
TEST_PROCESSES(too_many_for_a_stopped_member, N_RANKS)
{
    enum {
        N_GROUPS = 5000 /* Linux queues at most 4097 connections */
    };
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    test_barrier(self);
    if (self->rank == 1) {
        shoal_status status = SHOAL_OK;
        test_signal(2, SIGSTOP);
        for (int i = 0; i < N_GROUPS && status == SHOAL_OK; i++) {
            char tag[32];
            (void)snprintf(tag, sizeof tag, "group %d", i);
            shoal_group *group = NULL;
            REQUIRE_OK(shoal_group_create(world, everybody, N_RANKS, tag, &group));
            status = shoal_group_abandon(group);
        }
        CHECK_STATUS(status, SHOAL_ERR_SYSTEM);
        CHECK_ERROR_TEXT("rank 2 could not be told (too many messages wait for rank 2");
        test_signal(2, SIGCONT);
    }
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    CHECK_OK(shoal_world_close(world));
}

/* A rank that dies after another has gone is told as a death. */
TEST_PROCESSES(a_member_dies, N_RANKS)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = make(world, "dies");
    REQUIRE(group);
    float value = 1;
    CHECK_OK(sum(group, &value));
    test_barrier(self);
    test_expect_death(2, SIGKILL);
    if (self->rank == 2) {
        (void)raise(SIGKILL);
    }
    if (self->rank == 1) {
        test_pause(0.2);
        int64_t begin_ns = clock_now_ns();
        CHECK_OK(shoal_group_abandon(group));
        check_was_soon(begin_ns);
        CHECK_STATUS(shoal_group_barrier(shoal_world_group(world)), SHOAL_ERR_PEER);
    } else {
        CHECK_STATUS(sum(group, &value), SHOAL_ERR_PEER);
        CHECK_STATUS(shoal_group_barrier(shoal_world_group(world)), SHOAL_ERR_PEER);
        CHECK_ERROR_TEXT("rank 2");
    }
    (void)shoal_world_close(world);
}

/* Groups that all abandon, at different times, do not pile up: neither memory nor descriptors. */
TEST_RANKS(many_groups, 2)
{
    enum {
        N_GROUPS = 300,
        N_FIRST = 100
    };
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    size_t descriptors = 0;
    for (int i = 0; i < N_GROUPS && !test_has_failed(); i++) {
        char tag[32];
        (void)snprintf(tag, sizeof tag, "group %d", i);
        shoal_group *group = NULL;
        REQUIRE_OK(shoal_group_create(world, everybody, 2, tag, &group));
        float value = 1;
        CHECK_OK(sum(group, &value));
        CHECK_OK(shoal_group_send(group, &value, 1, SHOAL_F32, 1 - self->rank, 0));
        CHECK_OK(shoal_group_recv(group, &value, 1, SHOAL_F32, 1 - self->rank, 0));
        CHECK_OK(shoal_group_abandon(group));
        if (i == N_FIRST) {
            test_barrier(self);
            descriptors = test_open_descriptors();
            test_barrier(self);
        }
    }
    test_barrier(self);
    /* A few of the last may wait for the next group. */
    CHECK(test_open_descriptors() < descriptors + 40);
    test_barrier(self);
    CHECK_OK(shoal_world_close(world));
}

static void *let_close_end(void *context)
{
    shoal_world *world = context;
    const char *key = "abandoned";
    CHECK_OK(shoal_store_wait(shoal_world_store(world), &key, 1, 20));
    groups_end_walk(world->groups);
    return NULL;
}

/* Rank 1 has closed the group, made it again and abandoned that one, while rank 0 is still closing the first. */
TEST_RANKS(a_group_that_others_still_close, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = NULL;
    REQUIRE_OK(shoal_group_create(world, everybody, 2, "again", &group));
    CHECK_OK(shoal_group_barrier(group));
    pthread_t thread;
    if (self->rank == 0) {
        (void)groups_walk(world->groups); /* as shoal_world_dump does; groups_remove waits for its end */
        REQUIRE(pthread_create(&thread, NULL, let_close_end, world) == 0);
    }
    CHECK_OK(shoal_group_close(group));
    REQUIRE_OK(shoal_group_create(world, everybody, 2, "again", &group));
    if (self->rank == 1) {
        CHECK_OK(shoal_group_abandon(group));
        CHECK_OK(shoal_store_set(shoal_world_store(world), "abandoned", "", 0));
    } else {
        int64_t begin_ns = clock_now_ns();
        (void)pthread_join(thread, NULL);
        CHECK_STATUS(shoal_group_barrier(group), SHOAL_ERR_PEER);
        CHECK_ERROR_TEXT("rank 1 has abandoned group [0,1] tag \"again\"");
        check_was_soon(begin_ns);
    }
    CHECK_OK(shoal_world_close(world));
}

/* Every allocation in turn: the group is as it was, or gone. */
TEST_RANKS(allocations_may_fail, 1)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    for (size_t k = 1; k <= 12; k++) {
        char tag[32];
        (void)snprintf(tag, sizeof tag, "allocation %zu", k);
        shoal_group *group = NULL;
        REQUIRE_OK(shoal_group_create(world, everybody, 1, tag, &group));
        CHECK_OK(shoal_group_barrier(group));
        test_fail_allocation(k, /*is_lasting=*/false);
        shoal_status status = shoal_group_abandon(group);
        test_fail_allocation(0, false);
        CHECK(status == SHOAL_OK || status == SHOAL_ERR_NO_MEMORY);
        if (status != SHOAL_OK) {
            CHECK_OK(shoal_group_barrier(group));
            CHECK_OK(shoal_group_abandon(group));
        }
    }
    CHECK_OK(shoal_world_close(world));
}

TEST(the_fake_transport)
{
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = 3, .rank = 1, .transport = "fake", .key = "abandon fake"};
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    shoal_group *group = make(world, "fake");
    REQUIRE(group);
    CHECK_OK(shoal_group_barrier(group));
    CHECK_OK(shoal_group_abandon(group));
    CHECK_STATUS(shoal_group_create(world, everybody, N_RANKS, "fake", &group), SHOAL_ERR_STATE);
    CHECK_OK(shoal_world_close(world));
}
