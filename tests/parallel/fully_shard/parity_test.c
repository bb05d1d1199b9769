/* SPDX-License-Identifier: MIT */
/*
 * Sharded modules train like one process, whoever is late, whatever is gathered ahead or for nothing, and in whatever
 * order forwards and backward passes of micro-batches come.
 */
#include "fixtures/on_device.h"

#include "fixtures/fsdp_handles.h"
#include "fixtures/module_bench.h"
#include "shoal/collective.h"

static const shoal_reshard reshards[] = {SHOAL_RESHARD_DEFAULT, SHOAL_RESHARD_ALWAYS, SHOAL_RESHARD_NEVER,
                                         SHOAL_RESHARD_PARTLY};

static shoal_tensor *again(shoal_module *root, shoal_tensor *x)
{
    for (size_t i = 0; shoal_module_child_at(root, i, NULL) != NULL; i++) {
        x = net_recompute(shoal_module_child_at(root, i, NULL), x);
    }
    return x;
}

/* Being late ----------------------------------------------------------------------------------------------- */

enum late {
    BEFORE_GATHERS = 1,
    BEFORE_REDUCTIONS = 2,
    AFTER_FORWARD = 4,
    BEFORE_UPDATES = 8
};

static _Thread_local int late_where; /* of this rank, in this step */

static void be_late(int where)
{
    if (late_where & where) {
        test_pause(0.002);
    }
}

static shoal_tensor *late_gradient(void *context, shoal_tensor *gradient)
{
    (void)context;
    (void)gradient;
    be_late(BEFORE_REDUCTIONS);
    return NULL;
}

static shoal_status late_call(void *context, const shoal_forward_call *call)
{
    (void)context;
    be_late(BEFORE_GATHERS);
    return shoal_requires_grad(call->inputs[0])
               ? shoal_on_gradient(call->inputs[0], late_gradient, NULL, NULL)
               : SHOAL_OK;
}

/* The late rank is another one in each step. */
static void train_late(struct rank *self, shoal_reshard reshard, int where)
{
    struct bench bench;
    const shoal_module_hook_definition hook = {
        .struct_size = sizeof hook, .pre_forward = late_call, .pre_place = SHOAL_HOOK_FIRST};
    REQUIRE(bench_open(&bench, self, 3, NULL));
    bench.options.reshard = reshard;
    for (int i = 0; i < 3; i++) { /* hooks that come before those of sharding */
        CHECK_OK(shoal_module_add_hook(bench.sharded.layers[i], &hook, NULL));
    }
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    for (int step = 0; step < 10 && !test_has_failed(); step++) {
        late_where = step % self->n_ranks == self->rank ? where : 0;
        shoal_tensor *loss = net_loss(&bench.sharded, net_input(step, self->rank));
        be_late(AFTER_FORWARD);
        CHECK_OK(shoal_backward(loss, NULL));
        late_where = 0;
        net_pass_alone(&bench.alone, net_pass, step, self->n_ranks);
        net_check_same(&bench.sharded, &bench.alone);
        late_where = step % self->n_ranks == self->rank ? where : 0;
        be_late(BEFORE_UPDATES);
        net_update(&bench.sharded, 0.1F);
        net_update(&bench.alone, 0.1F);
    }
    bench_close(&bench);
}

TEST_RANKS(a_rank_is_late, 4)
{
    static const int wheres[] = {BEFORE_GATHERS, BEFORE_REDUCTIONS, AFTER_FORWARD, BEFORE_UPDATES, 15};
    for (int i = 1; i < 4; i++) {
        for (int k = 0; k < 5; k++) {
            train_late(self, reshards[i], wheres[k]);
        }
    }
}

/* Gathered ahead ------------------------------------------------------------------------------------------- */

/* Two ahead, both ways, by lists. */
TEST_RANKS(eight_layers_two_ahead, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 8, NULL));
    bench.options.reshard = SHOAL_RESHARD_ALWAYS;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    shoal_module **layers = bench.sharded.layers;
    for (int i = 0; i < 8; i++) {
        shoal_module *const before[] = {layers[i > 0 ? i - 1 : 0], layers[i > 1 ? i - 2 : 0]};
        CHECK_OK(prefetch_modules(shoal_fsdp_set_forward_prefetch, layers[i], layers + i + 1,
                                  i < 6 ? 2 : (size_t)(7 - i)));
        CHECK_OK(
            prefetch_modules(shoal_fsdp_set_backward_prefetch, layers[i], before, i > 1 ? 2 : (size_t)i));
    }
    net_train_both(&bench.sharded, &bench.alone, net_pass, self, 10);
    bench_close(&bench);
}

/* Something whose backward pass is over is gathered: nobody comes for it, and no number changes. */
TEST_RANKS(gathered_for_nothing, 3)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 3, NULL));
    bench.options.reshard = SHOAL_RESHARD_ALWAYS;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    CHECK_OK(prefetch_modules(shoal_fsdp_set_backward_prefetch, bench.sharded.layers[0],
                              &bench.sharded.layers[2], 1));
    net_train_both(&bench.sharded, &bench.alone, net_pass, self, 5);
    bench_close(&bench);
}

/* Not gathered where it is not needed: the first layer's gradients come from its input alone. */
TEST_RANKS(not_gathered_for_backward, 3)
{
    for (int i = 0; i < 3; i++) {
        struct bench bench;
        REQUIRE(bench_open(&bench, self, 4, NULL));
        bench.options.reshard = reshards[i];
        CHECK_OK(shoal_fully_shard(bench.sharded.layers[0], &bench.options));
        CHECK_OK(shoal_fully_shard(bench.sharded.layers[1], &bench.options));
        CHECK_OK(shoal_fully_shard_list(&bench.sharded.layers[2], 2, &bench.options));
        CHECK_OK(shoal_fully_shard(bench.sharded.root, &bench.options));
        CHECK_OK(shoal_fsdp_set_unshard_in_backward(shoal_fully_shard_unit(bench.sharded.layers[0], false),
                                                    false));
        net_train_both(&bench.sharded, &bench.alone, net_pass, self, 3);
        bench_close(&bench);
    }
}

/* By hand --------------------------------------------------------------------------------------------------- */

static _Thread_local shoal_group *group_of_ones; /* over which ranks agree that one is one */

/* Everything is gathered ahead; collectives of the program's own are in flight between the layers. */
static shoal_tensor *by_hand(shoal_module *root, shoal_tensor *x)
{
    bool is_sharded = shoal_is_fully_sharded(root);
    for (size_t i = 0; is_sharded && shoal_module_child_at(root, i, NULL) != NULL; i++) {
        (void)CHECK_OK(
            shoal_fsdp_unshard(shoal_fully_shard_unit(shoal_module_child_at(root, i, NULL), false)));
    }
    for (size_t i = 0; shoal_module_child_at(root, i, NULL) != NULL; i++) {
        shoal_tensor *ones = shoal_full(shoal_tensor_shape(x), shoal_tensor_n_dims(x), 1.0, SHOAL_F32);
        ones = is_sharded ? shoal_all_reduce(ones, SHOAL_MAX, group_of_ones) : ones;
        x = shoal_mul(shoal_module_call_one(shoal_module_child_at(root, i, NULL), x), ones);
    }
    return x;
}

TEST_RANKS(gathered_by_hand_between_collectives, 3)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 3, by_hand));
    bench.options.reshard = SHOAL_RESHARD_NEVER;
    group_of_ones = shoal_world_group(bench.world);
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    net_train_both(&bench.sharded, &bench.alone, net_pass, self, 10);
    bench_close(&bench);
}

/* Before anything was called: whole parameters are the ones that were sharded. */
TEST_RANKS(gathered_before_any_forward, 3)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    CHECK_OK(shoal_fsdp_unshard(shoal_fully_shard_unit(bench.sharded.root, false)));
    CHECK_OK(shoal_fsdp_wait(shoal_fully_shard_unit(bench.sharded.root, false)));
    CHECK_BYTES(shoal_data(shoal_module_parameter(bench.sharded.root, "scale")),
                shoal_data(shoal_module_parameter(bench.alone.root, "scale")), NET_WIDTH * sizeof(float));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(shoal_fsdp_unshard(shoal_fully_shard_unit(bench.sharded.layers[i], false)));
        CHECK_OK(shoal_fsdp_wait(shoal_fully_shard_unit(bench.sharded.layers[i], false)));
        CHECK_BYTES(shoal_data(shoal_module_parameter(bench.sharded.layers[i], "weight")),
                    shoal_data(shoal_module_parameter(bench.alone.layers[i], "weight")),
                    NET_WIDTH * sizeof(float));
        CHECK_BYTES(shoal_data(shoal_module_parameter(bench.sharded.layers[i], "bias")),
                    shoal_data(shoal_module_parameter(bench.alone.layers[i], "bias")), sizeof(float));
        CHECK_OK(shoal_fsdp_reshard(shoal_fully_shard_unit(bench.sharded.layers[i], false)));
    }
    net_train_both(&bench.sharded, &bench.alone, net_pass, self, 2);
    bench_close(&bench);
}

/* Micro-batches ------------------------------------------------------------------------------------------------ */

enum {
    N_MICRO = 4
};

static void set_last(struct net *net, bool is_last)
{
    if (shoal_is_fully_sharded(net->root)) {
        (void)CHECK_OK(shoal_fsdp_set_sync(shoal_fully_shard_unit(net->root, true), is_last));
        (void)CHECK_OK(shoal_fsdp_set_is_last_backward(fsdp_of_module(net->root), is_last));
        (void)CHECK_OK(
            shoal_fsdp_set_reshard_after_backward(shoal_fully_shard_unit(net->root, true), is_last));
    }
}

/* A pipeline: one forward ahead of the backward passes. Everything is gathered by hand at first. */
static bool pass_pipeline(struct net *net, int step, int part)
{
    shoal_tensor *losses[N_MICRO];
    bool is_right = CHECK_OK(shoal_scope_begin());
    for (int i = 0; shoal_is_fully_sharded(net->root) && i < net->n_layers; i++) {
        (void)CHECK_OK(shoal_fsdp_unshard(shoal_fully_shard_unit(net->layers[i], false)));
    }
    for (int micro = 0; micro <= N_MICRO; micro++) {
        if (micro < N_MICRO) {
            losses[micro] = net_loss(net, net_input(10 * step + micro, part));
        }
        if (micro > 0) {
            set_last(net, micro == N_MICRO);
            is_right = CHECK_OK(shoal_backward(losses[micro - 1], NULL)) && is_right;
        }
    }
    return CHECK_OK(shoal_scope_end()) && is_right;
}

/* The same, each backward pass after its forward. */
static bool pass_micro(struct net *net, int step, int part)
{
    bool is_right = true;
    for (int i = 0; shoal_is_fully_sharded(net->root) && i < net->n_layers; i++) {
        (void)CHECK_OK(shoal_fsdp_unshard(shoal_fully_shard_unit(net->layers[i], false)));
    }
    for (int micro = 0; micro < N_MICRO; micro++) {
        set_last(net, micro == N_MICRO - 1);
        is_right = net_pass(net, 10 * step + micro, part) && is_right;
    }
    return is_right;
}

TEST_RANKS(one_forward_one_backward, 3)
{
    for (int i = 0; i < 3; i++) {
        struct bench bench;
        REQUIRE(bench_open(&bench, self, 3, NULL));
        bench.options.reshard = reshards[i];
        if (net_shard(&bench.sharded, &bench.options)) {
            net_train_both(&bench.sharded, &bench.alone, pass_micro, self, 4);
            net_train_both(&bench.sharded, &bench.alone, pass_pipeline, self, 4);
        }
        bench_close(&bench);
    }
}

/* Replicas ------------------------------------------------------------------------------------------------------ */

/* Every micro-batch is reduced. */
static bool pass_each(struct net *net, int step, int part)
{
    bool is_right = true;
    for (int micro = 0; micro < N_MICRO; micro++) {
        is_right = net_pass(net, 10 * step + micro, part) && is_right;
    }
    return is_right;
}

static void train_replicas(struct rank *self, int n_replicas, net_function function, net_passer pass)
{
    for (int i = 0; i < 3; i++) {
        struct bench bench;
        REQUIRE(bench_open(&bench, self, 3, function));
        REQUIRE(bench_replicate(&bench, n_replicas));
        bench.options.reshard = reshards[i];
        if (net_shard(&bench.sharded, &bench.options)) {
            net_train_both(&bench.sharded, &bench.alone, pass, self, 5);
        }
        bench_close(&bench);
    }
}

TEST_RANKS(two_replicas_of_two, 4)
{
    static const net_passer passes[] = {net_pass, pass_each, pass_micro};
    for (int i = 0; i < 3; i++) {
        train_replicas(self, 2, NULL, passes[i]);
        train_replicas(self, 2, again, passes[i]);
    }
}

TEST_RANKS(replicas_of_one_and_one_of_all, 3)
{
    train_replicas(self, 3, NULL, pass_micro);
    train_replicas(self, 1, NULL, pass_micro);
}

/* Factors ------------------------------------------------------------------------------------------------------- */

/* A factor of the root divides its own parameter, on any mesh, cast or not; the layers are divided by the ranks. */
static void check_factor(struct rank *self, int n_replicas, double factor, shoal_dtype param_dtype)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    CHECK(n_replicas == 0 || bench_replicate(&bench, n_replicas));
    bench.options.param_dtype = param_dtype;
    bench.options.reduce_dtype = SHOAL_F32;
    REQUIRE(net_shard(&bench.sharded, &bench.options) && net_shard(&bench.alone, &bench.options));
    CHECK_OK(shoal_fsdp_set_divide_factor(shoal_fully_shard_unit(bench.sharded.root, false), factor));
    static const char *const paths[] = {"scale", "0.weight", "0.bias", "1.weight", "1.bias"};
    for (int step = 0; step < 3; step++) {
        (void)net_pass(&bench.sharded, step, self->rank);
        (void)net_pass(&bench.alone, step, self->rank);
        for (int i = 0; i < 5; i++) {
            const shoal_tensor *got = shoal_grad(shoal_module_parameter(bench.sharded.root, paths[i]));
            const shoal_tensor *want = shoal_grad(shoal_module_parameter(bench.alone.root, paths[i]));
            REQUIRE(got && want);
            for (int64_t k = 0; k < shoal_tensor_count(want); k++) {
                float expected = ((const float *)shoal_data(want))[k];
                expected = i == 0 ? (float)((double)expected * self->n_ranks / factor) : expected;
                CHECK_DOUBLE((double)((const float *)shoal_data(got))[k], (double)expected);
            }
        }
        net_update(&bench.sharded, 0.0F);
        net_update(&bench.alone, 0.0F);
    }
    bench_close(&bench);
}

TEST_RANKS(a_factor_of_the_root_alone, 4)
{
    static const int meshes[] = {0, 2, 4};
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 2; k++) { /* powers of two: the other way of dividing has the same bits */
            check_factor(self, meshes[i], k == 0 ? 4.0 : 8.0, 0);
            check_factor(self, meshes[i], k == 0 ? 4.0 : 8.0, SHOAL_BF16);
        }
    }
}

/* Frozen layers --------------------------------------------------------------------------------------------------- */

static void freeze(struct net *net, int layer, bool is_frozen)
{
    (void)CHECK_OK(shoal_set_requires_grad(shoal_module_parameter(net->layers[layer], "weight"), !is_frozen));
    (void)CHECK_OK(shoal_set_requires_grad(shoal_module_parameter(net->layers[layer], "bias"), !is_frozen));
}

/* The frozen layer 1 again and again, once without recording; a trainable one without recording, too. */
static shoal_tensor *frozen_again(shoal_module *root, shoal_tensor *x)
{
    x = net_call(root, "1", net_call(root, "0", x));
    bool had_grad = shoal_scope_has_grad();
    (void)CHECK_OK(shoal_scope_set_grad(false));
    shoal_tensor *aside = net_call(root, "2", net_call(root, "1", x));
    (void)CHECK_OK(shoal_scope_set_grad(had_grad));
    return net_call(root, "1", net_call(root, "2", shoal_add(x, aside)));
}

TEST_RANKS(a_frozen_layer_is_used_again, 4)
{
    for (int i = 0; i < 4; i++) {
        struct bench bench;
        REQUIRE(bench_open(&bench, self, 3, frozen_again));
        bench.options.reshard = reshards[i];
        freeze(&bench.sharded, 1, true);
        freeze(&bench.alone, 1, true);
        if (net_shard(&bench.sharded, &bench.options)) {
            net_train_both(&bench.sharded, &bench.alone, net_pass, self, 5);
        }
        bench_close(&bench);
    }
}

/* Every other layer is frozen; a forward without recording in the middle; all learn in the end. */
TEST_RANKS(every_other_layer_is_frozen, 3)
{
    static const net_function functions[] = {NULL, again};
    for (int i = 0; i < 6; i++) {
        struct bench bench;
        REQUIRE(bench_open(&bench, self, 4, functions[i % 2]));
        bench.options.reshard = reshards[i / 2];
        for (int k = 0; k < 4; k += 2) {
            freeze(&bench.alone, k, true);
            freeze(&bench.sharded, k, true);
        }
        REQUIRE(net_shard(&bench.sharded, &bench.options));
        net_train_both(&bench.sharded, &bench.alone, net_pass, self, 3);
        CHECK_OK(shoal_scope_begin());
        CHECK_OK(shoal_scope_set_grad(false));
        CHECK(shoal_module_call_one(bench.sharded.root, net_input(9, self->rank)) != NULL);
        CHECK_OK(shoal_scope_end());
        net_train_both(&bench.sharded, &bench.alone, net_pass, self, 2);
        for (int k = 0; k < 4; k += 2) {
            freeze(&bench.alone, k, false);
            freeze(&bench.sharded, k, false);
        }
        net_train_both(&bench.sharded, &bench.alone, net_pass, self, 2);
        bench_close(&bench);
    }
}

/* Roots ------------------------------------------------------------------------------------------------------------ */

/* Three nets one after the other, each a root: they go over the same lanes, and do not disturb each other. */
TEST_RANKS(three_roots, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    struct net sharded[3];
    struct net alone[3];
    REQUIRE(world && CHECK_OK(shoal_scope_begin()));
    shoal_fully_shard_options options = net_options(world);
    for (int i = 0; i < 3; i++) {
        net_make(&sharded[i], 2, NULL);
        net_make(&alone[i], 2, NULL);
        REQUIRE(net_shard(&sharded[i], &options));
        CHECK(fsdp_wrapper_of(sharded[i].root)->mesh.gather == fsdp_wrapper_of(sharded[0].root)->mesh.gather);
        CHECK(fsdp_wrapper_of(sharded[i].root)->mesh.reduce == fsdp_wrapper_of(sharded[0].root)->mesh.reduce);
    }
    for (int step = 0; step < 5 && !test_has_failed(); step++) {
        struct net_sum sums[3] = {{.has_any = {false}}};
        shoal_tensor *x = net_input(step, self->rank);
        for (int i = 0; i < 3; i++) {
            x = shoal_module_call_one(sharded[i].root, x);
        }
        CHECK_OK(shoal_backward(net_loss_of(x), NULL));
        for (int part = 0; part < self->n_ranks; part++) {
            x = net_input(step, part);
            for (int i = 0; i < 3; i++) {
                x = shoal_module_call_one(alone[i].root, x);
            }
            CHECK_OK(shoal_backward(net_loss_of(x), NULL));
            for (int i = 0; i < 3; i++) {
                net_add_gradients(&alone[i], &sums[i]);
            }
        }
        for (int i = 0; i < 3; i++) {
            net_put_gradients(&alone[i], &sums[i], self->n_ranks);
            net_check_same(&sharded[i], &alone[i]);
            net_update(&sharded[i], 0.1F);
            net_update(&alone[i], 0.1F);
        }
    }
    for (int i = 0; i < 3; i++) {
        net_free(&sharded[i]);
        net_free(&alone[i]);
    }
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

/* Layers that are made, sharded and let go of one by one, so that memory is used again: no parameter is taken for
   another one. */
TEST_RANKS(sharded_layer_by_layer, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 0, NULL));
    for (int i = 0; i < 8; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "%d", i);
        for (int k = 0; k < 2; k++) {
            CHECK_OK(shoal_scope_begin());
            shoal_module *layer = net_make_layer((uint32_t)(11 + 10 * i));
            CHECK_OK(shoal_scope_end());
            CHECK(k == 1 || CHECK_OK(shoal_fully_shard(layer, &bench.options)));
            CHECK_OK(shoal_module_add_child(k == 0 ? bench.sharded.root : bench.alone.root, name, layer));
            shoal_module_unref(layer);
        }
    }
    REQUIRE_OK(shoal_fully_shard(bench.sharded.root, &bench.options));
    net_train_both(&bench.sharded, &bench.alone, net_pass, self, 3);
    bench_close(&bench);
}
