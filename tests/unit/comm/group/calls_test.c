/* SPDX-License-Identifier: MIT */
/* What ranks hear of calls that others have given up: who, which, and how long it is kept. */
#include "comm/group/calls.h"

#include <string.h>

#include "comm/lane/handles.h"
#include "fixtures/rank_world.h"
#include "harness/test.h"

/* A group of all ranks for nothing but waiting: it fails if the message comes while the call meets on it. */
static shoal_group *make_lobby(const struct rank *self, shoal_world *world)
{
    static const int ranks[] = {0, 1, 2};
    shoal_group *lobby = NULL;
    CHECK_OK(shoal_group_create(world, ranks, self->n_ranks, "lobby", &lobby));
    return lobby;
}

/* Waits until a message that was sent after others has come, so that these have, too. */
static void wait_for_call(struct world_call *call, shoal_group *lobby)
{
    while (world_call_meet(&lobby, 1) == SHOAL_OK) {
        world_call_part(true);
        test_pause(0.001);
    }
    CHECK(call->was_given_up);
}

static struct world_call begin(shoal_world *world, uint32_t number, uint64_t round)
{
    return (struct world_call){.world = world, .number = number, .round = round};
}

TEST_RANKS(calls_are_told_apart, 3)
{
    shoal_group *pair = NULL;
    shoal_world *world = rank_world_open(self, 0);
    shoal_group *const all[] = {NULL, shoal_world_group(world)};
    shoal_group *lobby = make_lobby(self, world);
    struct world_call call = begin(world, 1, 1);
    struct world_call again = begin(world, 1, 2);
    struct world_call other = begin(world, 2, 2);
    CHECK_INT(world_next_call(world), 1);
    CHECK_INT(world_next_call(world), 2);
    CHECK_OK(world_call_meet(all, 2)); /* nobody makes a call: nothing */
    world_call_part(true);
    test_barrier(self);
    if (self->rank == 2) {
        world_call_give_up(&again, SHOAL_ERR_SYSTEM, "no coal");
        CHECK_ERROR_TEXT("");
    } else {
        CHECK_OK(shoal_group_create(world, (const int[]){0, 1}, 2, "pair", &pair));
        world_call_begin(&again);
        wait_for_call(&again, lobby);
        CHECK_ERROR_TEXT("no coal");
        CHECK_OK(world_call_meet(&pair, 1)); /* the rank is no member */
        world_call_begin(&other);
        CHECK_OK(world_call_meet(all, 2));
        world_call_end(&other);
        world_call_end(&again);
        world_call_begin(&call);
        CHECK_OK(world_call_meet(all, 2));
        world_call_end(&call);
    }
    test_barrier(self);
    CHECK_OK(shoal_group_barrier(shoal_world_group(world))); /* it has not failed */
    CHECK_OK(shoal_world_close(world));
}

/* Who is there already is woken. */
TEST_RANKS(whoever_waits_hears_it, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    shoal_group *group = shoal_world_group(world);
    struct world_call call = begin(world, world_next_call(world), 1);
    CHECK_OK(shoal_group_set_timeout(group, 100000));
    CHECK_OK(shoal_group_barrier(group));
    if (self->rank == 0) {
        world_call_give_up(&call, SHOAL_ERR_SYSTEM, "rank 0: no coal");
    } else {
        world_call_begin(&call);
        shoal_status status = world_call_meet(&group, 1);
        status = status == SHOAL_OK ? shoal_group_barrier(group) : status;
        CHECK_STATUS(status, SHOAL_ERR_PEER);
        CHECK_ERROR_TEXT("rank 0: no coal");
        world_call_end(&call);
        /* Another member may have heard it first, and have failed the group for all. */
        CHECK(!call.was_given_up || strcmp(call.text, "rank 0: no coal") == 0);
    }
    test_barrier(self);
    CHECK_OK(shoal_world_close(world));
}

/* A rank that is slow is still in a meeting that another one has left well, and which ends well for both. */
TEST_RANKS(a_meeting_that_is_over_stays_good, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    shoal_group *group = shoal_world_group(world);
    shoal_group *lobby = make_lobby(self, world);
    struct world_call call = begin(world, world_next_call(world), 1);
    struct world_call later = begin(world, world_next_call(world), 1);
    world_call_begin(&call);
    CHECK_OK(world_call_meet(&group, 1));
    if (self->rank == 1) {
        world_call_part(true);
        world_call_give_up(&call, SHOAL_ERR_MISMATCH, "no coal");
        world_call_give_up(&later, SHOAL_ERR_SYSTEM, "no coal");
    } else {
        world_call_begin(&later);
        wait_for_call(&later, lobby);
        world_call_end(&later);
        CHECK(!call.was_given_up);
    }
    test_barrier(self);
    CHECK_OK(shoal_group_barrier(group)); /* it has not failed */
    if (self->rank == 0) {
        CHECK_STATUS(world_call_meet(&group, 1), SHOAL_ERR_MISMATCH); /* the next one */
    }
    world_call_end(&call);
    CHECK_OK(shoal_world_close(world));
}

/* A rank that gives up for ever fills no memory: the last are kept. */
TEST_RANKS(the_last_are_kept, 2)
{
    enum {
        N_CALLS = 200
    };
    shoal_world *world = rank_world_open(self, 0);
    shoal_group *group = shoal_world_group(world);
    if (self->rank == 0) {
        for (uint32_t i = 1; i <= N_CALLS; i++) {
            struct world_call call = begin(world, i, 1);
            world_call_give_up(&call, SHOAL_ERR_SYSTEM, "no coal");
        }
    } else {
        struct world_call last = begin(world, N_CALLS, 1);
        struct world_call first = begin(world, 1, 1);
        world_call_begin(&last);
        wait_for_call(&last, group);
        world_call_end(&last);
        world_call_begin(&first);
        CHECK_OK(world_call_meet(&group, 1));
        world_call_end(&first);
    }
    test_barrier(self);
    CHECK_OK(shoal_world_close(world));
}
