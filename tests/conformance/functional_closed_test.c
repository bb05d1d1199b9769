/* SPDX-License-Identifier: MIT */
/* Backwards through collectives of a world that was closed since: an error that names the group, and nothing is lost. */
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/autograd.h"
#include "shoal/collective.h"
#include "shoal/ops.h"
#include "shoal/scope.h"

typedef shoal_tensor *(*recorder)(shoal_tensor *x, shoal_group *group);

static shoal_tensor *all_reduced(shoal_tensor *x, shoal_group *group)
{
    return shoal_all_reduce(x, SHOAL_SUM, group);
}

static shoal_tensor *largest(shoal_tensor *x, shoal_group *group)
{
    return shoal_all_reduce(x, SHOAL_MAX, group);
}

static shoal_tensor *gathered(shoal_tensor *x, shoal_group *group)
{
    return shoal_all_gather_tensor(x, 0, group);
}

static shoal_tensor *scattered(shoal_tensor *x, shoal_group *group)
{
    return shoal_reduce_scatter_tensor(x, SHOAL_AVG, 0, group);
}

static shoal_tensor *sent_around(shoal_tensor *x, shoal_group *group)
{
    return shoal_broadcast(shoal_all_reduce(x, SHOAL_SUM, group), 0, group);
}

static shoal_tensor *in_a_list(shoal_tensor *x, shoal_group *group)
{
    shoal_tensor *both[] = {x, shoal_neg(x)};
    shoal_tensor *const *totals = shoal_all_reduce_coalesced(both, 2, SHOAL_SUM, group);
    return totals ? shoal_add(totals[0], totals[1]) : NULL;
}

static const recorder recorders[] = {all_reduced, largest, gathered, scattered, sent_around, in_a_list};

static shoal_tensor *make_leaf(void)
{
    shoal_tensor *x = shoal_full((int64_t[]){6}, 1, 2.0, SHOAL_F32);
    (void)CHECK_OK(shoal_set_requires_grad(x, true));
    return x;
}

static shoal_tensor *record(recorder function, shoal_tensor *x, shoal_group *group)
{
    return shoal_sum(shoal_mul(function(x, group), function(x, group)), NULL, 0, false);
}

/* With a kept graph the record stays, and with it what is left of the group. */
static void check_closed(struct rank *self, recorder function, bool is_walked_before)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world && CHECK_OK(shoal_scope_begin()));
    shoal_tensor *x = make_leaf();
    shoal_tensor *loss = record(function, x, shoal_world_group(world));
    REQUIRE(loss != NULL);
    const shoal_backward_options options = {.struct_size = sizeof options, .keeps_graph = true};
    if (is_walked_before) {
        CHECK_OK(shoal_backward_roots(&loss, NULL, 1, &options));
        CHECK_OK(shoal_set_grad(x, NULL));
    } else {
        CHECK(shoal_data(loss) != NULL);
    }
    CHECK_OK(shoal_world_close(world));
    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(shoal_backward_roots(&loss, NULL, 1, &options), SHOAL_ERR_STATE);
        CHECK_ERROR_TEXT("backward: gradient of ");
        CHECK_ERROR_TEXT(self->n_ranks == 1 ? "group [0]: its world was closed"
                                            : "group [0,1]: its world was closed");
        CHECK(!shoal_grad(x));
    }
    /* Another world, whose group may lie at the same place. */
    world = rank_world_open(self, 1);
    REQUIRE(world != NULL);
    CHECK_STATUS(shoal_backward(loss, NULL), SHOAL_ERR_STATE);
    CHECK_OK(shoal_backward(record(function, x, shoal_world_group(world)), NULL));
    CHECK(shoal_grad(x) != NULL);
    CHECK_OK(shoal_world_close(world));
    CHECK_OK(shoal_scope_end());
}

static void check_all(struct rank *self)
{
    for (size_t i = 0; i < sizeof recorders / sizeof recorders[0] && !test_has_failed(); i++) {
        check_closed(self, recorders[i], false);
        check_closed(self, recorders[i], true);
    }
}

TEST_RANKS(backwards_after_the_world, 2)
{
    check_all(self);
}

TEST_RANKS(backwards_after_the_world_alone, 1)
{
    check_all(self);
}

/* The group goes, the world stays. The same ranks and tag are another group then, which the record does not mean. */
TEST_RANKS(backwards_after_the_group, 2)
{
    static const int both[] = {0, 1};
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world && CHECK_OK(shoal_scope_begin()));
    for (size_t i = 0; i < sizeof recorders / sizeof recorders[0] && !test_has_failed(); i++) {
        shoal_group *group = NULL;
        REQUIRE_OK(shoal_group_create(world, both, 2, "short", &group));
        shoal_tensor *x = make_leaf();
        shoal_tensor *loss = record(recorders[i], x, group);
        REQUIRE(loss && shoal_data(loss));
        CHECK_OK(shoal_group_close(group));
        REQUIRE_OK(shoal_group_create(world, both, 2, "short", &group));
        CHECK_STATUS(shoal_backward(loss, NULL), SHOAL_ERR_STATE);
        CHECK_ERROR_TEXT("backward: gradient of ");
        CHECK_ERROR_TEXT("group [0,1] tag \"short\": it was closed");
        CHECK(!shoal_grad(x));
        CHECK_OK(shoal_backward(record(recorders[i], x, group), NULL));
        CHECK(shoal_grad(x) != NULL);
        CHECK_OK(shoal_group_close(group));
    }
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

/* The record goes first, or was used up: the world has nothing to wait for. */
TEST_RANKS(records_that_end_before_the_world, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(shoal_scope_begin());
        shoal_tensor *loss = record(all_reduced, make_leaf(), shoal_world_group(world));
        CHECK_OK(i == 0 ? SHOAL_OK : shoal_backward(loss, NULL));
        CHECK(shoal_data(loss) != NULL);
        CHECK_OK(shoal_scope_end());
    }
    CHECK_OK(shoal_world_close(world));
}
