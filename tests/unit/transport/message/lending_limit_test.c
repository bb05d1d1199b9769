/* SPDX-License-Identifier: MIT */
/*
 * Stretches that are just long enough to be sent from the caller's memory, or not quite, in one collective: some ranks
 * lend, others copy, and all must agree on who waits for whose end. Results are right, or the call fails: also if a
 * rank sleeps anywhere, and reads by itself what its peers lent to it after they have written something else there.
 */
#include <stdio.h>

#include "fixtures/memory_world.h"
#include "transport/blocks.h"

#define RANKS 3
/* Elements of the shortest stretch that is lent, of a cache line, and of the longest frame. */
#define LENT ((size_t)16384)
#define LINE ((size_t)16)
#define FRAME (2 * LENT)
/* Elements of the largest buffer. */
#define ROOM (RANKS * (FRAME + LENT))

struct shape {
    enum collective_kind kind;
    size_t count; /* of an all_reduce */
    size_t counts
        [RANKS]; /* of all others: elements per member; an all_to_all_v turns them by one for each sender */
    bool is_in_place;
};

/* Calls ------------------------------------------------------------------------------------------------- */

struct call {
    const struct shape *shape;
    struct rank *self;
    int32_t *send;
    int32_t *recv;
    size_t send_counts[RANKS];
    size_t recv_counts[RANKS];
    struct collective collective;
};

/* What `from` gives to `to`, of the kinds with counts. */
static size_t count_between(const struct shape *shape, int from, int to)
{
    const size_t *counts = shape->counts;
    return shape->kind == COLLECTIVE_ALL_TO_ALL   ? counts[(from + to) % RANKS]
           : shape->kind == COLLECTIVE_ALL_GATHER ? counts[from]
           : shape->kind == COLLECTIVE_GATHER     ? (to == 1 ? counts[from] : 0)
           : shape->kind == COLLECTIVE_SCATTER    ? (from == 1 ? counts[to] : 0)
                                                  : counts[to]; /* reduce_scatter */
}

static size_t sum_before(const size_t *counts, int rank)
{
    size_t sum = 0;
    for (int i = 0; i < rank; i++) {
        sum += counts[i];
    }
    return sum;
}

static bool make_call(struct call *call, const struct shape *shape, struct rank *self)
{
    *call = (struct call){.shape = shape, .self = self, .send = map_elements(ROOM)};
    call->recv = shape->is_in_place ? call->send : map_elements(ROOM);
    if (!call->send || !call->recv) {
        return false;
    }
    for (size_t i = 0; i < ROOM; i++) {
        call->send[i] = element(self->rank, i);
    }
    bool is_v = shape->kind != COLLECTIVE_ALL_REDUCE;
    for (int i = 0; is_v && i < RANKS; i++) {
        bool is_own = shape->kind == COLLECTIVE_ALL_TO_ALL;
        call->send_counts[i] = is_own ? count_between(shape, self->rank, i) : shape->counts[i];
        call->recv_counts[i] = is_own ? count_between(shape, i, self->rank) : shape->counts[i];
    }
    bool has_root = shape->kind == COLLECTIVE_GATHER || shape->kind == COLLECTIVE_SCATTER;
    call->collective = (struct collective){
        .kind = shape->kind,
        .dtype = SHOAL_I32,
        .reduce = SHOAL_SUM,
        .root = has_root ? 1 : 0,
        .single = {.send = call->send, .recv = call->recv, .count = is_v ? 0 : shape->count},
        .send_counts = is_v ? call->send_counts : NULL,
        .recv_counts = is_v ? call->recv_counts : NULL,
    };
    return true;
}

static void free_call(struct call *call)
{
    unmap_elements(call->send, ROOM);
    if (!call->shape->is_in_place) {
        unmap_elements(call->recv, ROOM);
    }
}

/* Values ------------------------------------------------------------------------------------------------ */

/* The sum of what all ranks have at `from` and behind it. */
static size_t count_wrong_sums(const int32_t *values, size_t count, size_t from)
{
    size_t n_wrong = 0;
    for (size_t i = 0; i < count; i++) {
        int32_t sum = 0;
        for (int rank = 0; rank < RANKS; rank++) {
            sum += element(rank, from + i);
        }
        n_wrong += values[i] != sum;
    }
    return n_wrong;
}

/* Where the elements for a rank begin in the send buffer of another. */
static size_t find_begin(const struct shape *shape, int from, int to)
{
    if (shape->kind == COLLECTIVE_SCATTER) {
        return sum_before(shape->counts, to);
    }
    size_t begin = 0;
    for (int i = 0; shape->kind == COLLECTIVE_ALL_TO_ALL && i < to; i++) {
        begin += count_between(shape, from, i);
    }
    return begin;
}

static size_t count_wrong(const struct call *call)
{
    const struct shape *shape = call->shape;
    int own = call->self->rank;
    if (shape->kind == COLLECTIVE_ALL_REDUCE) {
        return count_wrong_sums(call->recv, shape->count, 0);
    }
    if (shape->kind == COLLECTIVE_REDUCE_SCATTER) {
        return count_wrong_sums(call->recv, shape->counts[own], sum_before(shape->counts, own));
    }
    size_t n_wrong = 0;
    const int32_t *values = call->recv;
    for (int from = 0; from < RANKS; from++) {
        size_t count = count_between(shape, from, own);
        for (size_t i = 0; i < count; i++) {
            n_wrong += *values++ != element(from, find_begin(shape, from, own) + i);
        }
    }
    return n_wrong;
}

/* How many stretches are lent by all ranks together. */
static int count_lent(const struct shape *shape)
{
    int n_lent = 0;
    for (size_t begin = 0; begin < shape->count; begin += RANKS * FRAME) {
        size_t left = shape->count - begin;
        size_t count = left < RANKS * FRAME ? left : RANKS * FRAME;
        for (int rank = 0; rank < RANKS; rank++) {
            size_t share = block_share_begin(count, RANKS, rank + 1, sizeof(int32_t)) -
                           block_share_begin(count, RANKS, rank, sizeof(int32_t));
            int n_peers = share >= LENT ? RANKS - 1 : 0;
            n_lent += shape->is_in_place ? n_peers : 2 * n_peers; /* results, and what they are made of */
        }
    }
    for (int i = 0; shape->kind != COLLECTIVE_ALL_REDUCE && i < RANKS * RANKS; i++) {
        bool is_other = i / RANKS != i % RANKS;
        n_lent += is_other && count_between(shape, i / RANKS, i % RANKS) >= LENT;
    }
    return n_lent;
}

/* Everybody is awake -------------------------------------------------------------------------------------- */

static void check_shape(struct message_world *m, const struct shape *shape)
{
    struct call call;
    struct rank *self = m->self;
    test_barrier(self);
    int n_before = atomic_load(&memory_network.n_apart);
    test_barrier(self);
    REQUIRE(make_call(&call, shape, self));
    CHECK_OK(message_world_run(m, &call.collective, 20));
    CHECK_INT(count_wrong(&call), 0);
    free_call(&call);
    test_barrier(self);
    CHECK_INT(atomic_load(&memory_network.n_apart) - n_before, count_lent(shape));
}

TEST_RANKS(all_reduces_around_the_limit, RANKS)
{
    static const size_t wholes[] = {LENT, RANKS * LENT, RANKS * (FRAME + LENT) - RANKS * LINE};
    struct message_world m;
    if (self->is_process) {
        return;
    }
    REQUIRE(open_memory_world(&m, self, &memory_kind, &(struct memory_plan){MEMORY_PLAN_QUIET}));
    for (size_t i = 0; i < sizeof wholes / sizeof wholes[0]; i++) {
        for (size_t change = 0; change <= 2 * (RANKS * LINE); change++) {
            bool is_edge = change % LINE <= 1 || change % LINE == LINE - 1;
            if (is_edge) {
                check_shape(&m, &(struct shape){.kind = COLLECTIVE_ALL_REDUCE,
                                                .count = wholes[i] - RANKS * LINE + change,
                                                .is_in_place = change % 2 == 0});
            }
        }
    }
    close_memory_world(&m);
}

TEST_RANKS(counts_around_the_limit, RANKS)
{
    static const enum collective_kind kinds[] = {COLLECTIVE_ALL_GATHER, COLLECTIVE_REDUCE_SCATTER,
                                                 COLLECTIVE_ALL_TO_ALL, COLLECTIVE_GATHER,
                                                 COLLECTIVE_SCATTER};
    static const size_t counts[] = {LENT - 1, LENT, LENT + 1, 0, 2, LENT - LINE, FRAME};
    enum {
        N_COUNTS = sizeof counts / sizeof counts[0]
    };
    struct message_world m;
    if (self->is_process) {
        return;
    }
    REQUIRE(open_memory_world(&m, self, &memory_kind, &(struct memory_plan){MEMORY_PLAN_QUIET}));
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        for (int j = 0; j < N_COUNTS; j++) {
            check_shape(&m, &(struct shape){.kind = kinds[i],
                                            .counts = {counts[j], counts[(j + 1) % N_COUNTS],
                                                       counts[(j + 2) % N_COUNTS]}});
        }
    }
    close_memory_world(&m);
}

/* One sleeps ---------------------------------------------------------------------------------------------- */

/* The world of the rank that sleeps, and how many others have returned. */
static struct message_world *_Atomic sleeper_world;
static _Atomic int n_returned;

/* All ranks have their own data, or an error. `sleeper` sleeps from its n_framesth frame on, until the others have
   given up. */
static void sleep_once(struct rank *self, const struct shape *shape, int sleeper, int n_frames)
{
    struct message_world m;
    struct call call;
    struct memory_plan plan = {MEMORY_PLAN_QUIET, .sleepy_after = n_frames, .reads_alone = true};
    plan.sleepy = sleeper;
    REQUIRE(open_memory_world(&m, self, &memory_hasty_kind, &plan));
    REQUIRE(make_call(&call, shape, self));
    if (self->rank == sleeper) {
        atomic_store(&sleeper_world, &m);
        atomic_store(&n_returned, 0);
    }
    test_barrier(self);
    shoal_status status = message_world_run(&m, &call.collective, self->rank == sleeper ? 20 : 0.1);
    if (status == SHOAL_OK && !CHECK_INT(count_wrong(&call), 0)) {
        (void)fprintf(stderr, "%s, rank %d sleeps after %d frames\n", collective_rows[shape->kind].name,
                      sleeper, n_frames);
    }
    memory_overwrite(call.send, ROOM * sizeof *call.send);
    memory_overwrite(call.recv, ROOM * sizeof *call.recv);
    if (self->rank != sleeper && atomic_fetch_add(&n_returned, 1) == RANKS - 2) {
        memory_wake();
        test_pause(0.05); /* it reads what there is, and ends if it believes it */
        struct message_world *other = atomic_load(&sleeper_world);
        other->transport->poison(other->channel, SHOAL_ERR_CANCELLED, "long enough");
    }
    test_barrier(self);
    close_memory_world(&m);
    test_barrier(self);
    free_call(&call);
}

/* Two frames are calls. Then come data, results and ends. */
static void sleep_anywhere(struct rank *self, const struct shape *shape)
{
    for (int n_frames = RANKS - 1; !self->is_process && n_frames <= 8; n_frames++) {
        sleep_once(self, shape, n_frames % RANKS, n_frames);
    }
}

TEST_RANKS(a_rank_sleeps_in_an_all_reduce_whose_last_share_is_not_lent, RANKS)
{
    sleep_anywhere(self, &(struct shape){.kind = COLLECTIVE_ALL_REDUCE, .count = RANKS * LENT - 1});
}

TEST_RANKS(a_rank_sleeps_in_an_all_reduce_whose_first_share_is_not_lent, RANKS)
{
    sleep_anywhere(self, &(struct shape){.kind = COLLECTIVE_ALL_REDUCE, .count = RANKS * LENT - LINE});
}

TEST_RANKS(a_rank_sleeps_in_a_reduce_scatter_v, RANKS)
{
    sleep_anywhere(self,
                   &(struct shape){.kind = COLLECTIVE_REDUCE_SCATTER, .counts = {LENT, LENT - 1, LENT + 1}});
}

TEST_RANKS(a_rank_sleeps_in_an_all_gather_v, RANKS)
{
    sleep_anywhere(self,
                   &(struct shape){.kind = COLLECTIVE_ALL_GATHER, .counts = {LENT - 1, LENT + 1, LENT}});
}
