/* SPDX-License-Identifier: MIT */
/* Point to point with deadlines of the calls' own: what has not begun is withdrawn, what has begun fails its stream. */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "unit/comm/p2p/session.h"

/* More than any transport keeps of a message that nobody receives. */
#define LONG ((size_t)1 << 20)

static shoal_status transfer_within(shoal_group *group, double timeout_s, shoal_transfer transfer)
{
    shoal_transfer_options options = SHOAL_TRANSFER_OPTIONS_INIT;
    options.timeout_s = timeout_s;
    return shoal_group_transfer_with(group, &transfer, 1, &options);
}

static shoal_status start_within(shoal_group *group, double timeout_s, shoal_transfer transfer,
                                 shoal_work **work_out)
{
    shoal_transfer_options options = SHOAL_TRANSFER_OPTIONS_INIT;
    options.timeout_s = timeout_s;
    return shoal_group_transfer_with_start(group, &transfer, 1, &options, work_out);
}

static shoal_transfer receive(void *buffer, size_t count, int peer, int tag)
{
    return (shoal_transfer){SHOAL_RECV, buffer, count, SHOAL_U8, peer, tag};
}

static shoal_transfer send(void *buffer, size_t count, int peer, int tag)
{
    return (shoal_transfer){SHOAL_SEND, buffer, count, SHOAL_U8, peer, tag};
}

/* The message that comes later is received by the next call, blocking or started; the group goes on. */
TEST_RANKS(a_receive_is_tried_again, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    unsigned char bytes[10];
    if (self->rank == 0) {
        shoal_work *work = NULL;
        CHECK_STATUS(transfer_within(session.group, 0.1, receive(bytes, 10, 1, 3)), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("rank 0 receives u8 count 10 from rank 1 tag 3: waited 0.");
        CHECK_ERROR_TEXT(
            "(timeout_s of the call) for rank 1; 0 of 10 bytes were transferred, and the stream can");
        CHECK_OK(start_within(session.group, 0.1, receive(bytes, 10, 1, 3), &work));
        CHECK_STATUS(shoal_work_wait(work, -1), SHOAL_ERR_TIMEOUT);
        shoal_work_free(work);
        /* Nobody waits for it: it is watched all the same. */
        CHECK_OK(start_within(session.group, 0.1, receive(bytes, 10, 1, 3), &work));
        test_pause(0.5);
        CHECK(shoal_work_test(work));
        shoal_work_free(work);
        CHECK_OK(shoal_group_error(session.group));
        test_barrier(self);
        CHECK_OK(transfer_within(session.group, 30 * test_time_scale(), receive(bytes, 10, 1, 3)));
        CHECK(is_from(bytes, 10, 1, 3));
        CHECK_OK(shoal_group_recv(session.group, bytes, 10, SHOAL_U8, 1, 3));
        CHECK(is_from(bytes, 10, 1, 4));
    } else {
        test_barrier(self);
        fill(bytes, 10, 1, 3);
        CHECK_OK(transfer_within(session.group, 30 * test_time_scale(), send(bytes, 10, 0, 3)));
        fill(bytes, 10, 1, 4);
        CHECK_OK(shoal_group_send(session.group, bytes, 10, SHOAL_U8, 0, 3));
    }
    CHECK_OK(shoal_group_barrier(session.group));
    close_session(&session);
}

/* Receives before and after it in line are not disturbed: messages are numbered without it. */
TEST_RANKS(one_in_the_middle_is_withdrawn, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    unsigned char got[4] = {0, 0, 0, 0};
    if (self->rank == 0) {
        shoal_work *works[4] = {NULL};
        for (int i = 0; i < 4; i++) {
            CHECK_OK(i % 2 == 1
                         ? start_within(session.group, 0.1, receive(&got[i], 1, 1, 0), &works[i])
                         : shoal_group_recv_start(session.group, &got[i], 1, SHOAL_U8, 1, 0, &works[i]));
        }
        CHECK_STATUS(shoal_work_wait(works[3], -1), SHOAL_ERR_TIMEOUT);
        CHECK_STATUS(shoal_work_wait(works[1], -1), SHOAL_ERR_TIMEOUT);
        CHECK(!shoal_work_test(works[0]) && !shoal_work_test(works[2]));
        test_barrier(self);
        CHECK_OK(shoal_work_wait(works[0], -1));
        CHECK_OK(shoal_work_wait(works[2], -1));
        CHECK_INT(got[0], 10);
        CHECK_INT(got[2], 11);
        CHECK_OK(shoal_group_recv(session.group, &got[3], 1, SHOAL_U8, 1, 0));
        CHECK_INT(got[3], 12);
        for (int i = 0; i < 4; i++) {
            shoal_work_free(works[i]);
        }
    } else {
        test_barrier(self);
        for (unsigned char byte = 10; byte < 13; byte++) {
            CHECK_OK(shoal_group_send(session.group, &byte, 1, SHOAL_U8, 0, 0));
        }
    }
    CHECK_OK(shoal_group_barrier(session.group));
    close_session(&session);
}

/* A send behind a long one that nobody receives is withdrawn, and never seen. The long one is not disturbed. */
TEST_RANKS(a_send_that_had_no_room_is_withdrawn, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    unsigned char *bytes = malloc(LONG);
    REQUIRE(bytes);
    unsigned char byte = 77;
    if (self->rank == 0) {
        shoal_work *works[2] = {NULL, NULL};
        fill(bytes, LONG, 0, 0);
        CHECK_OK(shoal_group_send_start(session.group, bytes, LONG, SHOAL_U8, 1, 0, &works[0]));
        CHECK_STATUS(transfer_within(session.group, 0.1, send(&byte, 1, 1, 0)), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("rank 0 sends u8 count 1 to rank 1 tag 0: waited 0.");
        CHECK_ERROR_TEXT("0 of 1 bytes were transferred, and the stream can be used as before");
        byte = 78;
        CHECK_OK(shoal_group_send_start(session.group, &byte, 1, SHOAL_U8, 1, 0, &works[1]));
        test_barrier(self);
        CHECK_OK(shoal_work_wait(works[0], -1));
        CHECK_OK(shoal_work_wait(works[1], -1));
        shoal_work_free(works[0]);
        shoal_work_free(works[1]);
    } else {
        test_barrier(self);
        CHECK_OK(shoal_group_recv(session.group, bytes, LONG, SHOAL_U8, 0, 0));
        CHECK(is_from(bytes, LONG, 0, 0));
        CHECK_OK(shoal_group_recv(session.group, &byte, 1, SHOAL_U8, 0, 0));
        CHECK_INT(byte, 78);
    }
    free(bytes);
    CHECK_OK(shoal_group_barrier(session.group));
    close_session(&session);
}

/* Of a long one the peer may have a part: the stream has failed, on both sides and for good, and nothing else has. */
TEST_RANKS(a_send_that_has_begun_fails_its_stream, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    unsigned char *bytes = malloc(LONG);
    REQUIRE(bytes);
    if (self->rank == 0) {
        CHECK_STATUS(transfer_within(session.group, 0.1, send(bytes, LONG, 1, 5)), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("and the stream cannot be used any more");
        CHECK_STATUS(shoal_group_send(session.group, bytes, 1, SHOAL_U8, 1, 5), SHOAL_ERR_TIMEOUT);
        test_barrier(self);
        CHECK_OK(shoal_group_send(session.group, bytes, 1, SHOAL_U8, 1, 6));
    } else {
        test_barrier(self);
        CHECK_STATUS(shoal_group_recv(session.group, bytes, LONG, SHOAL_U8, 0, 5), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("rank 0 sends u8 count 1048576 to rank 1 tag 5: waited 0.");
        CHECK_STATUS(shoal_group_recv_any(session.group, bytes, 1, SHOAL_U8, 5, NULL), SHOAL_ERR_TIMEOUT);
        CHECK_OK(shoal_group_recv(session.group, bytes, 1, SHOAL_U8, 0, 6));
    }
    free(bytes);
    CHECK_OK(shoal_group_error(session.group));
    CHECK_OK(shoal_group_barrier(session.group));
    close_session(&session);
}

/* What had ended counts, and `sources` tells what that was. */
TEST_RANKS(a_list_ends_in_part, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    unsigned char mine = (unsigned char)(40 + self->rank);
    unsigned char got[2] = {0, 0};
    int sources[4] = {9, 9, 9, 9};
    shoal_transfer list[4] = {{SHOAL_SEND, &mine, 1, SHOAL_U8, 1 - self->rank, 0},
                              {SHOAL_RECV, &got[0], 1, SHOAL_U8, 1 - self->rank, 0},
                              {SHOAL_RECV, &got[1], 1, SHOAL_U8, 1 - self->rank, 1},
                              {SHOAL_SEND, NULL, 1, SHOAL_U8, SHOAL_NO_RANK, 1}};
    shoal_transfer_options options = SHOAL_TRANSFER_OPTIONS_INIT;
    options.timeout_s = 1 * test_time_scale();
    options.sources = sources;
    CHECK_STATUS(shoal_group_transfer_with(session.group, list, 4, &options), SHOAL_ERR_TIMEOUT);
    CHECK_ERROR_TEXT("tag 1: waited");
    CHECK_INT(sources[0], -1);
    CHECK_INT(sources[1], 1 - self->rank);
    CHECK_INT(sources[2], -1);
    CHECK_INT(sources[3], -1);
    CHECK_INT(got[0], 41 - self->rank);
    CHECK_OK(shoal_group_barrier(session.group));
    CHECK_OK(shoal_group_send(session.group, &mine, 1, SHOAL_U8, 1 - self->rank, 1));
    CHECK_OK(shoal_group_transfer_with(session.group, &list[2], 1, NULL));
    CHECK_INT(got[1], 41 - self->rank);
    CHECK_OK(shoal_group_barrier(session.group));
    close_session(&session);
}

/* 0 is the group's timeout, which is the whole group's. A longer one than the group's holds too. */
TEST_RANKS(zero_and_more_than_the_groups, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    unsigned char byte = 0;
    if (self->rank == 0) {
        CHECK_OK(shoal_group_set_timeout(session.group, 0.2));
        test_barrier(self);
        CHECK_OK(transfer_within(session.group, 20 * test_time_scale(), receive(&byte, 1, 1, 0)));
        CHECK_STATUS(transfer_within(session.group, 0, receive(&byte, 1, 1, 0)), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("SHOAL_TIMEOUT");
        CHECK_STATUS(shoal_group_error(session.group), SHOAL_ERR_TIMEOUT);
    } else {
        test_barrier(self);
        test_pause(0.7);
        CHECK_OK(shoal_group_send(session.group, &byte, 1, SHOAL_U8, 0, 0));
    }
    test_barrier(self);
    CHECK_STATUS(transfer_within(session.group, 0.1, receive(&byte, 1, 0, 0)), SHOAL_ERR_TIMEOUT);
    CHECK_STATUS(shoal_group_barrier(session.group), SHOAL_ERR_TIMEOUT);
    test_barrier(self);
    (void)shoal_world_close(session.world);
}

TEST_RANKS(wrong_options, 1)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    unsigned char byte = 0;
    shoal_transfer transfer = send(&byte, 1, 0, 0);
    shoal_work *work = NULL;
    const double wrong[] = {-1, 2e9, (double)NAN};
    for (size_t i = 0; i < 3; i++) {
        CHECK_STATUS(transfer_within(session.group, wrong[i], transfer), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT("transfer_with: timeout_s is ");
        CHECK_STATUS(start_within(session.group, wrong[i], transfer, &work), SHOAL_ERR_INVALID);
    }
    shoal_transfer_options options = {0};
    CHECK_STATUS(shoal_group_transfer_with(session.group, &transfer, 1, &options), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("struct_size");
    CHECK(!work);
    CHECK_OK(shoal_group_transfer_with(session.group, NULL, 0, NULL));
    close_session(&session);
}

/* The rank that holds the group's memory is stopped while another connects: that call has failed, not the group. */
TEST_PROCESSES(connecting_takes_too_long, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    unsigned char byte = 0;
    test_barrier(self);
    if (self->rank == 1) {
        test_signal(0, SIGSTOP);
        for (int i = 0; i < 2; i++) {
            CHECK_STATUS(transfer_within(session.group, 0.2, receive(&byte, 1, 0, 0)), SHOAL_ERR_TIMEOUT);
            CHECK_STATUS(transfer_within(session.group, 0.2, receive(&byte, 1, SHOAL_ANY_RANK, 0)),
                         SHOAL_ERR_TIMEOUT);
        }
        CHECK_OK(shoal_group_error(session.group));
        test_signal(0, SIGCONT);
        CHECK_OK(shoal_group_recv(session.group, &byte, 1, SHOAL_U8, 0, 0));
        CHECK_INT(byte, 66);
    } else {
        test_pause(0.1);
        byte = 66;
        CHECK_OK(shoal_group_send(session.group, &byte, 1, SHOAL_U8, 1, 0));
    }
    CHECK_OK(shoal_group_barrier(session.group));
    close_session(&session);
}

/* A death is noticed before a deadline that is far away. */
TEST_RANKS(a_dead_peer_is_noticed, 2)
{
    struct session session;
    if (!self->is_process) {
        return; /* a thread does not die alone */
    }
    REQUIRE(open_session(self, &session));
    unsigned char byte = 0;
    test_barrier(self);
    test_expect_death(1, SIGKILL);
    if (self->rank == 1) {
        (void)raise(SIGKILL);
    }
    CHECK_STATUS(transfer_within(session.group, 1000, receive(&byte, 1, 1, 0)), SHOAL_ERR_PEER);
    CHECK_ERROR_TEXT("rank 1");
    CHECK_STATUS(shoal_group_error(session.group), SHOAL_ERR_PEER);
    (void)shoal_world_close(session.world);
}

struct talker {
    struct session *session;
    int tag;
    pthread_t thread;
};

/* Receives with short deadlines until everything has come. */
static void *talk(void *context)
{
    struct talker *talker = context;
    struct session *session = talker->session;
    for (int i = 0; i < 100 && !test_has_failed(); i++) {
        unsigned char bytes[40];
        if (session->rank == 0) {
            fill(bytes, sizeof bytes, i % 7, talker->tag);
            CHECK_OK(shoal_group_send(session->group, bytes, sizeof bytes, SHOAL_U8, 1, talker->tag));
            test_pause(0.0005 * (i % 4));
            continue;
        }
        shoal_status status = SHOAL_ERR_TIMEOUT;
        while (status == SHOAL_ERR_TIMEOUT) {
            status = transfer_within(session->group, 0.0003, receive(bytes, sizeof bytes, 0, talker->tag));
        }
        CHECK_OK(status);
        CHECK(is_from(bytes, sizeof bytes, i % 7, talker->tag));
    }
    return NULL;
}

TEST_RANKS(nothing_is_lost_between_many_short_deadlines, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    struct talker talkers[3];
    CHECK_OK(shoal_group_barrier(session.group));
    for (int i = 0; i < 3; i++) {
        talkers[i] = (struct talker){.session = &session, .tag = i};
        REQUIRE(pthread_create(&talkers[i].thread, NULL, talk, &talkers[i]) == 0);
    }
    for (int i = 0; i < 3; i++) {
        CHECK(pthread_join(talkers[i].thread, NULL) == 0);
    }
    CHECK_OK(shoal_group_barrier(session.group));
    close_session(&session);
}
