/* SPDX-License-Identifier: MIT */
/*
 * Modules that are dropped at some time in a step. What was recorded keeps what its backward pass needs, so that
 * gradients are right for whoever has the shards; and nothing is left when the record is gone (the harness counts
 * blocks).
 */
#include "fixtures/on_device.h"

#include "fixtures/fsdp_handles.h"
#include "fixtures/module_bench.h"

/* When the last reference to the net is given up. */
enum phase {
    BEFORE_FORWARD,
    IN_PRE_FORWARD, /* hooks of the net itself */
    IN_POST_FORWARD,
    AFTER_FORWARD,
    IN_BACKWARD_EARLY, /* a hook on what goes into the loss */
    IN_BACKWARD_LATE,  /* a hook on the input's gradient */
    AT_ITS_END,
    AFTER_BACKWARD,
    N_PHASES
};

enum ending {
    WALKED_BACK,
    NEVER_WALKED,
    WORLD_CLOSED, /* between forward and backward, or whatever is left of them */
    N_ENDINGS
};

static const char *const paths[] = {"scale", "0.weight", "0.bias", "1.weight", "1.bias"};

enum {
    N_PATHS = sizeof paths / sizeof paths[0]
};

static void drop(struct net *net)
{
    if (net->root) {
        net_free(net);
    }
}

static shoal_status drop_at_end(void *context)
{
    drop(context);
    return SHOAL_OK;
}

static shoal_tensor *drop_in_hook(void *context, shoal_tensor *gradient)
{
    (void)gradient;
    drop(context);
    return NULL;
}

static shoal_tensor *ask_for_end(void *context, shoal_tensor *gradient)
{
    (void)gradient;
    (void)CHECK_OK(shoal_on_backward_end(drop_at_end, context));
    return NULL;
}

static shoal_status drop_in_call(void *context, const shoal_forward_call *call)
{
    (void)call;
    drop(context);
    return SHOAL_OK;
}

static void drop_in_forward(struct net *net, enum phase phase)
{
    const shoal_module_hook_definition definition = {
        .struct_size = sizeof definition,
        .pre_forward = phase == IN_PRE_FORWARD ? drop_in_call : NULL,
        .post_forward = phase == IN_POST_FORWARD ? drop_in_call : NULL,
        .context = net};
    if (phase == IN_PRE_FORWARD || phase == IN_POST_FORWARD) {
        (void)CHECK_OK(shoal_module_add_hook(net->root, &definition, NULL));
    }
}

/* The net's shards, with a reference to each. */
static void keep_shards(const struct net *net, shoal_tensor **shards)
{
    for (int i = 0; i < N_PATHS; i++) {
        shards[i] = shoal_tensor_ref(shoal_module_parameter(net->root, paths[i]));
    }
}

static void forward(struct bench *bench, int part, enum phase phase, shoal_tensor **loss_out)
{
    shoal_tensor *x = net_input(0, part);
    (void)CHECK_OK(shoal_set_requires_grad(x, true));
    drop_in_forward(&bench->sharded, phase);
    shoal_tensor *out = shoal_module_call_one(bench->sharded.root, x);
    if (phase == IN_BACKWARD_EARLY) {
        (void)CHECK_OK(shoal_on_gradient(out, drop_in_hook, &bench->sharded, NULL));
    } else if (phase == IN_BACKWARD_LATE) {
        (void)CHECK_OK(shoal_on_gradient(x, drop_in_hook, &bench->sharded, NULL));
    } else if (phase == AT_ITS_END) {
        (void)CHECK_OK(shoal_on_gradient(out, ask_for_end, &bench->sharded, NULL));
    } else if (phase == AFTER_FORWARD) {
        drop(&bench->sharded);
    }
    *loss_out = net_loss_of(out);
}

/* Gradients of shards are parts of the gradients of the net that is not sharded. */
static void check_gradients(const struct bench *bench, shoal_tensor *const *shards, const int64_t *offsets)
{
    for (int i = 0; i < N_PATHS; i++) {
        const shoal_tensor *want = shoal_grad(shoal_module_parameter(bench->alone.root, paths[i]));
        const shoal_tensor *got = shoal_grad(shards[i]);
        REQUIRE(got && want);
        CHECK_BYTES(shoal_data(got), (const float *)shoal_data(want) + offsets[i],
                    (size_t)shoal_tensor_count(got) * sizeof(float));
    }
}

static void find_offsets(const struct bench *bench, int64_t *offsets)
{
    for (int i = 0; i < N_PATHS; i++) {
        int dim;
        int64_t length;
        (void)CHECK_OK(shard_place(bench->sharded.root, paths[i], &dim, &offsets[i], &length));
    }
}

static void walk_back(struct bench *bench, struct rank *self, shoal_tensor *loss, shoal_tensor *const *shards,
                      const int64_t *offsets)
{
    CHECK_OK(shoal_backward(loss, NULL));
    net_pass_alone(&bench->alone, net_pass, 0, self->n_ranks);
    check_gradients(bench, shards, offsets);
}

static void run_phase(struct bench *bench, struct rank *self, enum phase phase, enum ending ending)
{
    shoal_tensor *shards[N_PATHS];
    int64_t offsets[N_PATHS];
    shoal_tensor *loss = NULL;
    keep_shards(&bench->sharded, shards);
    find_offsets(bench, offsets);
    (void)CHECK_OK(shoal_scope_begin());
    if (phase == BEFORE_FORWARD) {
        drop(&bench->sharded);
    } else {
        forward(bench, self->rank, phase, &loss);
    }
    if (ending == WORLD_CLOSED) {
        (void)CHECK_OK(shoal_world_close(bench->world));
        bench->world = NULL;
    }
    if (loss && ending == WORLD_CLOSED) {
        (void)CHECK_STATUS(shoal_backward(loss, NULL), SHOAL_ERR_STATE);
        (void)CHECK_ERROR_TEXT("the world was closed");
    } else if (loss && ending == WALKED_BACK) {
        walk_back(bench, self, loss, shards, offsets);
    }
    drop(&bench->sharded); /* in case that no hook came to do it */
    (void)CHECK_OK(shoal_scope_end());
    for (int i = 0; i < N_PATHS; i++) {
        shoal_tensor_unref(shards[i]);
    }
}

static void check_phases(struct rank *self, shoal_reshard reshard)
{
    for (int i = 0; i < N_PHASES * N_ENDINGS && !test_has_failed(); i++) {
        struct bench bench;
        REQUIRE(bench_open(&bench, self, 2, NULL));
        bench.options.reshard = reshard;
        REQUIRE(net_shard(&bench.sharded, &bench.options));
        run_phase(&bench, self, (enum phase)(i % N_PHASES), (enum ending)(i / N_PHASES));
        net_free(&bench.alone);
        CHECK_OK(shoal_scope_end());
        CHECK_OK(shoal_world_close(bench.world));
    }
}

TEST_RANKS(at_any_phase, 2)
{
    check_phases(self, SHOAL_RESHARD_DEFAULT);
    check_phases(self, SHOAL_RESHARD_NEVER);
    check_phases(self, SHOAL_RESHARD_ALWAYS);
}

TEST_RANKS(at_any_phase_alone, 1)
{
    check_phases(self, SHOAL_RESHARD_DEFAULT);
}

/* After the first step, when units are gathered ahead. */
TEST_RANKS(in_the_middle_of_training, 3)
{
    struct bench bench;
    shoal_tensor *shards[N_PATHS];
    int64_t offsets[N_PATHS];
    shoal_tensor *loss;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    net_train_both(&bench.sharded, &bench.alone, net_pass, self, 2);
    keep_shards(&bench.sharded, shards);
    find_offsets(&bench, offsets);
    REQUIRE_OK(shoal_scope_begin());
    forward(&bench, self->rank, AFTER_FORWARD, &loss);
    walk_back(&bench, self, loss, shards, offsets);
    CHECK_OK(shoal_scope_end());
    for (int i = 0; i < N_PATHS; i++) {
        shoal_tensor_unref(shards[i]);
    }
    bench_close(&bench);
}

/* Somebody holds a layer: it shows its shard and cannot be called, before and after the backward pass. */
TEST_RANKS(a_layer_that_somebody_holds, 2)
{
    struct bench bench;
    shoal_tensor *loss;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    bench.options.reshard = SHOAL_RESHARD_NEVER;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    shoal_module *layer = shoal_module_ref(bench.sharded.layers[0]);
    shoal_tensor *shard = shoal_module_parameter(layer, "weight");
    forward(&bench, self->rank, AFTER_FORWARD, &loss);
    for (int i = 0; i < 2; i++) {
        CHECK(shoal_module_parameter(layer, "weight") == shard);
        REQUIRE_OK(shoal_scope_begin());
        CHECK(shoal_module_call_one(layer, net_input(0, 0)) == NULL);
        CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_STATE);
        CHECK_ERROR_TEXT("the root module that this module was sharded under was freed");
        CHECK_OK(i == 0 ? shoal_backward(loss, NULL) : SHOAL_OK);
        CHECK(shoal_grad(shard) != NULL);
    }
    shoal_module_unref(layer);
    bench_close(&bench);
}

/* Recorded twice: the first backward pass leaves what the second one needs. */
TEST_RANKS(two_backwards_after_the_module_is_gone, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    shoal_tensor *shard = shoal_tensor_ref(shoal_module_parameter(bench.sharded.root, "0.weight"));
    shoal_tensor *first = net_loss(&bench.sharded, net_input(0, self->rank));
    shoal_tensor *second = net_loss(&bench.sharded, net_input(0, self->rank));
    drop(&bench.sharded);
    CHECK_OK(shoal_backward(first, NULL));
    REQUIRE(shoal_grad(shard) != NULL);
    float once[NET_WIDTH] = {0};
    memcpy(once, shoal_data(shoal_grad(shard)), (size_t)shoal_tensor_count(shard) * sizeof(float));
    CHECK_OK(shoal_backward(second, NULL));
    const float *twice = shoal_data(shoal_grad(shard));
    for (int64_t i = 0; i < shoal_tensor_count(shard); i++) {
        CHECK_DOUBLE((double)twice[i], 2.0 * (double)once[i]);
    }
    shoal_tensor_unref(shard);
    bench_close(&bench);
}

/* A unit of two modules, of which one is dropped by whoever put them together. */
TEST_RANKS(one_module_of_a_unit, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    shoal_module *spare = net_make_layer(77);
    shoal_module *both[] = {bench.sharded.layers[0], spare};
    REQUIRE_OK(shoal_fully_shard_list(both, 2, &bench.options));
    REQUIRE_OK(shoal_fully_shard(bench.sharded.root, &bench.options));
    CHECK(net_pass(&bench.sharded, 0, self->rank));
    shoal_module_unref(spare);
    for (int step = 1; step < 3; step++) {
        CHECK(net_pass(&bench.sharded, step, self->rank));
    }
    bench_close(&bench);
}

/* A module that gives back its parameter: the record, not the parameter, keeps what is needed. */
static shoal_status give_parameter(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                   shoal_tensor **outputs, size_t n_outputs)
{
    (void)inputs;
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = shoal_module_parameter(module, "w");
    return SHOAL_OK;
}

TEST_RANKS(a_module_that_gives_its_parameter, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world && CHECK_OK(shoal_scope_begin()));
    shoal_fully_shard_options options = net_options(world);
    shoal_module *module = net_make_module("giver", give_parameter, NULL);
    CHECK_OK(shoal_module_add_parameter(module, "w", net_parameter(5, NET_WIDTH)));
    CHECK_OK(shoal_fully_shard(module, &options));
    for (int step = 0; step < 3; step++) {
        REQUIRE_OK(shoal_scope_begin());
        CHECK_OK(shoal_backward(net_loss_of(shoal_module_call_one(module, net_input(0, 0))), NULL));
        CHECK_OK(shoal_scope_end());
    }
    CHECK(shoal_grad(shoal_module_parameter(module, "w")) != NULL);
    shoal_module_unref(module);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}
