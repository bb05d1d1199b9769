/* SPDX-License-Identifier: MIT */
/* Receives from any rank: who has sent, in which order, beside receives that name their source, and what ends them. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/callback.h"
#include "base/clock.h"
#include "comm/group/group.h"
#include "unit/comm/p2p/session.h"

/* What goes well --------------------------------------------------------------------------------------- */

/* A master and its workers: each result tells whose it is, and all come. Long messages and short ones. */
TEST_RANKS(everybody_is_heard, 3)
{
    enum {
        N_MESSAGES = 60
    };
    struct session session;
    REQUIRE(open_session(self, &session));
    size_t most = 2 * RING + 5;
    unsigned char *bytes = malloc(most);
    REQUIRE(bytes);
    if (self->rank == 0) {
        int n_heard[3] = {0, 0, 0};
        for (int i = 0; i < 2 * N_MESSAGES && !test_has_failed(); i++) {
            int64_t head[2] = {-1, -1};
            int source = 77;
            REQUIRE_OK(shoal_group_recv_any(session.group, head, 2, SHOAL_I64, 3, &source));
            REQUIRE(source == 1 || source == 2);
            CHECK_INT(head[0], source);
            CHECK_INT(head[1], n_heard[source]); /* those of one source are in order */
            size_t count = n_heard[source] % 5 == 0 ? most : 40;
            CHECK_OK(shoal_group_recv(session.group, bytes, count, SHOAL_U8, source, 4));
            CHECK(is_from(bytes, count, source, n_heard[source]));
            n_heard[source]++;
        }
        CHECK_INT(n_heard[1], N_MESSAGES);
        CHECK_INT(n_heard[2], N_MESSAGES);
    } else {
        for (int i = 0; i < N_MESSAGES; i++) {
            int64_t head[2] = {self->rank, i};
            size_t count = i % 5 == 0 ? most : 40;
            fill(bytes, count, self->rank, i);
            CHECK_OK(shoal_group_send(session.group, head, 2, SHOAL_I64, 0, 3));
            CHECK_OK(shoal_group_send(session.group, bytes, count, SHOAL_U8, 0, 4));
        }
    }
    free(bytes);
    CHECK_OK(shoal_group_barrier(session.group));
    close_session(&session);
}

/* Long messages themselves, many at once, started: the sources are told by the works. */
TEST_RANKS(started_and_long, 3)
{
    enum {
        N = 12
    };
    struct session session;
    REQUIRE(open_session(self, &session));
    size_t count = 3 * RING + 7;
    unsigned char *bytes = calloc(N, count);
    REQUIRE(bytes);
    if (self->rank == 2) {
        shoal_work *works[N] = {NULL};
        int sources[N];
        int n_of[3] = {0, 0, 0};
        for (int i = 0; i < N; i++) {
            sources[i] = 9;
            CHECK_OK(shoal_group_recv_any_start(session.group, bytes + (size_t)i * count, count, SHOAL_U8, 0,
                                                &sources[i], &works[i]));
        }
        for (int i = 0; i < N; i++) {
            CHECK_OK(shoal_work_wait(works[i], -1));
            shoal_work_free(works[i]);
            REQUIRE(sources[i] >= 0 && sources[i] < 3);
            CHECK(is_from(bytes + (size_t)i * count, count, sources[i], n_of[sources[i]]));
            n_of[sources[i]]++;
        }
        CHECK_INT(n_of[0], N / 2);
        CHECK_INT(n_of[1], N / 2);
    } else {
        for (int i = 0; i < N / 2; i++) {
            fill(bytes, count, self->rank, i);
            CHECK_OK(shoal_group_send(session.group, bytes, count, SHOAL_U8, 2, 0));
        }
    }
    free(bytes);
    CHECK_OK(shoal_group_barrier(session.group));
    close_session(&session);
}

/* A message goes to the receive that was posted first, whether or not it names the source. */
TEST_RANKS(beside_receives_that_name_their_source, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    if (self->rank == 0) {
        int32_t got[5] = {0, 0, 0, 0, 0};
        int sources[5] = {9, 9, 9, 9, 9};
        shoal_work *works[5] = {NULL};
        for (int i = 0; i < 5; i++) {
            CHECK_OK(i % 2 == 0
                         ? shoal_group_recv_start(session.group, &got[i], 1, SHOAL_I32, 1, 0, &works[i])
                         : shoal_group_recv_any_start(session.group, &got[i], 1, SHOAL_I32, 0, &sources[i],
                                                      &works[i]));
            CHECK_INT(sources[i], i % 2 == 0 ? 9 : -1);
        }
        test_barrier(self);
        for (int i = 0; i < 5; i++) {
            CHECK_OK(shoal_work_wait(works[i], -1));
            shoal_work_free(works[i]);
            CHECK_INT(got[i], 100 + i);
            CHECK_INT(sources[i], i % 2 == 0 ? 9 : 1);
        }
        /* Both of one call, when the messages are there. */
        test_barrier(self);
        test_barrier(self);
        shoal_transfer list[3] = {{SHOAL_RECV, &got[0], 1, SHOAL_I32, SHOAL_ANY_RANK, 0},
                                  {SHOAL_RECV, &got[1], 1, SHOAL_I32, 1, 0},
                                  {SHOAL_RECV, &got[2], 1, SHOAL_I32, SHOAL_NO_RANK, 0}};
        shoal_transfer_options options = SHOAL_TRANSFER_OPTIONS_INIT;
        options.sources = sources;
        CHECK_OK(shoal_group_transfer_with(session.group, list, 3, &options));
        CHECK_INT(got[0], 200);
        CHECK_INT(got[1], 201);
        CHECK_INT(got[2], 102);
        CHECK_INT(sources[0], 1);
        CHECK_INT(sources[1], 1);
        CHECK_INT(sources[2], -1);
        CHECK_OK(shoal_group_recv(session.group, &got[3], 1, SHOAL_I32, SHOAL_ANY_RANK, 0));
        CHECK_INT(got[3], 202);
        CHECK_OK(shoal_group_recv_any(session.group, NULL, 0, SHOAL_F32, 0, NULL));
    } else {
        test_barrier(self);
        for (int32_t value = 100; value < 105; value++) {
            CHECK_OK(shoal_group_send(session.group, &value, 1, SHOAL_I32, 0, 0));
        }
        test_barrier(self);
        for (int32_t value = 200; value < 203; value++) {
            CHECK_OK(shoal_group_send(session.group, &value, 1, SHOAL_I32, 0, 0));
        }
        test_barrier(self);
        CHECK_OK(shoal_group_send(session.group, NULL, 0, SHOAL_F32, 0, 0));
    }
    CHECK_OK(shoal_group_barrier(session.group));
    close_session(&session);
}

/* Streams to rank 0 that do not see that messages have come while is_blind is set. */
static struct transport_streams blind_streams;
static bool (*can_take)(struct stream_end *end);
static _Atomic bool is_blind;

static bool can_take_unless_blind(struct stream_end *end)
{
    return !atomic_load(&is_blind) && can_take(end);
}

/* A message that comes after the look for it is not for a receive that was posted later. */
TEST_RANKS(a_message_comes_after_the_look, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    int32_t got[2] = {0, 0};
    if (self->rank == 0) {
        CHECK_OK(shoal_group_recv(session.group, &got[0], 1, SHOAL_I32, 1, 1)); /* makes the streams */
        struct p2p_end *end = p2p_known_end(group_p2p(session.group), SHOAL_RECV, 1, 1);
        REQUIRE(end);
        struct streams *streams = end->stream->streams;
        can_take = streams->operations->can_take;
        blind_streams = *streams->operations;
        blind_streams.can_take = can_take_unless_blind;
        streams->operations = &blind_streams;
        shoal_work *works[2] = {NULL, NULL};
        int source = 9;
        CHECK_OK(shoal_group_recv_any_start(session.group, &got[0], 1, SHOAL_I32, 0, &source, &works[0]));
        atomic_store(&is_blind, true);
        test_barrier(self);
        test_barrier(self);
        CHECK_OK(shoal_group_recv_start(session.group, &got[1], 1, SHOAL_I32, 1, 0, &works[1]));
        test_pause(0.3); /* the group's thread looks as well */
        CHECK(!shoal_work_test(works[0]) && !shoal_work_test(works[1]));
        atomic_store(&is_blind, false);
        for (int i = 0; i < 2; i++) {
            CHECK_OK(shoal_work_wait(works[i], -1));
            shoal_work_free(works[i]);
            CHECK_INT(got[i], 100 + i);
        }
        CHECK_INT(source, 1);
    } else {
        CHECK_OK(shoal_group_send(session.group, &got[0], 1, SHOAL_I32, 0, 1));
        test_barrier(self);
        for (int32_t value = 100; value < 102; value++) {
            CHECK_OK(shoal_group_send(session.group, &value, 1, SHOAL_I32, 0, 0));
        }
        test_barrier(self);
    }
    CHECK_OK(shoal_group_barrier(session.group));
    close_session(&session);
}

/* A source that never stops does not keep another from being heard. */
TEST_RANKS(every_source_gets_a_turn, 3)
{
    enum {
        N = 4 /* any transport keeps so many that nobody receives */
    };
    struct session session;
    REQUIRE(open_session(self, &session));
    int32_t value = self->rank;
    for (int i = 0; i < N && self->rank > 0; i++) {
        CHECK_OK(shoal_group_send(session.group, &value, 1, SHOAL_I32, 0, 0));
    }
    test_barrier(self);
    CHECK_OK(shoal_group_barrier(session.group)); /* everything has come */
    if (self->rank == 0) {
        int last = -1;
        for (int i = 0; i < 2 * N; i++) {
            int source = -1;
            REQUIRE_OK(shoal_group_recv_any(session.group, &value, 1, SHOAL_I32, 0, &source));
            /* Over messages some may still be on their way. */
            CHECK(rank_hears_by_messages() || source != last);
            CHECK_INT(value, source);
            last = source;
        }
    }
    CHECK_OK(shoal_group_barrier(session.group));
    close_session(&session);
}

struct receiver {
    struct session *session;
    int n_received;
    int64_t sum;
    pthread_t thread;
};

static void *receive_many(void *context)
{
    struct receiver *receiver = context;
    int last[3] = {-1, -1, -1};
    for (;;) {
        int32_t value[2] = {0, 0};
        int source = -1;
        if (shoal_group_recv_any(receiver->session->group, value, 2, SHOAL_I32, 0, &source) != SHOAL_OK) {
            test_failed(__FILE__, __LINE__, "%s", shoal_error_text());
            return NULL;
        }
        if (value[1] < 0) {
            return NULL;
        }
        CHECK_INT(value[0], source);
        CHECK(value[1] > last[source]);
        last[source] = value[1];
        receiver->n_received++;
        receiver->sum += value[1];
    }
}

/* Each message goes to one of them, and each sees those of a source in order. */
TEST_RANKS(two_threads_receive, 3)
{
    enum {
        N = 400,
        N_THREADS = 2
    };
    struct session session;
    REQUIRE(open_session(self, &session));
    if (self->rank == 0) {
        struct receiver receivers[N_THREADS];
        int n_received = 0;
        int64_t sum = 0;
        for (int i = 0; i < N_THREADS; i++) {
            receivers[i] = (struct receiver){.session = &session};
            REQUIRE(pthread_create(&receivers[i].thread, NULL, receive_many, &receivers[i]) == 0);
        }
        for (int i = 0; i < N_THREADS; i++) {
            CHECK(pthread_join(receivers[i].thread, NULL) == 0);
            n_received += receivers[i].n_received;
            sum += receivers[i].sum;
        }
        CHECK_INT(n_received, 2 * N);
        CHECK_INT(sum, (int64_t)N * (N - 1));
    } else {
        for (int32_t i = 0; i < N; i++) {
            int32_t value[2] = {self->rank, i};
            CHECK_OK(shoal_group_send(session.group, value, 2, SHOAL_I32, 0, 0));
        }
    }
    /* The threads end one each, when all else has been received. */
    CHECK_OK(self->rank == 0 ? SHOAL_OK
                             : shoal_group_send(session.group, (int32_t[]){0, -1}, 2, SHOAL_I32, 0, 0));
    CHECK_OK(shoal_group_barrier(session.group));
    close_session(&session);
}

/* The rank itself is a source too. */
TEST_RANKS(alone, 1)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    size_t count = (size_t)1 << 20;
    unsigned char *bytes = malloc(2 * count);
    REQUIRE(bytes);
    unsigned char *got = bytes + count;
    fill(bytes, count, 0, 0);
    int source = 5;
    CHECK_STATUS(shoal_group_recv_any(session.group, got, 1, SHOAL_U8, 0, &source), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("would wait for itself");
    CHECK_INT(source, -1);
    CHECK_OK(shoal_group_send(session.group, bytes, 100, SHOAL_U8, 0, 0));
    CHECK_OK(shoal_group_recv_any(session.group, got, 100, SHOAL_U8, 0, &source));
    CHECK_INT(source, 0);
    CHECK(is_from(got, 100, 0, 0));
    shoal_work *work = NULL;
    CHECK_OK(shoal_group_recv_any_start(session.group, got, count, SHOAL_U8, 0, &source, &work));
    CHECK(!shoal_work_test(work));
    CHECK_INT(source, -1);
    /* What is open takes the message before another could. */
    CHECK_STATUS(shoal_group_recv_any(session.group, bytes, 1, SHOAL_U8, 0, NULL), SHOAL_ERR_STATE);
    CHECK_STATUS(shoal_group_recv(session.group, bytes, 1, SHOAL_U8, 0, 0), SHOAL_ERR_STATE);
    CHECK_OK(shoal_group_send(session.group, bytes, count, SHOAL_U8, 0, 0));
    CHECK_OK(shoal_work_wait(work, -1));
    CHECK_INT(source, 0);
    CHECK(is_from(got, count, 0, 0));
    shoal_work_free(work);
    memset(got, 0, count);
    shoal_transfer both[2] = {{SHOAL_SEND, bytes, count, SHOAL_U8, 0, 7},
                              {SHOAL_RECV, got, count, SHOAL_U8, SHOAL_ANY_RANK, 7}};
    CHECK_OK(shoal_group_transfer(session.group, both, 2));
    CHECK(is_from(got, count, 0, 0));
    free(bytes);
    close_session(&session);
}

/* Numbers are those of the group. */
TEST_RANKS(in_a_group_of_its_own, 3)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    static const int turned[] = {2, 0};
    if (self->rank != 1) {
        shoal_group *group = NULL;
        int32_t value = self->rank;
        int source = -1;
        REQUIRE_OK(shoal_group_create(session.world, turned, 2, "turned", &group));
        CHECK_OK(shoal_group_send(group, &value, 1, SHOAL_I32, 1 - shoal_group_rank(group), 0));
        CHECK_OK(shoal_group_recv_any(group, &value, 1, SHOAL_I32, 0, &source));
        CHECK_INT(source, 1 - shoal_group_rank(group));
        CHECK_INT(value, turned[source]);
    }
    CHECK_OK(shoal_group_barrier(session.group));
    close_session(&session);
}

/* What ends it ----------------------------------------------------------------------------------------- */

TEST_RANKS(wrong_arguments, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    char byte = 0;
    int source = 5;
    shoal_work *work = NULL;
    CHECK_STATUS(shoal_group_send(session.group, &byte, 1, SHOAL_U8, SHOAL_ANY_RANK, 0), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("send: peer is SHOAL_ANY_RANK");
    CHECK_STATUS(shoal_group_recv_any(NULL, &byte, 1, SHOAL_U8, 0, &source), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("recv_any: group is NULL");
    CHECK_STATUS(shoal_group_recv_any(session.group, NULL, 1, SHOAL_U8, 0, &source), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("buffer is NULL");
    CHECK_STATUS(shoal_group_recv_any(session.group, &byte, 1, SHOAL_U8, -4, &source), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("recv_any: tag -4 is negative");
    CHECK_STATUS(shoal_group_recv_any(session.group, &byte, 1, (shoal_dtype)99, 0, &source),
                 SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_group_recv_any_start(session.group, &byte, 1, SHOAL_U8, 0, &source, NULL),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("recv_any: work_out is NULL");
    CHECK_INT(source, 5);
    callback_enter_capture();
    CHECK_STATUS(shoal_group_recv_any(session.group, &byte, 1, SHOAL_U8, 0, &source), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("recv_any cannot be called while a step is captured");
    CHECK_STATUS(shoal_group_recv_any_start(session.group, &byte, 1, SHOAL_U8, 0, &source, &work),
                 SHOAL_ERR_STATE);
    callback_leave_capture();
    callback_enter();
    CHECK_STATUS(shoal_group_recv_any(session.group, &byte, 1, SHOAL_U8, 0, &source), SHOAL_ERR_STATE);
    callback_leave();
    CHECK(!work);
    CHECK_OK(shoal_group_barrier(session.group));
    close_session(&session);
}

/* The stream to that sender has failed; others go on, and are heard before the failure is. */
TEST_RANKS(another_message_than_expected, 3)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    float values[10] = {0};
    int32_t number = self->rank;
    int source = 5;
    if (self->rank == 1) {
        CHECK_OK(shoal_group_send(session.group, &number, 1, SHOAL_I32, 0, 3));
    }
    CHECK_OK(shoal_group_barrier(session.group));
    if (self->rank == 0) {
        CHECK_STATUS(shoal_group_recv_any(session.group, values, 10, SHOAL_F32, 3, &source),
                     SHOAL_ERR_MISMATCH);
        CHECK_ERROR_TEXT("rank 0 receives f32 count 10 from rank 1 tag 3, but rank 1 sends i32 count 1");
        CHECK_INT(source, -1);
        CHECK_STATUS(shoal_group_recv_any(session.group, &number, 1, SHOAL_I32, 3, &source),
                     SHOAL_ERR_MISMATCH); /* nobody else has one there */
        CHECK_ERROR_TEXT("but rank 1 sends i32 count 1");
    }
    test_barrier(self);
    if (self->rank == 1) {
        shoal_status status = SHOAL_OK;
        for (int i = 0; i < 4 && status == SHOAL_OK; i++) {
            test_pause(rank_hears_by_messages() ? 0.2 : 0);
            status = shoal_group_send(session.group, &number, 1, SHOAL_I32, 0, 3);
        }
        CHECK_STATUS(status, SHOAL_ERR_MISMATCH);
    }
    if (self->rank == 2) {
        CHECK_OK(shoal_group_send(session.group, &number, 1, SHOAL_I32, 0, 3));
    }
    CHECK_OK(shoal_group_barrier(session.group));
    if (self->rank == 0) {
        shoal_status status = SHOAL_ERR_MISMATCH;
        while (status == SHOAL_ERR_MISMATCH && !test_has_failed()) { /* over messages it may be on its way */
            status = shoal_group_recv_any(session.group, &number, 1, SHOAL_I32, 3, &source);
        }
        CHECK_OK(status);
        CHECK_INT(source, 2);
        CHECK_INT(number, 2);
    }
    CHECK_OK(shoal_group_barrier(session.group));
    close_session(&session);
}

TEST_RANKS(nobody_sends, 3)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    if (self->rank == 1) {
        int32_t value = 0;
        int source = 5;
        CHECK_OK(shoal_group_set_timeout(session.group, 0.3));
        CHECK_STATUS(shoal_group_recv_any(session.group, &value, 1, SHOAL_I32, 3, &source),
                     SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("rank 1 receives i32 count 1 from any rank tag 3: waited 0.");
        CHECK_INT(source, -1);
    }
    test_barrier(self);
    CHECK_STATUS(shoal_group_barrier(session.group), SHOAL_ERR_TIMEOUT);
    CHECK_ERROR_TEXT("from any rank tag 3");
    test_barrier(self);
    (void)shoal_world_close(session.world);
}

static int find_open(void *context, const char *text, size_t bytes)
{
    char piece[4096];
    (void)snprintf(piece, sizeof piece, "%.*s", (int)bytes, text);
    const char *found = strstr(piece, "\"peer\": null, \"tag\": 11, \"messages\": 0, \"pending\": 2");
    *(bool *)context = *(bool *)context || found;
    return 0;
}

TEST_RANKS(abort_and_the_flight_record, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    int32_t values[2] = {0, 0};
    shoal_work *works[2] = {NULL, NULL};
    bool is_found = false;
    CHECK_OK(shoal_group_barrier(session.group));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(shoal_group_recv_any_start(session.group, &values[i], 1, SHOAL_I32, 11, NULL, &works[i]));
    }
    CHECK_OK(shoal_world_dump(session.world, find_open, &is_found));
    CHECK(is_found);
    test_barrier(self);
    if (self->rank == 0) {
        CHECK_OK(shoal_group_abort(session.group, "enough"));
    }
    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(shoal_work_wait(works[i], -1), SHOAL_ERR_CANCELLED);
        CHECK_ERROR_TEXT("enough");
        shoal_work_free(works[i]);
    }
    test_barrier(self);
    (void)shoal_world_close(session.world);
}

TEST_RANKS(closing_ends_it, 2)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    shoal_group *group = NULL;
    int32_t value = 0;
    int source = 5;
    shoal_work *works[2] = {NULL, NULL};
    REQUIRE_OK(shoal_group_create(session.world, (int[]){0, 1}, 2, "closed", &group));
    CHECK_OK(shoal_group_recv_any_start(group, &value, 1, SHOAL_I32, 0, &source, &works[0]));
    CHECK_OK(shoal_group_recv_any_start(session.group, &value, 1, SHOAL_I32, 0, &source, &works[1]));
    CHECK_OK(shoal_group_close(group));
    CHECK_OK(shoal_group_barrier(session.group));
    test_barrier(self);
    CHECK_OK(shoal_world_close(session.world));
    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(shoal_work_wait(works[i], 0), SHOAL_ERR_CANCELLED);
        shoal_work_free(works[i]);
    }
    CHECK_INT(source, -1);
}

/* What was sent is received first, from whomever; then the death counts. */
TEST_RANKS(a_member_has_died, 3)
{
    struct session session;
    if (!self->is_process) {
        return; /* a thread does not die alone */
    }
    REQUIRE(open_session(self, &session));
    int32_t value = 10 + self->rank;
    test_barrier(self);
    test_expect_death(1, SIGKILL);
    if (self->rank > 0) {
        CHECK_OK(shoal_group_send(session.group, &value, 1, SHOAL_I32, 0, 0));
    }
    CHECK_OK(shoal_group_barrier(session.group));
    if (self->rank == 1) {
        test_pause(0.3); /* meanwhile the others end that barrier, too */
        (void)raise(SIGKILL);
    }
    if (self->rank == 0) {
        int n_heard[3] = {0, 0, 0};
        test_pause(0.3);
        for (int i = 0; i < 2; i++) {
            int source = -1;
            REQUIRE_OK(shoal_group_recv_any(session.group, &value, 1, SHOAL_I32, 0, &source));
            REQUIRE(source == 1 || source == 2);
            CHECK_INT(value, 10 + source);
            n_heard[source]++;
        }
        CHECK_INT(n_heard[1], 1);
        CHECK_INT(n_heard[2], 1);
        int64_t begin_ns = clock_now_ns();
        CHECK_STATUS(shoal_group_recv_any(session.group, &value, 1, SHOAL_I32, 0, NULL), SHOAL_ERR_PEER);
        CHECK_ERROR_TEXT("rank 1");
        CHECK_ERROR_TEXT("from any rank tag 0");
        CHECK_STATUS(shoal_group_error(session.group), SHOAL_ERR_PEER);
        CHECK(clock_now_ns() - begin_ns < (int64_t)(10e9 * test_time_scale()));
    } else {
        /* Rank 0 tells it: nobody else waits for the one that has died. */
        CHECK_STATUS(shoal_group_recv(session.group, &value, 1, SHOAL_I32, 0, 9), SHOAL_ERR_PEER);
        CHECK_ERROR_TEXT("rank 1");
    }
    (void)shoal_world_close(session.world);
}

/* A member that has left is no failure while another one is there, and is one when nobody is. */
TEST_RANKS(members_that_have_left, 3)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    int32_t value = self->rank;
    int source = -1;
    CHECK_OK(shoal_group_barrier(session.group));
    if (self->rank == 2) {
        test_barrier(self);
        test_pause(0.4);
        CHECK_OK(shoal_group_send(session.group, &value, 1, SHOAL_I32, 0, 0));
        (void)shoal_world_close(session.world);
    } else if (self->rank == 1) {
        test_barrier(self);
        (void)shoal_world_close(session.world);
    } else {
        test_barrier(self);
        CHECK_OK(shoal_group_recv_any(session.group, &value, 1, SHOAL_I32, 0, &source));
        CHECK_INT(source, 2);
        CHECK_STATUS(shoal_group_recv_any(session.group, &value, 1, SHOAL_I32, 0, &source), SHOAL_ERR_PEER);
        CHECK_ERROR_TEXT("from any rank tag 0: rank ");
        (void)shoal_world_close(session.world);
    }
}

/* One member is stopped: others are heard meanwhile. */
TEST_PROCESSES(a_member_is_stopped, 3)
{
    struct session session;
    REQUIRE(open_session(self, &session));
    int32_t value = self->rank;
    int source = -1;
    /* All are connected: nobody needs an answer of the one that is stopped. */
    for (int i = 0; i < 2; i++) {
        CHECK_OK(self->rank == 0 ? shoal_group_recv_any(session.group, &value, 1, SHOAL_I32, 0, &source)
                 : i == 0        ? shoal_group_send(session.group, &value, 1, SHOAL_I32, 0, 0)
                                 : SHOAL_OK);
    }
    test_barrier(self);
    if (self->rank == 0) {
        test_signal(1, SIGSTOP);
        CHECK_OK(shoal_group_recv_any(session.group, &value, 1, SHOAL_I32, 0, &source));
        CHECK_INT(source, 2);
        shoal_transfer transfer = {SHOAL_RECV, &value, 1, SHOAL_I32, SHOAL_ANY_RANK, 0};
        shoal_transfer_options options = SHOAL_TRANSFER_OPTIONS_INIT;
        options.timeout_s = 0.3;
        options.sources = &source;
        CHECK_STATUS(shoal_group_transfer_with(session.group, &transfer, 1, &options), SHOAL_ERR_TIMEOUT);
        CHECK_INT(source, -1);
        CHECK_OK(shoal_group_error(session.group));
        test_signal(1, SIGCONT);
        CHECK_OK(shoal_group_recv_any(session.group, &value, 1, SHOAL_I32, 0, &source));
        CHECK_INT(source, 1);
    } else if (self->rank == 1) {
        test_pause(0.1); /* stopped meanwhile */
        CHECK_OK(shoal_group_send(session.group, &value, 1, SHOAL_I32, 0, 0));
    } else {
        test_pause(0.3);
        CHECK_OK(shoal_group_send(session.group, &value, 1, SHOAL_I32, 0, 0));
    }
    CHECK_OK(shoal_group_barrier(session.group));
    close_session(&session);
}

static shoal_status hear_itself(shoal_world *world, const char *group_tag)
{
    shoal_group *group = NULL;
    shoal_work *work = NULL;
    int32_t value = 5;
    int32_t got = 0;
    int source = 9;
    shoal_status status = shoal_group_create(world, (int[]){0}, 1, group_tag, &group);
    if (status == SHOAL_OK) {
        status = shoal_group_recv_any_start(group, &got, 1, SHOAL_I32, 0, &source, &work);
    }
    if (status == SHOAL_OK) {
        status = shoal_group_send(group, &value, 1, SHOAL_I32, 0, 0);
    }
    if (status == SHOAL_OK) {
        status = shoal_work_wait(work, -1);
        CHECK_INT(got, 5);
        CHECK_INT(source, 0);
    } else if (work) {
        CHECK_OK(shoal_group_abort(group, "memory ran out"));
        CHECK_STATUS(shoal_work_wait(work, -1), SHOAL_ERR_CANCELLED);
        CHECK_INT(source, -1);
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
        shoal_status status = hear_itself(session.world, tag);
        test_fail_allocation(0, false);
        CHECK(status == SHOAL_OK || status == SHOAL_ERR_NO_MEMORY);
    }
    CHECK_OK(hear_itself(session.world, "at last"));
    close_session(&session);
}

TEST(the_fake_transport_receives_from_itself)
{
    shoal_world_options options = {
        .struct_size = sizeof options, .n_ranks = 64, .rank = 3, .transport = "fake", .key = "p2p any fake"};
    shoal_world *world = NULL;
    REQUIRE_OK(shoal_world_open(&options, &world));
    char byte = 7;
    int source = -1;
    CHECK_OK(shoal_group_recv_any(shoal_world_group(world), &byte, 1, SHOAL_U8, 0, &source));
    CHECK_INT(source, 3);
    CHECK_INT(byte, 7);
    CHECK_OK(shoal_world_close(world));
}
