/* SPDX-License-Identifier: MIT */
/*
 * Optimizers of modules that are fully sharded: the same paths, groups and bits as of the whole module, by the
 * dimensions of whole parameters; tied ones once; shards along dimension 0 and 1, some of them empty.
 */
#include "fixtures/on_device.h"

#include "tree.h"

#include "shoal_nn/optim.h"

enum {
    N_PATHS = 4,
    ROOM = 64,
    N_STEPS = 3
};

static const struct {
    const char *path;
    int n_dims;
    int64_t shape[2];
    int64_t group;
} rows[N_PATHS] = {
    {"scale", 1, {5}, 0}, {"a.weight", 2, {3, 8}, -1}, {"a.bias", 1, {1}, 0}, {"b.weight", 2, {2, 4}, 1}};

/* In the scope that is open. */
static struct tree make_tree(void)
{
    struct tree tree = tree_begin();
    for (int i = 0; i < N_PATHS; i++) {
        tree_add(&tree, rows[i].path, net_numbers((uint32_t)i, rows[i].shape, rows[i].n_dims));
    }
    tree_end(&tree, /*is_turned=*/false);
    return tree;
}

static int cut_columns(void *context, const char *path, const shoal_tensor *parameter)
{
    (void)context;
    (void)path;
    return shoal_tensor_n_dims(parameter) - 1;
}

static shoal_nn_optimizer *make_optimizer(const struct tree *tree)
{
    shoal_nn_optimizer *optimizer = NULL;
    shoal_nn_param_group groups[2] = {SHOAL_NN_PARAM_GROUP_INIT, SHOAL_NN_PARAM_GROUP_INIT};
    groups[0].max_dims = 1;
    groups[0].weight_decay = 0;
    groups[1].pattern = "b.*";
    groups[1].lr_factor = 0.5;
    (void)CHECK_OK(shoal_nn_adamw_create_for(tree->root, NULL, groups, 2, &optimizer));
    return optimizer;
}

/* The same whole gradient everywhere; a shard gets its part. */
static void set_gradients(const struct tree *tree, int step, bool is_sharded)
{
    for (int i = 0; i < N_PATHS; i++) {
        shoal_tensor *whole = net_numbers((uint32_t)(50 + 10 * step + i), rows[i].shape, rows[i].n_dims);
        shoal_tensor *parameter = shoal_module_parameter(tree->root, rows[i].path);
        if (is_sharded) {
            shoal_shard_layout layout = SHOAL_SHARD_LAYOUT_INIT;
            CHECK_OK(shoal_fsdp_get_layout(shoal_fully_shard_param(tree->root, rows[i].path), &layout));
            whole = shoal_contiguous(shoal_narrow(whole, layout.dim, layout.offset, layout.length));
        }
        CHECK_OK(shoal_set_grad(parameter, whole));
    }
}

/* Collective. */
static void compare(const struct tree *sharded, const struct tree *alone)
{
    for (int i = 0; i < N_PATHS; i++) {
        float got[ROOM];
        const shoal_tensor *want = shoal_module_parameter(alone->root, rows[i].path);
        CHECK_OK(shoal_fsdp_gather(shoal_fully_shard_param(sharded->root, rows[i].path), got,
                                   SHOAL_FSDP_ALL_RANKS));
        CHECK_BYTES(got, shoal_data(want), (size_t)shoal_tensor_count(want) * sizeof(float));
    }
}

static void check_sharded(struct rank *self, shoal_placement placement)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    struct tree alone = make_tree();
    struct tree sharded = make_tree();
    bench.options.placement = placement;
    REQUIRE_OK(shoal_fully_shard(sharded.a, &bench.options));
    REQUIRE_OK(shoal_fully_shard(sharded.b, &bench.options));
    REQUIRE_OK(shoal_fully_shard(sharded.root, &bench.options));
    shoal_nn_optimizer *optimizers[2] = {make_optimizer(&alone), make_optimizer(&sharded)};
    REQUIRE(optimizers[0] && optimizers[1]);
    for (int k = 0; k < 2; k++) {
        CHECK_INT(shoal_nn_optimizer_count(optimizers[k]), N_PATHS);
        for (size_t i = 0; i < N_PATHS; i++) {
            CHECK_STRING(shoal_nn_optimizer_path(optimizers[k], i), rows[i].path);
            CHECK_INT(shoal_nn_optimizer_group_of(optimizers[k], i), rows[i].group);
        }
    }
    for (int step = 0; step < N_STEPS; step++) {
        set_gradients(&alone, step, false);
        set_gradients(&sharded, step, true);
        CHECK_OK(shoal_nn_optimizer_step(optimizers[0]));
        CHECK_OK(shoal_nn_optimizer_step(optimizers[1]));
        compare(&sharded, &alone);
    }
    shoal_nn_optimizer_free(optimizers[0]);
    shoal_nn_optimizer_free(optimizers[1]);
    shoal_module_unref(alone.root);
    shoal_module_unref(sharded.root);
    bench_close(&bench);
}

TEST_RANKS(groups_alone, 1)
{
    check_sharded(self, NULL);
}

TEST_RANKS(groups_of_rows, 3)
{
    check_sharded(self, NULL);
}

TEST_RANKS(groups_of_columns, 4)
{
    check_sharded(self, cut_columns);
}

/* Parameters that are whole just now are no shards: an optimizer of them would update nothing that stays. */
TEST_RANKS(gathered_parameters_are_refused, 2)
{
    struct bench bench;
    shoal_nn_optimizer *optimizer = NULL;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    shoal_fsdp_unit *unit = shoal_fully_shard_unit(bench.sharded.root, false);
    REQUIRE_OK(shoal_fsdp_unshard(unit));
    REQUIRE_OK(shoal_fsdp_wait(unit));
    CHECK_STATUS(shoal_nn_sgd_create_for(bench.sharded.root, NULL, NULL, 0, &optimizer), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("nn_sgd_create_for: parameter scale: shape [5] is not that of its shard");
    CHECK_OK(shoal_fsdp_reshard(unit));
    CHECK_OK(shoal_nn_sgd_create_for(bench.sharded.root, NULL, NULL, 0, &optimizer));
    shoal_nn_optimizer_free(optimizer);
    bench_close(&bench);
}

/* It would leave the model as it is. Gradients that the program sets itself are used. */
TEST_RANKS(an_optimizer_from_before_sharding_is_refused, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    struct tree tree = make_tree();
    shoal_tensor *scale = shoal_module_parameter(tree.root, "scale");
    shoal_nn_optimizer *early = make_optimizer(&tree);
    REQUIRE(early && scale);
    CHECK_OK(shoal_nn_optimizer_step(early)); /* no gradient yet: that is only warned of */
    REQUIRE_OK(shoal_fully_shard(tree.a, &bench.options));
    REQUIRE_OK(shoal_fully_shard(tree.b, &bench.options));
    CHECK(!shoal_is_replaced(scale));
    CHECK_OK(shoal_nn_optimizer_step(early)); /* one of its parameters still is the module's */
    REQUIRE_OK(shoal_fully_shard(tree.root, &bench.options));
    CHECK(shoal_is_replaced(scale) && !shoal_is_replaced(NULL));
    CHECK(!shoal_is_replaced(shoal_module_parameter(tree.root, "scale")));
    CHECK_STATUS(shoal_nn_optimizer_step(early), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("optimizer step: none of 4 parameters has a gradient, because shoal_fully_shard has");
    CHECK_ERROR_TEXT("create the optimizer after sharding");
    CHECK_OK(shoal_set_grad(scale, net_numbers(7, (int64_t[]){5}, 1)));
    CHECK_OK(shoal_nn_optimizer_step(early));
    shoal_nn_optimizer *late = make_optimizer(&tree);
    REQUIRE(late);
    CHECK_OK(shoal_nn_optimizer_step(late));
    shoal_nn_optimizer_free(early);
    shoal_nn_optimizer_free(late);
    shoal_module_unref(tree.root);
    bench_close(&bench);
}
