/* SPDX-License-Identifier: MIT */
/* Running plans: the bits of shoal_graph_run, outputs, errors, ends. */
#include "planning.h"
#include "run_texts.h"

#include <signal.h>

/* Every collective ----------------------------------------------------------------------------------------- */

WORLD_TEST(views_lists_and_writes)
{
    plan_check(world, views_text, 7);
}

WORLD_TEST(reductions)
{
    plan_check(world, reduces_text, 11);
}

WORLD_TEST(data_that_moves)
{
    plan_check(world, moves_text, 16);
}

TEST_RANKS(point_to_point, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    plan_check(world, p2p_text, 4);
    CHECK_OK(shoal_world_close(world));
}
