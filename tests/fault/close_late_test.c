/* SPDX-License-Identifier: MIT */
/*
 * shoal_group_close with a member that stays at each fail point of it in turn until the others have closed: what became
 * of the group, all ranks say alike when they make it again, also a rank whose own close went well.
 */
#include <stdatomic.h>
#include <stdio.h>

#include "base/fail_point.h"
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/shoal.h"

#ifdef SHOAL_FAIL_POINTS

#define N_RANKS 3
#define VICTIM 1

static const int everybody[N_RANKS] = {0, 1, 2};

/* In memory that all see. */
struct board {
    _Atomic uint64_t n_passages; /* of a close that nobody is late in */
    _Atomic int n_closed;        /* ranks other than the victim */
    _Atomic int n_well;          /* ranks that can use the group that is made again */
};

static shoal_status be_late(void *context, const char *name)
{
    struct board *board = context;
    (void)name;
    while (atomic_load(&board->n_closed) < N_RANKS - 1) {
        test_pause(0.001);
    }
    test_pause(0.02); /* so that this rank's server has most likely heard of it */
    return SHOAL_OK;
}

static void close_at_last(shoal_group *group)
{
    if (shoal_group_close(group) != SHOAL_OK) {
        CHECK_OK(shoal_group_close(group)); /* it has failed: alone */
    }
}

/* number: of the fail point; 0: nobody is late. */
static void close_and_make_again(struct rank *self, shoal_world *world, uint64_t number)
{
    struct board *board = self->shared;
    shoal_group *group = NULL;
    char tag[16];
    (void)snprintf(tag, sizeof tag, "late %d", (int)number);
    REQUIRE_OK(shoal_group_create(world, everybody, N_RANKS, tag, &group));
    CHECK_OK(shoal_group_barrier(group));
    CHECK_OK(shoal_group_set_timeout(group, (number == 0 ? 20 : 0.2) * test_time_scale()));
    atomic_store(&board->n_closed, 0);
    atomic_store(&board->n_well, 0);
    test_barrier(self);
    if (self->rank == VICTIM) {
        fail_point_arm(number, be_late, board);
        close_at_last(group);
        atomic_store(&board->n_passages, number == 0 ? fail_point_passages() : board->n_passages);
        fail_point_arm(0, NULL, NULL);
    } else {
        close_at_last(group);
        atomic_fetch_add(&board->n_closed, 1);
    }
    test_barrier(self);
    REQUIRE_OK(shoal_group_create(world, everybody, N_RANKS, tag, &group));
    shoal_status status = shoal_group_barrier(group);
    if (status != SHOAL_OK) {
        CHECK_ERROR_TEXT("shoal_group_close of group"); /* the old reason: nobody waits in the new one */
    }
    atomic_fetch_add(&board->n_well, status == SHOAL_OK);
    test_barrier(self);
    CHECK(atomic_load(&board->n_well) == 0 || atomic_load(&board->n_well) == N_RANKS);
    test_barrier(self);
}

TEST_PROCESSES(a_member_is_late_at_each_step, N_RANKS)
{
    struct board *board = self->shared;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    close_and_make_again(self, world, 0);
    CHECK(atomic_load(&board->n_passages) > 0);
    for (uint64_t i = 1; i <= atomic_load(&board->n_passages) && !test_has_failed(); i++) {
        close_and_make_again(self, world, i);
    }
    CHECK_OK(shoal_world_close(world));
}

#else

TEST(a_member_is_late_at_each_step)
{
    test_skip("needs fail points");
}

#endif
