/* SPDX-License-Identifier: MIT */
/*
 * Gradient scalers over ranks: what one rank finds counts on all, they skip the same steps and keep the same scale, and
 * ranks that call differently or differ in their scale hear of it.
 */
#include "fixtures/on_device.h"

#include "fixtures/module_bench.h"
#include "shoal_nn/scaler.h"

struct trainer {
    struct bench bench;
    shoal_nn_optimizer *optimizer;
    shoal_nn_scaler *scaler;
};

static bool open_sharded(struct trainer *trainer, struct rank *self, shoal_dtype param_dtype, double scale,
                         shoal_sharded sharded)
{
    shoal_nn_scaler_options options = SHOAL_NN_SCALER_OPTIONS_INIT;
    if (!bench_open(&trainer->bench, self, 2, NULL)) {
        return false;
    }
    trainer->bench.options.param_dtype = param_dtype;
    trainer->bench.options.reduce_dtype = SHOAL_F32;
    trainer->bench.options.sharded = sharded;
    options.scale = scale;
    options.growth_interval = 3;
    options.group = shoal_world_group(trainer->bench.world);
    return net_shard(&trainer->bench.sharded, &trainer->bench.options) &&
           CHECK_OK(
               shoal_nn_adamw_create_for(trainer->bench.sharded.root, NULL, NULL, 0, &trainer->optimizer)) &&
           CHECK_OK(shoal_nn_scaler_create(&options, &trainer->scaler));
}

static bool open_trainer(struct trainer *trainer, struct rank *self, shoal_dtype param_dtype, double scale)
{
    return open_sharded(trainer, self, param_dtype, scale, SHOAL_SHARDED_PARAMETERS);
}

static void close_trainer(struct trainer *trainer)
{
    shoal_nn_scaler_free(trainer->scaler);
    shoal_nn_optimizer_free(trainer->optimizer);
    bench_close(&trainer->bench);
}

static shoal_nn_scaler_state state_of(const shoal_nn_scaler *scaler)
{
    shoal_nn_scaler_state state = SHOAL_NN_SCALER_STATE_INIT;
    (void)CHECK_OK(shoal_nn_scaler_get_state(scaler, &state));
    return state;
}

static int64_t updates_of(const shoal_nn_optimizer *optimizer)
{
    shoal_nn_optimizer_state state = SHOAL_NN_OPTIMIZER_STATE_INIT;
    (void)CHECK_OK(shoal_nn_optimizer_get_state(optimizer, 0, &state));
    return state.n_updates;
}

static void pass(struct trainer *trainer, int step, int rank)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *out = shoal_module_call_one(trainer->bench.sharded.root, net_input(step, rank));
    shoal_tensor *loss = net_loss_of(shoal_to_dtype(out, SHOAL_F32));
    CHECK_OK(shoal_backward(shoal_nn_scaler_scale(trainer->scaler, loss), NULL));
    CHECK_OK(shoal_scope_end());
}

/* f16 inside, f32 shards: a scale that is far too large comes down, on all ranks in the same steps. */
static void check_training(struct rank *self)
{
    struct trainer trainer;
    double sums[2];
    REQUIRE(open_trainer(&trainer, self, SHOAL_F16, 0x1p24));
    for (int step = 0; step < 30; step++) {
        pass(&trainer, step, self->rank);
        CHECK_OK(shoal_nn_scaler_step(trainer.scaler, trainer.optimizer));
        CHECK_OK(shoal_nn_scaler_update(trainer.scaler));
        CHECK_OK(shoal_nn_optimizer_zero_grad(trainer.optimizer));
    }
    shoal_nn_scaler_state state = state_of(trainer.scaler);
    CHECK(state.n_skipped >= 8 && state.n_skipped < 24);
    CHECK_INT(updates_of(trainer.optimizer), 30 - state.n_skipped);
    sums[0] = state.scale;
    sums[1] = (double)state.n_skipped;
    CHECK_OK(
        shoal_group_all_reduce(shoal_world_group(trainer.bench.world), sums, sums, 2, SHOAL_F64, SHOAL_SUM));
    CHECK_DOUBLE(sums[0], self->n_ranks * state.scale);
    CHECK_DOUBLE(sums[1], (double)(self->n_ranks * state.n_skipped));
    close_trainer(&trainer);
}

TEST_RANKS(scales_come_down_alone, 1)
{
    check_training(self);
}

TEST_RANKS(scales_come_down_together, 3)
{
    check_training(self);
}

/* While nothing overflows: the bits of training without a scaler. */
TEST_RANKS(training_has_the_same_bits, 2)
{
    struct trainer trainer;
    struct net other;
    shoal_nn_optimizer *plain = NULL;
    REQUIRE(open_trainer(&trainer, self, SHOAL_F32, 1024));
    net_make(&other, 2, NULL);
    REQUIRE(net_shard(&other, &trainer.bench.options));
    REQUIRE_OK(shoal_nn_adamw_create_for(other.root, NULL, NULL, 0, &plain));
    for (int step = 0; step < 5; step++) {
        pass(&trainer, step, self->rank);
        CHECK_OK(shoal_nn_scaler_unscale(trainer.scaler, trainer.optimizer));
        CHECK_OK(shoal_nn_scaler_step(trainer.scaler, trainer.optimizer));
        CHECK_OK(shoal_nn_scaler_update(trainer.scaler));
        CHECK_OK(shoal_nn_optimizer_zero_grad(trainer.optimizer));
        (void)net_pass(&other, step, self->rank);
        CHECK_OK(shoal_nn_optimizer_step(plain));
        CHECK_OK(shoal_nn_optimizer_zero_grad(plain));
    }
    CHECK_DOUBLE(state_of(trainer.scaler).scale, 2048);
    for (size_t i = 0; i < shoal_nn_optimizer_count(plain); i++) {
        const char *path = shoal_nn_optimizer_path(plain, i);
        const shoal_tensor *want = shoal_module_parameter(other.root, path);
        CHECK_BYTES(shoal_data(shoal_module_parameter(trainer.bench.sharded.root, path)), shoal_data(want),
                    (size_t)shoal_tensor_count(want) * sizeof(float));
    }
    shoal_nn_optimizer_free(plain);
    net_free(&other);
    close_trainer(&trainer);
}

/* Only the last rank's shard is infinite, or only that of a rank in the middle. */
TEST_RANKS(what_one_rank_finds_counts_on_all, 3)
{
    struct trainer trainer;
    REQUIRE(open_trainer(&trainer, self, SHOAL_F32, 1024));
    for (int bad = 0; bad < 3; bad++) {
        pass(&trainer, bad, self->rank);
        shoal_tensor *weight = shoal_module_parameter(trainer.bench.sharded.root, "0.weight");
        if (self->rank == bad) {
            float *gradient = shoal_mutable_data(shoal_grad(weight));
            REQUIRE(gradient && shoal_tensor_count(weight) > 0);
            gradient[0] = (float)INFINITY;
        }
        CHECK_OK(shoal_nn_scaler_unscale(trainer.scaler, trainer.optimizer));
        CHECK(!state_of(trainer.scaler).is_clean);
        CHECK_OK(shoal_nn_scaler_step(trainer.scaler, trainer.optimizer));
        CHECK_OK(shoal_nn_scaler_update(trainer.scaler));
        CHECK_DOUBLE(state_of(trainer.scaler).scale, 1024.0 / (2 << bad));
        CHECK_INT(updates_of(trainer.optimizer), 0);
        CHECK_OK(shoal_nn_optimizer_zero_grad(trainer.optimizer));
    }
    close_trainer(&trainer);
}

/* Without the other ranks: only one rank's gradient is infinite, and it would skip a step that the others make. */
static void check_scaler_alone(struct trainer *trainer, struct rank *self, shoal_nn_optimizer *optimizer,
                               shoal_group *group, const char *reason)
{
    shoal_nn_scaler_options options = SHOAL_NN_SCALER_OPTIONS_INIT;
    shoal_nn_scaler *alone = NULL;
    const shoal_tensor *weight = shoal_module_parameter(trainer->bench.sharded.root, "0.weight");
    float *gradient = shoal_mutable_data(shoal_grad(weight));
    double value = self->rank == 1 ? (double)INFINITY : 8;
    REQUIRE(gradient && shoal_tensor_count(weight) > 0);
    gradient[0] = (float)value;
    options.group = group;
    REQUIRE_OK(shoal_nn_scaler_create(&options, &alone));
    CHECK_STATUS(shoal_nn_scaler_unscale(alone, optimizer), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("nn_scaler_unscale: parameter 0 (");
    CHECK_ERROR_TEXT(reason);
    CHECK_STATUS(shoal_nn_scaler_step(alone, optimizer), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("nn_scaler_step: parameter 0 (");
    CHECK_ERROR_TEXT(reason);
    CHECK(!shoal_nn_scaler_skips(alone, optimizer));
    CHECK_DOUBLE((double)gradient[0], value);
    CHECK_INT(updates_of(optimizer), 0);
    shoal_nn_scaler_free(alone);
}

TEST_RANKS(a_scaler_of_shards_needs_the_group, 3)
{
    static const shoal_sharded kinds[] = {SHOAL_SHARDED_PARAMETERS, SHOAL_SHARDED_GRADIENTS,
                                          SHOAL_SHARDED_STATE};
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        struct trainer trainer;
        shoal_nn_optimizer *of_list = NULL;
        shoal_group *single = NULL;
        REQUIRE(open_sharded(&trainer, self, SHOAL_F32, 1024, kinds[i]));
        shoal_tensor *weight = shoal_module_parameter(trainer.bench.sharded.root, "0.weight");
        CHECK(shoal_is_shard(weight) && !shoal_is_shard(net_input(0, 0)) && !shoal_is_shard(NULL));
        REQUIRE_OK(shoal_nn_adamw_create(&weight, 1, NULL, &of_list));
        REQUIRE_OK(shoal_group_create_blocks(trainer.bench.world, 1, "single", &single));
        pass(&trainer, 0, self->rank);
        check_scaler_alone(&trainer, self, trainer.optimizer, NULL,
                           "(scale) is a shard, but the scaler was made without a group");
        check_scaler_alone(&trainer, self, of_list, NULL,
                           "(0.weight) is a shard, but the scaler was made without a group");
        check_scaler_alone(&trainer, self, trainer.optimizer, single,
                           "(scale) is a shard, but the scaler was made for a group of one rank");
        /* With the group all ranks skip the step. */
        CHECK_OK(shoal_nn_scaler_step(trainer.scaler, trainer.optimizer));
        CHECK(shoal_nn_scaler_skips(trainer.scaler, trainer.optimizer));
        CHECK_INT(updates_of(trainer.optimizer), 0);
        shoal_nn_optimizer_free(of_list);
        close_trainer(&trainer);
    }
}

/* Shards that are the whole parameters. */
TEST_RANKS(a_rank_that_is_alone_needs_no_group, 1)
{
    struct trainer trainer;
    shoal_nn_scaler *alone = NULL;
    REQUIRE(open_trainer(&trainer, self, SHOAL_F32, 1024));
    CHECK(!shoal_is_shard(shoal_module_parameter(trainer.bench.sharded.root, "0.weight")));
    REQUIRE_OK(shoal_nn_scaler_create(NULL, &alone));
    pass(&trainer, 0, self->rank);
    CHECK_OK(shoal_nn_scaler_step(alone, trainer.optimizer));
    CHECK(!shoal_nn_scaler_skips(alone, trainer.optimizer));
    CHECK_INT(updates_of(trainer.optimizer), 1);
    shoal_nn_scaler_free(alone);
    close_trainer(&trainer);
}

TEST_RANKS(scales_that_differ_are_a_mismatch, 2)
{
    struct trainer trainer;
    REQUIRE(open_trainer(&trainer, self, SHOAL_F32, 1024));
    shoal_nn_scaler_state state = state_of(trainer.scaler);
    pass(&trainer, 0, self->rank);
    state.scale = self->rank == 1 ? 512 : 1024;
    CHECK_OK(shoal_nn_scaler_set_state(trainer.scaler, &state));
    CHECK_STATUS(shoal_nn_scaler_step(trainer.scaler, trainer.optimizer), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("nn_scaler_step: ranks differ in the scale: from 512 to 1024, here");
    state.scale = 1024;
    state.n_clean = self->rank;
    CHECK_OK(shoal_nn_scaler_set_state(trainer.scaler, &state));
    CHECK_STATUS(shoal_nn_scaler_unscale(trainer.scaler, trainer.optimizer), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("nn_scaler_unscale: ranks differ in n_clean: from 0 to 1, here");
    /* Nothing was changed: alike again, it works. */
    state.n_clean = 0;
    CHECK_OK(shoal_nn_scaler_set_state(trainer.scaler, &state));
    CHECK_OK(shoal_nn_scaler_step(trainer.scaler, trainer.optimizer));
    CHECK_INT(updates_of(trainer.optimizer), 1);
    close_trainer(&trainer);
}

/* A rank that cannot look at its gradients: all fail, none has changed any, and it can be repeated. */
TEST_RANKS(a_failure_of_one_rank_is_one_of_all, 3)
{
    struct trainer trainer;
    REQUIRE(open_trainer(&trainer, self, SHOAL_F32, 1024));
    pass(&trainer, 0, self->rank);
    shoal_tensor *weight = shoal_module_parameter(trainer.bench.sharded.root, "0.weight");
    shoal_tensor *gradient = shoal_tensor_ref(shoal_grad(weight));
    float before = shoal_tensor_count(gradient) > 0 ? *(const float *)shoal_data(gradient) : 0;
    if (self->rank == 1) { /* memory that is gone */
        shoal_tensor *lost = shoal_clone(gradient);
        CHECK_OK(shoal_tensor_set_name(lost, "lost"));
        CHECK_OK(shoal_set_grad(weight, lost));
        CHECK_OK(shoal_tensor_release_data(lost));
    }
    CHECK_STATUS(shoal_nn_scaler_unscale(trainer.scaler, trainer.optimizer), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT(self->rank == 1 ? "lost" : "nn_scaler_unscale: it failed on another rank");
    CHECK(shoal_tensor_count(gradient) == 0 || *(const float *)shoal_data(gradient) == before);
    CHECK_STATUS(shoal_nn_scaler_update(trainer.scaler), SHOAL_ERR_STATE);
    CHECK_OK(shoal_set_grad(weight, gradient));
    CHECK_OK(shoal_nn_scaler_step(trainer.scaler, trainer.optimizer));
    CHECK(shoal_tensor_count(gradient) == 0 ||
          *(const float *)shoal_data(gradient) == before * (float)0x1p-10);
    CHECK_OK(shoal_nn_scaler_update(trainer.scaler));
    shoal_tensor_unref(gradient);
    close_trainer(&trainer);
}

TEST_RANKS(another_call_is_a_mismatch, 2)
{
    struct trainer trainer;
    REQUIRE(open_trainer(&trainer, self, SHOAL_F32, 1024));
    pass(&trainer, 0, self->rank);
    shoal_group *group = shoal_world_group(trainer.bench.world);
    CHECK_STATUS(self->rank == 0 ? shoal_nn_scaler_unscale(trainer.scaler, trainer.optimizer)
                                 : shoal_group_barrier(group),
                 SHOAL_ERR_MISMATCH);
    shoal_nn_scaler_free(trainer.scaler);
    shoal_nn_optimizer_free(trainer.optimizer);
    net_free(&trainer.bench.sharded);
    net_free(&trainer.bench.alone);
    CHECK_OK(shoal_scope_end());
    shoal_status closed = shoal_world_close(trainer.bench.world);
    (void)closed; /* a world whose own group failed may say so */
}
