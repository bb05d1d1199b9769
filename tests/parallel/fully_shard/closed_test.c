/* SPDX-License-Identifier: MIT */
/* Modules that are sharded after their world was closed: shards can be read, everything else is an error. */
#include "fixtures/fsdp_handles.h"
#include "fixtures/module_net.h"

/* How far the net got before the world was closed. */
enum stage {
    SHARDED,
    GATHERING, /* by hand, and nobody has waited */
    GATHERED,  /* somebody has */
    TRAINED,
    N_STAGES
};

static void advance(struct net *net, enum stage stage, int rank)
{
    if (stage == GATHERING || stage == GATHERED) {
        (void)CHECK_OK(shoal_fsdp_unshard(shoal_fully_shard_unit(net->root, false)));
        (void)CHECK_OK(stage == GATHERED ? shoal_fsdp_wait(shoal_fully_shard_unit(net->root, false))
                                         : SHOAL_OK);
    } else if (stage == TRAINED) {
        (void)net_pass(net, 0, rank);
    }
}

static shoal_status call(shoal_module *module)
{
    if (shoal_scope_begin() == SHOAL_OK) {
        CHECK(shoal_module_call_one(module, net_input(0, 0)) == NULL);
    }
    return shoal_scope_end();
}

#define CHECK_CLOSED(call)                              \
    do {                                                \
        (void)CHECK_STATUS((call), SHOAL_ERR_STATE);    \
        (void)CHECK_ERROR_TEXT("the world was closed"); \
    } while (0)

static shoal_status clip_all(shoal_fsdp *fsdp)
{
    return shoal_fsdp_clip_grad_norm(fsdp, 1.0, 2.0, false, NULL);
}

static void check_refused(shoal_module *root, shoal_module *layer, const shoal_module *whole)
{
    float full[NET_WIDTH] = {0};
    CHECK_CLOSED(call(root));
    CHECK_CLOSED(call(layer));
    CHECK_CLOSED(shoal_fsdp_unshard(shoal_fully_shard_unit(root, false)));
    CHECK_CLOSED(shoal_fsdp_wait(shoal_fully_shard_unit(root, false)));
    CHECK_CLOSED(shoal_fsdp_reshard(shoal_fully_shard_unit(layer, false)));
    CHECK_CLOSED(on_context(root, shoal_fsdp_zero_grad));
    CHECK_CLOSED(on_context(root, shoal_fsdp_reset));
    CHECK_CLOSED(on_context(root, shoal_fsdp_synchronize));
    CHECK_CLOSED(shoal_fsdp_set_sync(shoal_fully_shard_unit(root, true), true));
    CHECK_CLOSED(prefetch_modules(shoal_fsdp_set_forward_prefetch, root, &layer, 1));
    CHECK_CLOSED(on_context(root, clip_all));
    CHECK_CLOSED(shoal_fsdp_gather(shoal_fully_shard_param(root, "0.weight"), full, SHOAL_FSDP_ALL_RANKS));
    CHECK_CLOSED(shoal_fsdp_gather(shoal_fully_shard_param(root, "scale"), full, 0));
    CHECK_CLOSED(shoal_fsdp_load(shoal_fully_shard_param(root, "scale"), full));
    CHECK_CLOSED(shoal_fsdp_load_slice(shoal_fully_shard_param(root, "scale"), 0, 1, full));
    CHECK_CLOSED(shoal_fsdp_broadcast(shoal_fully_shard_param(root, "scale"), full, 0));
    CHECK_CLOSED(shoal_fully_shard_broadcast_all(root, whole, 0));
}

static void check_closed(struct rank *self, enum stage stage)
{
    struct net sharded;
    struct net alone;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world && CHECK_OK(shoal_scope_begin()));
    shoal_fully_shard_options options = net_options(world);
    net_make(&sharded, 1, NULL);
    net_make(&alone, 1, NULL);
    REQUIRE(net_shard(&sharded, &options));
    shoal_tensor *shard = shoal_module_parameter(sharded.root, "scale");
    advance(&sharded, stage, self->rank);
    CHECK_OK(shoal_world_close(world));
    check_refused(sharded.root, sharded.layers[0], alone.root);
    CHECK(shoal_module_parameter(sharded.root, "scale") == shard);
    net_check_shard(&sharded, "scale", shard, shoal_module_parameter(alone.root, "scale"));
    net_free(&sharded);
    net_free(&alone);
    CHECK_OK(shoal_scope_end());
}

TEST_RANKS(at_any_time, 2)
{
    for (int stage = 0; stage < N_STAGES && !test_has_failed(); stage++) {
        check_closed(self, (enum stage)stage);
    }
}

TEST_RANKS(at_any_time_alone, 1)
{
    for (int stage = 0; stage < N_STAGES && !test_has_failed(); stage++) {
        check_closed(self, (enum stage)stage);
    }
}

/* The layers of a world that was closed cannot be units of a root in another. */
TEST_RANKS(layers_of_another_world, 2)
{
    struct net net;
    shoal_world *worlds[] = {rank_world_open(self, 0), rank_world_open(self, 1)};
    REQUIRE(worlds[0] && worlds[1] && CHECK_OK(shoal_scope_begin()));
    shoal_fully_shard_options first = net_options(worlds[0]);
    shoal_fully_shard_options second = net_options(worlds[1]);
    net_make(&net, 1, NULL);
    CHECK_OK(shoal_fully_shard(net.layers[0], &first));
    CHECK_OK(shoal_fully_shard(net.root, &second));
    CHECK_OK(shoal_world_close(worlds[0]));
    CHECK_CLOSED(call(net.root));
    net_free(&net);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(worlds[1]));
}
