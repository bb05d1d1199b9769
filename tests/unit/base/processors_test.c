/* SPDX-License-Identifier: MIT */
/* How many threads want to run, as the system says it, and what is made of it. */
#include "base/processors.h"

#include <limits.h>
#include <stddef.h>
#include <unistd.h>

#include "base/cores.h"
#include "base/os/os.h"
#include "base/wait.h"
#include "harness/test.h"

TEST(running_threads_are_read)
{
    CHECK_INT(processors_parse_running("0.20 0.18 0.12 3/346 2165\n"), 3);
    CHECK_INT(processors_parse_running("99.00 1.00 0.00 128/9999 1\n"), 128);
}

TEST(what_says_nothing_is_no_number)
{
    CHECK_INT(processors_parse_running(NULL), 0);
    CHECK_INT(processors_parse_running(""), 0);
    CHECK_INT(processors_parse_running("0.20 0.18"), 0);
    CHECK_INT(processors_parse_running("0.20 0.18 0.12 "), 0);
    CHECK_INT(processors_parse_running("0.20 0.18 0.12 x/346 2165"), 0);
    CHECK_INT(processors_parse_running("0.20 0.18 0.12 3 346"), 0);
    CHECK_INT(processors_parse_running("0.20 0.18 0.12 -3/346 2165"), 0);
}

TEST(one_rank_has_a_processor)
{
    CHECK(processors_suffice(1));
    CHECK(!processors_suffice(1 << 20));
}

/* What a background thread is told depends on what else runs; others are not told to sleep. */
TEST(other_threads_may_always_spin)
{
    (void)processors_are_free();
    CHECK(wait_should_spin());
}

TEST(limits_of_control_groups_are_read)
{
    CHECK_INT(processors_parse_limit("max 100000\n"), INT_MAX);
    CHECK_INT(processors_parse_limit("100000 100000\n"), 1);
    CHECK_INT(processors_parse_limit("250000 100000\n"), 2);
    CHECK_INT(processors_parse_limit("10000 100000\n"), 1); /* a tenth of a processor */
    CHECK_INT(processors_parse_limit("-1 100000\n"), INT_MAX);
    CHECK_INT(processors_parse_limit("100000 0\n"), INT_MAX);
    CHECK_INT(processors_parse_limit("100000\n"), INT_MAX);
    CHECK_INT(processors_parse_limit(""), INT_MAX);
    CHECK_INT(processors_parse_old_limit("-1\n", "100000\n"), INT_MAX);
    CHECK_INT(processors_parse_old_limit("400000\n", "100000\n"), 4);
    CHECK_INT(processors_parse_old_limit("50000\n", "100000\n"), 1);
}

#define N_WORDS (sizeof((struct cores_set *)NULL)->words / sizeof(uint64_t))

/* The processor of a rank: ranks that share one are bound to the first. */
static struct cores_set choose_one(const struct cores_set *allowed, int number)
{
    struct cores_set one = {{0}};
    for (int i = 0; i < CORES_MAX_PROCESSORS; i++) {
        if (cores_set_has(allowed, i) && number-- == 0) {
            cores_set_add(&one, i);
        }
    }
    return one;
}

struct shared_processes {
    int32_t numbers[2];
};

/* Ranks that are bound to a processor each have enough; ranks that are bound to the same one have not. */
TEST_PROCESSES(ranks_with_processors_of_their_own_have_enough, 2)
{
    struct shared_processes *shared = self->shared;
    struct cores_set allowed;
    REQUIRE(os_get_processors(0, allowed.words, N_WORDS) == 0);
    bool has_limit = !processors_suffice(2);
    bool is_small = cores_set_count(&allowed) < 2;
    shared->numbers[self->rank] = (int32_t)getpid();
    for (int apart = 0; apart < 2; apart++) {
        struct cores_set own = choose_one(&allowed, apart && !is_small ? self->rank : 0);
        REQUIRE(os_set_processors(0, own.words, N_WORDS) == 0);
        test_barrier(self);
        CHECK(processors_suffice_beside(shared->numbers, 2) == (apart && !is_small && !has_limit));
        CHECK(!processors_suffice(2));
        test_barrier(self);
    }
    REQUIRE(os_set_processors(0, allowed.words, N_WORDS) == 0);
}
