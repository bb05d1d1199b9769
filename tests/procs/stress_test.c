/* SPDX-License-Identifier: MIT */
/*
 * Collectives of all sizes and kinds, some ahead of others, on groups that share ranks in different orders, from two
 * threads a rank; and the same while ranks are stopped and go on. Every result is checked.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/shoal.h"

#define MOST ((size_t)132000) /* elements: the largest count for four ranks */
#define AHEAD 12
#define N_TURNS 150

/* Memory of one thread. */
struct memory {
    int32_t *send;
    int32_t *recv;
    shoal_symmetric *symmetric;
};

static int32_t value_of(int rank, size_t index, uint64_t turn)
{
    return (int32_t)((uint64_t)(rank + 1) * 7919 + index * 31 + turn * 104729);
}

static void fill(int32_t *data, size_t count, int rank, uint64_t turn)
{
    for (size_t i = 0; i < count; i++) {
        data[i] = value_of(rank, i, turn);
    }
}

static int32_t sum_of(int n_ranks, size_t index, uint64_t turn)
{
    uint32_t sum = 0;
    for (int r = 0; r < n_ranks; r++) {
        sum += (uint32_t)value_of(r, index, turn);
    }
    return (int32_t)sum;
}

/* Few of a large result, all of a small one. */
static void check_sums(const int32_t *data, size_t count, size_t offset, int n_ranks, uint64_t turn)
{
    size_t step = count > 512 ? 61 : 1;
    for (size_t i = 0; i < count; i += step) {
        if (data[i] != sum_of(n_ranks, offset + i, turn)) {
            test_failed(__FILE__, __LINE__, "turn %llu: sum %zu of %zu is wrong", (unsigned long long)turn, i,
                        count);
            return;
        }
    }
}

static void check_values(const int32_t *data, size_t count, size_t offset, int rank, uint64_t turn)
{
    size_t step = count > 512 ? 61 : 1;
    for (size_t i = 0; i < count; i += step) {
        if (data[i] != value_of(rank, offset + i, turn)) {
            test_failed(__FILE__, __LINE__, "turn %llu: element %zu of %zu from %d is wrong",
                        (unsigned long long)turn, i, count, rank);
            return;
        }
    }
}

static void use_one(shoal_group *group, struct memory *memory, struct test_random *random, uint64_t turn)
{
    static const size_t counts[] = {0, 1, 15, 1000, 1024, 4096, 5000, 20001, 33000};
    size_t count = counts[test_random_below(random, sizeof counts / sizeof *counts)];
    bool is_in_place = test_random_below(random, 2) == 0;
    int n_ranks = shoal_group_n_ranks(group);
    int rank = shoal_group_rank(group);
    int root = (int)test_random_below(random, (uint64_t)n_ranks);
    int32_t *recv = is_in_place ? memory->send : memory->recv;
    size_t blocks = count * (size_t)n_ranks;
    fill(memory->send, blocks, rank, turn);
    switch (test_random_below(random, 7)) {
    case 0:
        CHECK_OK(shoal_group_all_reduce(group, memory->send, recv, count, SHOAL_I32, SHOAL_SUM));
        check_sums(recv, count, 0, n_ranks, turn);
        break;
    case 1:
        recv = is_in_place ? memory->send + count * (size_t)rank : memory->recv;
        CHECK_OK(shoal_group_reduce_scatter(group, memory->send, recv, count, SHOAL_I32, SHOAL_SUM));
        check_sums(recv, count, count * (size_t)rank, n_ranks, turn);
        break;
    case 2:
        fill(memory->recv + count * (size_t)rank, count, rank, turn);
        CHECK_OK(shoal_group_all_gather(group,
                                        is_in_place ? memory->recv + count * (size_t)rank : memory->send,
                                        memory->recv, count, SHOAL_I32));
        for (int i = 0; i < n_ranks; i++) {
            check_values(memory->recv + (size_t)i * count, count, 0, i, turn);
        }
        break;
    case 3:
        CHECK_OK(shoal_group_all_to_all(group, memory->send, recv, count, SHOAL_I32));
        for (int i = 0; i < n_ranks; i++) {
            check_values(recv + (size_t)i * count, count, (size_t)rank * count, i, turn);
        }
        break;
    case 4:
        CHECK_OK(shoal_group_broadcast(group, memory->send, count, SHOAL_I32, root));
        check_values(memory->send, count, 0, root, turn);
        break;
    case 5:
        CHECK_OK(shoal_group_reduce(group, memory->send, recv, count, SHOAL_I32, SHOAL_SUM, root));
        if (rank == root) {
            check_sums(recv, count, 0, n_ranks, turn);
        }
        break;
    default:
        recv = is_in_place && rank == root ? memory->send + count * (size_t)rank : memory->recv;
        CHECK_OK(shoal_group_scatter(group, memory->send, recv, count, SHOAL_I32, root));
        check_values(recv, count, (size_t)rank * count, root, turn);
        break;
    }
}

/* Many started, small and large mixed, waited for backwards, some only tested. */
static void use_ahead(shoal_group *group, struct memory *memory, struct test_random *random, uint64_t turn)
{
    enum {
        ONE = 5000
    };
    shoal_work *works[AHEAD];
    size_t counts[AHEAD];
    for (size_t i = 0; i < AHEAD; i++) {
        counts[i] = test_random_below(random, 4) == 0 ? ONE : test_random_below(random, 20);
        int32_t *data = memory->send + i * ONE;
        fill(data, counts[i], shoal_group_rank(group), turn + i);
        REQUIRE_OK(
            shoal_group_all_reduce_start(group, data, data, counts[i], SHOAL_I32, SHOAL_SUM, &works[i]));
    }
    if (turn % 2 == 0) {
        while (!shoal_work_test(works[AHEAD / 2])) {
            test_pause(0);
        }
    }
    for (size_t i = AHEAD; i-- > 0;) {
        CHECK_OK(shoal_work_wait(works[i], -1));
        shoal_work_free(works[i]);
        check_sums(memory->send + i * ONE, counts[i], 0, shoal_group_n_ranks(group), turn + i);
    }
}

struct actor {
    shoal_group *groups[2];
    struct memory memory;
    uint64_t salt;
    int n_turns;
};

static void *act(void *context)
{
    struct actor *actor = context;
    /* The same numbers on all ranks: the same calls. */
    struct test_random random = test_random_begin(actor->salt);
    for (int turn = 0; turn < actor->n_turns && !test_has_failed(); turn++) {
        uint64_t number = (uint64_t)turn * 100;
        shoal_group *group = actor->groups[test_random_below(&random, 2)];
        if (test_random_below(&random, 4) == 0) {
            use_ahead(group, &actor->memory, &random, number);
        } else {
            use_one(group, &actor->memory, &random, number);
        }
    }
    return NULL;
}

static bool begin_actor(struct actor *actor, shoal_world *world, bool is_symmetric, uint64_t salt,
                        int n_turns)
{
    actor->salt = salt;
    actor->n_turns = n_turns;
    size_t bytes = MOST * sizeof(int32_t);
    if (is_symmetric) {
        CHECK_OK(shoal_symmetric_create(shoal_world_group(world), 2 * bytes, &actor->memory.symmetric));
        actor->memory.send = shoal_symmetric_data(actor->memory.symmetric);
        actor->memory.recv = actor->memory.send ? actor->memory.send + MOST : NULL;
    } else {
        actor->memory.send = malloc(bytes);
        actor->memory.recv = malloc(bytes);
    }
    return actor->memory.send && actor->memory.recv;
}

static void end_actor(struct actor *actor)
{
    if (actor->memory.symmetric) {
        shoal_symmetric_free(actor->memory.symmetric);
    } else {
        free(actor->memory.send);
        free(actor->memory.recv);
    }
}

static shoal_group *make_group(shoal_world *world, bool is_reversed, const char *tag)
{
    int ranks[8];
    int n_ranks = shoal_world_n_ranks(world);
    for (int i = 0; i < n_ranks; i++) {
        ranks[i] = is_reversed ? n_ranks - 1 - i : i;
    }
    shoal_group *group = NULL;
    CHECK_OK(shoal_group_create(world, ranks, n_ranks, tag, &group));
    return group;
}

/* Two threads, each with a group in order and one in reverse, one with symmetric memory. */
static void stress(struct rank *self, int n_turns)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    struct actor actors[2] = {0};
    for (uint64_t i = 0; i < 2; i++) {
        REQUIRE(begin_actor(&actors[i], world, i == 1, i + 1, n_turns));
        actors[i].groups[0] = make_group(world, false, i == 0 ? "a" : "b");
        actors[i].groups[1] = make_group(world, true, i == 0 ? "a" : "b");
    }
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, act, &actors[1]) == 0);
    (void)act(&actors[0]);
    (void)pthread_join(thread, NULL);
    end_actor(&actors[0]);
    end_actor(&actors[1]);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(two_threads_on_groups_in_different_orders, 2)
{
    stress(self, N_TURNS);
}

TEST_RANKS(two_threads_on_groups_in_different_orders_many_ranks, 4)
{
    stress(self, N_TURNS / 2);
}

struct stopper {
    _Atomic bool must_end;
    int n_ranks;
};

static void *stop_others(void *context)
{
    struct stopper *stopper = context;
    struct test_random random = test_random_begin(99);
    while (!atomic_load_explicit(&stopper->must_end, memory_order_relaxed)) {
        int rank = 1 + (int)test_random_below(&random, (uint64_t)(stopper->n_ranks - 1));
        test_signal(rank, SIGSTOP);
        test_pause(0.0005 * (double)test_random_below(&random, 10));
        test_signal(rank, SIGCONT);
        test_pause(0.001);
    }
    return NULL;
}

TEST_PROCESSES(ranks_that_are_stopped_now_and_then, 3)
{
    struct stopper stopper = {.n_ranks = self->n_ranks};
    pthread_t thread;
    test_barrier(self);
    if (self->rank == 0) {
        REQUIRE(pthread_create(&thread, NULL, stop_others, &stopper) == 0);
    }
    stress(self, N_TURNS);
    if (self->rank == 0) {
        atomic_store_explicit(&stopper.must_end, true, memory_order_relaxed);
        (void)pthread_join(thread, NULL);
    }
    test_barrier(self); /* nobody is gone while signals are sent */
}
