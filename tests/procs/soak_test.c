/* SPDX-License-Identifier: MIT */
/*
 * Many small mixed collectives and transfers over several groups from several threads of each rank: every result is
 * right, and memory and descriptors stay what they were after the first tenth.
 *
 * `make test` runs a few seconds of it, `make soak` a million calls: SHOAL_TEST_SOAK_CALLS per rank,
 * SHOAL_TEST_SOAK_THREADS threads of each rank.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "fixtures/descriptor_calls.h"
#include "fixtures/rank_world.h"
#include "fixtures/reading.h"
#include "harness/harness.h"
#include "harness/test.h"
#include "shoal/group.h"
#include "shoal/work.h"
#include "shoal/world.h"

enum {
    N_RANKS = 2,
    MAX_THREADS = 16,
    GROUPS_PER_THREAD = 2,
    MAX_COUNT = 8192, /* elements; most calls have at most SMALL_COUNT */
    SMALL_COUNT = 64,
    LARGE_EVERY = 128,
    IN_FLIGHT = 8, /* per thread */
    TENTHS = 10,
    DEFAULT_CALLS = HARNESS_HAS_TSAN || HARNESS_HAS_ASAN ? 20000 : 200000,
    DEFAULT_THREADS = 2,
    /* What the resident set may grow by after the first tenth: allocators keep pages. */
    MAX_GROWTH_KIB = 2048,
    MAX_GROWTH_BLOCKS = 64,    /* records that are made as they are needed */
    MAX_GROWTH_DESCRIPTORS = 8 /* connections that are kept for the next request */
};

enum soak_op {
    SOAK_BARRIER,
    SOAK_BROADCAST,
    SOAK_ALL_REDUCE,
    SOAK_REDUCE,
    SOAK_ALL_GATHER,
    SOAK_REDUCE_SCATTER,
    SOAK_ALL_TO_ALL,
    SOAK_GATHER,
    SOAK_SCATTER,
    SOAK_LIST,
    SOAK_EXCHANGE,
    SOAK_OP_COUNT
};

struct slot {
    shoal_work *work; /* NULL: free */
    enum soak_op op;
    shoal_group *group;
    uint32_t seed;
    size_t count;
    int root;
    int32_t send[MAX_COUNT * N_RANKS];
    int32_t recv[MAX_COUNT * N_RANKS];
};

struct soaker {
    struct rank *self;
    shoal_world *world;
    int index;
    int n_calls; /* of the next tenth */
    int tenth;   /* which that is, from 0 */
    struct test_random random;
    struct slot slots[IN_FLIGHT];
};

/* Element i of what a rank sends in a call. */
static uint32_t value(uint32_t seed, int rank, size_t i)
{
    return seed * 1000003u + (uint32_t)rank * 7919u + (uint32_t)i * 31u;
}

static uint32_t sum(uint32_t seed, size_t i)
{
    uint32_t total = 0;
    for (int r = 0; r < N_RANKS; r++) {
        total += value(seed, r, i);
    }
    return total;
}

/* Calls ---------------------------------------------------------------------------------------------------- */

static shoal_status start(struct slot *s)
{
    int rank = shoal_group_rank(s->group);
    shoal_group *g = s->group;
    shoal_dtype t = SHOAL_I32;
    size_t half = s->count / 2;
    int peer = (rank + 1) % N_RANKS;
    shoal_part parts[2] = {{s->send, s->recv, half, SHOAL_CPU},
                           {s->send + half, s->recv + half, s->count - half, SHOAL_CPU}};
    shoal_transfer transfers[2] = {{SHOAL_SEND, s->send, s->count, t, peer, 3},
                                   {SHOAL_RECV, s->recv, s->count, t, peer, 3}};
    switch (s->op) {
    case SOAK_BARRIER:
        return shoal_group_barrier_start(g, &s->work);
    case SOAK_BROADCAST:
        memcpy(s->recv, s->send, s->count * sizeof s->recv[0]);
        return shoal_group_broadcast_start(g, s->recv, s->count, t, s->root, &s->work);
    case SOAK_ALL_REDUCE:
        return shoal_group_all_reduce_start(g, s->send, s->recv, s->count, t, SHOAL_SUM, &s->work);
    case SOAK_REDUCE:
        return shoal_group_reduce_start(g, s->send, s->recv, s->count, t, SHOAL_SUM, s->root, &s->work);
    case SOAK_ALL_GATHER:
        return shoal_group_all_gather_start(g, s->send, s->recv, s->count, t, &s->work);
    case SOAK_REDUCE_SCATTER:
        return shoal_group_reduce_scatter_start(g, s->send, s->recv, s->count, t, SHOAL_SUM, &s->work);
    case SOAK_ALL_TO_ALL:
        return shoal_group_all_to_all_start(g, s->send, s->recv, s->count, t, &s->work);
    case SOAK_GATHER:
        return shoal_group_gather_start(g, s->send, s->recv, s->count, t, s->root, &s->work);
    case SOAK_SCATTER:
        return shoal_group_scatter_start(g, s->send, s->recv, s->count, t, s->root, &s->work);
    case SOAK_LIST:
        return group_all_reduce_list_start(g, parts, 2, t, SHOAL_SUM, &s->work);
    case SOAK_EXCHANGE:
        return shoal_group_transfer_start(g, transfers, 2, &s->work);
    case SOAK_OP_COUNT:
        break;
    }
    return SHOAL_ERR_INTERNAL;
}

/* The same without a work. */
static shoal_status run(struct slot *s)
{
    shoal_group *g = s->group;
    switch ((int)s->op) {
    case SOAK_BARRIER:
        return shoal_group_barrier(g);
    case SOAK_ALL_REDUCE:
        return shoal_group_all_reduce(g, s->send, s->recv, s->count, SHOAL_I32, SHOAL_SUM);
    case SOAK_ALL_GATHER:
        return shoal_group_all_gather(g, s->send, s->recv, s->count, SHOAL_I32);
    default:
        return start(s);
    }
}

/* Element i of recv at the end; false where there is none. */
static bool expect(const struct slot *s, size_t i, uint32_t *expected_out)
{
    int rank = shoal_group_rank(s->group);
    size_t block = s->count > 0 ? i / s->count : 0;
    size_t inside = s->count > 0 ? i % s->count : 0;
    bool is_one_block = i < s->count;
    size_t own = (size_t)rank * s->count;
    switch (s->op) {
    case SOAK_BROADCAST:
        *expected_out = value(s->seed, s->root, i);
        return is_one_block;
    case SOAK_ALL_REDUCE:
    case SOAK_LIST:
        *expected_out = sum(s->seed, i);
        return is_one_block;
    case SOAK_REDUCE:
        *expected_out = sum(s->seed, i);
        return is_one_block && rank == s->root;
    case SOAK_REDUCE_SCATTER:
        *expected_out = sum(s->seed, own + i);
        return is_one_block;
    case SOAK_ALL_GATHER:
        *expected_out = value(s->seed, (int)block, inside);
        return true;
    case SOAK_GATHER:
        *expected_out = value(s->seed, (int)block, inside);
        return rank == s->root;
    case SOAK_ALL_TO_ALL:
        *expected_out = value(s->seed, (int)block, own + inside);
        return true;
    case SOAK_SCATTER:
        *expected_out = value(s->seed, s->root, own + i);
        return is_one_block;
    case SOAK_EXCHANGE:
        *expected_out = value(s->seed, (rank + 1) % N_RANKS, i);
        return is_one_block;
    case SOAK_BARRIER:
    case SOAK_OP_COUNT:
        break;
    }
    return false;
}

static void check(const struct slot *s)
{
    for (size_t i = 0; i < s->count * N_RANKS; i++) {
        uint32_t expected;
        if (expect(s, i, &expected) && (uint32_t)s->recv[i] != expected) {
            test_failed(__FILE__, __LINE__, "op %d count %zu seed %u: element %zu is %08x, expected %08x",
                        (int)s->op, s->count, s->seed, i, (uint32_t)s->recv[i], expected);
            return;
        }
    }
}

static void finish(struct slot *s)
{
    if (s->work) {
        (void)CHECK_OK(shoal_work_wait(s->work, /*timeout_s=*/-1));
        shoal_work_free(s->work);
        s->work = NULL;
        check(s);
    }
}

static void *soak(void *argument)
{
    static const int ranks[N_RANKS] = {0, 1};
    struct soaker *soaker = argument;
    shoal_group *groups[GROUPS_PER_THREAD];
    harness_set_thread_rank(soaker->self->rank);
    for (int i = 0; i < GROUPS_PER_THREAD; i++) {
        char tag[32];
        (void)snprintf(tag, sizeof tag, "soak-%d-%d", soaker->index, i);
        if (!CHECK_OK(shoal_group_create(soaker->world, ranks, N_RANKS, tag, &groups[i]))) {
            return NULL;
        }
    }
    for (int call = 0; call < soaker->n_calls && !test_has_failed(); call++) {
        struct slot *s = &soaker->slots[call % IN_FLIGHT];
        test_progress((uint64_t)soaker->tenth * (uint64_t)soaker->n_calls + (uint64_t)call,
                      TENTHS * (uint64_t)soaker->n_calls);
        finish(s);
        s->group = groups[test_random_below(&soaker->random, GROUPS_PER_THREAD)];
        s->op = (enum soak_op)test_random_below(&soaker->random, SOAK_OP_COUNT);
        bool is_large = test_random_below(&soaker->random, LARGE_EVERY) == 0;
        s->count = test_random_below(&soaker->random, is_large ? MAX_COUNT + 1 : SMALL_COUNT + 1);
        s->root = (int)test_random_below(&soaker->random, N_RANKS);
        s->seed = (uint32_t)test_random_u64(&soaker->random);
        bool is_blocking = test_random_below(&soaker->random, 2) == 0;
        for (size_t i = 0; i < s->count * N_RANKS; i++) {
            s->send[i] = (int32_t)value(s->seed, shoal_group_rank(s->group), i);
        }
        memset(s->recv, 0, s->count * N_RANKS * sizeof s->recv[0]);
        if (!CHECK_OK(is_blocking ? run(s) : start(s))) {
            break;
        }
        if (is_blocking && !s->work) {
            check(s);
        }
    }
    for (int i = 0; i < IN_FLIGHT; i++) {
        finish(&soaker->slots[i]);
    }
    return NULL;
}

/* Measuring ------------------------------------------------------------------------------------------------ */

static void compare(const struct reading *first, const struct reading *now)
{
    CHECK(now->n_descriptors <= first->n_descriptors + MAX_GROWTH_DESCRIPTORS);
    CHECK(now->n_blocks <= first->n_blocks + MAX_GROWTH_BLOCKS);
    /* Sanitizers keep freed memory on purpose. */
    if (!HARNESS_HAS_ASAN && !HARNESS_HAS_TSAN && now->resident_kib > first->resident_kib + MAX_GROWTH_KIB) {
        test_failed(__FILE__, __LINE__, "the resident set grew from %ld to %ld KiB", first->resident_kib,
                    now->resident_kib);
    }
}

static int number_from(const char *variable, int otherwise)
{
    const char *text = getenv(variable);
    long number = text ? strtol(text, NULL, 10) : 0;
    return number > 0 && number < 1000000000 ? (int)number : otherwise;
}

TEST_RANKS(soak_mixed, N_RANKS)
{
    static struct soaker all_soakers[N_RANKS][MAX_THREADS];
    struct soaker *soakers = all_soakers[self->rank];
    int n_calls = number_from("SHOAL_TEST_SOAK_CALLS", DEFAULT_CALLS);
    int n_threads = number_from("SHOAL_TEST_SOAK_THREADS", DEFAULT_THREADS);
    n_threads = n_threads > MAX_THREADS ? MAX_THREADS : n_threads;
    test_deadline(60 + n_calls * 0.001);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    struct reading first = {0};
    int64_t start_ns = clock_now_ns();
    for (int t = 0; t < n_threads; t++) {
        soakers[t] = (struct soaker){
            .self = self, .world = world, .index = t, .random = test_random_begin((uint64_t)t)};
        soakers[t].n_calls = n_calls / TENTHS / n_threads;
    }
    for (int tenth = 1; tenth <= TENTHS && !test_has_failed(); tenth++) {
        pthread_t threads[MAX_THREADS];
        for (int t = 0; t < n_threads; t++) {
            soakers[t].tenth = tenth - 1;
            REQUIRE(pthread_create(&threads[t], NULL, soak, &soakers[t]) == 0);
        }
        for (int t = 0; t < n_threads; t++) {
            (void)pthread_join(threads[t], NULL);
        }
        test_barrier(self);
        /* Ranks that are threads share what is measured, so that one of them measures. */
        struct reading now = self->is_process || self->rank == 0 ? reading_take() : first;
        if (self->rank == 0) {
            harness_print("%3d %%: %.1f s, resident %ld KiB, descriptors %zu, blocks %zu\n",
                          tenth * 100 / TENTHS, (double)(clock_now_ns() - start_ns) * 1e-9, now.resident_kib,
                          now.n_descriptors, now.n_blocks);
        }
        if (tenth == 1) {
            first = now;
        } else {
            compare(&first, &now);
        }
        test_barrier(self);
    }
    CHECK_OK(shoal_world_close(world));
}
