/* SPDX-License-Identifier: MIT */
/*
 * Collectives whose data is sent from the caller's memory: values, and that the memory is the caller's again when a
 * call has returned, however it ended. Ranks are threads here, whose memory the endpoint reads: it is unmapped as soon
 * as a call has returned, so that whoever still reads it ends the test.
 */
#include <stdio.h>
#include <sys/mman.h>

#include "fixtures/memory_endpoint.h"
#include "fixtures/message_world.h"

#define COUNT ((size_t)300001)

static int32_t *map_elements(size_t count)
{
    void *memory =
        mmap(NULL, count * sizeof(int32_t), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static void unmap_elements(int32_t *elements, size_t count)
{
    (void)munmap(elements, count * sizeof *elements);
}

static int32_t element(int rank, size_t i)
{
    return (int32_t)(i * 7 % 1000) + rank * 1000;
}

static bool open_memory_world(struct message_world *m, struct rank *self, int held, int held_after)
{
    if (self->rank == 0) {
        memory_hold(held, held_after);
        atomic_store(&memory_network.n_given_up, 0);
        message_world_kind = &memory_kind;
    }
    test_barrier(self);
    return message_world_open(m, self, 0);
}

/* Nobody is asked for an answer to a fence after it has gone. */
static void close_memory_world(struct message_world *m)
{
    m->transport->disconnect(m->channel);
    test_barrier(m->self);
    m->transport->close(m->state);
}

/* What this rank gives and gets in an all_gather of COUNT elements of each. */
struct gathered {
    int32_t *send;
    int32_t *recv;
    size_t n_recv;
    struct collective collective;
};

static bool make_gathered(struct gathered *gathered, const struct rank *self)
{
    gathered->n_recv = COUNT * (size_t)self->n_ranks;
    gathered->send = map_elements(COUNT);
    gathered->recv = map_elements(gathered->n_recv);
    for (size_t i = 0; gathered->send && i < COUNT; i++) {
        gathered->send[i] = element(self->rank, i);
    }
    gathered->collective =
        (struct collective){.kind = COLLECTIVE_ALL_GATHER,
                            .dtype = SHOAL_I32,
                            .single = {.send = gathered->send, .recv = gathered->recv, .count = COUNT}};
    return gathered->send && gathered->recv;
}

static void unmap_gathered(struct gathered *gathered)
{
    unmap_elements(gathered->send, COUNT);
    unmap_elements(gathered->recv, gathered->n_recv);
}

static void check_gathered(const struct gathered *gathered)
{
    size_t n_wrong = 0;
    for (size_t i = 0; i < gathered->n_recv; i++) {
        n_wrong += gathered->recv[i] != element((int)(i / COUNT), i % COUNT);
    }
    CHECK_INT(n_wrong, 0);
}

static void gather_once(struct message_world *m, struct rank *self)
{
    struct gathered gathered;
    REQUIRE(make_gathered(&gathered, self));
    CHECK_OK(message_world_run(m, &gathered.collective, 20));
    check_gathered(&gathered);
    unmap_gathered(&gathered);
}

TEST_RANKS(long_stretches_are_sent_from_where_they_lie, 3)
{
    struct message_world m;
    if (self->is_process) {
        return;
    }
    REQUIRE(open_memory_world(&m, self, MEMORY_NOBODY, 0));
    for (int i = 0; i < 3; i++) {
        gather_once(&m, self);
    }
    test_barrier(self);
    CHECK(atomic_load(&memory_network.n_apart) > 0);
    CHECK_INT(atomic_load(&memory_network.n_given_up), 0);
    close_memory_world(&m);
}

/* Results are written over what was sent: that is copied before, and only the results are sent from where they lie. */
static void reduce_once(struct message_world *m, struct rank *self, bool is_in_place)
{
    int32_t *send = map_elements(COUNT);
    int32_t *recv = is_in_place ? send : map_elements(COUNT);
    REQUIRE(send && recv);
    for (size_t i = 0; i < COUNT; i++) {
        send[i] = element(self->rank, i);
    }
    struct collective collective = {.kind = COLLECTIVE_ALL_REDUCE,
                                    .dtype = SHOAL_I32,
                                    .reduce = SHOAL_SUM,
                                    .single = {.send = send, .recv = recv, .count = COUNT}};
    CHECK_OK(message_world_run(m, &collective, 20));
    size_t n_wrong = 0;
    for (size_t i = 0; i < COUNT; i++) {
        int32_t sum = 0;
        for (int rank = 0; rank < self->n_ranks; rank++) {
            sum += element(rank, i);
        }
        n_wrong += recv[i] != sum;
    }
    CHECK_INT(n_wrong, 0);
    unmap_elements(send, COUNT);
    if (!is_in_place) {
        unmap_elements(recv, COUNT);
    }
}

TEST_RANKS(reductions_may_be_in_place, 3)
{
    struct message_world m;
    if (self->is_process) {
        return;
    }
    REQUIRE(open_memory_world(&m, self, MEMORY_NOBODY, 0));
    for (int i = 0; i < 4; i++) {
        reduce_once(&m, self, i % 2 == 0);
    }
    close_memory_world(&m);
}

/* Rank 2 stops in the middle, and goes on after the others have given up. */
TEST_RANKS(a_rank_that_stops_does_not_read_memory_of_calls_that_have_ended, 3)
{
    struct message_world m;
    struct gathered gathered;
    if (self->is_process) {
        return;
    }
    REQUIRE(open_memory_world(&m, self, /*held=*/2, /*held_after=*/3));
    REQUIRE(make_gathered(&gathered, self));
    CHECK_STATUS(message_world_run(&m, &gathered.collective, 0.5), SHOAL_ERR_TIMEOUT);
    unmap_gathered(&gathered);
    test_barrier(self);
    CHECK(atomic_load(&memory_network.n_given_up) > 0);
    test_barrier(self);
    if (self->rank == 0) {
        memory_hold(MEMORY_NOBODY, 0);
    }
    test_pause(0.05); /* rank 2 takes what there is */
    close_memory_world(&m);
}

static void *poison(void *context)
{
    struct message_world *m = context;
    while (atomic_load(&memory_network.n_apart) < memory_network.held_after) {
        wait_sleep(1000000);
    }
    m->transport->poison(m->channel, SHOAL_ERR_CANCELLED, "enough");
    memory_hold(MEMORY_NOBODY, 0);
    return NULL;
}

/* All live, so that everything lent comes back and other groups go on. */
TEST_RANKS(a_group_that_is_aborted_gives_memory_back_and_spares_the_others, 3)
{
    struct message_world m;
    struct gathered gathered;
    pthread_t thread;
    if (self->is_process) {
        return;
    }
    REQUIRE(open_memory_world(&m, self, MEMORY_ALL, /*held_after=*/4));
    REQUIRE(make_gathered(&gathered, self));
    bool is_started = self->rank == 1 && pthread_create(&thread, NULL, poison, &m) == 0;
    CHECK(self->rank != 1 || is_started);
    CHECK_STATUS(message_world_run(&m, &gathered.collective, 20), SHOAL_ERR_CANCELLED);
    CHECK_STRING(shoal_error_text(), "enough");
    unmap_gathered(&gathered);
    if (is_started) {
        (void)pthread_join(thread, NULL);
    }
    test_barrier(self);
    CHECK_INT(atomic_load(&memory_network.n_given_up), 0);
    struct message_world other = m;
    other.peers.key = "other";
    REQUIRE_OK(m.transport->connect(&other.peers, DEADLINE_NEVER, &other.channel));
    gather_once(&other, self);
    m.transport->disconnect(other.channel);
    close_memory_world(&m);
}

/*
 * As where the receiver's library reads the sender's memory by itself. Rank 2 sleeps until the others have given up and
 * written something else there: what it then reads must not become a result.
 */
TEST_RANKS(a_rank_that_slept_does_not_believe_what_it_reads, 3)
{
    enum {
        FEW = 25000 /* one frame */
    };
    static int32_t send[3][FEW];
    static int32_t recv[3][3 * FEW];
    struct message_world m;
    if (self->is_process) {
        return;
    }
    if (self->rank == 0) {
        atomic_store(&memory_network.asleep, 2);
        memory_network.reads_alone = true;
    }
    REQUIRE(
        open_memory_world(&m, self, MEMORY_NOBODY, /*held_after=*/4)); /* all that does not go to rank 2 */
    struct collective collective = {
        .kind = COLLECTIVE_ALL_GATHER,
        .dtype = SHOAL_I32,
        .single = {.send = send[self->rank], .recv = recv[self->rank], .count = FEW}};
    CHECK_STATUS(message_world_run(&m, &collective, self->rank == 2 ? 3.5 : 0.5), SHOAL_ERR_TIMEOUT);
    memset(send[self->rank], -1, sizeof send[0]);
    if (self->rank != 2) {
        struct message_shared *shared = self->shared;
        if (atomic_fetch_add(&shared->values[11][0].is_set, 1) == 1) {
            atomic_store(&memory_network.asleep, MEMORY_NOBODY); /* both have returned */
        }
    }
    test_barrier(self);
    CHECK(atomic_load(&memory_network.n_given_up) >= 2);
    close_memory_world(&m);
}

/* The same, and rank 2 falls asleep as soon as the others have its call: before any data moves. */
TEST_RANKS(a_rank_that_slept_since_it_called_does_not_believe_what_it_reads, 3)
{
    enum {
        FEW = 25000
    };
    static int32_t send[3][FEW];
    static int32_t recv[3][3 * FEW];
    struct message_world m;
    if (self->is_process) {
        return;
    }
    if (self->rank == 0) {
        memory_network.sleepy = 2;
        memory_network.sleepy_after = 2;
        memory_network.reads_alone = true;
    }
    REQUIRE(open_memory_world(&m, self, MEMORY_NOBODY, /*held_after=*/0));
    struct collective collective = {
        .kind = COLLECTIVE_GATHER,
        .dtype = SHOAL_I32,
        .root = 2,
        .single = {.send = send[self->rank], .recv = recv[self->rank], .count = FEW}};
    CHECK_STATUS(message_world_run(&m, &collective, self->rank == 2 ? 3.5 : 0.5), SHOAL_ERR_TIMEOUT);
    memset(send[self->rank], -1, sizeof send[0]);
    if (self->rank != 2) {
        struct message_shared *shared = self->shared;
        if (atomic_fetch_add(&shared->values[11][0].is_set, 1) == 1) {
            atomic_store(&memory_network.asleep, MEMORY_NOBODY); /* both have returned */
        }
    }
    test_barrier(self);
    CHECK(atomic_load(&memory_network.n_given_up) >= 2);
    close_memory_world(&m);
}

/*
 * The death of rank 2, which is no member, ends the endpoint of rank 0 at once. Rank 1 does not know of it, and its
 * library reads by itself what rank 0 has lent, after rank 0 has written something else there.
 */
TEST_RANKS(nobody_believes_a_lender_that_gave_up_after_a_death, 3)
{
    enum {
        FEW = 25000
    };
    static int32_t data[3][FEW];
    struct message_world m;
    if (self->is_process) {
        return;
    }
    struct message_shared *shared = self->shared;
    if (self->rank == 0) {
        memory_network.reads_alone = true;
        atomic_store(&message_world_deaf, 1u << 1 | 1u << 2);
    }
    REQUIRE(open_memory_world(&m, self, MEMORY_ALL, /*held_after=*/0));
    m.transport->disconnect(m.channel);
    m.channel = NULL;
    m.peers.n_ranks = 2;
    m.peers.key = "two";
    test_barrier(self);
    if (self->rank == 2) {
        test_pause(0.3);
        atomic_store(&shared->is_gone[2], true);
        test_pause(0.6);
        memory_hold(MEMORY_NOBODY, 0);
    } else {
        REQUIRE_OK(m.transport->connect(&m.peers, DEADLINE_NEVER, &m.channel));
        for (size_t i = 0; i < FEW; i++) {
            data[self->rank][i] = self->rank == 0 ? element(0, i) : 0;
        }
        struct collective collective = {
            .kind = COLLECTIVE_BROADCAST,
            .dtype = SHOAL_I32,
            .single = {.send = data[self->rank], .recv = data[self->rank], .count = FEW}};
        shoal_status status = message_world_run(&m, &collective, self->rank == 0 ? 20 : 2);
        CHECK_STATUS(status, self->rank == 0 ? SHOAL_ERR_PEER : SHOAL_ERR_TIMEOUT);
        if (self->rank == 0) {
            memset(data[0], -1, sizeof data[0]);
        } else {
            CHECK_INT(data[1][0], -1); /* it was read */
        }
        m.transport->disconnect(m.channel);
    }
    test_barrier(self);
    if (self->rank == 0) {
        atomic_store(&message_world_deaf, 0);
    }
    m.transport->close(m.state);
}

static void *wake_later(void *context)
{
    (void)context;
    test_pause(1.4);
    atomic_store(&memory_network.asleep, MEMORY_NOBODY);
    return NULL;
}

/* Everybody waits for rank 2, and nobody gives up. */
TEST_RANKS(a_rank_that_slept_for_a_moment_is_waited_for, 3)
{
    struct message_world m;
    struct gathered gathered;
    pthread_t thread;
    if (self->is_process) {
        return;
    }
    if (self->rank == 0) {
        memory_network.sleepy = 2;
        memory_network.sleepy_after = 2;
    }
    REQUIRE(open_memory_world(&m, self, MEMORY_NOBODY, /*held_after=*/0));
    REQUIRE(make_gathered(&gathered, self));
    bool is_started = self->rank == 0 && pthread_create(&thread, NULL, wake_later, NULL) == 0;
    CHECK(self->rank != 0 || is_started);
    CHECK_OK(message_world_run(&m, &gathered.collective, 20));
    check_gathered(&gathered);
    unmap_gathered(&gathered);
    if (is_started) {
        (void)pthread_join(thread, NULL);
    }
    test_barrier(self);
    CHECK_INT(atomic_load(&memory_network.n_given_up), 0);
    close_memory_world(&m);
}

/*
 * Rank 2 has slept, and folds what rank 0 lent and wrote to after it had given up. Rank 1 has not slept, and knows of
 * nothing: such a result must not reach it.
 */
TEST_RANKS(a_rank_that_slept_does_not_pass_on_what_it_reads, 4)
{
    enum {
        SHARE = 25000 /* one frame */
    };
    static int32_t send[3][3 * SHARE];
    static int32_t recv[3][3 * SHARE];
    struct message_world m;
    if (self->is_process) {
        return;
    }
    struct message_shared *shared = self->shared;
    if (self->rank == 0) {
        memory_network.reads_alone = true;
        memory_network.sleepy = 2;
        memory_network.sleepy_after = 4; /* calls and data */
        atomic_store(&message_world_deaf, ~1u);
    }
    REQUIRE(open_memory_world(&m, self, MEMORY_NOBODY, /*held_after=*/0));
    m.transport->disconnect(m.channel);
    m.peers.n_ranks = 3;
    m.peers.key = "three";
    test_barrier(self);
    if (self->rank == 3) {
        test_pause(0.5);
        atomic_store(&shared->is_gone[3], true);
    } else {
        REQUIRE_OK(m.transport->connect(&m.peers, DEADLINE_NEVER, &m.channel));
        struct collective collective = {
            .kind = COLLECTIVE_ALL_REDUCE,
            .dtype = SHOAL_I32,
            .reduce = SHOAL_SUM,
            .single = {.send = send[self->rank], .recv = recv[self->rank], .count = (size_t)3 * SHARE}};
        CHECK_STATUS(message_world_run(&m, &collective, self->rank == 2 ? 3.5 : 5),
                     self->rank == 0 ? SHOAL_ERR_PEER : SHOAL_ERR_TIMEOUT);
        memset(send[self->rank], -1, sizeof send[0]);
        if (self->rank == 0) {
            atomic_store(&memory_network.asleep, MEMORY_NOBODY);
        }
        m.transport->disconnect(m.channel);
    }
    test_barrier(self);
    if (self->rank == 0) {
        atomic_store(&message_world_deaf, 0);
    }
    m.transport->close(m.state);
}
