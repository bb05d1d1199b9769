/* SPDX-License-Identifier: MIT */
/*
 * shoal_fully_shard: modules that are sharded train like one process, bit for bit, whatever is frozen, tied, nested,
 * used twice or not at all; and show in their places what the settings say.
 */
#include "fixtures/on_device.h"

#include "fixtures/module_bench.h"

/* Bits --------------------------------------------------------------------------------------------------- */

static void train(struct rank *self, shoal_reshard reshard, int forward_prefetch, bool is_replicated)
{
    struct bench bench;
    if (bench_open(&bench, self, 3, NULL)) {
        bench.options.reshard = reshard;
        bench.options.reshard_ranks = 2;
        bench.options.forward_prefetch = forward_prefetch;
        bench.options.is_replicated = is_replicated;
        if (net_shard(&bench.sharded, &bench.options)) {
            net_train_both(&bench.sharded, &bench.alone, net_pass, self, 3);
        }
    }
    bench_close(&bench);
}

static void train_all(struct rank *self)
{
    train(self, SHOAL_RESHARD_DEFAULT, 0, false);
    train(self, SHOAL_RESHARD_ALWAYS, -1, false);
    train(self, SHOAL_RESHARD_NEVER, 2, false);
    train(self, SHOAL_RESHARD_DEFAULT, 0, true);
    if (self->n_ranks % 2 == 0) {
        train(self, SHOAL_RESHARD_PARTLY, 0, false);
    }
}

TEST_RANKS(bits_of_one, 1)
{
    train_all(self);
}

TEST_RANKS(bits_of_two, 2)
{
    train_all(self);
}

TEST_RANKS(bits_of_three, 3)
{
    train_all(self);
}

TEST_RANKS(bits_of_four, 4)
{
    train_all(self);
}

/* Nets that are built or called otherwise ---------------------------------------------------------------- */

static void train_net(struct bench *bench, struct rank *self, net_passer pass)
{
    if (net_shard(&bench->sharded, &bench->options)) {
        net_train_both(&bench->sharded, &bench->alone, pass, self, 3);
    }
}

/* What a function of a net gives is trained like one process, however parameters are kept. */
static void train_function(struct rank *self, int n_layers, net_function function, net_passer pass)
{
    static const shoal_reshard reshards[] = {SHOAL_RESHARD_DEFAULT, SHOAL_RESHARD_ALWAYS, SHOAL_RESHARD_NEVER,
                                             SHOAL_RESHARD_PARTLY};
    size_t n_reshards = self->n_ranks == 4 ? 4 : 3;
    for (size_t i = 0; i < n_reshards; i++) {
        struct bench bench;
        if (bench_open(&bench, self, n_layers, function)) {
            bench.options.reshard = reshards[i];
            bench.options.reshard_ranks = 2;
            train_net(&bench, self, pass);
        }
        bench_close(&bench);
    }
}

static shoal_tensor *twice(shoal_module *root, shoal_tensor *x)
{
    return net_call(root, "0", net_call(root, "1", net_call(root, "0", x)));
}

TEST_RANKS(a_layer_that_is_used_twice, 3)
{
    train_function(self, 2, twice, net_pass);
}

static shoal_tensor *without_1(shoal_module *root, shoal_tensor *x)
{
    return net_call(root, "2", net_call(root, "0", x));
}

/* Its parameters have no gradient anywhere. */
TEST_RANKS(a_layer_that_is_not_used, 4)
{
    train_function(self, 3, without_1, net_pass);
}

static shoal_tensor *for_nothing(shoal_module *root, shoal_tensor *x)
{
    (void)net_call(root, "1", x);
    return net_call(root, "2", net_call(root, "0", x));
}

TEST_RANKS(an_output_that_is_not_used, 4)
{
    train_function(self, 3, for_nothing, net_pass);
}

static shoal_tensor *again(shoal_module *root, shoal_tensor *x)
{
    for (size_t i = 0; shoal_module_child_at(root, i, NULL) != NULL; i++) {
        x = net_recompute(shoal_module_child_at(root, i, NULL), x);
    }
    return x;
}

static bool pass_two(struct net *net, int step, int part)
{
    /* What is computed again has its gradients one after the other, and each is reduced. */
    net->is_near = shoal_module_context(net->root) == (void *)again;
    (void)CHECK_OK(shoal_scope_begin());
    shoal_tensor *first = net_loss(net, net_input(step, part));
    shoal_tensor *second = net_loss(net, net_input(step + 50, part));
    bool is_right = CHECK_OK(shoal_backward(shoal_add(first, second), NULL));
    return CHECK_OK(shoal_scope_end()) && is_right;
}

TEST_RANKS(two_forwards_one_backward, 4)
{
    train_function(self, 2, NULL, pass_two);
}

TEST_RANKS(layers_computed_again, 4)
{
    train_function(self, 3, again, net_pass);
    train_function(self, 3, again, pass_two);
}

static bool pass_again(struct net *net, int step, int part)
{
    (void)CHECK_OK(shoal_scope_begin());
    bool is_right =
        CHECK_OK(shoal_backward(net_loss_of(net_recompute(net->root, net_input(step, part))), NULL));
    return CHECK_OK(shoal_scope_end()) && is_right;
}

TEST_RANKS(the_net_computed_again, 2)
{
    train_function(self, 3, NULL, pass_again);
    train_function(self, 3, again, pass_again);
}

/* The root, then only a layer. */
static bool pass_layer(struct net *net, int step, int part)
{
    if (step % 2 == 0) {
        return net_pass(net, step, part);
    }
    (void)CHECK_OK(shoal_scope_begin());
    shoal_tensor *out = shoal_module_call_one(net->layers[1], net_input(step, part));
    bool is_right = CHECK_OK(shoal_backward(net_loss_of(out), NULL));
    return CHECK_OK(shoal_scope_end()) && is_right;
}

TEST_RANKS(a_layer_by_itself, 3)
{
    train_function(self, 3, NULL, pass_layer);
}

/* Inputs that need gradients get them. */
static bool pass_leaf(struct net *net, int step, int part)
{
    (void)CHECK_OK(shoal_scope_begin());
    shoal_tensor *x = net_input(step, part);
    (void)CHECK_OK(shoal_set_requires_grad(x, true));
    bool is_right = CHECK_OK(shoal_backward(net_loss(net, x), NULL));
    CHECK(shoal_grad(x) != NULL);
    return CHECK_OK(shoal_scope_end()) && is_right;
}

TEST_RANKS(inputs_with_gradients, 2)
{
    train_function(self, 3, NULL, pass_leaf);
}

/* Nested units: blocks of two layers; one layer, the block, the root. */
static shoal_status block_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                  shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    shoal_tensor *x = shoal_mul(inputs[0], shoal_module_parameter(module, "gain"));
    outputs[0] = net_call(module, "b", net_call(module, "a", x));
    return SHOAL_OK;
}

static void add_block(struct net *net, const char *name, uint32_t seed)
{
    shoal_module *block = net_make_module("block", block_forward, NULL);
    (void)CHECK_OK(shoal_module_add_parameter(block, "gain", net_parameter(seed, NET_WIDTH)));
    for (uint32_t i = 0; i < 2; i++) {
        shoal_module *layer = net_make_layer(seed + 10 * i);
        (void)CHECK_OK(shoal_module_add_child(block, i == 0 ? "a" : "b", layer));
        shoal_module_unref(layer);
    }
    (void)CHECK_OK(shoal_module_add_child(net->root, name, block));
    shoal_module_unref(block);
}

static void train_nested(struct rank *self, net_function function, net_passer pass)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 1, function));
    for (int i = 0; i < 2; i++) {
        struct net *net = i == 0 ? &bench.sharded : &bench.alone;
        add_block(net, "first", 100);
        add_block(net, "second", 200);
    }
    for (int i = 0; i < 2; i++) {
        shoal_module *block = shoal_module_child(bench.sharded.root, i == 0 ? "first" : "second");
        CHECK_OK(shoal_fully_shard(shoal_module_child(block, "a"), &bench.options));
        CHECK_OK(shoal_fully_shard(block, &bench.options));
    }
    train_net(&bench, self, pass);
    bench_close(&bench);
}

TEST_RANKS(units_inside_units, 3)
{
    train_nested(self, NULL, net_pass);
    train_nested(self, NULL, pass_two);
    train_nested(self, again, net_pass);
    train_nested(self, again, pass_two);
}

/* Lists of modules --------------------------------------------------------------------------------------- */

static void train_pairs(struct rank *self, net_function function, net_passer pass)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 4, function));
    CHECK_OK(shoal_fully_shard_list(&bench.sharded.layers[0], 2, &bench.options));
    CHECK_OK(shoal_fully_shard_list(&bench.sharded.layers[2], 2, &bench.options));
    if (CHECK_OK(shoal_fully_shard(bench.sharded.root, &bench.options))) {
        net_train_both(&bench.sharded, &bench.alone, pass, self, 3);
    }
    bench_close(&bench);
}

static shoal_tensor *half_of_each(shoal_module *root, shoal_tensor *x)
{
    return net_call(root, "2", net_call(root, "0", x));
}

/* The last layer outside of the net, in two chunks. */
static bool pass_chunks(struct net *net, int step, int part)
{
    (void)CHECK_OK(shoal_scope_begin());
    shoal_tensor *out = shoal_module_call_one(net->root, net_input(step, part));
    shoal_tensor *first = shoal_module_call_one(net->layers[3], shoal_narrow(out, 0, 0, 1));
    shoal_tensor *second = shoal_module_call_one(net->layers[3], shoal_narrow(out, 0, 1, NET_BATCH - 1));
    bool is_right = CHECK_OK(shoal_backward(shoal_add(net_loss_of(first), net_loss_of(second)), NULL));
    return CHECK_OK(shoal_scope_end()) && is_right;
}

TEST_RANKS(several_modules_as_one_unit, 2)
{
    train_pairs(self, NULL, net_pass);
    train_pairs(self, NULL, pass_two);
    train_pairs(self, again, net_pass);
    train_pairs(self, half_of_each, net_pass);
    train_pairs(self, half_of_each, pass_two);
    train_pairs(self, half_of_each, pass_chunks);
}

/* Tied parameters ---------------------------------------------------------------------------------------- */

static void tie(struct net *net, const char *path, const char *to)
{
    shoal_tensor *tensor = to ? shoal_module_parameter(net->root, to) : net_parameter(3, NET_WIDTH);
    (void)CHECK_OK(shoal_module_set_parameter(net->root, path, tensor));
}

static void train_tied(struct rank *self, net_function function, const char *path, const char *to)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 3, function));
    tie(&bench.sharded, path, to);
    tie(&bench.alone, path, to);
    CHECK_OK(shoal_fully_shard(bench.sharded.layers[1], &bench.options));
    if (CHECK_OK(shoal_fully_shard(bench.sharded.root, &bench.options))) {
        net_train_both(&bench.sharded, &bench.alone, net_pass, self, 3);
        CHECK(shoal_module_parameter(bench.sharded.root, path) ==
              shoal_module_parameter(bench.sharded.root, to));
    }
    bench_close(&bench);
}

TEST_RANKS(tied_in_one_unit, 4)
{
    train_tied(self, NULL, "2.weight", "0.weight");
    train_tied(self, NULL, "scale", "2.weight");
    train_tied(self, again, "2.weight", "0.weight");
}

TEST_RANKS(tied_over_two_units, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    tie(&bench.sharded, "1.weight", "0.weight");
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    CHECK_OK(shoal_scope_begin());
    CHECK(shoal_module_call_one(bench.sharded.root, net_input(0, 0)) == NULL);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("parameter 1.weight is in two units, 0 and 1");
    bench_close(&bench);
}

/* Frozen ------------------------------------------------------------------------------------------------- */

static void freeze(struct net *net, const char *path, bool is_frozen)
{
    (void)CHECK_OK(shoal_set_requires_grad(shoal_module_parameter(net->root, path), !is_frozen));
}

TEST_RANKS(frozen_before_and_thawed_later, 3)
{
    static const char *const paths[] = {"0.weight", "0.bias", "1.bias", "scale"};
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 3, NULL));
    for (size_t i = 0; i < 3; i++) {
        freeze(&bench.sharded, paths[i], true);
        freeze(&bench.alone, paths[i], true);
    }
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    net_train_both(&bench.sharded, &bench.alone, net_pass, self, 2);
    for (size_t i = 1; i < 4; i++) { /* thaw two, freeze another */
        freeze(&bench.sharded, paths[i], i == 3);
        freeze(&bench.alone, paths[i], i == 3);
    }
    net_train_both(&bench.sharded, &bench.alone, net_pass, self, 2);
    for (size_t i = 0; i < 4; i++) {
        freeze(&bench.sharded, paths[i], false);
        freeze(&bench.alone, paths[i], false);
    }
    net_train_both(&bench.sharded, &bench.alone, net_pass, self, 2);
    bench_close(&bench);
}

/* A parameter that is left alone is nobody's but the rank's: here the same on all, as its gradient is not reduced. */
TEST_RANKS(ignored, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    shoal_tensor *ignored = shoal_module_parameter(bench.sharded.root, "1.weight");
    CHECK_OK(shoal_set_requires_grad(ignored, false));
    freeze(&bench.alone, "1.weight", true);
    bench.options.ignored = &ignored;
    bench.options.n_ignored = 1;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    for (int step = 0; step < 2; step++) {
        (void)net_pass(&bench.sharded, step, self->rank);
        net_pass_alone(&bench.alone, net_pass, step, self->n_ranks);
        net_update(&bench.sharded, 0.1F);
        net_update(&bench.alone, 0.1F);
    }
    CHECK(shoal_module_parameter(bench.sharded.root, "1.weight") == ignored);
    CHECK_INT(shoal_tensor_count(ignored), NET_WIDTH);
    float full[NET_WIDTH];
    CHECK_OK(shoal_fsdp_gather(shoal_fully_shard_param(bench.sharded.root, "0.weight"), full,
                               SHOAL_FSDP_ALL_RANKS));
    CHECK_BYTES(full, shoal_data(shoal_module_parameter(bench.alone.root, "0.weight")), sizeof full);
    CHECK_STATUS(shoal_fsdp_gather(shoal_fully_shard_param(bench.sharded.root, "1.weight"), full,
                                   SHOAL_FSDP_ALL_RANKS),
                 SHOAL_ERR_INVALID);
    bench_close(&bench);
}
