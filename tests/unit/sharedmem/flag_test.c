/* SPDX-License-Identifier: MIT */
/* Flags: nobody sleeps through a change, values wrap, waits end by deadline and by liveness. */
#include "sharedmem/flag.h"

#include <pthread.h>

#include "base/clock.h"
#include "base/error.h"
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
