/* SPDX-License-Identifier: MIT */
/* Plans over several groups: what has become of one rank's plan is heard by ranks that share no group with it. */
#include "unit/graph/planning.h"

#define MESH                                                                                          \
    "graph {\ngroup @rows = [[0, 1], [2, 3]]\ngroup @columns = [[0, 2], [1, 3]]\n%x = placeholder : " \
    "f32[4]\n"
#define MESH_END "%a = wait_tensor(%one)\n%b = wait_tensor(%two)\nreturn [%a, %b]\n}\n"
static const char mesh_sum[] =
    MESH "%one = all_reduce(%x, \"sum\", @rows)\n%two = all_reduce(%x, \"sum\", @columns)\n" MESH_END;
static const char mesh_max[] =
    MESH "%one = all_reduce(%x, \"sum\", @rows)\n%two = all_reduce(%x, \"max\", @columns)\n" MESH_END;
static const char mesh_opaque[] =
    MESH "%o = opaque \"unknown\"(%x) : f32[4]\n%one = all_reduce(%o, \"sum\", @rows)\n"
         "%two = all_reduce(%x, \"sum\", @columns)\n" MESH_END;

/* No two ranks that are opposite share a group. */
#define RING                                                                                        \
    "graph {\ngroup @even = [[0, 1], [2, 3], [4, 5]]\ngroup @odd = [[1, 2], [3, 4], [5, 0]]\n%x = " \
    "placeholder : f32[4]\n"
static const char ring_sum[] =
    RING "%one = all_reduce(%x, \"sum\", @even)\n%two = all_reduce(%x, \"sum\", @odd)\n" MESH_END;
static const char ring_opaque[] =
    RING "%o = opaque \"unknown\"(%x) : f32[4]\n%one = all_reduce(%o, \"sum\", @even)\n"
         "%two = all_reduce(%x, \"sum\", @odd)\n" MESH_END;

struct one_differs {
    const char *good;
    const char *bad;
    shoal_status status;
};

/* Each rank in turn has the bad one; all hear of it, at once, and the groups are as good as before. */
static void differ(struct rank *self, const struct one_differs *texts)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    for (int other = 0; other < self->n_ranks && !test_has_failed(); other++) {
        shoal_plan *plan = NULL;
        shoal_graph *graph = run_parse(self->rank == other ? texts->bad : texts->good, self->n_ranks);
        REQUIRE(graph != NULL);
        CHECK_STATUS(shoal_plan_create(graph, world, NULL, &plan), texts->status);
        CHECK_ERROR_TEXT("plan_create: ");
        CHECK(plan == NULL);
        shoal_graph_free(graph);
    }
    plan_compare(world, texts->good, 2);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(a_difference_on_the_second_group_of_a_mesh, 4)
{
    differ(self, &(struct one_differs){mesh_sum, mesh_max, SHOAL_ERR_MISMATCH});
}

TEST_RANKS(a_rank_of_a_mesh_that_can_not_make_its_plan, 4)
{
    differ(self, &(struct one_differs){mesh_sum, mesh_opaque, SHOAL_ERR_INVALID});
}

TEST_RANKS(a_rank_far_away_that_can_not_make_its_plan, 6)
{
    differ(self, &(struct one_differs){ring_sum, ring_opaque, SHOAL_ERR_INVALID});
}

/* Groups that cannot be made ------------------------------------------------------------------------------ */

#define TAIL \
    "%x = placeholder : f32[4]\n%s = all_reduce(%x, \"sum\", @g)\n%a = wait_tensor(%s)\nreturn [%a]\n}\n"

TEST_RANKS(a_rank_whose_group_can_not_be_made, 2)
{
    static const char good[] = "graph {\ngroup @g = [[0, 1]]\n" TAIL;
    static const char bad[] = "graph {\ngroup @far = [[0, 1, 7]]\ngroup @g = [[0, 1]]\n" TAIL;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    for (int other = 0; other < 2; other++) {
        shoal_plan *plan = NULL;
        shoal_graph *graph = run_parse(self->rank == other ? bad : good, self->n_ranks);
        CHECK_STATUS(shoal_plan_create(graph, world, NULL, &plan), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT(self->rank == other ? "group @far has rank 7, but the world has 2"
                                             : "of group @g could not make its plan");
        shoal_graph_free(graph);
    }
    plan_compare(world, good, 1);
    CHECK_OK(shoal_world_close(world));
}

/* Whatever allocation fails on one rank, once it has its groups: the others hear of it in the same call. */
TEST_PROCESSES(a_rank_without_memory_tells_the_others, 2)
{
    if (rank_hears_by_messages()) {
        test_skip("messages are allocated: a group that cannot make one has failed");
        return;
    }
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_graph *graph = run_parse("graph {\ngroup @g = [[0, 1]]\n" TAIL, self->n_ranks);
    shoal_plan *plan = NULL;
    shoal_group *group = NULL;
    REQUIRE_OK(shoal_plan_create(graph, world, NULL, &plan)); /* the group is made */
    shoal_plan_free(plan);
    test_fail_allocation(SIZE_MAX, /*is_lasting=*/false);
    CHECK_OK(shoal_group_create(world, (const int[]){0, 1}, 2, "graph:g", &group));
    size_t number = test_count_allocations();
    shoal_status status = SHOAL_ERR_NO_MEMORY;
    while (status != SHOAL_OK && !test_has_failed()) {
        plan = NULL;
        test_fail_allocation(self->rank == 1 ? ++number : 0, /*is_lasting=*/false);
        status = shoal_plan_create(graph, world, NULL, &plan);
        test_fail_allocation(0, false);
        CHECK(status == SHOAL_OK || status == SHOAL_ERR_NO_MEMORY);
    }
    CHECK(self->rank == 0 || number > 30);
    shoal_plan_free(plan);
    shoal_graph_free(graph);
    CHECK_OK(shoal_world_close(world));
}
