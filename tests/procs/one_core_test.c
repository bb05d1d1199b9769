/* SPDX-License-Identifier: MIT */
/* More ranks than processors: nobody may spin while the rank it waits for cannot run. */
#include <sched.h>
#include <string.h>

#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/group.h"
#include "shoal/window.h"
#include "shoal/world.h"

#define LARGE 100000 /* elements: through staging */
#define TURNS 200
/* Turns that cost a scheduler's slice each would take minutes; a sleep and a wake-up take microseconds. */
#define DEADLINE_S 20.0

static bool stay_on_one_processor(void)
{
    cpu_set_t allowed;
    cpu_set_t one;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
        return false;
    }
    CPU_ZERO(&one);
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &allowed)) {
            CPU_SET(cpu, &one);
            return sched_setaffinity(0, sizeof one, &one) == 0;
        }
    }
    return false;
}

static void talk(shoal_world *world, float *values, float *sums)
{
    shoal_group *group = shoal_world_group(world);
    int rank = shoal_group_rank(group);
    int n_ranks = shoal_group_n_ranks(group);
    for (int turn = 0; turn < TURNS; turn++) {
        size_t count = turn % 20 == 0 ? LARGE : 16;
        values[0] = (float)(turn + rank);
        REQUIRE_OK(shoal_group_all_reduce(group, values, sums, count, SHOAL_F32, SHOAL_SUM));
        CHECK((int)sums[0] == n_ranks * turn + n_ranks * (n_ranks - 1) / 2);
        shoal_transfer ring[2] = {{SHOAL_SEND, values, 4, SHOAL_F32, (rank + 1) % n_ranks, 0},
                                  {SHOAL_RECV, sums, 4, SHOAL_F32, (rank + n_ranks - 1) % n_ranks, 0}};
        REQUIRE_OK(shoal_group_transfer(group, ring, 2));
        CHECK((int)sums[0] == turn + (rank + n_ranks - 1) % n_ranks);
    }
}

static void share_window(shoal_world *world, const float *values)
{
    shoal_group *group = shoal_world_group(world);
    size_t bytes = 64 * sizeof(float);
    shoal_window *window = NULL;
    REQUIRE_OK(shoal_window_create(group, bytes * (size_t)shoal_group_n_ranks(group), &window));
    shoal_window_piece piece = {values, 64, SHOAL_F32, SHOAL_F32, (size_t)shoal_group_rank(group) * bytes};
    for (uint64_t turn = 0; turn < TURNS; turn++) {
        REQUIRE_OK(shoal_window_gather(window, &piece, 1, turn));
        REQUIRE_OK(shoal_window_release(window));
    }
    shoal_window_free(window);
}

static void run(struct rank *self)
{
    static _Thread_local float values[LARGE];
    static _Thread_local float sums[LARGE];
    if (!stay_on_one_processor()) {
        test_skip("the process cannot be pinned");
        return;
    }
    test_deadline(DEADLINE_S);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    memset(values, 0, sizeof values);
    talk(world, values, sums);
    share_window(world, values);
    CHECK_OK(shoal_world_close(world));
}

TEST_PROCESSES(two_ranks_on_one_processor, 2)
{
    run(self);
}

TEST_PROCESSES(seven_ranks_on_one_processor, 7)
{
    run(self);
}
