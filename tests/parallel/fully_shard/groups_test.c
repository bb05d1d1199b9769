/* SPDX-License-Identifier: MIT */
/*
 * Units of several modules of which the net calls only some: layers 1 (a norm) and 2 (a head) are one unit; the net
 * calls layers 0 and 1, and the head is called outside of it, a few rows at a time, each with a backward pass of its
 * own. What comes out is what separate units give, and what one process gives.
 */
#include "fixtures/on_device.h"

#include "fixtures/fsdp_handles.h"
#include "fixtures/module_bench.h"
#include "harness/harness.h"

enum {
    NORM = 1,
    HEAD = 2,
    N_LAYERS = 3
};

static _Thread_local bool is_again; /* everything is computed again in backward */

static shoal_tensor *call(shoal_module *module, shoal_tensor *x)
{
    return is_again ? net_recompute(module, x) : shoal_module_call_one(module, x);
}

static shoal_tensor *without_head(shoal_module *root, shoal_tensor *x)
{
    return call(shoal_module_child(root, "1"), call(shoal_module_child(root, "0"), x));
}

/* Sharded with the norm and the head as one unit, or as two. */
static bool shard(struct net *net, const shoal_fully_shard_options *options, bool is_grouped)
{
    shoal_fully_shard_options outer = *options;
    if (options->output_dtype == SHOAL_F32) { /* casts are of the inner units */
        outer.param_dtype = outer.reduce_dtype = outer.output_dtype = 0;
    }
    return CHECK_OK(shoal_fully_shard(net->layers[0], options)) &&
           CHECK_OK(shoal_fully_shard_list(&net->layers[NORM], is_grouped ? 2 : 1, options)) &&
           (is_grouped || CHECK_OK(shoal_fully_shard(net->layers[HEAD], options))) &&
           CHECK_OK(shoal_fully_shard(net->root, &outer));
}

/* Chunks -------------------------------------------------------------------------------------------------- */

static float first_gradient(const struct net *net)
{
    const shoal_tensor *gradient = shoal_grad(shoal_module_parameter(net->layers[HEAD], "weight"));
    const float *values = gradient && shoal_tensor_count(gradient) > 0 ? shoal_data(gradient) : NULL;
    return values ? values[0] : 0.0F;
}

/* Of a net that is sharded and reduces: each chunk changes the gradient of the head. */
static bool pass_chunks_of(struct net *net, int step, int part, bool reduces)
{
    bool is_right = CHECK_OK(shoal_scope_begin());
    shoal_tensor *hidden = shoal_module_call_one(net->root, net_input(step, part));
    shoal_tensor *leaf = shoal_detach(hidden);
    is_right = CHECK_OK(shoal_set_requires_grad(leaf, true)) && is_right;
    bool is_checked = reduces && shoal_is_fully_sharded(net->root) &&
                      shoal_tensor_count(shoal_module_parameter(net->layers[HEAD], "weight")) > 0;
    for (int64_t row = 0; row < NET_BATCH; row++) {
        float before = first_gradient(net);
        shoal_tensor *out = call(net->layers[HEAD], shoal_narrow(leaf, 0, row, 1));
        is_right = CHECK_OK(shoal_backward(net_loss_of(out), NULL)) && is_right;
        CHECK(!is_checked || first_gradient(net) != before);
    }
    is_right = CHECK_OK(shoal_backward(hidden, shoal_grad(leaf))) && is_right;
    return CHECK_OK(shoal_scope_end()) && is_right;
}

static bool pass_chunks(struct net *net, int step, int part)
{
    return pass_chunks_of(net, step, part, true);
}

/* Three micro-batches of chunks, of which the last reduces; all but the last backward pass say that more follow. */
static bool pass_micro(struct net *net, int step, int part)
{
    bool is_right = true;
    for (int micro = 0; micro < 3; micro++) {
        if (shoal_is_fully_sharded(net->root)) {
            (void)CHECK_OK(shoal_fsdp_set_sync(shoal_fully_shard_unit(net->root, true), micro == 2));
            (void)CHECK_OK(shoal_fsdp_set_is_last_backward(fsdp_of_module(net->root), micro == 2));
        }
        is_right = pass_chunks_of(net, 10 * step + micro, part, micro == 2) && is_right;
    }
    return is_right;
}

static void tie(struct net *net)
{
    (void)CHECK_OK(
        shoal_module_set_parameter(net->root, "2.weight", shoal_module_parameter(net->root, "1.weight")));
}

static void train(struct rank *self, bool is_grouped, shoal_reshard reshard, bool is_tied, net_passer pass)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, N_LAYERS, without_head));
    bench.options.reshard = reshard;
    bench.options.reshard_ranks = 1;
    bench.sharded.is_near = true; /* chunks are reduced one by one */
    if (is_tied) {
        tie(&bench.sharded);
        tie(&bench.alone);
    }
    if (shard(&bench.sharded, &bench.options, is_grouped)) {
        net_train_both(&bench.sharded, &bench.alone, pass, self, 3);
    }
    bench_close(&bench);
}

static void train_all(struct rank *self, net_passer pass)
{
    static const shoal_reshard reshards[] = {SHOAL_RESHARD_DEFAULT, SHOAL_RESHARD_ALWAYS, SHOAL_RESHARD_NEVER,
                                             SHOAL_RESHARD_PARTLY};
    int stride = HARNESS_HAS_TSAN ? 5 : 1; /* every resharding once, with this and that */
    for (int i = 0; i < 16 && !test_has_failed(); i += stride) {
        is_again = i % 2 == 1;
        train(self, true, reshards[i / 4], i / 2 % 2 == 1, pass);
        train(self, false, reshards[i / 4], false, pass);
    }
    is_again = false;
}

TEST_RANKS(a_head_in_chunks, 2)
{
    train_all(self, pass_chunks);
}

TEST_RANKS(a_head_in_chunks_of_micro_batches, 3)
{
    train_all(self, pass_micro);
}

/* Halves --------------------------------------------------------------------------------------------------- */

/* A gradient and a whole parameter of one net are those of another that is sharded too. */
static shoal_status check_entry(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct net *const *nets = context;
    float full[2][64];
    (void)next;
    shoal_tensor *got = shoal_module_parameter(nets[0]->root, entry->path);
    shoal_tensor *want = shoal_module_parameter(nets[1]->root, entry->path);
    (void)CHECK_INT(shoal_tensor_dtype(got), SHOAL_F32);
    (void)CHECK_INT(shoal_grad(got) != NULL, shoal_grad(want) != NULL);
    if (shoal_grad(got) && shoal_grad(want)) {
        (void)CHECK_INT(shoal_tensor_dtype(shoal_grad(got)), SHOAL_F32);
        (void)CHECK_BYTES(shoal_data(shoal_grad(got)), shoal_data(shoal_grad(want)),
                          (size_t)shoal_tensor_count(shoal_grad(want)) * sizeof(float));
    }
    (void)CHECK_OK(shoal_fsdp_gather(shoal_fully_shard_param(nets[0]->root, entry->path), full[0],
                                     SHOAL_FSDP_ALL_RANKS));
    (void)CHECK_OK(shoal_fsdp_gather(shoal_fully_shard_param(nets[1]->root, entry->path), full[1],
                                     SHOAL_FSDP_ALL_RANKS));
    (void)CHECK_BYTES(full[0], full[1], (size_t)shoal_tensor_count(want) * sizeof(float));
    return test_has_failed() ? SHOAL_ERR_CANCELLED : SHOAL_OK;
}

/* Computed in bf16, one unit gives the bits of two. */
static void check_halves(struct rank *self, shoal_dtype output_dtype, shoal_reshard reshard, net_passer pass)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, N_LAYERS, without_head));
    bench.options.param_dtype = SHOAL_BF16;
    bench.options.reduce_dtype = SHOAL_F32;
    bench.options.output_dtype = output_dtype;
    bench.options.reshard = reshard;
    REQUIRE(shard(&bench.sharded, &bench.options, true) && shard(&bench.alone, &bench.options, false));
    struct net *nets[] = {&bench.sharded, &bench.alone};
    for (int step = 0; step < 3 && !test_has_failed(); step++) {
        for (int i = 0; i < 2; i++) {
            (void)pass(nets[i], step, self->rank);
        }
        CHECK_OK(shoal_module_walk(bench.alone.root, SHOAL_WALK_PARAMETERS, check_entry, nets));
        CHECK(shoal_grad(shoal_module_parameter(bench.sharded.layers[HEAD], "weight")) != NULL);
        net_update(&bench.sharded, 0.1F);
        net_update(&bench.alone, 0.1F);
    }
    bench_close(&bench);
}

TEST_RANKS(a_head_in_halves, 2)
{
    static const shoal_reshard reshards[] = {SHOAL_RESHARD_DEFAULT, SHOAL_RESHARD_ALWAYS,
                                             SHOAL_RESHARD_NEVER};
    for (int i = 0; i < 3; i++) {
        check_halves(self, SHOAL_BF16, reshards[i], pass_chunks);
        check_halves(self, SHOAL_F32, reshards[i], pass_chunks); /* of the inner units alone */
        check_halves(self, SHOAL_BF16, reshards[i], pass_micro);
        check_halves(self, SHOAL_F32, reshards[i], pass_micro);
    }
}

/* Casts ----------------------------------------------------------------------------------------------------- */

static _Thread_local shoal_dtype seen[2];

static shoal_status see(void *context, const shoal_forward_call *forward)
{
    *(shoal_dtype *)context = shoal_tensor_dtype(forward->inputs[0]);
    return SHOAL_OK;
}

/* What is f32 between the two is cast at the second one too, although the first began the unit's forward. */
static shoal_tensor *with_f32_between(shoal_module *root, shoal_tensor *x)
{
    x = shoal_to_dtype(net_call(root, "1", net_call(root, "0", x)), SHOAL_F32);
    return net_call(root, "2", x);
}

TEST_RANKS(inputs_of_each_module_are_cast, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, N_LAYERS, with_f32_between));
    bench.options.param_dtype = SHOAL_BF16;
    for (int i = 0; i < 2; i++) {
        const shoal_module_hook_definition hook = {
            .struct_size = sizeof hook, .pre_forward = see, .context = &seen[i]};
        CHECK_OK(shoal_module_add_hook(bench.sharded.layers[NORM + i], &hook, NULL));
    }
    REQUIRE(shard(&bench.sharded, &bench.options, true));
    for (int step = 0; step < 2; step++) {
        size_t n_parameters;
        seen[0] = seen[1] = 0;
        shoal_tensor *out = shoal_module_call_one(bench.sharded.root, net_input(step, self->rank));
        CHECK_INT(shoal_tensor_dtype(out), SHOAL_BF16);
        CHECK_INT(seen[0], SHOAL_BF16);
        CHECK_INT(seen[1], SHOAL_BF16);
        CHECK_OK(shoal_backward(net_loss_of(out), NULL));
        shoal_tensor *const *parameters = shoal_module_parameters(bench.sharded.root, &n_parameters);
        for (size_t i = 0; i < n_parameters; i++) {
            CHECK(shoal_grad(parameters[i]) != NULL);
        }
        net_update(&bench.sharded, 0.1F);
    }
    bench_close(&bench);
}

/* Keeping ---------------------------------------------------------------------------------------------------- */

/* While the chunks are computed the unit keeps its parameters; afterwards it gives them up. */
TEST_RANKS(kept_while_chunks_are_computed, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, N_LAYERS, without_head));
    bench.options.reshard = SHOAL_RESHARD_ALWAYS;
    bench.sharded.is_near = true;
    REQUIRE(shard(&bench.sharded, &bench.options, true));
    shoal_module *head = bench.sharded.layers[HEAD];
    for (int step = 0; step < 3; step++) {
        size_t n_parameters;
        shoal_tensor *hidden = shoal_module_call_one(bench.sharded.root, net_input(step, self->rank));
        shoal_tensor *leaf = shoal_detach(hidden);
        CHECK_OK(shoal_set_requires_grad(leaf, true));
        CHECK_OK(shoal_fsdp_set_reshard(shoal_fully_shard_unit(head, false), SHOAL_RESHARD_NEVER));
        CHECK_OK(shoal_fsdp_set_reshard_after_backward(shoal_fully_shard_unit(head, false), false));
        net_listen(&bench.sharded, "ur");
        for (int64_t row = 0; row < NET_BATCH; row++) {
            shoal_tensor *out = shoal_module_call_one(head, shoal_narrow(leaf, 0, row, 1));
            CHECK_OK(shoal_backward(net_loss_of(out), NULL));
            CHECK_INT(bench_unit(head)->state, FSDP_UNSHARDED);
            CHECK(shoal_tensor_count(shoal_module_parameter(head, "weight")) < NET_WIDTH);
        }
        /* Of the first chunk, whose backward pass thinks that of the root comes next. */
        CHECK_EVENTS(&bench.sharded, "u1 uR rR");
        CHECK_OK(shoal_fsdp_set_reshard(shoal_fully_shard_unit(head, false), SHOAL_RESHARD_ALWAYS));
        CHECK_OK(shoal_fsdp_set_reshard_after_backward(shoal_fully_shard_unit(head, false), true));
        CHECK_OK(shoal_fsdp_reshard(shoal_fully_shard_unit(head, false)));
        CHECK_EVENTS(&bench.sharded, "r1");
        CHECK_INT(bench_unit(head)->state, FSDP_SHARDED);
        CHECK_OK(shoal_backward(hidden, shoal_grad(leaf)));
        shoal_tensor *const *parameters = shoal_module_parameters(bench.sharded.root, &n_parameters);
        for (size_t i = 0; i < n_parameters; i++) {
            CHECK(shoal_grad(parameters[i]) != NULL);
        }
        net_pass_alone(&bench.alone, pass_chunks, step, self->n_ranks);
        net_check_same(&bench.sharded, &bench.alone);
        net_update(&bench.sharded, 0.1F);
        net_update(&bench.alone, 0.1F);
    }
    bench_close(&bench);
}
