/* SPDX-License-Identifier: MIT */
/* Symmetric memory of other groups than the one that uses it: it travels, if need be the ordinary way. */
#include <stdlib.h>

#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/shoal.h"

#define COUNT ((size_t)1 << 16)
#define BYTES (4 * COUNT * sizeof(float))

static void fill(float *data, size_t count, float value)
{
    for (size_t i = 0; i < count; i++) {
        data[i] = value;
    }
}

static void check_filled(const float *data, size_t count, double value)
{
    CHECK_DOUBLE((double)data[0], value);
    CHECK_DOUBLE((double)data[count / 2], value);
    CHECK_DOUBLE((double)data[count - 1], value);
}

/* Every rank has its memory in common with some of the group, not with all. */
static void use_all(shoal_group *group, float *send, float *recv)
{
    int rank = shoal_group_rank(group);
    int n_ranks = shoal_group_n_ranks(group);
    double sum = n_ranks * (n_ranks + 1) / 2;
    fill(send, COUNT * (size_t)n_ranks, (float)(rank + 1));
    REQUIRE_OK(shoal_group_all_reduce(group, send, recv, COUNT, SHOAL_F32, SHOAL_SUM));
    check_filled(recv, COUNT, sum);
    REQUIRE_OK(shoal_group_reduce_scatter(group, send, recv, COUNT, SHOAL_F32, SHOAL_SUM));
    check_filled(recv, COUNT, sum);
    REQUIRE_OK(shoal_group_all_gather(group, send, recv, COUNT, SHOAL_F32));
    REQUIRE_OK(shoal_group_all_to_all(group, send, recv, COUNT, SHOAL_F32));
    for (int i = 0; i < n_ranks; i++) {
        check_filled(recv + (size_t)i * COUNT, COUNT, i + 1);
    }
    for (int root = 0; root < n_ranks; root++) {
        REQUIRE_OK(shoal_group_reduce(group, send, recv, COUNT, SHOAL_F32, SHOAL_SUM, root));
        if (rank == root) {
            check_filled(recv, COUNT, sum);
        }
        REQUIRE_OK(shoal_group_gather(group, send, recv, COUNT, SHOAL_F32, root));
        REQUIRE_OK(shoal_group_scatter(group, send, recv, COUNT, SHOAL_F32, root));
        check_filled(recv, COUNT, root + 1);
        fill(recv, COUNT, (float)rank);
        REQUIRE_OK(shoal_group_broadcast(group, recv, COUNT, SHOAL_F32, root));
        check_filled(recv, COUNT, root);
    }
}

/* Memory of the shard groups {0,1} and {2,3}, used over the replica groups {0,2} and {1,3}, and by all. */
TEST_RANKS(memory_of_one_dimension_used_over_the_other, 4)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *shard = NULL;
    REQUIRE_OK(shoal_group_create_blocks(world, 2, "shard", &shard));
    int replica_ranks[2] = {self->rank % 2, self->rank % 2 + 2};
    shoal_group *replica = NULL;
    REQUIRE_OK(shoal_group_create(world, replica_ranks, 2, "replica", &replica));
    shoal_symmetric *send = NULL;
    shoal_symmetric *recv = NULL;
    REQUIRE_OK(shoal_symmetric_create(shard, BYTES, &send));
    REQUIRE_OK(shoal_symmetric_create(shard, BYTES, &recv));
    use_all(shard, shoal_symmetric_data(send), shoal_symmetric_data(recv));
    use_all(replica, shoal_symmetric_data(send), shoal_symmetric_data(recv));
    use_all(shoal_world_group(world), shoal_symmetric_data(send), shoal_symmetric_data(recv));
    shoal_symmetric_free(send);
    shoal_symmetric_free(recv);
    CHECK_OK(shoal_world_close(world));
}

/* Memory of all, used by some of them, in another order. */
TEST_RANKS(memory_of_all_used_by_a_part, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_symmetric *memory = NULL;
    REQUIRE_OK(shoal_symmetric_create(shoal_world_group(world), 2 * BYTES, &memory));
    float *data = shoal_symmetric_data(memory);
    if (self->rank != 1) {
        int ranks[2] = {2, 0};
        shoal_group *part = NULL;
        REQUIRE_OK(shoal_group_create(world, ranks, 2, NULL, &part));
        use_all(part, data, data + BYTES / sizeof *data);
    }
    shoal_symmetric_free(memory);
    CHECK_OK(shoal_world_close(world));
}
