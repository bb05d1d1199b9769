/* SPDX-License-Identifier: MIT */
/*
 * A context of FSDP by explicit calls, with an optimizer over raw shards: both are saved and loaded into another one,
 * which goes on with the same bits. Some shards are empty.
 */
#include "fixtures/rank_world.h"
#include "fixtures/shared_directory.h"
#include "shoal/checkpoint.h"
#include "shoal/fsdp.h"
#include "shoal_nn/optim.h"

enum {
    N_PARAMS = 3,
    ROOM = 16
};

static const struct {
    const char *name;
    shoal_dtype dtype;
    int n_dims;
    int64_t shape[2];
} rows[N_PARAMS] = {
    {"weight", SHOAL_F32, 2, {5, 3}}, {"one", SHOAL_F32, 1, {1}}, {"wide", SHOAL_F64, 1, {7}}};

struct run {
    shoal_fsdp *fsdp;
    shoal_nn_optimizer *optimizer;
    shoal_items *items;
    double gradients[N_PARAMS][ROOM]; /* of shards: f32 or f64 */
};

/* What this rank has of every parameter, with a gradient that depends on the place in the whole alone. */
static bool list_shards(struct run *run, int step, shoal_nn_shard *shards)
{
    for (int i = 0; i < N_PARAMS; i++) {
        shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
        if (!CHECK_OK(shoal_fsdp_update_shard(run->fsdp, i, &shard))) {
            return false;
        }
        int64_t row = rows[i].n_dims == 2 ? rows[i].shape[1] : 1;
        for (size_t k = 0; k < shard.count; k++) {
            double value = 0.125 * (double)(shard.offset * row + (int64_t)k + 1) - 0.5 * step;
            if (rows[i].dtype == SHOAL_F64) {
                run->gradients[i][k] = value;
            } else {
                ((float *)run->gradients[i])[k] = (float)value;
            }
        }
        shards[i] =
            (shoal_nn_shard){shard.data, run->gradients[i], shard.count, rows[i].dtype, rows[i].dtype};
    }
    return true;
}

static bool open_run(struct run *run, shoal_group *group, double start)
{
    const shoal_fsdp_options options = SHOAL_FSDP_OPTIONS_INIT;
    shoal_nn_shard shards[N_PARAMS];
    int64_t numbers[N_PARAMS];
    *run = (struct run){0};
    if (!CHECK_OK(shoal_fsdp_create(group, &options, &run->fsdp))) {
        return false;
    }
    for (int i = 0; i < N_PARAMS; i++) {
        double full[ROOM] = {0};
        int id;
        for (int k = 0; k < ROOM; k++) {
            if (rows[i].dtype == SHOAL_F64) {
                full[k] = start + k;
            } else {
                ((float *)full)[k] = (float)(start - k);
            }
        }
        CHECK_OK(shoal_fsdp_add_param(run->fsdp, 0, rows[i].name, rows[i].dtype, rows[i].n_dims,
                                      rows[i].shape, full, &id));
    }
    if (!list_shards(run, 0, shards) ||
        !CHECK_OK(shoal_nn_adamw_create_raw(shards, N_PARAMS, NULL, &run->optimizer)) ||
        !CHECK_OK(shoal_items_create(&run->items)) ||
        !CHECK_OK(shoal_items_add_fsdp(run->items, "p.", run->fsdp))) {
        return false;
    }
    for (int i = 0; i < N_PARAMS; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "p.%s", rows[i].name);
        numbers[i] = shoal_items_find(run->items, NULL, name);
    }
    return CHECK_OK(shoal_nn_optimizer_add_items_raw(run->optimizer, run->items, numbers, N_PARAMS));
}

static void close_run(struct run *run)
{
    shoal_items_free(run->items);
    shoal_nn_optimizer_free(run->optimizer);
    shoal_fsdp_free(run->fsdp);
}

static void train(struct run *run, int first, int n_steps)
{
    shoal_nn_shard shards[N_PARAMS];
    for (int step = first; step < first + n_steps; step++) {
        REQUIRE(list_shards(run, step, shards));
        CHECK_OK(shoal_nn_optimizer_step_raw(run->optimizer, shards, N_PARAMS));
    }
}

static void compare(struct run *got, struct run *want)
{
    shoal_nn_shard shards[2][N_PARAMS];
    REQUIRE(list_shards(got, 0, shards[0]) && list_shards(want, 0, shards[1]));
    for (size_t i = 0; i < N_PARAMS; i++) {
        shoal_nn_optimizer_state states[2] = {SHOAL_NN_OPTIMIZER_STATE_INIT, SHOAL_NN_OPTIMIZER_STATE_INIT};
        size_t bytes = shards[1][i].count * shoal_dtype_bytes(rows[i].dtype);
        CHECK_OK(shoal_nn_optimizer_get_state(got->optimizer, i, &states[0]));
        CHECK_OK(shoal_nn_optimizer_get_state(want->optimizer, i, &states[1]));
        CHECK_INT(states[0].n_updates, states[1].n_updates);
        CHECK_BYTES(shards[0][i].data, shards[1][i].data, bytes);
        CHECK_BYTES(shoal_data(states[0].first_moment), shoal_data(states[1].first_moment), bytes);
        CHECK_BYTES(shoal_data(states[0].second_moment), shoal_data(states[1].second_moment), bytes);
    }
}

static void check_resumed(struct rank *self, shoal_checkpoint_format format)
{
    struct run run;
    struct run other;
    const char *directory = share_directory(self);
    shoal_checkpoint_options options = SHOAL_CHECKPOINT_OPTIONS_INIT;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = shoal_world_group(world);
    options.format = format;
    REQUIRE(open_run(&run, group, 1));
    train(&run, 0, 3);
    REQUIRE_OK(shoal_checkpoint_save(group, directory, run.items, &options));
    REQUIRE(open_run(&other, group, 100));
    REQUIRE_OK(shoal_checkpoint_load(group, directory, other.items, NULL, NULL));
    compare(&other, &run);
    train(&run, 3, 2);
    train(&other, 3, 2);
    compare(&other, &run);
    close_run(&run);
    close_run(&other);
    CHECK_OK(shoal_world_close(world));
    remove_directory(self, directory);
}

TEST_RANKS(pieces_of_raw_shards, 3)
{
    check_resumed(self, SHOAL_CHECKPOINT_PIECES);
}

TEST_RANKS(whole_files_of_raw_shards, 2)
{
    check_resumed(self, SHOAL_CHECKPOINT_WHOLE);
}
