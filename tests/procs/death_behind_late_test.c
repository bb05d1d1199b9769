/* SPDX-License-Identifier: MIT */
/* A rank dies while another is late: who waits for the late one hears of the death all the same. */
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/shoal.h"

#define LATE_S 3.0
#define LARGE ((size_t)1 << 17)

static double seconds_since(int64_t begin_ns)
{
    return (double)(clock_now_ns() - begin_ns) * 1e-9;
}

static void die_while_another_is_late(struct rank *self, size_t count)
{
    test_expect_death(2, SIGKILL);
    shoal_world *world = rank_world_open(self, 0);
    float *data = calloc(count + 1, sizeof *data);
    REQUIRE(world && data);
    shoal_group *group = shoal_world_group(world);
    CHECK_OK(shoal_group_barrier(group));
    if (self->rank == 2) {
        (void)kill(getpid(), SIGKILL);
    }
    if (self->rank == 1) {
        test_pause(LATE_S * test_time_scale());
    }
    int64_t begin_ns = clock_now_ns();
    CHECK_STATUS(shoal_group_all_reduce(group, data, data, count, SHOAL_F32, SHOAL_SUM), SHOAL_ERR_PEER);
    CHECK_ERROR_TEXT("rank 2");
    CHECK(seconds_since(begin_ns) < LATE_S / 2 * test_time_scale());
    test_barrier(self);
    CHECK_OK(shoal_world_close(world));
    free(data);
}

TEST_PROCESSES(a_death_is_heard_of_behind_a_late_rank_small, 3)
{
    die_while_another_is_late(self, 4);
}

TEST_PROCESSES(a_death_is_heard_of_behind_a_late_rank_large, 3)
{
    die_while_another_is_late(self, LARGE);
}

/* A rank that has done its part and left is not missed, however late another is. */
TEST_RANKS(a_rank_that_left_after_its_part_is_not_missed, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = shoal_world_group(world);
    CHECK_OK(shoal_group_barrier(group));
    if (self->rank == 2) {
        /* Nobody waits for it here: closing ends it once the others have come. */
        shoal_work *work = NULL;
        REQUIRE_OK(shoal_group_barrier_start(group, &work));
        shoal_work_free(work);
    } else {
        test_pause(self->rank == 1 ? 0.5 : 0);
        CHECK_OK(shoal_group_barrier(group));
    }
    CHECK_OK(shoal_world_close(world));
}
