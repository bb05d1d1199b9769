/* SPDX-License-Identifier: MIT */
/*
 * Compiled steps beside eager ones: two nets that begin alike, one trained by shoal_backward and one by
 * shoal_compiled_run, have the same losses and parameters, bit by bit, however they are wrapped and whatever changes
 * between steps.
 */
#include "fixtures/compiled_pair.h"

enum {
    N_STEPS = 4
};

static void train_net(const struct rank *self, enum wrapping wrapping, net_function function,
                      const shoal_compile_options *options)
{
    struct pair pair;
    if (pair_begin_net(&pair, self, wrapping, NULL, function, options)) {
        for (int i = 0; i < N_STEPS; i++) {
            pair_run(&pair, i, NET_BATCH);
            pair_update(&pair);
        }
        CHECK(pair_count_compiles(&pair) == 1);
    }
    pair_end(&pair);
}

static void train(const struct rank *self, enum wrapping wrapping, const shoal_compile_options *options)
{
    train_net(self, wrapping, NULL, options);
}

TEST_RANKS(a_step_without_ranks, 1)
{
    train(self, WRAP_NOTHING, NULL);
}

TEST_RANKS(ddp_of_one, 1)
{
    train(self, WRAP_DDP, NULL);
}

TEST_RANKS(ddp, 3)
{
    train(self, WRAP_DDP, NULL);
}

TEST_RANKS(shards_of_one, 1)
{
    train(self, WRAP_SHARDS, NULL);
}

TEST_RANKS(shards_of_two, 2)
{
    train(self, WRAP_SHARDS, NULL);
}

TEST_RANKS(shards_of_four, 4)
{
    train(self, WRAP_SHARDS, NULL);
}

static shoal_tensor *recompute_layers(shoal_module *root, shoal_tensor *x)
{
    for (size_t i = 0; x && i < PAIR_LAYERS; i++) {
        x = net_recompute(shoal_module_child_at(root, i, NULL), x);
    }
    return x;
}

TEST_RANKS(activations_are_computed_again, 2)
{
    train_net(self, WRAP_NOTHING, recompute_layers, NULL);
    train_net(self, WRAP_DDP, recompute_layers, NULL);
    train_net(self, WRAP_SHARDS, recompute_layers, NULL);
}

TEST_RANKS(ddp_coalesced, 3)
{
    shoal_pass_options coalesced = SHOAL_PASS_OPTIONS_INIT;
    shoal_compile_options options = SHOAL_COMPILE_OPTIONS_INIT;
    coalesced.ddp_passes = "fuse_ddp_with_coalesced_op,schedule_comm_wait";
    options.pass_options = &coalesced;
    train(self, WRAP_DDP, &options);
}

static const shoal_compile_options some_options[] = {
    {.struct_size = sizeof(shoal_compile_options), .passes = ""},
    {.struct_size = sizeof(shoal_compile_options), .no_reuse = true},
    {.struct_size = sizeof(shoal_compile_options), .no_comm_buffers = true},
    {.struct_size = sizeof(shoal_compile_options), .one_shot = true},
};

TEST_RANKS(options_change_no_bits, 2)
{
    for (size_t i = 0; i < sizeof some_options / sizeof some_options[0]; i++) {
        train(self, WRAP_DDP, &some_options[i]);
        train(self, WRAP_SHARDS, &some_options[i]);
    }
}

/* What makes another variant ------------------------------------------------------------------------------- */

TEST_RANKS(another_shape_compiles_again, 2)
{
    struct pair pair;
    if (pair_begin(&pair, self, WRAP_SHARDS, NULL)) {
        const int64_t rows[] = {3, 5, 3, 5, 2};
        const size_t n_compiles[] = {1, 2, 2, 2, 3};
        for (int i = 0; i < 5; i++) {
            pair_run(&pair, i, rows[i]);
            pair_update(&pair);
            CHECK(pair_count_compiles(&pair) == n_compiles[i]);
        }
        shoal_compile_report report = SHOAL_COMPILE_REPORT_INIT;
        (void)CHECK_OK(shoal_compiled_get_report(pair.compiled, &report));
        (void)CHECK_STRING(report.reason, "input 0 is f32 [2, 5], not f32 [5, 5] as before");
    }
    pair_end(&pair);
}

static void add_up(const struct rank *self, enum wrapping wrapping)
{
    struct pair pair;
    if (pair_begin(&pair, self, wrapping, NULL)) {
        for (int i = 0; i < 3 * N_STEPS; i++) {
            pair_run(&pair, i, NET_BATCH);
            if (i % 3 == 2) {
                pair_update(&pair);
            }
        }
        CHECK(pair_count_compiles(&pair) == 2);
    }
    pair_end(&pair);
}

TEST_RANKS(gradients_add_up, 3)
{
    add_up(self, WRAP_DDP);
    add_up(self, WRAP_SHARDS);
}

/* A backward pass that was not compiled adds to what a compiled step left, and the other way round. */
static void take_turns(const struct rank *self, enum wrapping wrapping)
{
    struct pair pair;
    if (pair_begin(&pair, self, wrapping, NULL)) {
        for (int i = 0; i < 2 * N_STEPS; i++) {
            pair_run(&pair, 2 * i, NET_BATCH);
            CHECK(net_pass(&pair.eager, i, self->rank));
            CHECK(net_pass(&pair.other, i, self->rank));
            pair_check(&pair);
            pair_run(&pair, 2 * i + 1, NET_BATCH);
            pair_update(&pair);
        }
    }
    pair_end(&pair);
}

TEST_RANKS(eager_and_compiled_take_turns, 3)
{
    take_turns(self, WRAP_DDP);
    take_turns(self, WRAP_SHARDS);
}

TEST_RANKS(gradients_add_up_alone, 1)
{
    add_up(self, WRAP_NOTHING);
}

/* Outputs -------------------------------------------------------------------------------------------------- */

TEST_RANKS(outputs_that_are_kept_stay, 2)
{
    struct pair pair;
    if (pair_begin(&pair, self, WRAP_DDP, NULL)) {
        shoal_tensor *kept[N_STEPS] = {NULL};
        shoal_tensor *wanted[N_STEPS] = {NULL};
        for (int i = 0; i < N_STEPS; i++) {
            shoal_tensor *x = net_input(i, self->rank);
            (void)CHECK_OK(pair_step(&pair.eager, &x, 1, &wanted[i], 1));
            (void)CHECK_OK(shoal_compiled_run(pair.compiled, &x, 1, &kept[i], 1));
            pair_update(&pair);
        }
        for (int i = 0; i < N_STEPS; i++) {
            CHECK(pair_is_same(kept[i], wanted[i]));
        }
        shoal_compile_report report = SHOAL_COMPILE_REPORT_INIT;
        (void)CHECK_OK(shoal_compiled_get_report(pair.compiled, &report));
        CHECK(report.plan.n_copied_out == N_STEPS - 1);
        shoal_compiled_free(pair.compiled);
        pair.compiled = NULL;
        CHECK(pair_is_same(kept[N_STEPS - 1], wanted[N_STEPS - 1]));
        for (int i = 0; i < N_STEPS; i++) {
            shoal_tensor_unref(kept[i]);
        }
    }
    pair_end(&pair);
}

/* One rank that deviates ----------------------------------------------------------------------------------- */

TEST_RANKS(a_rank_that_compiles_alone_is_told, 2)
{
    struct pair pair;
    if (pair_begin(&pair, self, WRAP_DDP, NULL)) {
        shoal_tensor *loss = NULL;
        pair_run(&pair, 0, NET_BATCH);
        pair_update(&pair);
        shoal_tensor *x = net_numbers(5, (int64_t[]){self->rank == 0 ? 7 : NET_BATCH, NET_WIDTH}, 2);
        CHECK_STATUS(shoal_compiled_run(pair.compiled, &x, 1, &loss, 1), SHOAL_ERR_MISMATCH);
    }
    pair_end(&pair);
}
