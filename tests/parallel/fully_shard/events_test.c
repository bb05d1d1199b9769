/* SPDX-License-Identifier: MIT */
/*
 * In which order modules that are sharded are gathered, given up and reduced. The lists are those of the specification:
 * "uR" the root is gathered, "u0" layer 0, "r0" it is given up, "p0" its backward pass is over.
 */
#include "fixtures/on_device.h"

#include "fixtures/fsdp_handles.h"
#include "fixtures/module_net.h"

struct bench {
    shoal_world *world;
    shoal_fully_shard_options options;
    struct net net;
};

/* Of the events, tests of backward want no reshards. */
#define ALL "urp"
#define NO_RESHARDS "up"

/* As in a transformer, the root has something before the layers: their inputs need gradients. */
static shoal_tensor *scaled_first(shoal_module *root, shoal_tensor *x)
{
    x = shoal_mul(x, shoal_module_parameter(root, "scale"));
    for (size_t i = 0; shoal_module_child_at(root, i, NULL) != NULL; i++) {
        x = shoal_module_call_one(shoal_module_child_at(root, i, NULL), x);
    }
    return x;
}

/* Without prefetch in forward, unless the test says so. */
static bool bench_open(struct bench *bench, struct rank *self, int n_layers, net_function function)
{
    *bench = (struct bench){.world = rank_world_open(self, 0)};
    if (!bench->world || !CHECK_OK(shoal_scope_begin())) {
        return false;
    }
    bench->options = net_options(bench->world);
    bench->options.forward_prefetch = -1;
    bench->options.reshard_ranks = 2;
    net_make(&bench->net, n_layers, function);
    return !test_has_failed();
}

static void bench_close(struct bench *bench)
{
    net_free(&bench->net);
    (void)CHECK_OK(shoal_scope_end());
    (void)CHECK_OK(shoal_world_close(bench->world));
}

/* One forward, one backward pass ------------------------------------------------------------------------- */

/* Every layer is computed again in backward. */
static shoal_tensor *scaled_first_again(shoal_module *root, shoal_tensor *x)
{
    x = shoal_mul(x, shoal_module_parameter(root, "scale"));
    for (size_t i = 0; shoal_module_child_at(root, i, NULL) != NULL; i++) {
        x = net_recompute(shoal_module_child_at(root, i, NULL), x);
    }
    return x;
}

static void check_step(struct rank *self, net_function function, shoal_reshard reshard,
                       const char *forward_list, const char *backward_list)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 3, function));
    bench.options.reshard = reshard;
    REQUIRE(net_shard(&bench.net, &bench.options));
    for (int step = 0; step < 3; step++) {
        net_listen(&bench.net, NO_RESHARDS);
        shoal_tensor *loss = net_loss(&bench.net, net_input(step, self->rank));
        CHECK_EVENTS(&bench.net, forward_list);
        CHECK_OK(shoal_backward(loss, NULL));
        CHECK_EVENTS(&bench.net, backward_list);
        net_update(&bench.net, 0.1F);
    }
    bench_close(&bench);
}

static void check_steps(struct rank *self, net_function function)
{
    const char *forward_list = "uR u0 u1 u2";
    const char *backward_list = "uR u2 u1 p2 u0 p1 p0 pR";
    check_step(self, function, SHOAL_RESHARD_ALWAYS, forward_list, backward_list);
    check_step(self, function, SHOAL_RESHARD_DEFAULT, forward_list, backward_list + strlen("uR "));
    check_step(self, function, SHOAL_RESHARD_NEVER, forward_list, "p2 p1 p0 pR");
    if (self->n_ranks == 4) {
        check_step(self, function, SHOAL_RESHARD_PARTLY, forward_list, backward_list);
    }
}

TEST_RANKS(steps_alone, 1)
{
    check_steps(self, scaled_first);
}

TEST_RANKS(steps_of_two, 2)
{
    check_steps(self, scaled_first);
}

TEST_RANKS(steps_of_four, 4)
{
    check_steps(self, scaled_first);
}

TEST_RANKS(computing_again_changes_nothing, 2)
{
    check_steps(self, scaled_first_again);
}

TEST_RANKS(computing_again_over_neighbours, 4)
{
    check_steps(self, scaled_first_again);
}

/* The first layer's input needs no gradient: its backward pass ends when all does, after that of the root. */
TEST_RANKS(first_layer_at_the_end, 2)
{
    check_step(self, NULL, SHOAL_RESHARD_ALWAYS, "uR u0 u1 u2", "uR u2 u1 p2 u0 p1 pR p0");
}

/* The whole net again, as one function. */
TEST_RANKS(the_root_again, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, scaled_first));
    bench.options.reshard = SHOAL_RESHARD_ALWAYS;
    REQUIRE(net_shard(&bench.net, &bench.options));
    for (int step = 0; step < 3; step++) {
        net_listen(&bench.net, ALL);
        shoal_tensor *loss = net_loss_of(net_recompute(bench.net.root, net_input(step, self->rank)));
        CHECK_EVENTS(&bench.net, "uR u0 r0 u1 r1 rR");
        CHECK_OK(shoal_backward(loss, NULL));
        CHECK_EVENTS(&bench.net, "uR u0 u1 p1 r1 p0 r0 pR rR");
        net_update(&bench.net, 0.1F);
    }
    bench_close(&bench);
}

/* Two forwards, one backward pass ------------------------------------------------------------------------ */

static void check_two_forwards(struct rank *self, shoal_reshard reshard, const char *forward_list,
                               const char *backward_list)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 3, scaled_first));
    bench.options.reshard = reshard;
    REQUIRE(net_shard(&bench.net, &bench.options));
    for (int step = 0; step < 3; step++) {
        net_listen(&bench.net, NO_RESHARDS);
        shoal_tensor *first = net_loss(&bench.net, net_input(step, self->rank));
        shoal_tensor *second = net_loss(&bench.net, net_input(step + 10, self->rank));
        CHECK_EVENTS(&bench.net, forward_list);
        CHECK_OK(shoal_backward(shoal_add(first, second), NULL));
        CHECK_EVENTS(&bench.net, backward_list);
        net_update(&bench.net, 0.1F);
    }
    bench_close(&bench);
}

TEST_RANKS(two_forwards, 2)
{
    check_two_forwards(self, SHOAL_RESHARD_ALWAYS, "uR u0 u1 u2 uR u0 u1 u2",
                       "uR u2 u1 p2 u0 p1 p0 u2 u1 p2 u0 p1 p0 pR");
    check_two_forwards(self, SHOAL_RESHARD_DEFAULT, "uR u0 u1 u2 u0 u1 u2",
                       "u2 u1 p2 u0 p1 p0 u2 u1 p2 u0 p1 p0 pR");
    check_two_forwards(self, SHOAL_RESHARD_NEVER, "uR u0 u1 u2", "p2 p1 p0 u2 u1 p2 u0 p1 p0 pR");
}

/* Prefetching -------------------------------------------------------------------------------------------- */

static void check_forward(struct bench *bench, struct rank *self, int step, const char *forward_list,
                          const char *backward_list)
{
    net_listen(&bench->net, ALL);
    shoal_tensor *loss = net_loss(&bench->net, net_input(step, self->rank));
    CHECK_EVENTS(&bench->net, forward_list);
    net_listen(&bench->net, NO_RESHARDS);
    CHECK_OK(shoal_backward(loss, NULL));
    CHECK_EVENTS(&bench->net, backward_list);
}

static const char *const forward_ahead[] = {"uR u0 r0 u1 r1 u2 r2 u3 r3 rR", "uR u0 u1 r0 u2 r1 u3 r2 r3 rR",
                                            "uR u0 u1 u2 r0 u3 r1 r2 r3 rR"};
static const char *const backward_of_four = "uR u3 u2 p3 u1 p2 u0 p1 p0 pR";

/* The order of the last step says what comes next. */
TEST_RANKS(forward_prefetch, 2)
{
    for (int ahead = 0; ahead <= 2; ahead++) {
        struct bench bench;
        REQUIRE(bench_open(&bench, self, 4, scaled_first));
        bench.options.reshard = SHOAL_RESHARD_ALWAYS;
        bench.options.forward_prefetch = ahead == 0 ? -1 : ahead;
        REQUIRE(net_shard(&bench.net, &bench.options));
        for (int step = 0; step < 3; step++) {
            check_forward(&bench, self, step, forward_ahead[step == 0 ? 0 : ahead], backward_of_four);
        }
        bench_close(&bench);
    }
}

/* Lists of the program's say it from the first step on. */
TEST_RANKS(forward_lists, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 4, scaled_first));
    bench.options.reshard = SHOAL_RESHARD_ALWAYS;
    REQUIRE(net_shard(&bench.net, &bench.options));
    for (int ahead = 1; ahead <= 2; ahead++) {
        for (int i = 0; i < 3; i++) {
            CHECK_OK(prefetch_modules(shoal_fsdp_set_forward_prefetch, bench.net.layers[i],
                                      &bench.net.layers[i + 1], i == 2 ? 1 : (size_t)ahead));
        }
        check_forward(&bench, self, ahead, forward_ahead[ahead], backward_of_four);
    }
    for (int i = 0; i < 3; i++) {
        CHECK_OK(prefetch_modules(shoal_fsdp_set_forward_prefetch, bench.net.layers[i], NULL, 0));
    }
    check_forward(&bench, self, 3, forward_ahead[0], backward_of_four);
    bench_close(&bench);
}

TEST_RANKS(backward_lists, 2)
{
    static const char *const lists[] = {NULL, "uR u3 u2 p3 u1 p2 u0 p1 p0 pR",
                                        "uR u3 u2 u1 p3 u0 p2 p1 p0 pR"};
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 4, scaled_first));
    bench.options.reshard = SHOAL_RESHARD_ALWAYS;
    REQUIRE(net_shard(&bench.net, &bench.options));
    for (int ahead = 1; ahead <= 2; ahead++) {
        for (int i = 3; i > 0; i--) {
            shoal_module *const before[] = {bench.net.layers[i - 1], bench.net.layers[i > 1 ? i - 2 : 0]};
            CHECK_OK(prefetch_modules(shoal_fsdp_set_backward_prefetch, bench.net.layers[i], before,
                                      i == 1 ? 1 : (size_t)ahead));
        }
        check_forward(&bench, self, ahead, forward_ahead[0], lists[ahead]);
    }
    bench_close(&bench);
}

/* A second backward pass over the same record has no order to go by; the list is still there. */
TEST_RANKS(backward_list_of_a_record_that_is_kept, 2)
{
    const shoal_backward_options keeps = {.struct_size = sizeof keeps, .keeps_graph = true};
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 3, scaled_first));
    bench.options.reshard = SHOAL_RESHARD_ALWAYS;
    REQUIRE(net_shard(&bench.net, &bench.options));
    shoal_module *const before[] = {bench.net.layers[1], bench.net.layers[0]};
    CHECK_OK(prefetch_modules(shoal_fsdp_set_backward_prefetch, bench.net.layers[2], before, 2));
    shoal_tensor *loss = net_loss(&bench.net, net_input(0, self->rank));
    net_listen(&bench.net, NO_RESHARDS);
    CHECK_OK(shoal_backward_roots(&loss, NULL, 1, &keeps));
    CHECK_EVENTS(&bench.net, "uR u2 u1 u0 p2 p1 p0 pR");
    CHECK_OK(shoal_backward(loss, NULL));
    CHECK_EVENTS(&bench.net, "uR u2 u1 u0 p2 p1 p0 pR");
    bench_close(&bench);
}

/* Something whose backward pass is over is gathered: nobody comes for it, and nothing is spoilt. */
TEST_RANKS(backward_list_of_a_layer_that_is_done, 3)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 3, scaled_first));
    bench.options.reshard = SHOAL_RESHARD_ALWAYS;
    REQUIRE(net_shard(&bench.net, &bench.options));
    CHECK_OK(
        prefetch_modules(shoal_fsdp_set_backward_prefetch, bench.net.layers[0], &bench.net.layers[2], 1));
    for (int step = 0; step < 3; step++) {
        net_listen(&bench.net, ALL);
        shoal_tensor *loss = net_loss(&bench.net, net_input(step, self->rank));
        net_listen(&bench.net, ALL);
        CHECK_OK(shoal_backward(loss, NULL));
        CHECK_EVENTS(&bench.net, "uR u2 u1 p2 r2 u0 p1 r1 u2 p0 r0 pR rR r2");
    }
    bench_close(&bench);
}

/* Evaluation leaves no traces in the order of the next backward pass, and the list does not grow. */
TEST_RANKS(evaluation, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 3, scaled_first));
    bench.options.reshard = SHOAL_RESHARD_ALWAYS;
    bench.options.forward_prefetch = 1;
    REQUIRE(net_shard(&bench.net, &bench.options));
    for (int step = 0; step < 40; step++) {
        CHECK_OK(shoal_scope_begin());
        CHECK_OK(shoal_scope_set_grad(false));
        net_listen(&bench.net, NO_RESHARDS);
        (void)shoal_module_call_one(bench.net.root, net_input(step, self->rank));
        CHECK_EVENTS(&bench.net, "uR u0 u1 u2");
        CHECK_OK(shoal_scope_end());
    }
    CHECK(fsdp_wrapper_of(bench.net.root)->root->context->passes.order.capacity < 20);
    CHECK(fsdp_wrapper_of(bench.net.root)->root->context->passes.forwards.capacity < 20);
    shoal_tensor *loss = net_loss(&bench.net, net_input(0, self->rank));
    CHECK_OK(shoal_scope_begin());
    CHECK_OK(shoal_scope_set_grad(false));
    (void)shoal_module_call_one(bench.net.root, net_input(1, self->rank));
    CHECK_OK(shoal_scope_end());
    net_listen(&bench.net, NO_RESHARDS);
    CHECK_OK(shoal_backward(loss, NULL));
    CHECK_EVENTS(&bench.net, "uR u2 u1 p2 u0 p1 p0 pR");
    bench_close(&bench);
}

/* Modules used otherwise --------------------------------------------------------------------------------- */

static shoal_tensor *first_twice(shoal_module *root, shoal_tensor *x)
{
    x = shoal_mul(x, shoal_module_parameter(root, "scale"));
    return net_call(root, "0", net_call(root, "1", net_call(root, "0", x)));
}

TEST_RANKS(a_layer_that_is_used_twice, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, first_twice));
    bench.options.reshard = SHOAL_RESHARD_ALWAYS;
    REQUIRE(net_shard(&bench.net, &bench.options));
    for (int step = 0; step < 2; step++) {
        check_forward(&bench, self, step, "uR u0 r0 u1 r1 u0 r0 rR", "uR u0 u1 p0 u0 p1 p0 pR");
    }
    bench_close(&bench);
}

static shoal_status two_branches(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                 shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    shoal_tensor *x = shoal_mul(inputs[0], shoal_module_parameter(module, "scale"));
    x = net_call(module, "0", x);
    outputs[0] = net_call(module, "1", x);
    outputs[1] = net_call(module, "2", x);
    return SHOAL_OK;
}

static void make_two_branches(struct net *net)
{
    const shoal_module_definition definition = {
        .struct_size = sizeof definition, .type = "branches", .forward = two_branches, .n_outputs = 2};
    *net = (struct net){.n_layers = 3};
    CHECK_OK(shoal_module_create(&definition, &net->root));
    CHECK_OK(shoal_module_add_parameter(net->root, "scale", net_parameter(7, NET_WIDTH)));
    for (int i = 0; i < 3; i++) {
        net->layers[i] = net_make_layer((uint32_t)(10 * i));
        CHECK_OK(shoal_module_add_child(net->root, (const char *[]){"0", "1", "2"}[i], net->layers[i]));
        shoal_module_unref(net->layers[i]);
    }
}

/* Backward of one branch, then of the other: what was gathered for nothing the first time is used the second time. */
TEST_RANKS(two_backwards, 2)
{
    struct bench bench;
    const shoal_backward_options keeps = {.struct_size = sizeof keeps, .keeps_graph = true};
    REQUIRE(bench_open(&bench, self, 1, NULL));
    net_free(&bench.net);
    make_two_branches(&bench.net);
    REQUIRE(net_shard(&bench.net, &bench.options));
    for (int step = 0; step < 3; step++) {
        shoal_tensor *outs[2];
        shoal_tensor *x = net_input(step, self->rank);
        net_listen(&bench.net, NO_RESHARDS);
        CHECK_OK(shoal_module_call(bench.net.root, &x, 1, outs, 2));
        CHECK_EVENTS(&bench.net, "uR u0 u1 u2");
        CHECK_OK(shoal_fsdp_set_is_last_backward(fsdp_of_module(bench.net.root), false));
        shoal_tensor *second = net_loss_of(outs[1]);
        CHECK_OK(shoal_backward_roots(&second, NULL, 1, &keeps));
        CHECK_EVENTS(&bench.net, "u2 u1 p2 u0 p0 pR");
        CHECK_OK(shoal_fsdp_set_is_last_backward(fsdp_of_module(bench.net.root), true));
        CHECK_OK(shoal_backward(net_loss_of(outs[0]), NULL));
        CHECK_EVENTS(&bench.net,
                     "u0 uR p1 p0 pR"); /* the root hands out what layer 1 gave: that comes first */
        net_update(&bench.net, 0.1F);
    }
    bench_close(&bench);
}

/* Several modules as one unit ---------------------------------------------------------------------------- */

/* {0, 1}, {2, 3}, the root. */
static bool shard_pairs(struct bench *bench)
{
    return CHECK_OK(shoal_fully_shard_list(&bench->net.layers[0], 2, &bench->options)) &&
           CHECK_OK(shoal_fully_shard_list(&bench->net.layers[2], 2, &bench->options)) &&
           CHECK_OK(shoal_fully_shard(bench->net.root, &bench->options));
}

TEST_RANKS(pairs, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 4, scaled_first));
    bench.options.reshard = SHOAL_RESHARD_ALWAYS;
    REQUIRE(shard_pairs(&bench));
    for (int step = 0; step < 3; step++) {
        check_forward(&bench, self, step, "uR u0 r0 u2 r2 rR", "uR u2 u0 p2 p0 pR");
        net_update(&bench.net, 0.1F);
    }
    bench_close(&bench);
}

static shoal_tensor *without_1_and_3(shoal_module *root, shoal_tensor *x)
{
    return net_call(root, "2", net_call(root, "0", x));
}

/* One module of each unit is never called: the root ends them. */
TEST_RANKS(pairs_with_one_unused, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 4, without_1_and_3));
    REQUIRE(shard_pairs(&bench));
    for (int step = 0; step < 3; step++) {
        check_forward(&bench, self, step, "uR u0 u2 r0 r2", "u2 u0 p2 pR p0");
        net_update(&bench.net, 0.1F);
    }
    bench_close(&bench);
}

/* One of them alone, after the root: each call is a forward of its own. */
TEST_RANKS(pairs_one_by_one, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 4, without_1_and_3));
    REQUIRE(shard_pairs(&bench));
    for (int step = 0; step < 2; step++) {
        net_listen(&bench.net, ALL);
        shoal_tensor *x = shoal_module_call_one(bench.net.root, net_input(step, self->rank));
        CHECK_EVENTS(&bench.net, "uR u0 u2 r0 r2");
        shoal_tensor *y = shoal_module_call_one(bench.net.layers[3], x);
        CHECK_EVENTS(&bench.net, "u2 r2");
        shoal_tensor *z = shoal_module_call_one(bench.net.layers[3], x);
        CHECK_EVENTS(&bench.net, "u2 r2");
        CHECK_OK(shoal_backward(shoal_add(net_loss_of(y), net_loss_of(z)), NULL));
        CHECK(shoal_grad(shoal_module_parameter(bench.net.layers[3], "weight")) != NULL);
        net_update(&bench.net, 0.1F);
    }
    bench_close(&bench);
}

/* By hand ------------------------------------------------------------------------------------------------ */

TEST_RANKS(gathered_and_given_up_by_hand, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, scaled_first));
    bench.options.reshard = SHOAL_RESHARD_NEVER;
    REQUIRE(net_shard(&bench.net, &bench.options));
    net_listen(&bench.net, ALL);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(shoal_fsdp_unshard(shoal_fully_shard_unit(bench.net.layers[i], false)));
        CHECK_OK(shoal_fsdp_unshard(shoal_fully_shard_unit(bench.net.layers[i], false)));
    }
    CHECK_OK(shoal_fsdp_wait(shoal_fully_shard_unit(bench.net.layers[1], false)));
    CHECK_OK(shoal_fsdp_wait(shoal_fully_shard_unit(bench.net.layers[1], false)));
    CHECK_EVENTS(&bench.net, "u0 u1");
    CHECK_INT(shoal_tensor_count(shoal_module_parameter(bench.net.layers[1], "weight")), NET_WIDTH);
    shoal_tensor *loss = net_loss(&bench.net, net_input(0, self->rank));
    CHECK_EVENTS(&bench.net, "uR");
    CHECK_OK(shoal_fsdp_reshard(shoal_fully_shard_unit(bench.net.root, false)));
    CHECK_OK(shoal_fsdp_reshard(shoal_fully_shard_unit(bench.net.layers[0], false)));
    CHECK_OK(shoal_fsdp_reshard(shoal_fully_shard_unit(bench.net.layers[1], false)));
    CHECK_OK(shoal_fsdp_reshard(shoal_fully_shard_unit(bench.net.layers[1], false)));
    CHECK_EVENTS(&bench.net, "rR r0 r1");
    CHECK_OK(shoal_backward(loss, NULL));
    CHECK_EVENTS(&bench.net, "uR u1 u0 p1 r1 p0 r0 pR rR");
    bench_close(&bench);
}

TEST_RANKS(resharding_changed_between_steps, 2)
{
    static const char *const forward_list = "uR u0 u1 u2";
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 3, scaled_first));
    bench.options.reshard = SHOAL_RESHARD_NEVER;
    REQUIRE(net_shard(&bench.net, &bench.options));
    struct {
        bool after_forward;
        bool is_deep;
        const char *backward_list;
    } const rows[] = {{true, false, "uR p2 p1 p0 pR"},
                      {true, true, "uR u2 u1 p2 u0 p1 p0 pR"},
                      {false, false, "u2 u1 p2 u0 p1 p0 pR"},
                      {false, true, "p2 p1 p0 pR"}};
    for (int step = 0; step < 4; step++) {
        CHECK_OK(
            shoal_fsdp_set_reshard(shoal_fully_shard_unit(bench.net.root, rows[step].is_deep),
                                   rows[step].after_forward ? SHOAL_RESHARD_ALWAYS : SHOAL_RESHARD_NEVER));
        net_listen(&bench.net, NO_RESHARDS);
        shoal_tensor *loss = net_loss(&bench.net, net_input(step, self->rank));
        CHECK_EVENTS(&bench.net, forward_list);
        CHECK_OK(shoal_backward(loss, NULL));
        CHECK_EVENTS(&bench.net, rows[step].backward_list);
        net_update(&bench.net, 0.1F);
    }
    /* What stays after backward is there for the next forward. */
    CHECK_OK(shoal_fsdp_set_reshard_after_backward(shoal_fully_shard_unit(bench.net.root, true), false));
    shoal_tensor *loss = net_loss(&bench.net, net_input(4, self->rank));
    CHECK_OK(shoal_backward(loss, NULL));
    net_listen(&bench.net, ALL);
    CHECK_OK(shoal_fsdp_set_reshard_after_backward(shoal_fully_shard_unit(bench.net.root, true), true));
    loss = net_loss(&bench.net, net_input(5, self->rank));
    CHECK_EVENTS(&bench.net, "");
    CHECK_OK(shoal_backward(loss, NULL));
    CHECK_EVENTS(&bench.net, "p2 r2 p1 r1 p0 r0 pR rR");
    bench_close(&bench);
}

/* No unit gave up its parameters when the sizes of windows were chosen. */
TEST_RANKS(resharding_after_nobody_did, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    REQUIRE_OK(shoal_fully_shard(bench.net.root, &bench.options));
    CHECK_OK(shoal_fsdp_zero_grad(fsdp_of_module(bench.net.root)));
    CHECK_OK(shoal_fsdp_set_reshard(shoal_fully_shard_unit(bench.net.root, true), SHOAL_RESHARD_ALWAYS));
    for (int step = 0; step < 2; step++) {
        check_forward(&bench, self, step, "uR rR", "uR pR");
        CHECK(shoal_grad(shoal_module_parameter(bench.net.root, "0.weight")) != NULL);
    }
    bench_close(&bench);
}

/* The first layer's parameters are not needed for the gradients of its parameters. */
TEST_RANKS(not_gathered_for_backward, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 3, NULL));
    bench.options.reshard = SHOAL_RESHARD_ALWAYS;
    REQUIRE(net_shard(&bench.net, &bench.options));
    CHECK_OK(shoal_fsdp_set_unshard_in_backward(shoal_fully_shard_unit(bench.net.layers[0], false), false));
    for (int step = 0; step < 2; step++) {
        check_forward(&bench, self, step, "uR u0 r0 u1 r1 u2 r2 rR", "uR u2 u1 p2 p1 pR p0");
        CHECK(shoal_grad(shoal_module_parameter(bench.net.layers[0], "weight")) != NULL);
        net_update(&bench.net, 0.1F);
    }
    bench_close(&bench);
}
