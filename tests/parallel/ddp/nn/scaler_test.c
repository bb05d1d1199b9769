/* SPDX-License-Identifier: MIT */
/* A module that shoal_ddp wrapped, with a gradient scaler: the bits of training without one, and steps that are skipped. */
#include "fixtures/module_bench.h"
#include "shoal/ddp.h"
#include "shoal_nn/scaler.h"

struct trainer {
    struct net net;
    shoal_nn_optimizer *optimizer;
};

static bool open_trainer(struct trainer *trainer, shoal_world *world)
{
    shoal_ddp_options options = SHOAL_DDP_OPTIONS_INIT;
    options.group = shoal_world_group(world);
    net_make(&trainer->net, 2, NULL);
    return CHECK_OK(shoal_ddp(trainer->net.root, &options)) &&
           CHECK_OK(shoal_nn_adamw_create_for(trainer->net.root, NULL, NULL, 0, &trainer->optimizer));
}

static void close_trainer(struct trainer *trainer)
{
    shoal_nn_optimizer_free(trainer->optimizer);
    net_free(&trainer->net);
}

static void pass(struct net *net, shoal_nn_scaler *scaler, int step, int rank, bool is_infinite)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *loss = net_loss(net, net_input(step, rank));
    if (is_infinite) {
        loss = shoal_mul_scalar(loss, (double)INFINITY);
    }
    CHECK_OK(shoal_backward(scaler ? shoal_nn_scaler_scale(scaler, loss) : loss, NULL));
    CHECK_OK(shoal_scope_end());
}

TEST_RANKS(ddp_with_a_scaler, 3)
{
    struct bench bench;
    struct trainer scaled;
    struct trainer plain;
    shoal_nn_scaler *scaler = NULL;
    shoal_nn_scaler_options options = SHOAL_NN_SCALER_OPTIONS_INIT;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    options.scale = 4096;
    options.group = shoal_world_group(bench.world);
    REQUIRE(open_trainer(&scaled, bench.world) && open_trainer(&plain, bench.world));
    REQUIRE_OK(shoal_nn_scaler_create(&options, &scaler));
    for (int step = 0; step < 6; step++) {
        bool is_skipped = step % 3 == 1; /* one rank's loss is infinite */
        pass(&scaled.net, scaler, step, self->rank, is_skipped && self->rank == step % 2);
        CHECK_OK(shoal_nn_scaler_unscale(scaler, scaled.optimizer));
        CHECK_OK(shoal_nn_scaler_step(scaler, scaled.optimizer));
        CHECK_OK(shoal_nn_scaler_update(scaler));
        CHECK_OK(shoal_nn_optimizer_zero_grad(scaled.optimizer));
        if (!is_skipped) {
            pass(&plain.net, NULL, step, self->rank, false);
            CHECK_OK(shoal_nn_optimizer_step(plain.optimizer));
            CHECK_OK(shoal_nn_optimizer_zero_grad(plain.optimizer));
        }
    }
    shoal_nn_scaler_state state = SHOAL_NN_SCALER_STATE_INIT;
    CHECK_OK(shoal_nn_scaler_get_state(scaler, &state));
    CHECK_DOUBLE(state.scale, 1024);
    CHECK_INT(state.n_skipped, 2);
    for (size_t i = 0; i < shoal_nn_optimizer_count(plain.optimizer); i++) {
        const char *path = shoal_nn_optimizer_path(plain.optimizer, i);
        const shoal_tensor *want = shoal_module_parameter(plain.net.root, path);
        CHECK_BYTES(shoal_data(shoal_module_parameter(scaled.net.root, path)), shoal_data(want),
                    (size_t)shoal_tensor_count(want) * sizeof(float));
    }
    shoal_nn_scaler_free(scaler);
    close_trainer(&scaled);
    close_trainer(&plain);
    bench_close(&bench);
}

/* Shards that are wrong on one rank: all fail, none waits, and it can be repeated. */
TEST_RANKS(wrong_shards_of_one_rank, 3)
{
    struct bench bench;
    float value = 1;
    float gradient = 8;
    const shoal_nn_sgd_options rates = {.struct_size = sizeof(rates), .lr = 0.5};
    const shoal_nn_shard shard = {&value, &gradient, 1, SHOAL_F32, SHOAL_F32};
    size_t n_shards = self->rank == 1 ? 2 : 1;
    shoal_status expected = self->rank == 1 ? SHOAL_ERR_INVALID : SHOAL_ERR_STATE;
    shoal_nn_optimizer *optimizer = NULL;
    shoal_nn_scaler *scaler = NULL;
    shoal_nn_scaler_options options = SHOAL_NN_SCALER_OPTIONS_INIT;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    options.scale = 4;
    options.group = shoal_world_group(bench.world);
    REQUIRE_OK(shoal_nn_scaler_create(&options, &scaler));
    REQUIRE_OK(shoal_nn_sgd_create_raw(&shard, 1, &rates, &optimizer));
    CHECK_STATUS(shoal_nn_scaler_unscale_raw(scaler, optimizer, &shard, n_shards), expected);
    CHECK_ERROR_TEXT(self->rank == 1 ? "2 shards, but it was made with 1" : "it failed on another rank");
    CHECK_STATUS(shoal_nn_scaler_step_raw(scaler, optimizer, self->rank == 1 ? NULL : &shard, 1), expected);
    CHECK_ERROR_TEXT(self->rank == 1 ? "1 shards at NULL" : "it failed on another rank");
    CHECK_DOUBLE((double)gradient, 8);
    CHECK_OK(shoal_nn_scaler_step_raw(scaler, optimizer, &shard, 1));
    CHECK_DOUBLE((double)value, 0);
    shoal_nn_optimizer_free(optimizer);
    shoal_nn_scaler_free(scaler);
    bench_close(&bench);
}
