/* SPDX-License-Identifier: MIT */
/*
 * Works that are only tested, or waited for in short turns: they end like those that somebody waits for, also when
 * the group fails, a deadline passes or a rank dies.
 */
#include <signal.h>
#include <unistd.h>

#include "base/clock.h"
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/shoal.h"

/* What a busy machine may need; most of it is never used. */
#define LONG_S 10.0

static double seconds_since(int64_t begin_ns)
{
    return (double)(clock_now_ns() - begin_ns) * 1e-9;
}

/* Whether it ended in time, with nothing but tests. */
static bool poll_until_ended(shoal_work *work)
{
    int64_t begin_ns = clock_now_ns();
    while (seconds_since(begin_ns) < LONG_S * test_time_scale()) {
        if (shoal_work_test(work)) {
            return true;
        }
        test_pause(0.001);
    }
    return false;
}

/* The same with waits that are too short for anything to happen in them. */
static bool wait_in_turns(shoal_work *work)
{
    int64_t begin_ns = clock_now_ns();
    while (seconds_since(begin_ns) < LONG_S * test_time_scale()) {
        if (shoal_work_wait(work, 0.01) != SHOAL_ERR_TIMEOUT || shoal_work_test(work)) {
            return true;
        }
    }
    return false;
}

static void check_ended(shoal_work *work, bool (*until_ended)(shoal_work *), shoal_status status,
                        const char *words)
{
    CHECK(until_ended(work));
    if (shoal_work_test(work)) {
        CHECK_STATUS(shoal_work_wait(work, 0), status);
        CHECK_ERROR_TEXT(words);
    }
    shoal_work_free(work);
}

static void end_by_abort(struct rank *self, bool (*until_ended)(shoal_work *))
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = shoal_world_group(world);
    CHECK_OK(shoal_group_barrier(group));
    if (self->rank == 0) {
        shoal_work *work = NULL;
        REQUIRE_OK(shoal_group_barrier_start(group, &work));
        CHECK(!shoal_work_test(work));
        check_ended(work, until_ended, SHOAL_ERR_CANCELLED, "enough");
    } else {
        test_pause(0.05);
        CHECK_OK(shoal_group_abort(group, "enough"));
    }
    test_barrier(self);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(a_work_that_is_tested_ends_with_an_abort, 2)
{
    end_by_abort(self, poll_until_ended);
}

TEST_RANKS(a_work_waited_for_in_turns_ends_with_an_abort, 2)
{
    end_by_abort(self, wait_in_turns);
}

static void end_by_deadline(struct rank *self, bool (*until_ended)(shoal_work *))
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = shoal_world_group(world);
    CHECK_OK(shoal_group_barrier(group));
    if (self->rank == 0) {
        CHECK_OK(shoal_group_set_timeout(group, 0.2));
        shoal_work *work = NULL;
        REQUIRE_OK(shoal_group_barrier_start(group, &work));
        check_ended(work, until_ended, SHOAL_ERR_TIMEOUT, "rank 1 did not call it");
    }
    test_barrier(self);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(a_work_that_is_tested_ends_at_its_deadline, 2)
{
    end_by_deadline(self, poll_until_ended);
}

TEST_RANKS(a_work_waited_for_in_turns_ends_at_its_deadline, 2)
{
    end_by_deadline(self, wait_in_turns);
}

/*
 * Nobody asks for a while: what the other rank has done by then counts, although it came late. If it has done nothing,
 * the first who asks notices the deadline.
 */
TEST_RANKS(a_work_that_nobody_asks_for_keeps_no_deadline, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    shoal_group *other = NULL;
    shoal_work *work = NULL;
    REQUIRE(world);
    shoal_group *group = shoal_world_group(world);
    REQUIRE_OK(shoal_group_create(world, (int[]){0, 1}, 2, "other", &other));
    CHECK_OK(shoal_group_barrier(group));
    if (self->rank == 0) {
        CHECK_OK(shoal_group_set_timeout(group, 0.1));
        REQUIRE_OK(shoal_group_barrier_start(group, &work));
        test_pause(0.3);
        CHECK_OK(shoal_group_error(group));
    }
    test_barrier(self);
    if (self->rank == 1) {
        CHECK_OK(shoal_group_barrier(group));
    }
    CHECK_OK(shoal_group_barrier(other)); /* rank 1's call has come before */
    if (self->rank == 0) {
        CHECK_OK(shoal_work_wait(work, -1));
        shoal_work_free(work);
        REQUIRE_OK(shoal_group_barrier_start(group, &work));
        test_pause(0.3);
        CHECK_OK(shoal_group_error(group));
        CHECK_STATUS(shoal_work_wait(work, -1), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("rank 1 did not call it");
        shoal_work_free(work);
    }
    test_barrier(self);
    CHECK_OK(shoal_world_close(world));
}

/* The reason of the group's failure is a timeout too, but another rank's: no reason to go on waiting. */
static bool wait_long(shoal_work *work)
{
    int64_t begin_ns = clock_now_ns();
    CHECK_STATUS(shoal_work_wait(work, LONG_S * test_time_scale()), SHOAL_ERR_TIMEOUT);
    return seconds_since(begin_ns) < LONG_S * test_time_scale() * 0.9;
}

static void end_by_timeout_of_another(struct rank *self, bool (*until_ended)(shoal_work *))
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = shoal_world_group(world);
    CHECK_OK(shoal_group_barrier(group));
    if (self->rank == 0) {
        shoal_work *work = NULL;
        REQUIRE_OK(shoal_group_barrier_start(group, &work));
        check_ended(work, until_ended, SHOAL_ERR_TIMEOUT, "rank 2 did not call it");
    } else if (self->rank == 1) {
        CHECK_OK(shoal_group_set_timeout(group, 0.2));
        CHECK_STATUS(shoal_group_barrier(group), SHOAL_ERR_TIMEOUT);
    }
    test_barrier(self);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(a_wait_ends_with_the_timeout_of_another_rank, 3)
{
    end_by_timeout_of_another(self, wait_long);
}

TEST_RANKS(a_test_ends_with_the_timeout_of_another_rank, 3)
{
    end_by_timeout_of_another(self, poll_until_ended);
}

static void end_by_death(struct rank *self, bool (*until_ended)(shoal_work *))
{
    test_expect_death(1, SIGKILL);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = shoal_world_group(world);
    CHECK_OK(shoal_group_barrier(group));
    if (self->rank == 1) {
        test_pause(0.05);
        (void)kill(getpid(), SIGKILL);
    }
    shoal_work *work = NULL;
    REQUIRE_OK(shoal_group_barrier_start(group, &work));
    check_ended(work, until_ended, SHOAL_ERR_PEER, "rank 1");
    CHECK_OK(shoal_world_close(world));
}

TEST_PROCESSES(a_work_that_is_tested_ends_with_a_death, 2)
{
    end_by_death(self, poll_until_ended);
}

TEST_PROCESSES(a_work_waited_for_in_turns_ends_with_a_death, 2)
{
    end_by_death(self, wait_in_turns);
}

/* Rank 0 waits for something else, and asks only whether the group has failed. */
TEST_PROCESSES(a_death_is_noticed_by_group_error, 2)
{
    test_expect_death(1, SIGKILL);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = shoal_world_group(world);
    CHECK_OK(shoal_group_barrier(group));
    if (self->rank == 1) {
        test_pause(0.05);
        (void)kill(getpid(), SIGKILL);
    }
    shoal_work *work = NULL;
    REQUIRE_OK(shoal_group_barrier_start(group, &work));
    int64_t begin_ns = clock_now_ns();
    shoal_status status = SHOAL_OK;
    while (status == SHOAL_OK && seconds_since(begin_ns) < LONG_S * test_time_scale()) {
        status = shoal_group_error(group);
        test_pause(0.001);
    }
    CHECK_STATUS(status, SHOAL_ERR_PEER);
    CHECK_ERROR_TEXT("rank 1");
    CHECK_STATUS(shoal_work_wait(work, -1), SHOAL_ERR_PEER);
    CHECK_ERROR_TEXT("rank 1");
    shoal_work_free(work);
    CHECK_OK(shoal_world_close(world));
}

/* The deadline has passed when somebody looks for the first time: that the rank has died says more. */
TEST_PROCESSES(a_death_comes_before_a_deadline_that_has_passed, 2)
{
    test_expect_death(1, SIGKILL);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = shoal_world_group(world);
    CHECK_OK(shoal_group_barrier(group));
    if (self->rank == 1) {
        (void)kill(getpid(), SIGKILL);
    }
    CHECK_OK(shoal_group_set_timeout(group, 0.2));
    shoal_work *work = NULL;
    REQUIRE_OK(shoal_group_barrier_start(group, &work));
    test_pause(0.5);
    CHECK_STATUS(shoal_work_wait(work, -1), SHOAL_ERR_PEER);
    CHECK_ERROR_TEXT("rank 1");
    shoal_work_free(work);
    CHECK_OK(shoal_world_close(world));
}
