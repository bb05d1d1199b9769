/* SPDX-License-Identifier: MIT */
/* Point to point between ranks as threads and as processes: order, sizes, asynchrony, threads. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "unit/comm/p2p/session.h"

/* What goes well --------------------------------------------------------------------------------------- */

/* As PyTorch's test send_recv_all_to_all: all pairs, all started, all complete, the peer's number arrives. */
TEST_RANKS(all_pairs_exchange, 4)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    int32_t mine = self->rank;
    int32_t got[4] = {-1, -1, -1, -1};
    shoal_work *works[8] = {NULL};
    for (int peer = 0; peer < self->n_ranks; peer++) {
        CHECK_OK(shoal_group_send_start(session.group, &mine, 1, SHOAL_I32, peer, 0, &works[2 * peer]));
        CHECK_OK(
            shoal_group_recv_start(session.group, &got[peer], 1, SHOAL_I32, peer, 0, &works[2 * peer + 1]));
    }
    for (int i = 0; i < 8; i++) {
        CHECK_OK(shoal_work_wait(works[i], -1));
        CHECK(shoal_work_test(works[i]));
        shoal_work_free(works[i]);
    }
    for (int peer = 0; peer < self->n_ranks; peer++) {
        CHECK_INT(got[peer], peer);
    }
    close_session(&session);
}

static const size_t sizes[] = {0,        1,        7,    63,       64,        65,           1001,
                               RING / 4, RING - 1, RING, RING + 1, RING - 64, RING * 3 + 5, 8 << 20};
#define N_SIZES (sizeof sizes / sizeof sizes[0])

/* Blocking calls of every size, there and back, from and to addresses of every alignment. */
TEST_RANKS(every_size_there_and_back, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    unsigned char *block = malloc((8 << 20) + 16);
    REQUIRE(block);
    for (size_t k = 0; k < N_SIZES; k++) {
        unsigned char *bytes = block + (k + (size_t)self->rank) % 9;
        int tag = (int)k % 3;
        if (self->rank == 0) {
            fill(bytes, sizes[k], 0, tag);
            CHECK_OK(shoal_group_send(session.group, bytes, sizes[k], SHOAL_U8, 1, tag));
            memset(bytes, 0, sizes[k]);
            CHECK_OK(shoal_group_recv(session.group, bytes, sizes[k], SHOAL_U8, 1, tag));
            CHECK(is_from(bytes, sizes[k], 0, tag));
        } else {
            bytes[sizes[k]] = 0xa5;
            CHECK_OK(shoal_group_recv(session.group, bytes, sizes[k], SHOAL_U8, 0, tag));
            CHECK(is_from(bytes, sizes[k], 0, tag));
            CHECK_INT(bytes[sizes[k]], 0xa5);
            CHECK_OK(shoal_group_send(session.group, bytes, sizes[k], SHOAL_U8, 0, tag));
        }
    }
    free(block);
    close_session(&session);
}

TEST_RANKS(nothing_needs_no_buffer, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    if (self->rank == 0) {
        CHECK_OK(shoal_group_send(session.group, NULL, 0, SHOAL_F32, 1, 5));
    } else {
        CHECK_OK(shoal_group_recv(session.group, NULL, 0, SHOAL_F32, 0, 5));
    }
    CHECK_OK(shoal_group_transfer(session.group, NULL, 0));
    shoal_work *work = NULL;
    CHECK_OK(shoal_group_transfer_start(session.group, NULL, 0, &work));
    CHECK(shoal_work_test(work));
    shoal_work_free(work);
    close_session(&session);
}

/* Streams do not wait for each other: large messages on many tags, received in the opposite order. */
#define N_TAGS 100
#define TAG_BYTES (RING + 4096)

TEST_RANKS(tags_in_opposite_order, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    unsigned char *bytes = malloc(N_TAGS * TAG_BYTES);
    REQUIRE(bytes);
    shoal_work *works[N_TAGS] = {NULL};
    for (int tag = 0; tag < N_TAGS; tag++) {
        if (self->rank == 0) {
            unsigned char *part = bytes + (size_t)tag * TAG_BYTES;
            fill(part, TAG_BYTES, 0, tag);
            CHECK_OK(shoal_group_send_start(session.group, part, TAG_BYTES, SHOAL_U8, 1, tag * 1000003,
                                            &works[tag]));
        } else {
            int last = N_TAGS - 1 - tag;
            CHECK_OK(shoal_group_recv(session.group, bytes, TAG_BYTES, SHOAL_U8, 0, last * 1000003));
            CHECK(is_from(bytes, TAG_BYTES, 0, last));
        }
    }
    for (int tag = 0; tag < N_TAGS && self->rank == 0; tag++) {
        CHECK_OK(shoal_work_wait(works[tag], -1));
        shoal_work_free(works[tag]);
    }
    free(bytes);
    close_session(&session);
}

/* Messages of a stream arrive in order, whatever mixture of calls made them. */
TEST_RANKS(a_stream_is_in_order, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    enum {
        N = 600
    };
    int64_t *values = calloc(N, sizeof *values);
    shoal_work **works = calloc(N, sizeof *works);
    REQUIRE(values && works);
    for (int i = 0; i < N; i++) {
        values[i] = self->rank == 0 ? i * i : -1;
        if (self->rank == 0) {
            CHECK_OK(i % 3 == 0
                         ? shoal_group_send(session.group, &values[i], 1, SHOAL_I64, 1, 9)
                         : shoal_group_send_start(session.group, &values[i], 1, SHOAL_I64, 1, 9, &works[i]));
        } else {
            CHECK_OK(i % 5 == 0
                         ? shoal_group_recv(session.group, &values[i], 1, SHOAL_I64, 0, 9)
                         : shoal_group_recv_start(session.group, &values[i], 1, SHOAL_I64, 0, 9, &works[i]));
        }
    }
    for (int i = N - 1; i >= 0; i--) {
        if (works[i]) {
            CHECK_OK(shoal_work_wait(works[i], -1));
            shoal_work_free(works[i]);
        }
        CHECK_INT(values[i], i * i);
    }
    free(works);
    free(values);
    close_session(&session);
}

/* Every rank sends to the right and receives from the left, more than a ring holds: no order of calls deadlocks. */
TEST_RANKS(a_ring_turns, 3)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    size_t count = 5 * RING + 3;
    unsigned char *out = malloc(count);
    unsigned char *in = malloc(count);
    REQUIRE(out && in);
    int right = (self->rank + 1) % self->n_ranks;
    int left = (self->rank + self->n_ranks - 1) % self->n_ranks;
    for (int turn = 0; turn < 8; turn++) {
        fill(out, count, self->rank, turn);
        shoal_transfer transfers[2] = {{.direction = SHOAL_SEND,
                                        .buffer = out,
                                        .count = count,
                                        .dtype = SHOAL_U8,
                                        .peer = right,
                                        .tag = 2},
                                       {.direction = SHOAL_RECV,
                                        .buffer = in,
                                        .count = count,
                                        .dtype = SHOAL_U8,
                                        .peer = left,
                                        .tag = 2}};
        if (turn % 2 == 0) {
            CHECK_OK(shoal_group_transfer(session.group, transfers, 2));
        } else {
            shoal_work *work = NULL;
            CHECK_OK(shoal_group_transfer_start(session.group, transfers, 2, &work));
            memset(transfers, 0, sizeof transfers); /* the list was copied */
            CHECK_OK(shoal_work_wait(work, -1));
            shoal_work_free(work);
        }
        CHECK(is_from(in, count, left, turn));
    }
    free(in);
    free(out);
    close_session(&session);
}

/* The sender only starts and then does something else: the message goes over all the same. */
TEST_RANKS(a_started_send_needs_no_waiter, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    size_t count = 4 << 20;
    unsigned char *bytes = calloc(count, 1);
    REQUIRE(bytes);
    for (int round = 0; round < 2; round++) {
        if (self->rank == round) {
            shoal_work *work = NULL;
            fill(bytes, count, 0, round);
            CHECK_OK(shoal_group_send_start(session.group, bytes, count, SHOAL_U8, 1 - round, 0, &work));
            test_barrier(self); /* the other passes only when it has everything */
            CHECK_OK(shoal_work_wait(work, -1));
            shoal_work_free(work);
        } else {
            CHECK_OK(shoal_group_recv(session.group, bytes, count, SHOAL_U8, round, 0));
            CHECK(is_from(bytes, count, 0, round));
            test_barrier(self);
        }
    }
    free(bytes);
    close_session(&session);
}

/* ... and the other way round: a started receive makes room for a sender that waits. */
TEST_RANKS(a_started_receive_needs_no_waiter, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    size_t count = 4 << 20;
    unsigned char *bytes = calloc(count, 1);
    REQUIRE(bytes);
    if (self->rank == 0) {
        shoal_work *work = NULL;
        CHECK_OK(shoal_group_recv_start(session.group, bytes, count, SHOAL_U8, 1, 0, &work));
        test_barrier(self);
        CHECK_OK(shoal_work_wait(work, -1));
        CHECK(is_from(bytes, count, 1, 4));
        shoal_work_free(work);
    } else {
        fill(bytes, count, 1, 4);
        CHECK_OK(shoal_group_send(session.group, bytes, count, SHOAL_U8, 0, 0));
        test_barrier(self);
    }
    free(bytes);
    close_session(&session);
}

TEST_RANKS(a_late_rank_is_waited_for, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    unsigned char *bytes = calloc(3 * RING, 1);
    REQUIRE(bytes);
    if (self->rank == 1) {
        test_barrier(self);
        fill(bytes, 3 * RING, 1, 0);
        CHECK_OK(shoal_group_send(session.group, bytes, 3 * RING, SHOAL_U8, 0, 0));
    } else {
        shoal_work *work = NULL;
        CHECK_OK(shoal_group_recv_start(session.group, bytes, 3 * RING, SHOAL_U8, 1, 0, &work));
        CHECK(!shoal_work_test(work));
        CHECK_STATUS(shoal_work_wait(work, 0.02), SHOAL_ERR_TIMEOUT);
        /* Only now it sends. */
        test_barrier(self);
        CHECK_OK(shoal_work_wait(work, -1));
        CHECK(is_from(bytes, 3 * RING, 1, 0));
        shoal_work_free(work);
    }
    free(bytes);
    close_session(&session);
}

TEST_RANKS(a_rank_sends_to_itself, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    size_t count = (size_t)1 << 20; /* more than any transport keeps for later */
    unsigned char *bytes = malloc(2 * count);
    REQUIRE(bytes);
    unsigned char *got = bytes + count;
    fill(bytes, count, self->rank, 1);
    /* What fits is buffered. */
    CHECK_OK(shoal_group_send(session.group, bytes, 100, SHOAL_U8, self->rank, 0));
    CHECK_OK(shoal_group_recv(session.group, got, 100, SHOAL_U8, self->rank, 0));
    CHECK(is_from(got, 100, self->rank, 1));
    /* What does not needs a receive. */
    CHECK_STATUS(shoal_group_send(session.group, bytes, count, SHOAL_U8, self->rank, 0), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("would wait for itself");
    CHECK_STATUS(shoal_group_recv(session.group, got, 1, SHOAL_U8, self->rank, 0), SHOAL_ERR_STATE);
    shoal_work *work = NULL;
    CHECK_OK(shoal_group_recv_start(session.group, got, count, SHOAL_U8, self->rank, 0, &work));
    CHECK_OK(shoal_group_send(session.group, bytes, count, SHOAL_U8, self->rank, 0));
    CHECK_OK(shoal_work_wait(work, -1));
    CHECK(is_from(got, count, self->rank, 1));
    shoal_work_free(work);
    memset(got, 0, count);
    shoal_transfer both[2] = {
        {.direction = SHOAL_SEND, .buffer = bytes, .count = count, .dtype = SHOAL_U8, .peer = self->rank},
        {.direction = SHOAL_RECV, .buffer = got, .count = count, .dtype = SHOAL_U8, .peer = self->rank}};
    CHECK_OK(shoal_group_transfer(session.group, both, 2));
    CHECK(is_from(got, count, self->rank, 1));
    free(bytes);
    close_session(&session);
}

TEST_RANKS(alone, 1)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    double sent = 1.5;
    double got = 0;
    shoal_work *work = NULL;
    CHECK_OK(shoal_group_send_start(session.group, &sent, 1, SHOAL_F64, 0, 0x7fffffff, &work));
    CHECK(shoal_work_test(work));
    shoal_work_free(work);
    CHECK_OK(shoal_group_recv(session.group, &got, 1, SHOAL_F64, 0, 0x7fffffff));
    CHECK_DOUBLE(got, 1.5);
    close_session(&session);
}

/* A group of some ranks, in another order; its numbers are the group's. */
TEST_RANKS(in_a_group_of_its_own, 3)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    if (self->rank != 1) {
        shoal_group *group = NULL;
        REQUIRE_OK(shoal_group_create(session.world, (int[]){2, 0}, 2, "pipe", &group));
        int32_t value = self->rank;
        if (self->rank == 2) {
            CHECK_OK(shoal_group_send(group, &value, 1, SHOAL_I32, 1, 0));
        } else {
            CHECK_OK(shoal_group_recv(group, &value, 1, SHOAL_I32, 0, 0));
            CHECK_INT(value, 2);
        }
    }
    close_session(&session);
}

/* Many outstanding -------------------------------------------------------------------------------------- */

TEST_RANKS(many_outstanding, 3)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    enum {
        N_EACH = 200,
        N_WORKS = 3 * N_EACH * 2
    };
    int32_t *values = calloc(N_WORKS, sizeof *values);
    shoal_work **works = calloc(N_WORKS, sizeof *works);
    REQUIRE(values && works);
    int n = 0;
    for (int i = 0; i < N_EACH; i++) {
        for (int peer = 0; peer < 3; peer++) {
            int32_t *out = &values[n];
            int32_t *in = &values[n + 1];
            *out = self->rank * 1000 + i;
            CHECK_OK(shoal_group_recv_start(session.group, in, 1, SHOAL_I32, peer, i % 7, &works[n]));
            CHECK_OK(shoal_group_send_start(session.group, out, 1, SHOAL_I32, peer, i % 7, &works[n + 1]));
            n += 2;
        }
    }
    for (int i = 0; i < n; i++) {
        CHECK_OK(shoal_work_wait(works[i], -1));
        shoal_work_free(works[i]);
    }
    for (int i = 0; i < N_EACH; i++) {
        for (int peer = 0; peer < 3; peer++) {
            CHECK_INT(values[(i * 3 + peer) * 2 + 1], peer * 1000 + i);
        }
    }
    free(works);
    free(values);
    close_session(&session);
}

TEST_RANKS(works_may_be_freed_in_flight, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    unsigned char *bytes = calloc(3 * RING, 1);
    REQUIRE(bytes);
    shoal_work *work = NULL;
    if (self->rank == 0) {
        fill(bytes, 3 * RING, 0, 0);
        CHECK_OK(shoal_group_send_start(session.group, bytes, 3 * RING, SHOAL_U8, 1, 0, &work));
        shoal_work_free(work);
        CHECK_OK(shoal_group_recv(session.group, bytes, 1, SHOAL_U8, 1, 0)); /* by now it has gone over */
    } else {
        CHECK_OK(shoal_group_recv(session.group, bytes, 3 * RING, SHOAL_U8, 0, 0));
        CHECK(is_from(bytes, 3 * RING, 0, 0));
        CHECK_OK(shoal_group_send(session.group, bytes, 1, SHOAL_U8, 0, 0));
    }
    free(bytes);
    close_session(&session);
}

/* More than is kept for the peer: the sender's closing waits for it. */
TEST_RANKS(closing_finishes_sends, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    static unsigned char bytes[2][4 * RING];
    if (self->rank == 0) {
        shoal_work *work = NULL;
        fill(bytes[0], 4 * RING, 0, 0);
        CHECK_OK(shoal_group_send_start(session.group, bytes[0], 4 * RING, SHOAL_U8, 1, 0, &work));
        shoal_work_free(work);
    } else {
        test_pause(0.3); /* so that the other one is closing */
        CHECK_OK(shoal_group_recv(session.group, bytes[1], 4 * RING, SHOAL_U8, 0, 0));
        CHECK(is_from(bytes[1], 4 * RING, 0, 0));
    }
    close_session(&session);
}

/* Closing with something unfinished ends it, and nothing is lost. */
TEST_RANKS(closing_ends_what_is_unfinished, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    static unsigned char bytes[2][4 * RING];
    shoal_work *work = NULL;
    CHECK_OK(shoal_group_recv_start(session.group, bytes[self->rank], 4 * RING, SHOAL_U8, 1 - self->rank, 0,
                                    &work));
    (void)shoal_world_close(session.world);
    /* By our own closing, or because the other one's was noticed first. With the world gone, free is all that may
       be called; so the test looks inside. */
    shoal_status status = completion_result(&work->completion);
    CHECK(status == SHOAL_ERR_CANCELLED || status == SHOAL_ERR_PEER);
    shoal_work_free(work);
}

/* Threads ---------------------------------------------------------------------------------------------- */

struct talker {
    struct session *session;
    int tag;
    pthread_t thread;
};

static void *talk(void *context)
{
    struct talker *talker = context;
    struct session *session = talker->session;
    int peer = 1 - session->rank;
    size_t count = talker->tag % 2 ? 3 * RING : 40;
    unsigned char *bytes = malloc(count);
    for (int i = 0; bytes && i < 100 && !test_has_failed(); i++) {
        if ((i + session->rank) % 2 == 0) {
            fill(bytes, count, i % 7, talker->tag);
            CHECK_OK(shoal_group_send(session->group, bytes, count, SHOAL_U8, peer, talker->tag));
        } else {
            shoal_work *work = NULL;
            CHECK_OK(
                shoal_group_recv_start(session->group, bytes, count, SHOAL_U8, peer, talker->tag, &work));
            CHECK_OK(shoal_work_wait(work, -1));
            CHECK(is_from(bytes, count, i % 7, talker->tag));
            shoal_work_free(work);
        }
    }
    free(bytes);
    return NULL;
}

TEST_RANKS(several_threads_talk, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    struct talker talkers[4];
    for (int i = 0; i < 4; i++) {
        talkers[i] = (struct talker){.session = &session, .tag = i};
        REQUIRE(pthread_create(&talkers[i].thread, NULL, talk, &talkers[i]) == 0);
    }
    for (int i = 0; i < 4; i++) {
        CHECK(pthread_join(talkers[i].thread, NULL) == 0);
    }
    close_session(&session);
}

/* No rank ---------------------------------------------------------------------------------------------- */

/* A row of ranks without a wrap: those at its ends have nobody beyond, and make the same calls. */
TEST_RANKS(a_row_with_ends, 3)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    int left = self->rank > 0 ? self->rank - 1 : SHOAL_NO_RANK;
    int right = self->rank < self->n_ranks - 1 ? self->rank + 1 : SHOAL_NO_RANK;
    int32_t mine = self->rank;
    for (int is_started = 0; is_started < 2; is_started++) {
        int32_t halo[2] = {-7, -7};
        const shoal_transfer transfers[] = {{SHOAL_RECV, &halo[0], 1, SHOAL_I32, left, 0},
                                            {SHOAL_SEND, &mine, 1, SHOAL_I32, right, 0},
                                            {SHOAL_RECV, &halo[1], 1, SHOAL_I32, right, 1},
                                            {SHOAL_SEND, &mine, 1, SHOAL_I32, left, 1}};
        if (is_started) {
            shoal_work *work = NULL;
            REQUIRE_OK(shoal_group_transfer_start(session.group, transfers, 4, &work));
            CHECK_OK(shoal_work_wait(work, -1));
            shoal_work_free(work);
        } else {
            CHECK_OK(shoal_group_transfer(session.group, transfers, 4));
        }
        CHECK_INT(halo[0], left == SHOAL_NO_RANK ? -7 : left);
        CHECK_INT(halo[1], right == SHOAL_NO_RANK ? -7 : right);
    }
    /* One way, call by call. */
    int32_t token = self->rank == 0 ? 5 : -7;
    CHECK_OK(shoal_group_recv(session.group, &token, 1, SHOAL_I32, left, 2));
    CHECK_OK(shoal_group_send(session.group, &token, 1, SHOAL_I32, right, 2));
    CHECK_INT(token, 5);
    close_session(&session);
}

/* Works end at once, on a group that nobody else uses. */
static void send_to_nobody(shoal_group *group)
{
    int32_t value = 7;
    const shoal_transfer transfers[] = {{SHOAL_RECV, &value, 1, SHOAL_I32, SHOAL_NO_RANK, 0},
                                        {SHOAL_RECV, &value, 1, SHOAL_I32, SHOAL_NO_RANK, 0},
                                        {SHOAL_SEND, NULL, 1, SHOAL_I32, SHOAL_NO_RANK, 0}};
    CHECK_OK(shoal_group_recv(group, &value, 1, SHOAL_I32, SHOAL_NO_RANK, 0));
    CHECK_OK(shoal_group_send(group, NULL, 9, SHOAL_I32, SHOAL_NO_RANK, 0));
    CHECK_OK(shoal_group_transfer(group, transfers, 3));
    for (int i = 0; i < 3; i++) {
        shoal_work *work = NULL;
        REQUIRE_OK(i == 0   ? shoal_group_recv_start(group, &value, 1, SHOAL_I32, SHOAL_NO_RANK, 0, &work)
                   : i == 1 ? shoal_group_send_start(group, NULL, 9, SHOAL_I32, SHOAL_NO_RANK, 0, &work)
                            : shoal_group_transfer_start(group, transfers, 3, &work));
        CHECK(shoal_work_test(work));
        CHECK_OK(shoal_work_wait(work, -1));
        shoal_work_free(work);
    }
    CHECK_INT(value, 7);
    /* All else is still checked. */
    CHECK_STATUS(shoal_group_send(group, &value, 1, SHOAL_I32, SHOAL_NO_RANK, -1), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_group_send(group, &value, 1, (shoal_dtype)99, SHOAL_NO_RANK, 0), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_group_send(group, &value, 1, SHOAL_I32, shoal_group_rank_of(group, 99), 0),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("peer -1 is outside");
}

TEST_RANKS(nobody_is_waited_for, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    if (self->rank == 1) {
        send_to_nobody(session.group);
    }
    CHECK_OK(shoal_group_barrier(session.group));
    test_barrier(self);
    CHECK_OK(shoal_group_abort(session.group, "enough"));
    int32_t value = 7;
    shoal_work *work = NULL;
    CHECK_STATUS(shoal_group_recv(session.group, &value, 1, SHOAL_I32, SHOAL_NO_RANK, 0),
                 SHOAL_ERR_CANCELLED);
    CHECK_ERROR_TEXT("enough");
    CHECK_STATUS(shoal_group_send_start(session.group, &value, 1, SHOAL_I32, SHOAL_NO_RANK, 0, &work),
                 SHOAL_ERR_CANCELLED);
    CHECK(!work);
    (void)shoal_world_close(session.world);
}

TEST(the_fake_transport_moves_nothing)
{
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = 64, .rank = 3, .transport = "fake", .key = "p2p fake"};
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    shoal_group *group = shoal_world_group(world);
    char byte = 7;
    shoal_work *work = NULL;
    CHECK_OK(shoal_group_recv(group, &byte, 1, SHOAL_U8, 63, 0));
    CHECK_OK(shoal_group_send_start(group, &byte, 1, SHOAL_U8, 5, 0, &work));
    CHECK(shoal_work_test(work));
    shoal_work_free(work);
    CHECK_INT(byte, 7);
    send_to_nobody(group);
    CHECK_STATUS(shoal_group_recv(group, &byte, 1, SHOAL_U8, 64, 0), SHOAL_ERR_INVALID);
    CHECK_OK(shoal_world_close(world));
}
