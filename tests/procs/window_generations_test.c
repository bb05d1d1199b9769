/* SPDX-License-Identifier: MIT */
/* Windows of a group of one: what waits for a release waits beside the caller, and hears of a failure. */
#include <string.h>

#include "base/clock.h"
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/shoal.h"

#define SMALL 64
#define LARGE ((size_t)256 * 1024)

static double seconds_since(int64_t begin_ns)
{
    return (double)(clock_now_ns() - begin_ns) * 1e-9;
}

static shoal_work *start_gather(shoal_window *window, const void *data, size_t bytes)
{
    shoal_window_piece piece = {
        .data = data, .count = bytes, .data_dtype = SHOAL_U8, .window_dtype = SHOAL_U8, .offset = 0};
    shoal_work *work = NULL;
    CHECK_OK(shoal_window_gather_start(window, &piece, 1, 0, &work));
    return work;
}

static void start_before_release(struct rank *self, size_t bytes)
{
    static const unsigned char ones[SMALL] = {1};
    static const unsigned char twos[SMALL] = {2};
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_window *window = NULL;
    REQUIRE_OK(shoal_window_create(shoal_world_group(world), bytes, &window));
    shoal_work *first = start_gather(window, ones, SMALL);
    CHECK_OK(shoal_work_wait(first, -1));
    int64_t begin_ns = clock_now_ns();
    shoal_work *second = start_gather(window, twos, SMALL);
    CHECK(seconds_since(begin_ns) < 5 * test_time_scale());
    CHECK(!shoal_work_test(second));
    CHECK_BYTES(shoal_window_data(window), ones, SMALL);
    CHECK_OK(shoal_window_release(window));
    CHECK_OK(shoal_work_wait(second, -1));
    CHECK_BYTES(shoal_window_data(window), twos, SMALL);
    shoal_work_free(first);
    shoal_work_free(second);
    shoal_window_free(window);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(the_next_generation_may_be_started_small, 1)
{
    start_before_release(self, SMALL);
}

TEST_RANKS(the_next_generation_may_be_started_large, 1)
{
    start_before_release(self, LARGE);
}

/* Nobody will release it: an abort ends the wait. */
TEST_RANKS(a_wait_for_the_own_release_hears_of_an_abort, 1)
{
    static const unsigned char ones[SMALL] = {1};
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = shoal_world_group(world);
    shoal_window *window = NULL;
    REQUIRE_OK(shoal_window_create(group, LARGE, &window));
    shoal_work *first = start_gather(window, ones, SMALL);
    shoal_work *second = start_gather(window, ones, SMALL);
    CHECK_OK(shoal_work_wait(first, -1));
    test_pause(0.05); /* the lane's thread waits now */
    int64_t begin_ns = clock_now_ns();
    CHECK_OK(shoal_group_abort(group, "enough"));
    CHECK_STATUS(shoal_work_wait(second, -1), SHOAL_ERR_CANCELLED);
    CHECK(seconds_since(begin_ns) < 5 * test_time_scale());
    shoal_work_free(first);
    shoal_work_free(second);
    shoal_window_free(window);
    CHECK_OK(shoal_world_close(world));
}
