/* SPDX-License-Identifier: MIT */
/* Flags: nobody sleeps through a change, values wrap, waits end by deadline and by liveness. */
#include "sharedmem/flag.h"

#include <pthread.h>

#include "base/clock.h"
#include "base/cores.h"
#include "base/error.h"
#include "base/neighbours.h"
#include "base/os/os.h"
#include "base/wait.h"
#include "harness/test.h"

static struct wait_options wait_for(double seconds, bool may_spin)
{
    return (struct wait_options){
        .deadline_ns = clock_deadline_after(seconds), .is_shared = true, .may_spin = may_spin, .what = "it"};
}

TEST(values_are_compared_modulo)
{
    CHECK(flag_is_past(5, 5));
    CHECK(flag_is_past(6, 5));
    CHECK(!flag_is_past(4, 5));
    CHECK(flag_is_past(0, FLAG_MASK));
    CHECK(flag_is_past(2, FLAG_MASK - 1));
    CHECK(!flag_is_past(FLAG_MASK, 0));
}

TEST(a_value_that_is_there_is_not_waited_for)
{
    _Atomic uint32_t flag = 0;
    flag_set(&flag, 7);
    CHECK_INT(flag_get(&flag), 7);
    struct wait_options options = wait_for(0.0, false);
    CHECK_OK(flag_wait(&flag, 7, &options));
    CHECK_OK(flag_wait(&flag, 3, &options));
    CHECK_STATUS(flag_wait(&flag, 8, &options), SHOAL_ERR_TIMEOUT);
    /* The sleeper's bit is no part of the value, and the next change clears it. */
    CHECK_INT(flag_get(&flag), 7);
    flag_set(&flag, 8);
    CHECK_INT(atomic_load(&flag), 16);
    CHECK_OK(flag_wait(&flag, 8, &options));
}

TEST(the_last_value_wraps_to_the_first)
{
    _Atomic uint32_t flag = 0;
    flag_set(&flag, FLAG_MASK);
    struct wait_options options = wait_for(0.0, false);
    CHECK_OK(flag_wait(&flag, FLAG_MASK, &options));
    flag_set(&flag, FLAG_MASK + 1u);
    CHECK_INT(flag_get(&flag), 0);
    CHECK_OK(flag_wait(&flag, FLAG_MASK, &options));
    CHECK_OK(flag_wait(&flag, 0, &options));
}

static shoal_status refuse(void *context)
{
    return error_set(SHOAL_ERR_PEER, "rank 3 died");
}

TEST(a_dead_peer_ends_the_wait)
{
    _Atomic uint32_t flag = 0;
    struct wait_options options = wait_for(30.0, true);
    options.liveness = refuse;
    CHECK_STATUS(flag_wait(&flag, 1, &options), SHOAL_ERR_PEER);
    CHECK_ERROR_TEXT("rank 3 died");
}

#define TURNS 20000

struct shared_flags {
    _Alignas(128) _Atomic uint32_t flags[2];
    unsigned plain; /* written by the rank whose turn it is: the sanitizer watches it */
};

/* Each rank raises its flag in turn: every turn is a sleep or a spin, and a wake that must not be lost. */
static void take_turns(struct rank *self, bool may_spin)
{
    struct shared_flags *shared = self->shared;
    for (uint32_t turn = 1; turn <= TURNS; turn++) {
        struct wait_options options = wait_for(30.0, may_spin && turn % 3 != 0);
        if (self->rank == 1) {
            REQUIRE_OK(flag_wait(&shared->flags[0], turn, &options));
        }
        shared->plain++;
        flag_set(&shared->flags[self->rank], turn);
        if (self->rank == 0) {
            REQUIRE_OK(flag_wait(&shared->flags[1], turn, &options));
        }
    }
    test_barrier(self);
    CHECK_INT(shared->plain, 2 * TURNS);
}

TEST_RANKS(no_wake_is_lost_asleep, 2)
{
    take_turns(self, /*may_spin=*/false);
}

TEST_RANKS(no_wake_is_lost_spinning, 2)
{
    take_turns(self, /*may_spin=*/true);
}

/* Many sleepers on one flag, each waiting for another value of it. */
TEST_RANKS(all_sleepers_wake, 6)
{
    struct shared_flags *shared = self->shared;
    for (uint32_t round = 0; round < 300; round++) {
        uint32_t base = round * 8;
        struct wait_options options = wait_for(30.0, false);
        if (self->rank == 0) {
            for (uint32_t i = 1; i <= 8; i++) {
                flag_set(&shared->flags[0], base + i);
            }
        } else {
            REQUIRE_OK(flag_wait(&shared->flags[0], base + (uint32_t)self->rank, &options));
        }
        test_barrier(self);
    }
}

/* Staying awake ------------------------------------------------------------------------------------------ */

#define N_WORDS (sizeof((struct cores_set *)NULL)->words / sizeof(uint64_t))
#define FEW_TURNS 1000
#define N_ROUNDS 20

struct shared_turns {
    _Alignas(128) _Atomic uint32_t flags[2];
    _Alignas(128) _Atomic uint32_t processors[2];
    _Alignas(128) _Atomic uint32_t n_sleeps;
};

/* Counts a rank that sleeps on the flag, and raises it. */
static void raise_and_count(struct shared_turns *shared, int rank, uint32_t value)
{
    atomic_fetch_add(&shared->n_sleeps, atomic_load(&shared->flags[rank]) & 1);
    flag_set(&shared->flags[rank], value);
}

/* Ranks hand a turn to and fro, after `begin` turns of earlier rounds. */
static void hand_over(struct rank *self, bool knows_processors, uint32_t begin)
{
    struct shared_turns *shared = self->shared;
    struct neighbours neighbours = {.first = shared->processors,
                                    .stride = sizeof shared->processors[0],
                                    .n_ranks = 2,
                                    .rank = self->rank,
                                    .peer = 1 - self->rank};
    struct wait_options options = wait_for(30.0, /*may_spin=*/true);
    options.neighbours = knows_processors ? &neighbours : NULL;
    for (uint32_t turn = begin + 1; turn <= begin + FEW_TURNS; turn++) {
        if (self->rank == 1) {
            REQUIRE_OK(flag_wait(&shared->flags[0], turn, &options));
        }
        raise_and_count(shared, self->rank, turn);
        if (self->rank == 0) {
            REQUIRE_OK(flag_wait(&shared->flags[1], turn, &options));
        }
    }
}

/* A round of turns; gives how many of its waits were asleep. */
static uint32_t count_sleeps(struct rank *self, bool knows_processors, uint32_t round)
{
    struct shared_turns *shared = self->shared;
    uint32_t before = atomic_load(&shared->n_sleeps);
    test_barrier(self);
    hand_over(self, knows_processors, round * FEW_TURNS);
    test_barrier(self);
    uint32_t after = atomic_load(&shared->n_sleeps);
    test_barrier(self);
    return after - before;
}

/*
 * On one processor each turn needs that the other rank runs. Ranks that sleep for it sleep in every turn of every round.
 * Other programs on that processor make ranks sleep as well, so one round without them is enough.
 */
static void hand_over_on_one_processor(struct rank *self, bool knows_processors)
{
    struct cores_set allowed;
    struct cores_set one = {{0}};
    int first = 0;
    REQUIRE(os_get_processors(0, allowed.words, N_WORDS) == 0);
    while (!cores_set_has(&allowed, first)) {
        first++;
    }
    cores_set_add(&one, first);
    REQUIRE(os_set_processors(0, one.words, N_WORDS) == 0);
    uint32_t n_sleeps = FEW_TURNS;
    for (uint32_t round = 0; round < N_ROUNDS && n_sleeps >= FEW_TURNS / 2; round++) {
        n_sleeps = count_sleeps(self, knows_processors, round);
    }
    CHECK(n_sleeps < FEW_TURNS / 2);
    REQUIRE(os_set_processors(0, allowed.words, N_WORDS) == 0);
}

TEST_RANKS(ranks_on_one_processor_yield, 2)
{
    hand_over_on_one_processor(self, /*knows_processors=*/true);
}

/* Waits that are short, asleep or not, earn the credit that keeps the next ones awake. */
TEST_RANKS(ranks_that_exchange_all_the_time_stay_awake, 2)
{
    hand_over_on_one_processor(self, /*knows_processors=*/false);
}
