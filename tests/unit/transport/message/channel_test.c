/* SPDX-License-Identifier: MIT */
/* Collectives over endpoints, driven without a lane: values, differing calls, deadlines, cut connections. */
#include <dirent.h>
#include <pthread.h>
#include <stdlib.h>

#include "fixtures/message_world.h"
#include "transport/message/channel.h"

/* Element i of a rank's data. */
static int32_t element(int rank, size_t i)
{
    return (int32_t)(i * 7 % 1000) + rank * 1000;
}

struct buffers {
    int32_t *send;
    int32_t *recv;
};

static struct buffers make_buffers(int rank, size_t n_send, size_t n_recv)
{
    struct buffers buffers = {malloc((n_send + 1) * 4), malloc((n_recv + 1) * 4)};
    for (size_t i = 0; buffers.send && i < n_send; i++) {
        buffers.send[i] = element(rank, i);
    }
    for (size_t i = 0; buffers.recv && i < n_recv + 1; i++) {
        buffers.recv[i] = -1;
    }
    return buffers;
}

static void free_buffers(struct buffers *buffers)
{
    free(buffers->send);
    free(buffers->recv);
}

static struct collective make_collective(enum collective_kind kind, const struct buffers *buffers,
                                         size_t count)
{
    return (struct collective){.kind = kind,
                               .dtype = SHOAL_I32,
                               .reduce = SHOAL_SUM,
                               .single = {.send = buffers->send, .recv = buffers->recv, .count = count}};
}

static int32_t sum_of(int n_ranks, size_t i)
{
    int32_t sum = 0;
    for (int r = 0; r < n_ranks; r++) {
        sum += element(r, i);
    }
    return sum;
}

/* What element i of block b must be, for the receiver. */
static int32_t expected(enum collective_kind kind, int rank, int n_ranks, size_t count, int b, size_t i)
{
    if (kind == COLLECTIVE_ALL_REDUCE || kind == COLLECTIVE_REDUCE) {
        return sum_of(n_ranks, i);
    }
    if (kind == COLLECTIVE_REDUCE_SCATTER) {
        return sum_of(n_ranks, (size_t)rank * count + i);
    }
    bool is_own_block = kind == COLLECTIVE_ALL_TO_ALL || kind == COLLECTIVE_SCATTER;
    return element(b, is_own_block ? (size_t)rank * count + i : i);
}

static void check_kind(struct message_world *m, enum collective_kind kind, size_t count)
{
    int n_ranks = m->self->n_ranks;
    bool has_blocks =
        kind == COLLECTIVE_ALL_GATHER || kind == COLLECTIVE_GATHER || kind == COLLECTIVE_ALL_TO_ALL;
    bool is_at_root = kind == COLLECTIVE_REDUCE || kind == COLLECTIVE_GATHER;
    struct buffers buffers = make_buffers(m->self->rank, count * (size_t)n_ranks, count * (size_t)n_ranks);
    REQUIRE(buffers.send && buffers.recv);
    if (kind == COLLECTIVE_BROADCAST && m->self->rank == 0) {
        memcpy(buffers.recv, buffers.send, count * 4);
    }
    struct collective collective = make_collective(kind, &buffers, count);
    CHECK_OK(message_world_run(m, &collective, 20));
    bool is_right = true;
    for (int b = 0; b < (has_blocks ? n_ranks : 1); b++) {
        for (size_t i = 0; i < count; i++) {
            int32_t want =
                is_at_root && m->self->rank != 0 ? -1 : expected(kind, m->self->rank, n_ranks, count, b, i);
            is_right = is_right && buffers.recv[(size_t)b * count + i] == want;
        }
    }
    if (!is_right) {
        test_failed(__FILE__, __LINE__, "%s of %zu elements is wrong on rank %d", collective_rows[kind].name,
                    count, m->self->rank);
    }
    CHECK_INT(buffers.recv[count * (size_t)(has_blocks ? n_ranks : 1)], -1);
    free_buffers(&buffers);
}

static const enum collective_kind kinds[] = {
    COLLECTIVE_BARRIER, COLLECTIVE_BROADCAST,  COLLECTIVE_ALL_REDUCE,
    COLLECTIVE_REDUCE,  COLLECTIVE_ALL_GATHER, COLLECTIVE_ALL_TO_ALL,
    COLLECTIVE_GATHER,  COLLECTIVE_SCATTER,    COLLECTIVE_REDUCE_SCATTER,
};

static void check_all_kinds(struct rank *self, int round, const size_t *counts, size_t n_counts)
{
    struct message_world m;
    REQUIRE(message_world_open(&m, self, round));
    for (size_t c = 0; c < n_counts; c++) {
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            check_kind(&m, kinds[k], kinds[k] == COLLECTIVE_BARRIER ? 0 : counts[c]);
        }
    }
    message_world_close(&m);
}

TEST_RANKS(every_kind_moves_its_elements, 3)
{
    static const size_t counts[] = {0, 1, 100, 2049, 70000, 300001};
    check_all_kinds(self, 0, counts, sizeof counts / sizeof counts[0]);
}

TEST_RANKS(one_rank_is_enough, 1)
{
    static const size_t counts[] = {0, 1, 70000};
    check_all_kinds(self, 0, counts, sizeof counts / sizeof counts[0]);
}

/* Faults that are no failure ------------------------------------------------------------------------------- */

/* A flood of tiny segments would measure the kernel's patience with them: few bytes at a time for few elements. */
TEST_RANKS(short_writes_and_reads_lose_nothing, 3)
{
    static const size_t few[] = {1, 20};
    static const size_t many[] = {2049, 70000};
    atomic_store(&faulty_socket.most_bytes, 5);
    atomic_store(&faulty_socket.later_every, 3);
    test_barrier(self);
    check_all_kinds(self, 0, few, sizeof few / sizeof few[0]);
    test_barrier(self);
    atomic_store(&faulty_socket.most_bytes, 1);
    test_barrier(self);
    check_all_kinds(self, 2, few, 1);
    test_barrier(self);
    atomic_store(&faulty_socket.most_bytes, 5000);
    test_barrier(self);
    check_all_kinds(self, 1, many, sizeof many / sizeof many[0]);
    test_barrier(self);
    atomic_store(&faulty_socket.most_bytes, 0);
    atomic_store(&faulty_socket.later_every, 0);
}

TEST_RANKS(a_slow_network_is_only_slow, 2)
{
    static const size_t counts[] = {1, 70000};
    atomic_store(&faulty_socket.delay_us, 300);
    test_barrier(self);
    check_all_kinds(self, 0, counts, sizeof counts / sizeof counts[0]);
    test_barrier(self);
    atomic_store(&faulty_socket.delay_us, 0);
}

/* Failures ------------------------------------------------------------------------------------------------- */

static void run_until_cut(struct rank *self, int round, int64_t cut_after, bool must_reset)
{
    struct message_world m;
    test_barrier(self);
    atomic_store(&faulty_socket.sent_bytes, 0);
    atomic_store(&faulty_socket.has_cut, false);
    atomic_store(&faulty_socket.must_reset, must_reset);
    test_barrier(self);
    REQUIRE(message_world_open(&m, self, round));
    atomic_store(&faulty_socket.cut_after, cut_after);
    struct buffers buffers = make_buffers(self->rank, 200000, 200000);
    REQUIRE(buffers.send && buffers.recv);
    shoal_status status = SHOAL_OK;
    for (int i = 0; i < 100 && status == SHOAL_OK; i++) {
        struct collective collective = make_collective(COLLECTIVE_ALL_REDUCE, &buffers, 200000);
        status = message_world_run(&m, &collective, 20);
    }
    CHECK_STATUS(status, SHOAL_ERR_PEER);
    CHECK_ERROR_TEXT("cannot be reached");
    CHECK_STATUS(m.transport->failure(m.channel), SHOAL_ERR_PEER);
    test_barrier(self);
    atomic_store(&faulty_socket.cut_after, 0);
    free_buffers(&buffers);
    message_world_close(&m);
}

TEST_RANKS(a_connection_cut_in_a_message_ends_the_call_on_every_rank, 3)
{
    run_until_cut(self, 0, 1000000, false);
    run_until_cut(self, 1, 1, false);
}

TEST_RANKS(a_connection_that_is_reset_ends_the_call_on_every_rank, 3)
{
    run_until_cut(self, 0, 1000000, true);
}

TEST_RANKS(a_rank_that_calls_something_else_is_told_with_both_calls, 3)
{
    struct message_world m;
    REQUIRE(message_world_open(&m, self, 0));
    struct buffers buffers = make_buffers(self->rank, 100000, 100000);
    REQUIRE(buffers.send && buffers.recv);
    struct collective collective =
        make_collective(COLLECTIVE_ALL_REDUCE, &buffers, self->rank == 1 ? 100000 : 10);
    CHECK_STATUS(message_world_run(&m, &collective, 20), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("all_reduce i32 sum count 10 #0");
    CHECK_ERROR_TEXT("all_reduce i32 sum count 100000 #0");
    CHECK_INT(buffers.recv[0], -1);
    CHECK_STATUS(message_world_run(&m, &collective, 20), SHOAL_ERR_MISMATCH);
    test_barrier(self);
    free_buffers(&buffers);
    message_world_close(&m);
}

/* The rank that sends gets nothing from the other, and would not have to wait for it. */
TEST_RANKS(both_ends_see_counts_that_differ, 2)
{
    struct message_world m;
    REQUIRE(message_world_open(&m, self, 0));
    struct buffers buffers = make_buffers(self->rank, 10, 10);
    struct collective collective = make_collective(COLLECTIVE_ALL_TO_ALL, &buffers, 0);
    static const size_t none[2] = {0, 0};
    static const size_t three_to_1[2] = {0, 3};
    static const size_t four_of_0[2] = {4, 0};
    collective.send_counts = self->rank == 0 ? three_to_1 : none;
    collective.recv_counts = self->rank == 0 ? none : four_of_0;
    CHECK_STATUS(message_world_run(&m, &collective, 20), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("rank 0 sends 3 elements to rank 1, which expects 4");
    CHECK_INT(buffers.recv[0], -1);
    test_barrier(self);
    free_buffers(&buffers);
    message_world_close(&m);
}

/* The third rank exchanges nothing with anybody. */
TEST_RANKS(all_ranks_see_counts_that_differ, 3)
{
    struct message_world m;
    REQUIRE(message_world_open(&m, self, 0));
    struct buffers buffers = make_buffers(self->rank, 10, 10);
    struct collective collective = make_collective(COLLECTIVE_ALL_TO_ALL, &buffers, 0);
    static const size_t none[3] = {0, 0, 0};
    static const size_t three_to_1[3] = {0, 3, 0};
    static const size_t four_of_0[3] = {4, 0, 0};
    collective.send_counts = self->rank == 0 ? three_to_1 : none;
    collective.recv_counts = self->rank == 1 ? four_of_0 : none;
    CHECK_STATUS(message_world_run(&m, &collective, 20), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("rank 0 sends 3 elements to rank 1, which expects 4");
    test_barrier(self);
    free_buffers(&buffers);
    message_world_close(&m);
}

/* Rank 1 fails channels that rank 0 has closed already: rank 0 keeps nothing of what it is told. */
TEST_RANKS(what_comes_for_a_closed_channel_is_dropped, 2)
{
    enum {
        WARM = 20,
        ROUNDS = 120
    };
    struct message_world m;
    REQUIRE(message_world_open(&m, self, 0));
    struct transport_peers peers = m.peers;
    size_t n_before = 0;
    for (int i = 0; i < ROUNDS; i++) {
        struct channel *channel = NULL;
        char key[32];
        (void)snprintf(key, sizeof key, "closed %d", i);
        peers.key = key;
        REQUIRE_OK(m.transport->connect(&peers, DEADLINE_NEVER, &channel));
        test_barrier(self);
        if (self->rank == 1) {
            test_barrier(self);
            m.transport->poison(channel, SHOAL_ERR_CANCELLED, "too late");
        }
        m.transport->disconnect(channel);
        if (self->rank == 0) {
            test_barrier(self);
        }
        /* Comes behind all that was sent before. */
        struct collective barrier = {.kind = COLLECTIVE_BARRIER};
        REQUIRE_OK(message_world_run(&m, &barrier, 20));
        test_barrier(self);
        n_before = i == WARM ? test_live_blocks() : n_before;
        test_barrier(self);
    }
    if (test_live_blocks() > n_before + 20) {
        test_failed(__FILE__, __LINE__, "%zu blocks of memory, %zu before", test_live_blocks(), n_before);
    }
    test_barrier(self);
    message_world_close(&m);
}

TEST_RANKS(a_rank_that_does_not_call_is_named, 3)
{
    struct message_world m;
    REQUIRE(message_world_open(&m, self, 0));
    struct buffers buffers = make_buffers(self->rank, 10, 10);
    struct collective collective = make_collective(COLLECTIVE_ALL_REDUCE, &buffers, 10);
    if (self->rank != 2) {
        CHECK_STATUS(message_world_run(&m, &collective, 0.2), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("rank 2 did not call it; rank 2 has called nothing on this group");
    }
    test_barrier(self);
    if (self->rank == 2) {
        /* The others' reason is on its way. */
        while (m.transport->failure(m.channel) == SHOAL_OK) {
            test_pause(0.001);
        }
        CHECK_STATUS(message_world_run(&m, &collective, 20), SHOAL_ERR_TIMEOUT);
    }
    test_barrier(self);
    free_buffers(&buffers);
    message_world_close(&m);
}

/* The peer of a rank whose deadline has passed calls while that rank looks whether it lives. */
static struct {
    const struct collective *call; /* of that rank */
    int n_looks;                   /* after the deadline, before the peer calls */
} late_peer;

/* Behind what the world keeps there. */
static _Atomic bool *may_call(struct rank *self)
{
    _Static_assert(sizeof(struct message_shared) < TEST_SHARED_BYTES, "there is room for one more");
    return (_Atomic bool *)((struct message_shared *)self->shared + 1);
}

static shoal_status check_late_peer(void *context, int rank)
{
    struct message_world *m = context;
    if (m->self->rank == 0 && clock_now_ns() >= late_peer.call->deadline_ns && late_peer.n_looks-- == 0) {
        atomic_store(may_call(m->self), true);
        while (!message_have_all_called((struct message_channel *)m->channel)) {
            wait_sleep(1000000);
        }
    }
    return message_world_check(context, rank);
}

static void call_late(struct rank *self, int round, int n_looks)
{
    struct message_world m;
    REQUIRE(message_world_open(&m, self, round));
    m.peers.check_member = check_late_peer;
    struct collective barrier = {.kind = COLLECTIVE_BARRIER};
    if (self->rank == 0) {
        late_peer.call = &barrier;
        late_peer.n_looks = n_looks;
        CHECK_OK(message_world_run(&m, &barrier, 0.1));
        atomic_store(may_call(self), true);
    } else {
        while (!atomic_load(may_call(self))) {
            wait_sleep(1000000);
        }
        CHECK_OK(message_world_run(&m, &barrier, 20));
    }
    test_barrier(self);
    atomic_store(may_call(self), false);
    test_barrier(self);
    message_world_close(&m);
}

/* A text that names nobody would be the other way to end. */
TEST_PROCESSES(a_peer_that_calls_at_the_last_moment_has_called, 2)
{
    call_late(self, 0, 0);
    call_late(self, 1, 1); /* after everything that had come was taken */
}

TEST_RANKS(poison_reaches_those_who_wait, 3)
{
    struct message_world m;
    REQUIRE(message_world_open(&m, self, 0));
    if (self->rank == 1) {
        test_pause(0.05);
        m.transport->poison(m.channel, SHOAL_ERR_CANCELLED, "enough");
        m.transport->poison(m.channel, SHOAL_ERR_CANCELLED, "more than enough");
    }
    struct collective collective = {.kind = COLLECTIVE_BARRIER};
    CHECK_STATUS(message_world_run(&m, &collective, 20), SHOAL_ERR_CANCELLED);
    CHECK_STRING(shoal_error_text(), "enough");
    test_barrier(self);
    message_world_close(&m);
}

TEST_RANKS(a_member_that_is_gone_is_named, 3)
{
    struct message_world m;
    REQUIRE(message_world_open(&m, self, 0));
    struct message_shared *shared = self->shared;
    if (self->rank == 2) {
        atomic_store(&shared->is_gone[2], true);
    } else {
        struct collective collective = {.kind = COLLECTIVE_BARRIER};
        CHECK_STATUS(message_world_run(&m, &collective, 20), SHOAL_ERR_PEER);
        CHECK_STRING(shoal_error_text(), "rank 2 is gone");
    }
    test_barrier(self);
    message_world_close(&m);
}

/* Set: the wire's thread gets no processor after it has slept. */
static _Atomic bool is_thread_late;

static void wait_and_be_late(struct endpoint *endpoint, int64_t until_ns)
{
    socket_kind.wait(endpoint, until_ns);
    while (atomic_load(&is_thread_late)) {
        wait_sleep(1000000);
    }
}

static void *let_thread_go(void *context)
{
    test_pause(0.25); /* longer than it takes to look for deaths, shorter than last words get */
    atomic_store(&is_thread_late, false);
    return NULL;
}

/* What rank 1 sent before it died lies in the socket when rank 0 hears of the death. */
TEST_PROCESSES(what_a_rank_sent_before_it_died_counts, 2)
{
    static struct endpoint_kind late_kind;
    late_kind = socket_kind;
    late_kind.wait = wait_and_be_late;
    message_world_kind = &late_kind;
    struct message_world m;
    struct message_shared *shared = self->shared;
    REQUIRE(message_world_open(&m, self, 0));
    atomic_store(&is_thread_late, self->rank == 0);
    test_barrier(self);
    struct collective barrier = {.kind = COLLECTIVE_BARRIER,
                                 .n_pieces = 1,
                                 .deadline_ns = clock_deadline_after(20 * test_time_scale())};
    barrier.pieces = &barrier.single;
    CHECK(self->rank == 0 || m.transport->post(m.channel, &barrier));
    if (self->rank == 1) {
        test_pause(0.1); /* the wire's thread may be the one that sends it */
    }
    test_barrier(self);
    if (self->rank == 0) {
        pthread_t thread;
        atomic_store(&shared->is_gone[1], true);
        REQUIRE(pthread_create(&thread, NULL, let_thread_go, NULL) == 0);
        CHECK_OK(message_world_run(&m, &barrier, 20));
        REQUIRE(pthread_join(thread, NULL) == 0);
    } else {
        bool is_pending = true;
        CHECK_OK(m.transport->finish(m.channel, &barrier, DEADLINE_NEVER, &is_pending));
    }
    test_barrier(self);
    message_world_close(&m);
}

/*
 * As on a rank that was stopped: its deadline has passed when it looks, and nobody has read what its peer sent in time.
 * That may be the peer's part, or the reason for which the group has failed.
 */
static void be_late(struct rank *self, int round, bool must_fail)
{
    struct message_world m;
    REQUIRE(message_world_open(&m, self, round));
    atomic_store(&is_thread_late, self->rank == 0);
    test_barrier(self);
    struct collective barrier = {.kind = COLLECTIVE_BARRIER,
                                 .n_pieces = 1,
                                 .deadline_ns = clock_deadline_after(20 * test_time_scale())};
    barrier.pieces = &barrier.single;
    if (self->rank == 1 && must_fail) {
        m.transport->poison(m.channel, SHOAL_ERR_CANCELLED, "enough");
    } else if (self->rank == 1) {
        CHECK(m.transport->post(m.channel, &barrier));
    }
    test_barrier(self);
    if (self->rank == 0) {
        pthread_t thread;
        REQUIRE(pthread_create(&thread, NULL, let_thread_go, NULL) == 0);
        CHECK_STATUS(message_world_run(&m, &barrier, 0.05), must_fail ? SHOAL_ERR_CANCELLED : SHOAL_OK);
        CHECK_STRING(shoal_error_text(), must_fail ? "enough" : "");
        REQUIRE(pthread_join(thread, NULL) == 0);
    } else if (!must_fail) {
        bool is_pending = true;
        CHECK_OK(m.transport->finish(m.channel, &barrier, DEADLINE_NEVER, &is_pending));
    }
    test_barrier(self);
    message_world_close(&m);
}

TEST_PROCESSES(what_came_before_a_deadline_that_is_noticed_late_counts, 2)
{
    static struct endpoint_kind late_kind;
    late_kind = socket_kind;
    late_kind.wait = wait_and_be_late;
    message_world_kind = &late_kind;
    be_late(self, 0, /*must_fail=*/false);
    be_late(self, 1, /*must_fail=*/true);
}

static void end_nothing(struct endpoint *endpoint, const char *why)
{
    (void)endpoint;
    (void)why;
}

/* Where a death ends the endpoint. Nobody waits for a frame of the dead rank: channels fail by themselves. */
TEST_PROCESSES(a_death_that_ends_the_wire_fails_every_channel, 3)
{
    static struct endpoint_kind mortal_kind;
    mortal_kind = socket_kind;
    mortal_kind.give_up = end_nothing;
    message_world_kind = &mortal_kind;
    struct message_world m;
    struct message_shared *shared = self->shared;
    REQUIRE(message_world_open(&m, self, 0));
    CHECK_OK(m.transport->failure(m.channel));
    test_barrier(self);
    atomic_store(&shared->is_gone[2], true);
    if (self->rank != 2) {
        int64_t deadline_ns = clock_deadline_after(20 * test_time_scale());
        while (m.transport->failure(m.channel) == SHOAL_OK && clock_now_ns() < deadline_ns) {
            wait_sleep(1000000);
        }
        CHECK_STATUS(m.transport->failure(m.channel), SHOAL_ERR_PEER);
        CHECK_STRING(shoal_error_text(), "rank 2 is gone");
        /* And those that connect later. */
        struct channel *later = NULL;
        struct transport_peers peers = m.peers;
        peers.key = "later";
        REQUIRE_OK(m.transport->connect(&peers, DEADLINE_NEVER, &later));
        CHECK_STATUS(m.transport->failure(later), SHOAL_ERR_PEER);
        m.transport->disconnect(later);
    }
    test_barrier(self);
    message_world_close(&m);
}

/* A lock of the application's, which the wire's thread takes before it makes progress. */
static pthread_mutex_t application_lock = PTHREAD_MUTEX_INITIALIZER;

static bool enter_locked(struct endpoint *endpoint, enum endpoint_caller caller)
{
    (void)endpoint;
    return caller == ENDPOINT_THREAD && pthread_mutex_lock(&application_lock) == 0;
}

static void leave_locked(struct endpoint *endpoint)
{
    (void)endpoint;
    (void)pthread_mutex_unlock(&application_lock);
}

static enum endpoint_turns turns_locked(struct endpoint *endpoint)
{
    (void)endpoint;
    return ENDPOINT_TURNS_LOCKED;
}

static int count_threads(void)
{
    int n_threads = 0;
    DIR *folder = opendir("/proc/self/task");
    for (struct dirent *entry = folder ? readdir(folder) : NULL; entry; entry = readdir(folder)) {
        n_threads += entry->d_name[0] != '.';
    }
    if (folder) {
        (void)closedir(folder);
    }
    return n_threads;
}

/* As by a thread that waits for a dead rank. The wire's thread ends, and frees what it has, when it gets the lock. */
TEST_PROCESSES(closing_does_not_wait_for_a_lock_that_is_kept, 2)
{
    static struct endpoint_kind locked_kind;
    locked_kind = socket_kind;
    locked_kind.enter = enter_locked;
    locked_kind.leave = leave_locked;
    locked_kind.turns = turns_locked;
    locked_kind.give_up = end_nothing;
    message_world_kind = &locked_kind;
    struct message_world m;
    struct message_shared *shared = self->shared;
    /* As long as the lock is free, all is as ever. */
    REQUIRE(message_world_open(&m, self, 0));
    struct collective barrier = {.kind = COLLECTIVE_BARRIER};
    CHECK_OK(message_world_run(&m, &barrier, 20));
    test_barrier(self);
    message_world_close(&m);
    REQUIRE(message_world_open(&m, self, 1));
    test_barrier(self);
    REQUIRE(pthread_mutex_lock(&application_lock) == 0);
    atomic_store(&shared->is_gone[1 - self->rank], true);
    int n_threads = count_threads();
    message_world_close(&m);
    CHECK(count_threads() == n_threads);
    REQUIRE(pthread_mutex_unlock(&application_lock) == 0);
    int64_t deadline_ns = clock_deadline_after(20 * test_time_scale());
    while (count_threads() >= n_threads && clock_now_ns() < deadline_ns) {
        wait_sleep(1000000);
    }
    CHECK(count_threads() < n_threads);
    test_barrier(self);
}

/* Posting -------------------------------------------------------------------------------------------------- */

TEST_RANKS(small_collectives_are_posted_and_finished_later, 3)
{
    enum {
        N_POSTED = 12
    };
    struct message_world m;
    REQUIRE(message_world_open(&m, self, 0));
    struct collective collectives[N_POSTED];
    int32_t values[N_POSTED];
    bool is_posted[N_POSTED];
    for (int i = 0; i < N_POSTED; i++) {
        values[i] = i + self->rank;
        collectives[i] = (struct collective){.kind = COLLECTIVE_ALL_REDUCE,
                                             .dtype = SHOAL_I32,
                                             .reduce = SHOAL_SUM,
                                             .n_pieces = 1,
                                             .single = {.send = &values[i], .recv = &values[i], .count = 1},
                                             .sequence = (uint32_t)i,
                                             .deadline_ns = clock_deadline_after(20 * test_time_scale())};
        collectives[i].pieces = &collectives[i].single;
        is_posted[i] = (i == 0 || is_posted[i - 1]) && m.transport->post(m.channel, &collectives[i]);
    }
    CHECK(is_posted[0]);
    CHECK(!is_posted[N_POSTED - 1]);
    for (int i = 0; i < N_POSTED; i++) {
        bool is_pending = true;
        if (!is_posted[i]) {
            CHECK_OK(m.transport->run(m.channel, &collectives[i]));
        }
        for (shoal_status status = SHOAL_ERR_TIMEOUT; is_posted[i] && is_pending;) {
            status = m.transport->finish(m.channel, &collectives[i], clock_now_ns(), &is_pending);
            CHECK_STATUS(status, is_pending ? SHOAL_ERR_TIMEOUT : SHOAL_OK);
        }
        CHECK_INT(values[i], 3 * i + 3);
    }
    test_barrier(self);
    message_world_close(&m);
}
