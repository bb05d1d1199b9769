/* SPDX-License-Identifier: MIT */
/*
 * A run that is saved on M ranks and goes on on N: it has the bits of one process that sums gradients in M parts up to
 * the save, and in N parts after it. That the batch is another one then is an error, unless it is allowed.
 */
#include "fixtures/groups.h"
#include "fixtures/module_bench.h"
#include "fixtures/shared_directory.h"
#include "shoal/checkpoint.h"
#include "shoal_nn/optim.h"

enum {
    MAX_RANKS = 4,
    N_LAYERS = 2,
    N_BEFORE = 3,
    N_AFTER = 3
};

struct run {
    struct net net;
    shoal_nn_optimizer *optimizer;
    shoal_items *items;
    int64_t step;
};

/* `group` NULL: one process. */
static bool open_run(struct run *run, shoal_group *group)
{
    shoal_fully_shard_options options = SHOAL_FULLY_SHARD_OPTIONS_INIT;
    *run = (struct run){0};
    options.group = group;
    net_make(&run->net, N_LAYERS, NULL);
    if (group && !net_shard(&run->net, &options)) {
        return false;
    }
    return CHECK_OK(shoal_nn_adamw_create_for(run->net.root, NULL, NULL, 0, &run->optimizer)) &&
           CHECK_OK(shoal_items_create(&run->items)) &&
           CHECK_OK(shoal_items_add_module(run->items, "", run->net.root)) &&
           CHECK_OK(shoal_nn_optimizer_add_items(run->optimizer, run->items)) &&
           CHECK_OK(shoal_items_add_integer(run->items, "step", &run->step));
}

static void close_run(struct run *run)
{
    shoal_nn_optimizer_free(run->optimizer);
    shoal_items_free(run->items);
    net_free(&run->net);
}

static void update(struct run *run)
{
    CHECK_OK(shoal_nn_optimizer_step(run->optimizer));
    CHECK_OK(shoal_nn_optimizer_zero_grad(run->optimizer));
    run->step++;
}

static void train(struct run *run, int n_steps, int rank)
{
    for (int i = 0; i < n_steps && !test_has_failed(); i++) {
        (void)net_pass(&run->net, (int)run->step, rank);
        update(run);
    }
}

static void train_alone(struct run *run, int n_steps, int n_parts)
{
    for (int i = 0; i < n_steps && !test_has_failed(); i++) {
        net_pass_alone(&run->net, net_pass, (int)run->step, n_parts);
        update(run);
    }
}

/* Collective. */
static void compare(struct run *sharded, struct run *alone)
{
    CHECK_INT(sharded->step, alone->step);
    net_check_same(&sharded->net, &alone->net);
}

static shoal_checkpoint_progress progress_of(const shoal_group *group)
{
    return (shoal_checkpoint_progress){
        .n_ranks = shoal_group_n_ranks(group), .batch = NET_BATCH, .n_accumulate = 1, .sample = 7};
}

static void save(shoal_group *group, const char *directory, struct run *alone)
{
    struct run run;
    shoal_checkpoint_options options = SHOAL_CHECKPOINT_OPTIONS_INIT;
    options.replaces = true;
    options.progress = progress_of(group);
    if (open_run(&run, group)) {
        train(&run, N_BEFORE, shoal_group_rank(group));
        compare(&run, alone);
        CHECK_OK(shoal_checkpoint_save(group, directory, run.items, &options));
    }
    close_run(&run);
}

static void go_on(shoal_group *group, const char *directory, struct run *alone, int n_saved)
{
    struct run run;
    shoal_checkpoint_load_options options = SHOAL_CHECKPOINT_LOAD_OPTIONS_INIT;
    int n_ranks = shoal_group_n_ranks(group);
    options.progress = progress_of(group);
    if (open_run(&run, group)) {
        if (n_ranks != n_saved) {
            CHECK_STATUS(shoal_checkpoint_load(group, directory, run.items, &options, NULL),
                         SHOAL_ERR_INVALID);
            CHECK_ERROR_TEXT("samples in a step (");
            CHECK_INT(run.step, 0);
            options.allows_other_batch = true;
        }
        CHECK_OK(shoal_checkpoint_load(group, directory, run.items, &options, NULL));
        compare(&run, alone);
        train(&run, N_AFTER, shoal_group_rank(group));
        train_alone(alone, N_AFTER, n_ranks);
        compare(&run, alone);
    }
    close_run(&run);
}

/* All ranks of the test; those outside of the groups only wait. */
static void try_pair(struct rank *self, shoal_group *const *groups, const char *directory, int n_saved,
                     int n_loaded)
{
    struct run alone;
    if (!open_run(&alone, NULL)) {
        return;
    }
    train_alone(&alone, N_BEFORE, n_saved);
    if (groups[n_saved]) {
        save(groups[n_saved], directory, &alone);
    }
    test_barrier(self);
    if (groups[n_loaded]) {
        go_on(groups[n_loaded], directory, &alone, n_saved);
    }
    test_barrier(self);
    close_run(&alone);
}

TEST_RANKS(on_other_numbers_of_ranks, MAX_RANKS)
{
    static const int ranks[] = {0, 1, 2, 3};
    shoal_group *groups[MAX_RANKS + 1] = {NULL};
    const char *directory = share_directory(self);
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    REQUIRE_OK(shoal_scope_begin());
    for (int i = self->rank + 1; i <= MAX_RANKS; i++) {
        groups[i] = group_of_ranks(world, ranks, i, "resume");
        CHECK(groups[i]);
    }
    for (int n_saved = 1; n_saved <= MAX_RANKS && !test_has_failed(); n_saved++) {
        for (int n_loaded = 1; n_loaded <= MAX_RANKS && !test_has_failed(); n_loaded++) {
            try_pair(self, groups, directory, n_saved, n_loaded);
        }
    }
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
    remove_directory(self, directory);
}
