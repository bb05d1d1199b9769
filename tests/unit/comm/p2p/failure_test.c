/* SPDX-License-Identifier: MIT */
/* Point to point that goes wrong: mistakes, deadlines, aborts, deaths, shortages. Each ends, soon, with the reason. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "unit/comm/p2p/session.h"

/* More than any transport keeps of a message that nobody receives. */
#define LONG ((size_t)1 << 20)

/* What goes wrong --------------------------------------------------------------------------------------- */

TEST_RANKS(another_message_than_expected, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    static unsigned char bytes[2][LONG];
    unsigned char *mine = bytes[self->rank];
    if (self->rank == 0) {
        shoal_work *work = NULL;
        CHECK_OK(shoal_group_send_start(session.group, mine, LONG, SHOAL_U8, 1, 3, &work));
        CHECK_STATUS(shoal_work_wait(work, -1), SHOAL_ERR_MISMATCH);
        CHECK_ERROR_TEXT("rank 1 receives f32 count 10 from rank 0 tag 3, but rank 0 sends u8 count 1048576");
        CHECK_STATUS(shoal_work_wait(work, -1), SHOAL_ERR_MISMATCH);
        shoal_work_free(work);
        CHECK_STATUS(shoal_group_send(session.group, mine, 1, SHOAL_U8, 1, 3), SHOAL_ERR_MISMATCH);
        CHECK_ERROR_TEXT("but rank 0 sends u8");
        CHECK_OK(shoal_group_send(session.group, mine, 1, SHOAL_U8, 1, 4));
    } else {
        CHECK_STATUS(shoal_group_recv(session.group, mine, 10, SHOAL_F32, 0, 3), SHOAL_ERR_MISMATCH);
        CHECK_ERROR_TEXT("rank 1 receives f32 count 10 from rank 0 tag 3, but rank 0 sends u8 count 1048576");
        CHECK_STATUS(shoal_group_recv(session.group, mine, 1, SHOAL_U8, 0, 3), SHOAL_ERR_MISMATCH);
        CHECK_OK(shoal_group_recv(session.group, mine, 1, SHOAL_U8, 0, 4)); /* other streams go on */
    }
    CHECK_OK(shoal_group_barrier(session.group)); /* and so do collectives */
    close_session(&session);
}

TEST_RANKS(what_nobody_answers_times_out, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    static unsigned char bytes[2][LONG];
    CHECK_OK(shoal_group_set_timeout(session.group, 0.3));
    int64_t begin_ns = clock_now_ns();
    if (self->rank == 0) {
        CHECK_STATUS(shoal_group_recv(session.group, bytes[0], 10, SHOAL_U8, 1, 3), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("waited 0.");
        CHECK_ERROR_TEXT("tag");
    } else {
        shoal_work *work = NULL;
        CHECK_OK(shoal_group_send_start(session.group, bytes[1], LONG, SHOAL_U8, 0, 2, &work));
        test_pause(0.6); /* nobody waits: it is watched all the same */
        CHECK(shoal_work_test(work));
        CHECK_STATUS(shoal_work_wait(work, -1), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("waited 0."); /* its own, or the other's, which came first */
        shoal_work_free(work);
    }
    CHECK_STATUS(shoal_group_error(session.group), SHOAL_ERR_TIMEOUT);
    CHECK_STATUS(shoal_group_send(session.group, bytes[0], 1, SHOAL_U8, 0, 8), SHOAL_ERR_TIMEOUT);
    CHECK(clock_now_ns() - begin_ns < (int64_t)(10e9 * test_time_scale()));
    test_barrier(self); /* who closes has left */
    close_session(&session);
}

static int find_reason(void *context, const char *text, size_t bytes)
{
    char piece[2048];
    (void)snprintf(piece, sizeof piece, "%.*s", (int)bytes, text);
    *(bool *)context = *(bool *)context || strstr(piece, "\"failure\": {\"status\": \"SHOAL_ERR_TIMEOUT\"");
    return 0;
}

/* No collective was called before, and nobody else has used point to point: all hear of it, at once. */
TEST_RANKS(a_timeout_is_the_whole_groups, 3)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    unsigned char byte = 0;
    if (self->rank == 2) {
        CHECK_OK(shoal_group_set_timeout(session.group, 0.2));
        CHECK_STATUS(shoal_group_recv(session.group, &byte, 1, SHOAL_U8, 1, 3), SHOAL_ERR_TIMEOUT);
    }
    test_barrier(self);
    int64_t begin_ns = clock_now_ns();
    CHECK_STATUS(shoal_group_barrier(session.group), SHOAL_ERR_TIMEOUT);
    CHECK_ERROR_TEXT("rank 2 receives u8 count 1 from rank 1 tag 3: waited 0.");
    CHECK_STATUS(shoal_group_error(session.group), SHOAL_ERR_TIMEOUT);
    CHECK_STATUS(shoal_group_send(session.group, &byte, 1, SHOAL_U8, (self->rank + 1) % 3, 3),
                 SHOAL_ERR_TIMEOUT);
    CHECK(clock_now_ns() - begin_ns < (int64_t)(10e9 * test_time_scale()));
    bool has_reason = false;
    CHECK_OK(shoal_world_dump(session.world, find_reason, &has_reason));
    CHECK(has_reason);
    test_barrier(self); /* who closes has left */
    close_session(&session);
}

/* The rank that holds the group's memory does not answer: nobody else can hear of it, but here it is final. */
TEST_PROCESSES(a_timeout_that_can_not_be_told_is_kept, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    test_barrier(self);
    if (self->rank == 1) {
        unsigned char byte = 0;
        CHECK_OK(shoal_group_set_timeout(session.group, 0.2));
        test_signal(0, SIGSTOP);
        CHECK_STATUS(shoal_group_recv(session.group, &byte, 1, SHOAL_U8, 0, 3), SHOAL_ERR_TIMEOUT);
        /* Longer than the test may take: what is kept needs no waiting. */
        CHECK_OK(shoal_group_set_timeout(session.group, 1000));
        CHECK_STATUS(shoal_group_barrier(session.group), SHOAL_ERR_TIMEOUT);
        CHECK_STATUS(shoal_group_error(session.group), SHOAL_ERR_TIMEOUT);
        test_signal(0, SIGCONT);
        CHECK_STATUS(shoal_group_barrier(session.group), SHOAL_ERR_TIMEOUT);
        CHECK_STATUS(shoal_group_recv(session.group, &byte, 1, SHOAL_U8, 0, 3), SHOAL_ERR_TIMEOUT);
    }
    test_barrier(self);
    close_session(&session);
}

TEST_RANKS(a_batch_ends_with_its_first_failure, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    unsigned char out[8] = {0};
    unsigned char in[3][8];
    shoal_transfer list[4] = {
        {.direction = SHOAL_RECV, .buffer = in[0], .count = 8, .dtype = SHOAL_U8, .peer = 0, .tag = 0},
        {.direction = SHOAL_RECV, .buffer = in[1], .count = 1, .dtype = SHOAL_F64, .peer = 0, .tag = 1},
        {.direction = SHOAL_RECV, .buffer = in[2], .count = 2, .dtype = SHOAL_F32, .peer = 0, .tag = 2},
        {.direction = SHOAL_SEND, .buffer = out, .count = 8, .dtype = SHOAL_U8, .peer = 0, .tag = 3}};
    if (self->rank == 0) {
        for (int tag = 2; tag >= 0; tag--) {
            CHECK_OK(shoal_group_send(session.group, out, 8, SHOAL_U8, 1, tag));
        }
        CHECK_OK(shoal_group_recv(session.group, out, 8, SHOAL_U8, 1, 3));
    } else {
        shoal_work *work = NULL;
        shoal_status status = shoal_group_transfer_start(session.group, list, 4, &work);
        if (work) {
            CHECK_OK(status);
            status = shoal_work_wait(work, -1);
        }
        CHECK_STATUS(status, SHOAL_ERR_MISMATCH);
        CHECK_ERROR_TEXT("receives f64 count 1 from rank 0 tag 1");
        shoal_work_free(work);
    }
    close_session(&session);
}

TEST_RANKS(abort_ends_everything, 3)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    unsigned char byte = 0;
    if (self->rank == 2) {
        test_barrier(self);
        CHECK_OK(shoal_group_abort(session.group, "enough"));
    } else if (self->rank == 1) {
        shoal_work *work = NULL;
        CHECK_OK(shoal_group_recv_start(session.group, &byte, 1, SHOAL_U8, 0, 0, &work));
        test_barrier(self);
        CHECK_STATUS(shoal_work_wait(work, -1), SHOAL_ERR_CANCELLED);
        CHECK_ERROR_TEXT("enough");
        shoal_work_free(work);
    } else {
        test_barrier(self);
        CHECK_STATUS(shoal_group_recv(session.group, &byte, 1, SHOAL_U8, 1, 0), SHOAL_ERR_CANCELLED);
        CHECK_ERROR_TEXT("enough");
    }
    test_barrier(self);
    CHECK_STATUS(shoal_group_send(session.group, &byte, 1, SHOAL_U8, 0, 7), SHOAL_ERR_CANCELLED);
    (void)shoal_world_close(session.world);
}

static void *abort_later(void *context)
{
    test_pause(0.05);
    CHECK_OK(shoal_group_abort(context, "from another thread"));
    return NULL;
}

TEST_RANKS(abort_from_another_thread, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    unsigned char byte = 0;
    pthread_t thread;
    if (self->rank == 0) {
        REQUIRE(pthread_create(&thread, NULL, abort_later, session.group) == 0);
    }
    CHECK_STATUS(shoal_group_recv(session.group, &byte, 1, SHOAL_U8, 1 - self->rank, 0), SHOAL_ERR_CANCELLED);
    CHECK_ERROR_TEXT("from another thread");
    if (self->rank == 0) {
        CHECK(pthread_join(thread, NULL) == 0);
    }
    (void)shoal_world_close(session.world);
}

/* The text says who waited for what; collectives hear of it too. */
TEST_RANKS(a_timeout_is_the_groups, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    unsigned char bytes[40];
    CHECK_OK(shoal_group_barrier(session.group));
    if (self->rank == 0) {
        CHECK_OK(shoal_group_set_timeout(session.group, 0.2));
        CHECK_STATUS(shoal_group_recv(session.group, bytes, 10, SHOAL_F32, 1, 3), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("rank 0 receives f32 count 10 from rank 1 tag 3: waited 0.");
    }
    test_barrier(self);
    CHECK_STATUS(shoal_group_barrier(session.group), SHOAL_ERR_TIMEOUT);
    CHECK_ERROR_TEXT("rank 0 receives f32 count 10 from rank 1 tag 3");
    test_barrier(self);
    (void)shoal_world_close(session.world);
}

/* A rank that dies with a message half received: the sender hears of it soon, and by name. */
TEST_RANKS(a_dead_rank_is_noticed, 3)
{
    struct session session;
    if (!self->is_process) {
        return; /* a thread does not die alone */
    }
    REQUIRE(open_session(self, &session));
    static unsigned char bytes[LONG];
    test_barrier(self);
    test_expect_death(1, SIGKILL);
    if (self->rank == 1) {
        CHECK_OK(shoal_group_recv(session.group, bytes, 1, SHOAL_U8, 0, 0));
        (void)raise(SIGKILL);
    }
    int64_t begin_ns = clock_now_ns();
    if (self->rank == 0) {
        CHECK_OK(shoal_group_send(session.group, bytes, 1, SHOAL_U8, 1, 0));
        CHECK_STATUS(shoal_group_send(session.group, bytes, sizeof bytes, SHOAL_U8, 1, 0), SHOAL_ERR_PEER);
    } else {
        shoal_work *work = NULL;
        shoal_status status = shoal_group_recv_start(session.group, bytes, 1, SHOAL_U8, 1, 0, &work);
        if (work) {
            CHECK_OK(status);
            status = shoal_work_wait(work, -1);
        }
        CHECK_STATUS(status, SHOAL_ERR_PEER);
        shoal_work_free(work);
    }
    CHECK_ERROR_TEXT("rank 1");
    CHECK_STATUS(shoal_group_error(session.group), SHOAL_ERR_PEER);
    CHECK(clock_now_ns() - begin_ns < (int64_t)(5e9 * test_time_scale()));
    CHECK_STATUS(shoal_group_send(session.group, bytes, 1, SHOAL_U8, 0, 1), SHOAL_ERR_PEER);
    (void)shoal_world_close(session.world);
}

/* What a rank sent before it died is received. */
TEST_RANKS(the_last_words_of_a_dead_rank, 2)
{
    struct session session;
    if (!self->is_process) {
        return;
    }
    REQUIRE(open_session(self, &session));
    test_barrier(self);
    test_expect_death(1, SIGKILL);
    int32_t value = 42;
    if (self->rank == 1) {
        CHECK_OK(shoal_group_send(session.group, &value, 1, SHOAL_I32, 0, 0));
        (void)raise(SIGKILL);
    }
    value = 0;
    test_pause(0.3);
    CHECK_OK(shoal_group_recv(session.group, &value, 1, SHOAL_I32, 1, 0));
    CHECK_INT(value, 42);
    CHECK_STATUS(shoal_group_recv(session.group, &value, 1, SHOAL_I32, 1, 0), SHOAL_ERR_PEER);
    (void)shoal_world_close(session.world);
}

/* Bad input --------------------------------------------------------------------------------------------- */

TEST_RANKS(wrong_arguments_are_named, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    shoal_group *group = session.group;
    shoal_work *work = NULL;
    char byte = 0;
    CHECK_STATUS(shoal_group_send(NULL, &byte, 1, SHOAL_U8, 0, 0), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("group is NULL");
    CHECK_STATUS(shoal_group_send(group, NULL, 1, SHOAL_U8, 0, 0), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("buffer is NULL");
    CHECK_STATUS(shoal_group_recv(group, &byte, 1, (shoal_dtype)99, 0, 0), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("dtype");
    CHECK_STATUS(shoal_group_recv(group, &byte, 1, SHOAL_U8, 2, 0), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("recv: peer 2 is outside of the group of 2 ranks");
    CHECK_STATUS(shoal_group_recv(group, &byte, 1, SHOAL_U8, -1, 0), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_group_send(group, &byte, 1, SHOAL_U8, 0, -5), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("send: tag -5 is negative");
    CHECK_STATUS(shoal_group_send(group, &byte, SIZE_MAX / 2, SHOAL_F64, 0, 0), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("more than memory can hold");
    CHECK_STATUS(shoal_group_send_start(group, &byte, 1, SHOAL_U8, 0, 0, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("send: work_out is NULL");
    CHECK_STATUS(shoal_group_recv_start(NULL, &byte, 1, SHOAL_U8, 0, 0, &work), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_group_transfer(group, NULL, 2), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("transfer: transfers is NULL");
    shoal_transfer list[2] = {
        {.direction = SHOAL_SEND, .buffer = &byte, .count = 1, .dtype = SHOAL_U8},
        {.direction = (shoal_direction)7, .buffer = &byte, .count = 1, .dtype = SHOAL_U8}};
    CHECK_STATUS(shoal_group_transfer_start(group, list, 2, &work), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("transfer 1: direction is 7");
    CHECK(!work);
    /* Nothing was changed by any of this. */
    CHECK_STATUS(shoal_group_recv(group, &byte, 1, SHOAL_U8, self->rank, 0), SHOAL_ERR_STATE);
    close_session(&session);
}

TEST_RANKS(tags_run_out_with_an_error, 1)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    char byte = 0;
    int tag = 0;
    shoal_status status = SHOAL_OK;
    while (status == SHOAL_OK && tag < 5000) {
        status = shoal_group_send(session.group, &byte, 1, SHOAL_U8, 0, tag);
        tag++;
    }
    /* Other transports than shared memory have no limit. */
    const char *transport = getenv("SHOAL_TRANSPORT");
    if (!transport || strcmp(transport, "shm") == 0) {
        CHECK_STATUS(status, SHOAL_ERR_UNSUPPORTED);
        CHECK_ERROR_TEXT("tag");
    }
    CHECK(tag > 1000);
    close_session(&session);
}

/* Talks to itself on streams that are new; everything ends, whatever fails. */
static shoal_status talk_to_itself(shoal_world *world, const char *group_tag)
{
    shoal_group *group = NULL;
    shoal_work *work = NULL;
    int32_t value = 5;
    int32_t got = 0;
    shoal_status status = shoal_group_create(world, (int[]){0}, 1, group_tag, &group);
    if (status == SHOAL_OK) {
        status = shoal_group_recv_start(group, &got, 1, SHOAL_I32, 0, 0, &work);
    }
    if (status == SHOAL_OK) {
        status = shoal_group_send(group, &value, 1, SHOAL_I32, 0, 0);
    }
    if (status == SHOAL_OK) {
        status = shoal_work_wait(work, -1);
        CHECK_INT(got, 5);
    } else if (work) {
        CHECK_OK(shoal_group_abort(group, "memory ran out"));
        CHECK_STATUS(shoal_work_wait(work, -1), SHOAL_ERR_CANCELLED);
    }
    shoal_work_free(work);
    return status;
}

TEST_RANKS(allocations_may_fail, 1)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    for (size_t k = 1; k <= 30; k++) {
        char tag[32];
        (void)snprintf(tag, sizeof tag, "allocation %zu", k);
        test_fail_allocation(k, /*is_lasting=*/false);
        shoal_status status = talk_to_itself(session.world, tag);
        test_fail_allocation(0, false);
        CHECK(status == SHOAL_OK || status == SHOAL_ERR_NO_MEMORY);
    }
    CHECK_OK(talk_to_itself(session.world, "at last"));
    close_session(&session);
}

/* One that waits in line with less time than those before it. */
TEST_RANKS(the_shortest_deadline_counts, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    if (self->rank == 0) {
        shoal_work *work = NULL;
        char bytes[2];
        CHECK_OK(shoal_group_recv_start(session.group, &bytes[0], 1, SHOAL_U8, 1, 0, &work));
        CHECK_OK(shoal_group_set_timeout(session.group, 0.2));
        CHECK_STATUS(shoal_group_recv(session.group, &bytes[1], 1, SHOAL_U8, 1, 0), SHOAL_ERR_TIMEOUT);
        CHECK_STATUS(shoal_work_wait(work, -1), SHOAL_ERR_TIMEOUT);
        shoal_work_free(work);
    }
    test_barrier(self);
    close_session(&session);
}
