/* SPDX-License-Identifier: MIT */
/*
 * Collectives whose data is sent from the caller's memory: values, and that the memory is the caller's again when a
 * call has returned, however it ended. Ranks are threads here, whose memory the endpoint reads: it is unmapped as soon
 * as a call has returned, so that whoever still reads it ends the test.
 */
#include <stdio.h>

#include "fixtures/memory_world.h"

#define COUNT ((size_t)300001)
/* Elements of the shortest stretch that is lent. */
#define LENT ((size_t)16384)

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
    REQUIRE(open_memory_world(&m, self, &memory_kind, &(struct memory_plan){MEMORY_PLAN_QUIET}));
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
    REQUIRE(open_memory_world(&m, self, &memory_kind, &(struct memory_plan){MEMORY_PLAN_QUIET}));
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
    struct memory_plan plan = {MEMORY_PLAN_QUIET, .held_after = 3};
    plan.held = 2;
    REQUIRE(open_memory_world(&m, self, &memory_hasty_kind, &plan));
    REQUIRE(make_gathered(&gathered, self));
    CHECK_STATUS(message_world_run(&m, &gathered.collective, 0.3), SHOAL_ERR_TIMEOUT);
    unmap_gathered(&gathered);
    test_barrier(self);
    CHECK(atomic_load(&memory_network.n_given_up) > 0);
    test_barrier(self);
    if (self->rank == 0) {
        memory_let_go();
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
    memory_let_go();
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
    struct memory_plan plan = {MEMORY_PLAN_QUIET, .held_after = 4};
    plan.held = MEMORY_ALL;
    REQUIRE(open_memory_world(&m, self, &memory_kind, &plan));
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

/* The world of a rank whose call somebody else ends, by poison: what it waits for never comes. */
static struct message_world *_Atomic waiting;

static void end_waiting(void)
{
    struct message_world *m = atomic_load(&waiting);
    m->transport->poison(m->channel, SHOAL_ERR_CANCELLED, "long enough");
}

/*
 * Rank 2 sleeps. The others give up, write something else to what they lent, and wake it. It does not believe what it
 * then reads: its call ends when it hears of their failure, or, if that was lost, by the poison.
 */
static void outlive_sleeper(struct message_world *m, struct collective *collective, int32_t *send,
                            size_t bytes)
{
    struct rank *self = m->self;
    struct message_shared *shared = self->shared;
    if (self->rank == 2) {
        atomic_store(&waiting, m);
    }
    test_barrier(self);
    shoal_status status = message_world_run(m, collective, self->rank == 2 ? 20 : 0.3);
    CHECK(status == SHOAL_ERR_TIMEOUT || (self->rank == 2 && status == SHOAL_ERR_CANCELLED));
    memory_overwrite(send, bytes);
    if (self->rank != 2 && atomic_fetch_add(&shared->values[11][0].is_set, 1) == 1) {
        memory_wake(); /* both have returned */
        test_pause(0.3);
        end_waiting();
    }
    test_barrier(self);
    CHECK(atomic_load(&memory_network.n_given_up) >= 2);
    close_memory_world(m);
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
    /* held_after: all that does not go to rank 2. */
    struct memory_plan plan = {MEMORY_PLAN_QUIET, .held_after = 4, .reads_alone = true};
    plan.asleep = 2;
    REQUIRE(open_memory_world(&m, self, &memory_hasty_kind, &plan));
    struct collective collective = {
        .kind = COLLECTIVE_ALL_GATHER,
        .dtype = SHOAL_I32,
        .single = {.send = send[self->rank], .recv = recv[self->rank], .count = FEW}};
    outlive_sleeper(&m, &collective, send[self->rank], sizeof send[0]);
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
    struct memory_plan plan = {MEMORY_PLAN_QUIET, .sleepy_after = 2, .reads_alone = true};
    plan.sleepy = 2;
    REQUIRE(open_memory_world(&m, self, &memory_hasty_kind, &plan));
    struct collective collective = {
        .kind = COLLECTIVE_GATHER,
        .dtype = SHOAL_I32,
        .root = 2,
        .single = {.send = send[self->rank], .recv = recv[self->rank], .count = FEW}};
    outlive_sleeper(&m, &collective, send[self->rank], sizeof send[0]);
}

/* Rank 2: dies, and lets rank 1 wait for a while after it has read what was lent. */
static void die_and_end_waiting(struct rank *self)
{
    struct message_shared *shared = self->shared;
    test_pause(0.3);
    atomic_store(&shared->is_gone[2], true);
    while (atomic_load(&memory_network.n_apart) == 0) {
        wait_sleep(1000000);
    }
    test_pause(0.3);
    end_waiting();
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
    struct memory_plan plan = {MEMORY_PLAN_QUIET, .reads_alone = true};
    plan.held = MEMORY_ALL;
    if (self->rank == 0) {
        atomic_store(&message_world_deaf, 1u << 1 | 1u << 2);
    }
    REQUIRE(open_memory_world(&m, self, &memory_hasty_kind, &plan));
    m.transport->disconnect(m.channel);
    m.channel = NULL;
    m.peers.n_ranks = 2;
    m.peers.key = "two";
    if (self->rank != 2) {
        REQUIRE_OK(m.transport->connect(&m.peers, DEADLINE_NEVER, &m.channel));
    }
    if (self->rank == 1) {
        atomic_store(&waiting, &m);
    }
    test_barrier(self);
    if (self->rank == 2) {
        die_and_end_waiting(self);
    } else {
        for (size_t i = 0; i < FEW; i++) {
            data[self->rank][i] = self->rank == 0 ? element(0, i) : 0;
        }
        struct collective collective = {
            .kind = COLLECTIVE_BROADCAST,
            .dtype = SHOAL_I32,
            .single = {.send = data[self->rank], .recv = data[self->rank], .count = FEW}};
        shoal_status status = message_world_run(&m, &collective, 20);
        CHECK_STATUS(status, self->rank == 0 ? SHOAL_ERR_PEER : SHOAL_ERR_CANCELLED);
        if (self->rank == 0) {
            memory_overwrite(data[0], sizeof data[0]);
            memory_let_go();
        } else {
            CHECK_INT(data[1][0], -1); /* it was read */
        }
    }
    test_barrier(self);
    if (self->rank != 2) {
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
    test_pause(0.5);
    memory_wake();
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
    struct memory_plan plan = {MEMORY_PLAN_QUIET, .sleepy_after = 2};
    plan.sleepy = 2;
    REQUIRE(open_memory_world(&m, self, &memory_kind, &plan));
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
 * An all_reduce of three members. The sleeper folds what the lender lent to it and wrote to after it had given up. The
 * third has not slept, and knows of nothing: such a result must not reach it. Rank 3 is no member: its death makes the
 * lender give up.
 */
struct passing {
    size_t count;
    int lender;
    int sleeper;
    int third;
};

static void reduce_stale(struct message_world *m, const struct passing *passing)
{
    static int32_t send[3][75000];
    static int32_t recv[3][75000];
    int rank = m->self->rank;
    struct collective collective = {
        .kind = COLLECTIVE_ALL_REDUCE,
        .dtype = SHOAL_I32,
        .reduce = SHOAL_SUM,
        .single = {.send = send[rank], .recv = recv[rank], .count = passing->count}};
    CHECK_STATUS(message_world_run(m, &collective, 20),
                 rank == passing->lender ? SHOAL_ERR_PEER : SHOAL_ERR_CANCELLED);
    memory_overwrite(send[rank], sizeof send[0]);
    if (rank == passing->lender) {
        memory_wake();
    }
}

static void pass_on(struct rank *self, const struct passing *passing)
{
    struct message_world m;
    if (self->is_process) {
        return;
    }
    struct message_shared *shared = self->shared;
    /* sleepy_after: calls and data. */
    struct memory_plan plan = {MEMORY_PLAN_QUIET, .sleepy_after = 4, .reads_alone = true};
    plan.sleepy = passing->sleeper;
    if (self->rank == 0) {
        atomic_store(&message_world_deaf, ~(1u << passing->lender));
    }
    REQUIRE(open_memory_world(&m, self, &memory_hasty_kind, &plan));
    m.transport->disconnect(m.channel);
    m.channel = NULL;
    m.peers.n_ranks = 3;
    m.peers.key = "three";
    if (self->rank != 3) {
        REQUIRE_OK(m.transport->connect(&m.peers, DEADLINE_NEVER, &m.channel));
    }
    if (self->rank == passing->third) {
        atomic_store(&waiting, &m);
    }
    test_barrier(self);
    if (self->rank == 3) {
        while (atomic_load(&memory_network.asleep) != passing->sleeper) {
            wait_sleep(1000000);
        }
        test_pause(0.2); /* the others have sent all they can */
        atomic_store(&shared->is_gone[3], true);
        while (atomic_load(&memory_network.asleep) != MEMORY_NOBODY) {
            wait_sleep(1000000);
        }
        test_pause(0.3); /* the third has the sleeper's result, and waits */
        end_waiting();
    } else {
        reduce_stale(&m, passing);
    }
    test_barrier(self);
    if (self->rank != 3) {
        m.transport->disconnect(m.channel);
    }
    test_barrier(self);
    if (self->rank == 0) {
        atomic_store(&message_world_deaf, 0);
    }
    m.transport->close(m.state);
}

TEST_RANKS(a_rank_that_slept_does_not_pass_on_what_it_reads, 4)
{
    pass_on(self, &(struct passing){.count = 75000, .lender = 0, .sleeper = 2, .third = 1});
}

/* Shares are whole cache lines: the first one is a line too short to be lent, and what rank 0 gets was copied. */
TEST_RANKS(nor_to_a_rank_whose_share_is_a_line_too_short_to_be_lent, 4)
{
    pass_on(self, &(struct passing){.count = 3 * LENT - 16, .lender = 1, .sleeper = 2, .third = 0});
}

/* The last share has what is left over. */
TEST_RANKS(nor_to_a_rank_whose_share_is_an_element_too_short_to_be_lent, 4)
{
    pass_on(self, &(struct passing){.count = 3 * LENT - 1, .lender = 0, .sleeper = 1, .third = 2});
}

/* The sleeper has data of its peers in frames, and nothing but its results is lent. */
TEST_RANKS(nor_by_a_rank_whose_share_is_too_short_to_be_lent, 4)
{
    pass_on(self, &(struct passing){.count = 3 * LENT - 1, .lender = 0, .sleeper = 2, .third = 1});
}
