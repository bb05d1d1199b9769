/* SPDX-License-Identifier: MIT */
/*
 * A world over two hosts, as its ranks believe: 0 and 1 on one, 2 on the other. Each group is carried by what fits its
 * members: shared memory within a host, two levels across, of which the outer one is the socket module.
 */
#include <stdlib.h>

#include "comm/group/group.h"
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/shoal.h"

/* Before anything reads the environment. */
__attribute__((constructor)) static void set_environment(void)
{
    (void)setenv("SHOAL_MODULE_PATH", TEST_SOCKET_MODULE, 1);
    (void)setenv("SHOAL_PRETEND_HOSTS", "here,here,there", 1);
    (void)setenv("SHOAL_TRANSPORT_SOCKET_ADDRESS", "127.0.0.1", 1);
    (void)unsetenv("SHOAL_TRANSPORT");
}

/* A sum over the group, in which each rank of the world gives its number + 1. */
static void check_sum(shoal_group *group, int rank, float expected)
{
    float value = (float)(rank + 1);
    CHECK_OK(shoal_group_all_reduce(group, &value, &value, 1, SHOAL_F32, SHOAL_SUM));
    CHECK_DOUBLE((double)value, (double)expected);
}

TEST_RANKS(groups_are_carried_by_what_fits, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *all = shoal_world_group(world);
    CHECK_STRING(all->peers.transport->name, "two_level");
    CHECK_INT(all->peers.holder, self->rank == 2 ? 2 : 0);
    check_sum(all, self->rank, 6.0f);
    CHECK(group_has_windows(all, SHOAL_CPU));
    if (self->rank < 2) {
        static const int ranks[] = {0, 1};
        shoal_group *local = NULL;
        REQUIRE_OK(shoal_group_create(world, ranks, 2, "local", &local));
        CHECK_STRING(local->peers.transport->name, "shm");
        check_sum(local, self->rank, 3.0f);
        shoal_window *window = NULL;
        CHECK_OK(shoal_window_create(local, 4096, &window));
        shoal_window_free(window);
    }
    if (self->rank != 1) {
        static const int ranks[] = {2, 0};
        shoal_group *across = NULL;
        REQUIRE_OK(shoal_group_create(world, ranks, 2, "across", &across));
        CHECK_STRING(across->peers.transport->name, "two_level");
        check_sum(across, self->rank, 4.0f);
    }
    check_sum(all, self->rank, 6.0f);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(messages_go_between_hosts, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = shoal_world_group(world);
    int next = (self->rank + 1) % self->n_ranks;
    int previous = (self->rank + 2) % self->n_ranks;
    int mine = self->rank;
    int theirs = -1;
    const shoal_transfer transfers[] = {
        {.direction = SHOAL_SEND, .buffer = &mine, .count = 1, .dtype = SHOAL_I32, .peer = next, .tag = 3},
        {.direction = SHOAL_RECV,
         .buffer = &theirs,
         .count = 1,
         .dtype = SHOAL_I32,
         .peer = previous,
         .tag = 3}};
    CHECK_OK(shoal_group_transfer(group, transfers, 2));
    CHECK_INT(theirs, previous);
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(calls_that_differ_between_hosts_are_named, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = shoal_world_group(world);
    float values[2] = {0};
    CHECK_STATUS(shoal_group_all_reduce(group, values, values, self->rank == 2 ? 2 : 1, SHOAL_F32, SHOAL_SUM),
                 SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("rank 2 called all_reduce f32 sum count 2 #0");
    CHECK_OK(shoal_world_close(world));
}
