/* SPDX-License-Identifier: MIT */
/*
 * A training run that is saved and goes on from there: model, optimizer with groups, schedule and scaler. What goes on
 * has the bits of the run that was not disturbed, in both formats, and whatever is sharded. A checkpoint of shards
 * also loads into a model that is whole on every rank, with the same moments.
 */
#include "fixtures/on_device.h"

#include "fixtures/module_bench.h"
#include "fixtures/shared_directory.h"
#include "shoal/checkpoint.h"
#include "shoal_nn/scaler.h"
#include "shoal_nn/schedule.h"

enum {
    N_BEFORE = 3,
    N_AFTER = 4
};

struct run {
    struct net net;
    shoal_nn_optimizer *optimizer;
    shoal_nn_schedule schedule;
    shoal_nn_scaler *scaler;
    shoal_items *items;
};

/* `options` NULL: whole parameters on every rank. */
static bool open_run(struct run *run, shoal_world *world, const shoal_fully_shard_options *options)
{
    shoal_nn_param_group biases = SHOAL_NN_PARAM_GROUP_INIT;
    shoal_nn_scaler_options scaling = SHOAL_NN_SCALER_OPTIONS_INIT;
    *run = (struct run){.schedule = SHOAL_NN_SCHEDULE_INIT};
    run->schedule.kind = SHOAL_NN_SCHEDULE_COSINE;
    run->schedule.lr = 0.01;
    run->schedule.n_warmup = 2;
    run->schedule.n_steps = 20;
    biases.pattern = "*.bias";
    biases.weight_decay = 0;
    biases.lr_factor = 0.5;
    scaling.scale = 64;
    scaling.growth_interval = 2;
    scaling.group = shoal_world_group(world);
    net_make(&run->net, 2, NULL);
    if (options && !net_shard(&run->net, options)) {
        return false;
    }
    return CHECK_OK(shoal_nn_adamw_create_for(run->net.root, NULL, &biases, 1, &run->optimizer)) &&
           CHECK_OK(shoal_nn_scaler_create(&scaling, &run->scaler)) &&
           CHECK_OK(shoal_items_create(&run->items)) &&
           CHECK_OK(shoal_items_add_module(run->items, "", run->net.root)) &&
           CHECK_OK(shoal_nn_optimizer_add_items(run->optimizer, run->items)) &&
           CHECK_OK(shoal_nn_schedule_add_items(&run->schedule, run->items, "schedule.")) &&
           CHECK_OK(shoal_nn_scaler_add_items(run->scaler, run->items, "scaler."));
}

static void close_run(struct run *run)
{
    shoal_nn_optimizer_free(run->optimizer);
    shoal_nn_scaler_free(run->scaler);
    shoal_items_free(run->items);
    net_free(&run->net);
}

static void train(struct run *run, int first, int n_steps, int rank)
{
    for (int step = first; step < first + n_steps; step++) {
        REQUIRE_OK(shoal_scope_begin());
        shoal_tensor *loss = net_loss(&run->net, net_input(step, rank));
        CHECK_OK(shoal_backward(shoal_nn_scaler_scale(run->scaler, loss), NULL));
        CHECK_OK(shoal_scope_end());
        CHECK_OK(shoal_nn_schedule_next(&run->schedule, run->optimizer));
        CHECK_OK(shoal_nn_scaler_step(run->scaler, run->optimizer));
        CHECK_OK(shoal_nn_scaler_update(run->scaler));
        CHECK_OK(shoal_nn_optimizer_zero_grad(run->optimizer));
    }
}

static void compare_tensors(const shoal_tensor *got, const shoal_tensor *want)
{
    REQUIRE(got && want);
    CHECK_INT(shoal_tensor_count(got), shoal_tensor_count(want));
    CHECK_BYTES(shoal_data(got), shoal_data(want), (size_t)shoal_tensor_count(want) * sizeof(float));
}

static void compare_runs(const struct run *got, const struct run *want)
{
    shoal_nn_scaler_state scalers[2] = {SHOAL_NN_SCALER_STATE_INIT, SHOAL_NN_SCALER_STATE_INIT};
    for (size_t i = 0; i < shoal_nn_optimizer_count(want->optimizer); i++) {
        const char *path = shoal_nn_optimizer_path(want->optimizer, i);
        shoal_nn_optimizer_state states[2] = {SHOAL_NN_OPTIMIZER_STATE_INIT, SHOAL_NN_OPTIMIZER_STATE_INIT};
        CHECK_OK(shoal_nn_optimizer_get_state(got->optimizer, i, &states[0]));
        CHECK_OK(shoal_nn_optimizer_get_state(want->optimizer, i, &states[1]));
        CHECK_INT(states[0].n_updates, states[1].n_updates);
        compare_tensors(states[0].first_moment, states[1].first_moment);
        compare_tensors(states[0].second_moment, states[1].second_moment);
        compare_tensors(shoal_module_parameter(got->net.root, path),
                        shoal_module_parameter(want->net.root, path));
    }
    CHECK_INT(got->schedule.step, want->schedule.step);
    CHECK_OK(shoal_nn_scaler_get_state(got->scaler, &scalers[0]));
    CHECK_OK(shoal_nn_scaler_get_state(want->scaler, &scalers[1]));
    CHECK_DOUBLE(scalers[0].scale, scalers[1].scale);
    CHECK_INT(scalers[0].n_clean, scalers[1].n_clean);
}

/* Collective: a net that is whole against one that is sharded. */
static void compare_whole(struct run *whole, struct run *sharded)
{
    for (size_t i = 0; i < shoal_nn_optimizer_count(sharded->optimizer); i++) {
        const char *path = shoal_nn_optimizer_path(sharded->optimizer, i);
        shoal_fsdp_param *param = shoal_fully_shard_param(sharded->net.root, path);
        shoal_nn_optimizer_state states[2] = {SHOAL_NN_OPTIMIZER_STATE_INIT, SHOAL_NN_OPTIMIZER_STATE_INIT};
        float gathered[NET_WIDTH];
        CHECK_OK(shoal_nn_optimizer_get_state(whole->optimizer, i, &states[0]));
        CHECK_OK(shoal_nn_optimizer_get_state(sharded->optimizer, i, &states[1]));
        CHECK_INT(states[0].n_updates, states[1].n_updates);
        size_t bytes = (size_t)shoal_tensor_count(states[0].second_moment) * sizeof(float);
        CHECK_OK(shoal_fsdp_gather_array(param, SHOAL_F32, test_address(states[1].second_moment), gathered,
                                         SHOAL_FSDP_ALL_RANKS));
        CHECK_BYTES(shoal_data(states[0].second_moment), gathered, bytes);
        CHECK_OK(shoal_fsdp_gather(param, gathered, SHOAL_FSDP_ALL_RANKS));
        CHECK_BYTES(shoal_data(shoal_module_parameter(whole->net.root, path)), gathered, bytes);
    }
    CHECK_INT(whole->schedule.step, sharded->schedule.step);
}

static void check_resumed(struct rank *self, shoal_checkpoint_format format, shoal_sharded sharded)
{
    struct bench bench;
    struct run run;
    struct run resumed;
    struct run whole;
    const char *directory = share_directory(self);
    shoal_checkpoint_options options = SHOAL_CHECKPOINT_OPTIONS_INIT;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    bench.options.sharded = sharded;
    shoal_group *group = shoal_world_group(bench.world);
    REQUIRE(open_run(&run, bench.world, &bench.options));
    train(&run, 0, N_BEFORE, self->rank);
    options.step = N_BEFORE;
    options.format = format;
    REQUIRE_OK(shoal_checkpoint_save(group, directory, run.items, &options));
    /* Into a whole model, which is then what the run is now. */
    REQUIRE(open_run(&whole, bench.world, NULL));
    REQUIRE_OK(shoal_checkpoint_load(group, directory, whole.items, NULL, NULL));
    compare_whole(&whole, &run);
    train(&run, N_BEFORE, N_AFTER, self->rank);
    /* Into shards, which then go on. */
    REQUIRE(open_run(&resumed, bench.world, &bench.options));
    REQUIRE_OK(shoal_checkpoint_load(group, directory, resumed.items, NULL, NULL));
    train(&resumed, N_BEFORE, N_AFTER, self->rank);
    compare_runs(&resumed, &run);
    /* Into the run that went on: back to where it was, and there again. */
    REQUIRE_OK(shoal_checkpoint_load(group, directory, run.items, NULL, NULL));
    train(&run, N_BEFORE, N_AFTER, self->rank);
    compare_runs(&run, &resumed);
    close_run(&run);
    close_run(&resumed);
    close_run(&whole);
    bench_close(&bench);
    remove_directory(self, directory);
}

TEST_RANKS(pieces_alone, 1)
{
    check_resumed(self, SHOAL_CHECKPOINT_PIECES, SHOAL_SHARDED_PARAMETERS);
}

TEST_RANKS(pieces_of_shards, 3)
{
    check_resumed(self, SHOAL_CHECKPOINT_PIECES, SHOAL_SHARDED_PARAMETERS);
}

TEST_RANKS(whole_files_of_shards, 4)
{
    check_resumed(self, SHOAL_CHECKPOINT_WHOLE, SHOAL_SHARDED_PARAMETERS);
}

TEST_RANKS(pieces_of_zero_2, 2)
{
    check_resumed(self, SHOAL_CHECKPOINT_PIECES, SHOAL_SHARDED_GRADIENTS);
}

TEST_RANKS(whole_files_of_zero_1, 3)
{
    check_resumed(self, SHOAL_CHECKPOINT_WHOLE, SHOAL_SHARDED_STATE);
}
