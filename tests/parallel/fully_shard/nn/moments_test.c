/* SPDX-License-Identifier: MIT */
/*
 * A checkpoint of a sharded module and of its optimizer: weights and both moments of AdamW, whole on one rank and from there
 * into another module on as many ranks, which goes on with the same bits. Some shards are empty.
 */
#include "fixtures/on_device.h"

#include "fixtures/module_bench.h"
#include "shoal/fully_shard.h"
#include "shoal_nn/optim.h"

enum {
    N_PATHS = 5,
    N_STEPS = 3,
    ROOM = 32
};

static const char *const paths[N_PATHS] = {"scale", "0.weight", "0.bias", "1.weight", "1.bias"};

/* What a file would hold. */
struct checkpoint {
    float arrays[3][N_PATHS][ROOM];
    int64_t n_updates[N_PATHS];
};

struct trainer {
    struct net net;
    shoal_tensor *parameters[N_PATHS];
    shoal_nn_optimizer *optimizer;
};

static bool make_trainer(struct trainer *trainer, const shoal_fully_shard_options *options)
{
    net_make(&trainer->net, 2, NULL);
    if (!net_shard(&trainer->net, options)) {
        return false;
    }
    for (int i = 0; i < N_PATHS; i++) {
        trainer->parameters[i] = shoal_module_parameter(trainer->net.root, paths[i]);
    }
    return CHECK_OK(shoal_nn_adamw_create(trainer->parameters, N_PATHS, NULL, &trainer->optimizer));
}

static void free_trainer(struct trainer *trainer)
{
    shoal_nn_optimizer_free(trainer->optimizer);
    net_free(&trainer->net);
}

static void train(struct trainer *trainer, int first, int rank)
{
    for (int step = first; step < first + N_STEPS; step++) {
        (void)net_pass(&trainer->net, step, rank);
        CHECK_OK(shoal_nn_optimizer_step(trainer->optimizer));
        CHECK_OK(shoal_nn_optimizer_zero_grad(trainer->optimizer));
    }
}

/* Whole arrays on rank 0. */
static void save(struct trainer *trainer, struct checkpoint *checkpoint, bool is_here)
{
    shoal_module *root = trainer->net.root;
    for (size_t i = 0; i < N_PATHS; i++) {
        shoal_nn_optimizer_state state = {.struct_size = sizeof state};
        REQUIRE_OK(shoal_nn_optimizer_get_state(trainer->optimizer, i, &state));
        REQUIRE(state.first_moment && state.second_moment);
        checkpoint->n_updates[i] = state.n_updates;
        float *whole[3];
        for (int k = 0; k < 3; k++) {
            whole[k] = is_here ? checkpoint->arrays[k][i] : NULL;
        }
        CHECK_OK(shoal_fsdp_gather(shoal_fully_shard_param(root, paths[i]), whole[0], 0));
        CHECK_OK(shoal_fsdp_gather_array(shoal_fully_shard_param(root, paths[i]),
                                         shoal_tensor_dtype(state.first_moment),
                                         test_address(state.first_moment), whole[1], 0));
        CHECK_OK(shoal_fsdp_gather_array(shoal_fully_shard_param(root, paths[i]),
                                         shoal_tensor_dtype(state.second_moment),
                                         test_address(state.second_moment), whole[2], 0));
    }
}

static void load(struct trainer *trainer, const struct checkpoint *checkpoint, bool is_here)
{
    shoal_module *root = trainer->net.root;
    for (size_t i = 0; i < N_PATHS; i++) {
        shoal_shard_layout layout = {.struct_size = sizeof layout};
        shoal_nn_optimizer_state state = {.struct_size = sizeof state};
        REQUIRE_OK(shoal_fsdp_get_layout(shoal_fully_shard_param(root, paths[i]), &layout));
        state.n_updates = checkpoint->n_updates[i];
        state.first_moment = shoal_full(layout.shard_shape, layout.n_dims, 0.0, SHOAL_F32);
        state.second_moment = shoal_full(layout.shard_shape, layout.n_dims, 0.0, SHOAL_F32);
        const float *whole[3];
        for (int k = 0; k < 3; k++) {
            whole[k] = is_here ? checkpoint->arrays[k][i] : NULL;
        }
        CHECK_OK(shoal_fsdp_broadcast(shoal_fully_shard_param(root, paths[i]), whole[0], 0));
        CHECK_OK(shoal_fsdp_broadcast_array(shoal_fully_shard_param(root, paths[i]),
                                            shoal_tensor_dtype(state.first_moment), whole[1],
                                            test_address(state.first_moment), 0));
        CHECK_OK(shoal_fsdp_broadcast_array(shoal_fully_shard_param(root, paths[i]),
                                            shoal_tensor_dtype(state.second_moment), whole[2],
                                            test_address(state.second_moment), 0));
        CHECK_OK(shoal_nn_optimizer_set_state(trainer->optimizer, i, &state));
    }
}

static void check_checkpoint(struct rank *self, int n_replicas)
{
    struct bench bench;
    struct trainer first;
    struct trainer second;
    static struct checkpoint kept[2]; /* of rank 0, which reads it; ranks may be threads */
    struct checkpoint others = {.n_updates = {N_STEPS, N_STEPS, N_STEPS, N_STEPS, N_STEPS}};
    bool is_here = self->rank == 0;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    REQUIRE(n_replicas == 1 || bench_replicate(&bench, n_replicas));
    REQUIRE(make_trainer(&first, &bench.options) && make_trainer(&second, &bench.options));
    train(&first, 0, self->rank);
    save(&first, is_here ? &kept[0] : &others, is_here);
    train(&first, N_STEPS, self->rank);
    load(&second, is_here ? &kept[0] : &others, is_here);
    train(&second, N_STEPS, self->rank);
    save(&first, is_here ? &kept[0] : &others, is_here);
    save(&second, is_here ? &kept[1] : &others, is_here);
    CHECK(!is_here || CHECK_BYTES(&kept[0], &kept[1], sizeof kept[0]));
    CHECK(!is_here || kept[0].arrays[2][1][0] != 0.0F);
    free_trainer(&first);
    free_trainer(&second);
    bench_close(&bench);
}

TEST_RANKS(a_checkpoint_alone, 1)
{
    check_checkpoint(self, 1);
}

TEST_RANKS(a_checkpoint_of_shards, 3)
{
    check_checkpoint(self, 1);
}

TEST_RANKS(a_checkpoint_of_replicas_of_shards, 4)
{
    check_checkpoint(self, 2);
}
