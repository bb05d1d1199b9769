/* SPDX-License-Identifier: MIT */
/* A rank dies while another is late: who waits for the late one hears of the death all the same. */
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/shoal.h"

#define LARGE ((size_t)1 << 17)

static void die_while_another_is_late(struct rank *self, size_t count)
{
    _Atomic bool *has_heard = self->shared;
    test_expect_death(2, SIGKILL);
    shoal_world *world = rank_world_open(self, 0);
    float *data = calloc(count + 1, sizeof *data);
    REQUIRE(world && data);
    shoal_group *group = shoal_world_group(world);
    CHECK_OK(shoal_group_barrier(group));
    if (self->rank == 2) {
        (void)kill(getpid(), SIGKILL);
    }
    while (self->rank == 1 && !atomic_load(has_heard)) {
        test_pause(
            0.001); /* so late that rank 0 hears of the death only if it does not need this rank for it */
    }
    CHECK_STATUS(shoal_group_all_reduce(group, data, data, count, SHOAL_F32, SHOAL_SUM), SHOAL_ERR_PEER);
    CHECK_ERROR_TEXT("rank 2");
    atomic_store(has_heard, true);
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
