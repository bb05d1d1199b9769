/* SPDX-License-Identifier: MIT */
/*
 * Functional collectives whose raw calls are equal on all ranks (kind, dtype, counts) while their meaning is not: another
 * dimension, shape, permutation or operation on rank 1. Every rank gets a mismatch that names both. What may differ, does
 * not: forms of one operation can be mixed.
 */
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/autograd.h"
#include "shoal/collective.h"
#include "shoal_compat/torch.h"
#include "shoal/ops.h"
#include "shoal/scope.h"

#define SHAPE(...) ((const int64_t[]){__VA_ARGS__})

typedef shoal_tensor *(*call)(shoal_group *group, bool differs);

struct deviation {
    const char *name;
    call call;
    const char *words[2]; /* of rank 0 and of rank 1 */
};

static shoal_tensor *ones(const int64_t *shape, int n_dims)
{
    return shoal_full(shape, n_dims, 1.0, SHOAL_F32);
}

static shoal_tensor *gather_dim(shoal_group *group, bool differs)
{
    return shoal_all_gather_tensor(ones(SHAPE(4, 4), 2), differs ? 1 : 0, group);
}

static shoal_tensor *gather_shape(shoal_group *group, bool differs)
{
    return shoal_all_gather_tensor(ones(differs ? SHAPE(2, 8) : SHAPE(8, 2), 2), 0, group);
}

static shoal_tensor *scatter_dim(shoal_group *group, bool differs)
{
    return shoal_reduce_scatter_tensor(ones(SHAPE(6, 6), 2), SHOAL_SUM, differs ? 1 : 0, group);
}

static shoal_tensor *scatter_shape(shoal_group *group, bool differs)
{
    return shoal_reduce_scatter_tensor(ones(differs ? SHAPE(6, 12) : SHAPE(12, 6), 2), SHOAL_SUM, 0, group);
}

static shoal_tensor *reduce_shape(shoal_group *group, bool differs)
{
    return shoal_all_reduce(ones(differs ? SHAPE(3, 4) : SHAPE(4, 3), 2), SHOAL_SUM, group);
}

static shoal_tensor *reduce_to_root_shape(shoal_group *group, bool differs)
{
    return shoal_reduce(ones(differs ? SHAPE(3, 4) : SHAPE(12, 1), 2), SHOAL_SUM, 0, group);
}

static shoal_tensor *broadcast_shape(shoal_group *group, bool differs)
{
    return shoal_broadcast(ones(differs ? SHAPE(12, 1) : SHAPE(3, 4), 2), 0, group);
}

static shoal_tensor *exchange_rows(shoal_group *group, bool differs)
{
    return shoal_all_to_all_single(ones(differs ? SHAPE(12, 2) : SHAPE(6, 4), 2), NULL, NULL, 0, group);
}

static shoal_tensor *shard_dims(shoal_group *group, bool differs)
{
    return shoal_shard_dim_alltoall(ones(SHAPE(6, 6), 2), differs ? 1 : 0, differs ? 0 : 1, group);
}

static shoal_tensor *shard_or_exchange(shoal_group *group, bool differs)
{
    shoal_tensor *self = ones(SHAPE(6, 6), 2);
    return differs ? shoal_shard_dim_alltoall(self, 0, 1, group)
                   : shoal_all_to_all_single(self, NULL, NULL, 0, group);
}

static shoal_tensor *permutation(shoal_group *group, bool differs)
{
    static const int64_t up[] = {1, 2, 0};
    static const int64_t down[] = {2, 0, 1};
    return shoal_permute_tensor(ones(SHAPE(4), 1), differs ? down : up, 3, group);
}

static const struct deviation deviations[] = {
    {"gather_dim", gather_dim, {"all_gather_tensor([4,4], 0)", "all_gather_tensor([4,4], 1)"}},
    {"gather_shape", gather_shape, {"all_gather_tensor([8,2], 0)", "all_gather_tensor([2,8], 0)"}},
    {"scatter_dim", scatter_dim, {"reduce_scatter_tensor([6,6], 0)", "reduce_scatter_tensor([6,6], 1)"}},
    {"scatter_shape", scatter_shape, {"([12,6], 0)", "([6,12], 0)"}},
    {"reduce_shape", reduce_shape, {"all_reduce([4,3])", "all_reduce([3,4])"}},
    {"reduce_to_root_shape", reduce_to_root_shape, {"reduce([12,1])", "reduce([3,4])"}},
    {"broadcast_shape", broadcast_shape, {"broadcast([3,4])", "broadcast([12,1])"}},
    {"exchange_rows", exchange_rows, {"all_to_all_single([4])", "all_to_all_single([2])"}},
    {"shard_dims", shard_dims, {"shard_dim_alltoall([6,6], 0, 1)", "shard_dim_alltoall([6,6], 1, 0)"}},
    {"shard_or_exchange", shard_or_exchange, {"all_to_all_single([6])", "shard_dim_alltoall([6,6], 0, 1)"}},
    {"permutation", permutation, {"permute_tensor([4], [1,2,0])", "permute_tensor([4], [2,0,1])"}},
};

static void check_deviation(const struct deviation *deviation, shoal_world *world, int rank)
{
    char tag[32];
    shoal_group *group;
    (void)snprintf(tag, sizeof tag, "%s", deviation->name);
    REQUIRE_OK(shoal_group_create(world, (const int[]){0, 1, 2}, 3, tag, &group));
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *result = deviation->call(group, rank == 1);
    CHECK(result != NULL);
    CHECK(shoal_data(result) == NULL);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT(deviation->words[0]);
    CHECK_ERROR_TEXT(deviation->words[1]);
}

TEST_RANKS(every_deviation_is_a_mismatch, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    for (size_t i = 0; i < sizeof deviations / sizeof deviations[0]; i++) {
        check_deviation(&deviations[i], world, self->rank);
    }
    CHECK_OK(shoal_world_close(world));
}

/* Gradients ---------------------------------------------------------------------------------------------- */

/* A loss that goes through one all_reduce; `leaf` gets the gradient 2 * factor. */
static shoal_tensor *make_loss(shoal_tensor *leaf, double factor, shoal_group *group)
{
    return shoal_sum(shoal_mul_scalar(shoal_all_reduce(leaf, SHOAL_SUM, group), factor), NULL, 0, false);
}

static void check_gradient(const shoal_tensor *leaf, float expected)
{
    const float *data = shoal_data(shoal_grad(leaf));
    CHECK(data && data[0] == expected);
}

/* A difference is known when the gradient is looked at, or before that. */
static shoal_status walk_back(shoal_tensor *loss, const shoal_tensor *leaf)
{
    shoal_status status = shoal_backward(loss, NULL);
    return status == SHOAL_OK ? shoal_wait(shoal_grad(leaf)) : status;
}

/* Two all_reduces that look alike. Walked back in different order they must not be added up. */
TEST_RANKS(losses_walked_back_in_different_order, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    for (int step = 0; step < 2; step++) {
        int first = step == 1 ? self->rank : 1;
        REQUIRE_OK(shoal_scope_begin());
        shoal_tensor *leaves[2];
        shoal_tensor *losses[2];
        for (int i = 0; i < 2; i++) {
            leaves[i] = ones(SHAPE(4, 4), 2);
            REQUIRE_OK(shoal_set_requires_grad(leaves[i], true));
            losses[i] = make_loss(leaves[i], 3.0 + i, shoal_world_group(world));
        }
        if (step == 1) {
            CHECK_STATUS(walk_back(losses[first], leaves[first]), SHOAL_ERR_MISMATCH);
            CHECK_ERROR_TEXT("rank 0 called the gradient of call #4: all_reduce([4,4])");
            CHECK_ERROR_TEXT("rank 1 called the gradient of call #5: all_reduce([4,4])");
        } else {
            CHECK_OK(walk_back(losses[first], leaves[first]));
            CHECK_OK(walk_back(losses[1 - first], leaves[1 - first]));
            check_gradient(leaves[0], 6.0F);
            check_gradient(leaves[1], 8.0F);
        }
        (void)!shoal_scope_end(); /* with the error of a gradient that did not arrive */
    }
    CHECK_OK(shoal_world_close(world));
}

/* A tensor that needs a gradient on rank 0 alone. */
TEST_RANKS(a_tensor_that_is_frozen_on_one_rank, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = shoal_world_group(world);
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *both = ones(SHAPE(4, 4), 2);
    shoal_tensor *one = ones(SHAPE(4, 4), 2);
    REQUIRE_OK(shoal_set_requires_grad(both, true));
    REQUIRE_OK(shoal_set_requires_grad(one, self->rank == 0));
    shoal_tensor *older = make_loss(both, 1.0, group);
    shoal_tensor *loss = shoal_add(older, make_loss(one, 3.0, group));
    CHECK_STATUS(walk_back(loss, self->rank == 0 ? one : both), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("rank 0 called the gradient of call #1: all_reduce([4,4])");
    CHECK_ERROR_TEXT("rank 1 called the gradient of call #0: all_reduce([4,4])");
    (void)!shoal_scope_end();
    CHECK_OK(shoal_world_close(world));
}

/* What may be mixed -------------------------------------------------------------------------------------- */

/* Rank 1 writes into tensors of its own; the last dimension has two names. */
TEST_RANKS(forms_of_one_operation_can_be_mixed, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    shoal_group *group = shoal_world_group(world);
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *one = ones(SHAPE(2, 2), 2);
    shoal_tensor *sum =
        self->rank == 1 ? shoal_all_reduce_(one, SHOAL_SUM, group) : shoal_all_reduce(one, SHOAL_SUM, group);
    const float *data = shoal_data(sum);
    CHECK(data && data[0] == 2.0F && data[3] == 2.0F);
    shoal_tensor *all = shoal_all_gather_tensor(sum, self->rank == 1 ? -1 : 1, group);
    data = shoal_data(all);
    CHECK(data && data[7] == 2.0F);
    CHECK_INT(shoal_tensor_shape(all)[1], 4);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}
