/* SPDX-License-Identifier: MIT */
/*
 * Lanes over the ranks of a group, as sharding makes them: what they are called, whose timeout they have, and that a
 * failure of the group ends what waits on them, on all ranks, while their own failures are theirs alone.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "comm/group/group.h"
#include "fixtures/rank_world.h"
#include "parallel/fsdp/engine/state/lanes.h"
#include "shoal/collective.h"
#include "shoal/shoal.h"

static shoal_world *open_fake(int rank, int n_ranks)
{
    const shoal_world_options options = {
        .struct_size = sizeof options, .transport = "fake", .rank = rank, .n_ranks = n_ranks};
    shoal_world *world = NULL;
    (void)CHECK_OK(shoal_world_open(&options, &world));
    return world;
}

/* Names ------------------------------------------------------------------------------------------------ */

TEST(no_tag_of_the_program_names_a_lane)
{
    shoal_world *world = open_fake(0, 2);
    REQUIRE(world);
    shoal_group *lane = NULL;
    shoal_group *again = NULL;
    shoal_group *group = NULL;
    shoal_group *all = shoal_world_group(world);
    static const int ranks[] = {0, 1};
    CHECK_OK(group_create_lane(all, 0, 2, "fsdp gather", &lane));
    CHECK_OK(group_create_lane(all, 0, 2, "fsdp gather", &again));
    CHECK(lane && lane == again);
    REQUIRE(lane);
    CHECK_STATUS(shoal_group_create(world, ranks, 2, lane->tag, &group), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("(0x1f) is not printable ASCII");
    CHECK_STATUS(shoal_group_find(world, shoal_group_name(lane), &group), SHOAL_ERR_INVALID);
    CHECK_OK(shoal_world_close(world));
}

/* What sharding made of tags before: their first 48 characters, and a word. */
TEST(long_tags_do_not_share_lanes)
{
    char tags[2][65];
    struct fsdp_mesh meshes[3];
    static const int ranks[] = {0, 1};
    shoal_group *group = NULL;
    shoal_world *world = open_fake(0, 2);
    REQUIRE(world);
    for (int i = 0; i < 2; i++) {
        memset(tags[i], 'x', 64);
        tags[i][63] = (char)('a' + i);
        tags[i][64] = '\0';
        REQUIRE_OK(shoal_group_create(world, ranks, 2, tags[i], &group));
        REQUIRE_OK(fsdp_mesh_from_group(group, &meshes[i]));
    }
    CHECK(meshes[0].gather != meshes[1].gather);
    CHECK(meshes[0].reduce != meshes[1].reduce);
    CHECK(strcmp(shoal_group_name(meshes[0].gather), shoal_group_name(meshes[1].gather)) != 0);
    /* Nor does a group of the program have the name that a lane had. */
    REQUIRE_OK(fsdp_mesh_from_group(shoal_world_group(world), &meshes[2]));
    REQUIRE_OK(shoal_group_create(world, ranks, 2, "/fsdp gather", &group));
    CHECK(group != meshes[2].gather);
    CHECK_OK(shoal_world_close(world));
}

/* Parts of the same ranks, under the same word, of two groups. */
TEST(lanes_of_parts_are_their_parents)
{
    static const int some[] = {0, 1, 2, 3};
    static const int others[] = {0, 1, 4, 5};
    shoal_group *parents[2];
    shoal_group *parts[2];
    shoal_world *world = open_fake(0, 6);
    REQUIRE(world);
    REQUIRE_OK(shoal_group_create(world, some, 4, NULL, &parents[0]));
    REQUIRE_OK(shoal_group_create(world, others, 4, NULL, &parents[1]));
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(group_create_lane(parents[i], 0, 2, "part", &parts[i]));
        CHECK_INT(shoal_group_n_ranks(parts[i]), 2);
    }
    CHECK(parts[0] != parts[1]);
    CHECK(strcmp(shoal_group_name(parts[0]), shoal_group_name(parts[1])) != 0);
    CHECK_OK(shoal_group_abort(parents[0], NULL));
    CHECK_STATUS(shoal_group_barrier(parts[0]), SHOAL_ERR_CANCELLED);
    CHECK_OK(shoal_group_barrier(parts[1]));
    CHECK_OK(shoal_world_close(world));
}

/* Timeouts --------------------------------------------------------------------------------------------- */

TEST(a_lane_has_the_timeout_of_its_group)
{
    shoal_world *world = open_fake(0, 4);
    REQUIRE(world);
    shoal_group *all = shoal_world_group(world);
    shoal_group *lane = NULL;
    shoal_group *part = NULL;
    REQUIRE_OK(group_create_lane(all, 0, 4, "gather", &lane));
    REQUIRE_OK(group_create_lane(lane, 0, 2, "kept", &part));
    CHECK_OK(shoal_group_set_timeout(all, 7.5));
    CHECK_DOUBLE(shoal_group_timeout(lane), 7.5);
    CHECK_DOUBLE(shoal_group_timeout(part), 7.5);
    CHECK_STATUS(shoal_group_set_timeout(lane, 3.0), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("uses the timeout of the group that it was made from");
    CHECK_DOUBLE(shoal_group_timeout(all), 7.5);
    CHECK_OK(shoal_world_close(world));
}

/* Failures --------------------------------------------------------------------------------------------- */

struct lanes {
    shoal_world *world;
    shoal_group *all;
    shoal_group *gather;
    shoal_group *part; /* ranks 0 and 1, or 2 and 3 */
};

static bool open_lanes(const struct rank *self, struct lanes *lanes)
{
    lanes->world = rank_world_open(self, 0);
    if (!lanes->world) {
        return false;
    }
    lanes->all = shoal_world_group(lanes->world);
    return CHECK_OK(group_create_lane(lanes->all, 0, self->n_ranks, "gather", &lanes->gather)) &&
           CHECK_OK(group_create_lane(lanes->gather, self->rank / 2 * 2, 2, "part", &lanes->part));
}

/* Rank 3 is no member of the part that rank 0 waits on, and has connected nothing. */
TEST_RANKS(abort_ends_what_waits_on_lanes_of_lanes, 4)
{
    struct lanes lanes;
    REQUIRE(open_lanes(self, &lanes));
    if (self->rank == 0) {
        CHECK_STATUS(shoal_group_barrier(lanes.part), SHOAL_ERR_CANCELLED);
        CHECK_ERROR_TEXT("aborted by rank 3: had enough");
    } else if (self->rank == 2) {
        shoal_work *work = NULL;
        CHECK_OK(shoal_group_barrier_start(lanes.gather, &work));
        CHECK_STATUS(shoal_work_wait(work, -1), SHOAL_ERR_CANCELLED);
        CHECK_ERROR_TEXT("aborted by rank 3: had enough");
        shoal_work_free(work);
    } else if (self->rank == 3) {
        test_pause(0.05);
        CHECK_OK(shoal_group_abort(lanes.all, "had enough"));
        CHECK_STATUS(shoal_group_barrier(lanes.part), SHOAL_ERR_CANCELLED);
        CHECK_STATUS(shoal_group_barrier(lanes.gather), SHOAL_ERR_CANCELLED);
    }
    test_barrier(self);
    /* Whoever made no call yet hears of it too: by now the message has come. */
    CHECK_STATUS(shoal_group_barrier(lanes.gather), SHOAL_ERR_CANCELLED);
    CHECK_ERROR_TEXT("aborted by rank 3: had enough");
    test_barrier(self); /* nobody leaves before all have heard of it */
    (void)shoal_world_close(lanes.world);
}

/* The rank that aborts is connected to the group, the one that waits is not. */
TEST_RANKS(abort_of_a_connected_group_reaches_lanes, 2)
{
    struct lanes lanes;
    REQUIRE(open_lanes(self, &lanes));
    if (self->rank == 0) {
        CHECK_STATUS(shoal_group_barrier(lanes.gather), SHOAL_ERR_CANCELLED);
    } else {
        shoal_work *work = NULL;
        CHECK_OK(shoal_group_barrier_start(lanes.all, &work));
        test_pause(0.05);
        CHECK_OK(shoal_group_abort(lanes.all, NULL));
        CHECK_STATUS(shoal_work_wait(work, -1), SHOAL_ERR_CANCELLED);
        shoal_work_free(work);
    }
    test_barrier(self); /* nobody leaves before all have heard of it */
    (void)shoal_world_close(lanes.world);
}

/* A collective of the group that fails has failed it, also for a rank that only uses lanes. */
TEST_RANKS(timeout_of_the_group_reaches_lanes, 2)
{
    struct lanes lanes;
    REQUIRE(open_lanes(self, &lanes));
    if (self->rank == 0) {
        CHECK_STATUS(shoal_group_barrier(lanes.gather), SHOAL_ERR_TIMEOUT);
        CHECK_ERROR_TEXT("0.2 s passed");
    } else {
        CHECK_OK(shoal_group_set_timeout(lanes.all, 0.2));
        CHECK_STATUS(shoal_group_barrier(lanes.all), SHOAL_ERR_TIMEOUT);
    }
    test_barrier(self); /* nobody leaves before all have heard of it */
    (void)shoal_world_close(lanes.world);
}

TEST_RANKS(failure_of_a_lane_is_its_own, 2)
{
    struct lanes lanes;
    REQUIRE(open_lanes(self, &lanes));
    if (self->rank == 0) {
        CHECK_OK(shoal_group_abort(lanes.part, NULL));
    }
    CHECK_STATUS(shoal_group_barrier(lanes.part), SHOAL_ERR_CANCELLED);
    CHECK_OK(shoal_group_barrier(lanes.gather));
    CHECK_OK(shoal_group_barrier(lanes.all));
    CHECK_OK(shoal_world_close(lanes.world));
}

/* The message comes before the group does. */
TEST_RANKS(abort_is_heard_of_before_the_group_is_made, 2)
{
    static const int ranks[] = {0, 1};
    shoal_group *group = NULL;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    if (self->rank == 0) {
        REQUIRE_OK(shoal_group_create(world, ranks, 2, "later", &group));
        CHECK_OK(shoal_group_abort(group, "never mind"));
    }
    test_barrier(self);
    if (self->rank == 1) {
        REQUIRE_OK(shoal_group_create(world, ranks, 2, "later", &group));
        CHECK_STATUS(shoal_group_barrier(group), SHOAL_ERR_CANCELLED);
        CHECK_ERROR_TEXT("aborted by rank 0: never mind");
    }
    test_barrier(self);
    CHECK_OK(shoal_group_barrier(shoal_world_group(world)));
    CHECK_OK(shoal_world_close(world));
}

/* Point to point on a group that another rank aborts without having connected it. */
TEST_RANKS(abort_ends_point_to_point, 2)
{
    struct lanes lanes;
    float value = 0;
    REQUIRE(open_lanes(self, &lanes));
    if (self->rank == 0) {
        CHECK_STATUS(shoal_group_recv(lanes.gather, &value, 1, SHOAL_F32, 1, 0), SHOAL_ERR_CANCELLED);
    } else {
        test_pause(0.05);
        CHECK_OK(shoal_group_abort(lanes.all, NULL));
        CHECK_STATUS(shoal_group_send(lanes.gather, &value, 1, SHOAL_F32, 0, 0), SHOAL_ERR_CANCELLED);
    }
    test_barrier(self); /* nobody leaves before all have heard of it */
    (void)shoal_world_close(lanes.world);
}
