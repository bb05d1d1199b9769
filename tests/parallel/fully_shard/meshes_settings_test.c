/* SPDX-License-Identifier: MIT */
/*
 * Settings, hooks and calls of programs whose model has an expert on pairs of ranks (layer 1) and a part with replicas
 * (layer 2) beside units on all ranks: what works on one mesh works here, and what fails on one rank is told to all.
 */
#include <math.h>

#include "fixtures/on_device.h"

#include "base/clock.h"
#include "base/error.h"
#include "fixtures/module_net.h"
#include "fixtures/reduced.h"
#include "harness/harness.h"

enum {
    N_LAYERS = 3
};

struct stage {
    struct rank *self;
    shoal_world *world;
    shoal_mesh *rows;
    shoal_group *pair;
    struct net net;
};

static bool open_world(struct stage *stage, struct rank *self)
{
    static const char *const names[] = {"replicas", "shards"};
    *stage = (struct stage){.self = self, .world = rank_world_open(self, 0)};
    return stage->world && CHECK_OK(shoal_scope_begin()) &&
           CHECK_OK(shoal_mesh_create(stage->world, "cpu", NULL, (const int[]){self->n_ranks / 2, 2}, 2,
                                      names, &stage->rows)) &&
           CHECK_OK(shoal_group_create_blocks(stage->world, 2, "expert", &stage->pair));
}

static bool shard(struct stage *stage, struct net *net)
{
    shoal_fully_shard_options all = net_options(stage->world);
    all.device = test_device(); /* of shards of parameters on the meta device */
    shoal_fully_shard_options pair = all;
    shoal_fully_shard_options rows = all;
    pair.group = stage->pair;
    rows.group = NULL;
    rows.mesh = stage->rows;
    return CHECK_OK(shoal_fully_shard(net->layers[0], &all)) &&
           CHECK_OK(shoal_fully_shard(net->layers[1], &pair)) &&
           CHECK_OK(shoal_fully_shard(net->layers[2], &rows)) && CHECK_OK(shoal_fully_shard(net->root, &all));
}

static bool open_stage(struct stage *stage, struct rank *self)
{
    if (!open_world(stage, self)) {
        return false;
    }
    net_make(&stage->net, N_LAYERS, NULL);
    return shard(stage, &stage->net);
}

static void close_stage(struct stage *stage, bool is_good)
{
    test_barrier(stage->self);
    net_free(&stage->net);
    shoal_mesh_free(stage->rows);
    (void)CHECK_OK(shoal_scope_end());
    shoal_status status = shoal_world_close(stage->world);
    CHECK(!is_good || status == SHOAL_OK);
}

static shoal_status step_of(struct stage *stage, struct net *net, int step)
{
    (void)CHECK_OK(shoal_scope_begin());
    shoal_status status = shoal_backward(net_loss(net, net_input(step, stage->self->rank)), NULL);
    shoal_status ended = shoal_scope_end();
    return status == SHOAL_OK ? ended : status;
}

static shoal_status step(struct stage *stage, int number)
{
    return step_of(stage, &stage->net, number);
}

static shoal_fsdp_unit *unit_of(struct stage *stage, int layer)
{
    return shoal_fully_shard_unit(layer < 0 ? stage->net.root : stage->net.layers[layer], false);
}

/* Two models ------------------------------------------------------------------------------------------------- */

/* Both have the same values. */
static void check_alike(struct net *one, struct net *other)
{
    static const char *const paths[] = {"scale", "0.weight", "1.weight", "2.weight"};
    float full[2][NET_WIDTH] = {{0}};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        (void)CHECK_OK(
            shoal_fsdp_gather(shoal_fully_shard_param(one->root, paths[i]), full[0], SHOAL_FSDP_ALL_RANKS));
        (void)CHECK_OK(
            shoal_fsdp_gather(shoal_fully_shard_param(other->root, paths[i]), full[1], SHOAL_FSDP_ALL_RANKS));
        (void)CHECK_BYTES(full[0], full[1], sizeof full[0]);
    }
}

TEST_RANKS(two_models_in_turn, 4)
{
    struct stage stage;
    struct net other;
    REQUIRE(open_stage(&stage, self));
    net_make(&other, N_LAYERS, NULL);
    REQUIRE(shard(&stage, &other));
    for (int i = 0; i < 3; i++) {
        (void)CHECK_OK(step(&stage, i));
        (void)CHECK_OK(step_of(&stage, &other, i));
        check_alike(&stage.net, &other);
        net_update(&stage.net, 0.1F);
        net_update(&other, 0.1F);
    }
    net_free(&other);
    (void)CHECK_OK(step(&stage, 4));
    close_stage(&stage, true);
}

/* One rank takes them in the other order. */
TEST_RANKS(two_models_in_another_order, 4)
{
    struct stage stage;
    struct net other;
    REQUIRE(open_stage(&stage, self));
    net_make(&other, N_LAYERS, NULL);
    REQUIRE(shard(&stage, &other));
    (void)CHECK_OK(step(&stage, 0));
    (void)CHECK_OK(step_of(&stage, &other, 0));
    struct net *first = self->rank == 3 ? &other : &stage.net;
    struct net *second = self->rank == 3 ? &stage.net : &other;
    shoal_status status = step_of(&stage, first, 1);
    status = status == SHOAL_OK ? step_of(&stage, second, 1) : status;
    (void)CHECK_INT(status, SHOAL_ERR_MISMATCH);
    test_barrier(self);
    net_free(&other);
    close_stage(&stage, false);
}

/* Settings --------------------------------------------------------------------------------------------------- */

TEST_RANKS(replicas_later, 4)
{
    struct stage stage;
    REQUIRE(open_stage(&stage, self));
    shoal_fsdp *fsdp = fsdp_of_module(stage.net.root);
    (void)CHECK_OK(shoal_fsdp_set_all_reduce(unit_of(&stage, 2), false));
    (void)CHECK_OK(step(&stage, 0));
    (void)CHECK_OK(shoal_fsdp_set_all_reduce(unit_of(&stage, 2), true));
    (void)CHECK_OK(step(&stage, 1));
    (void)CHECK_OK(shoal_fsdp_set_sync(shoal_fully_shard_unit(stage.net.root, true), false));
    (void)CHECK_OK(step(&stage, 2));
    (void)CHECK_OK(shoal_fsdp_synchronize(fsdp));
    (void)CHECK_OK(shoal_fsdp_set_sync(shoal_fully_shard_unit(stage.net.root, true), true));
    (void)CHECK_OK(shoal_fsdp_set_is_last_backward(fsdp, false));
    (void)CHECK_OK(step(&stage, 3));
    (void)CHECK_OK(shoal_fsdp_set_is_last_backward(fsdp, true));
    (void)CHECK_OK(step(&stage, 4));
    (void)CHECK_OK(shoal_fsdp_clip_grad_value(fsdp, 0.25));
    close_stage(&stage, true);
}

/* A setting that one rank of one pair changes. */
TEST_RANKS(one_rank_does_not_reduce, 4)
{
    struct stage stage;
    REQUIRE(open_stage(&stage, self));
    (void)CHECK_OK(step(&stage, 0));
    if (self->rank == 1) {
        (void)CHECK_OK(shoal_fsdp_set_sync(unit_of(&stage, 1), false));
    }
    (void)CHECK_INT(step(&stage, 1), SHOAL_ERR_MISMATCH);
    close_stage(&stage, false);
}

TEST_RANKS(one_rank_freezes_its_expert, 4)
{
    struct stage stage;
    REQUIRE(open_stage(&stage, self));
    (void)CHECK_OK(step(&stage, 0));
    bool is_frozen = self->rank == 2;
    for (int i = 0; i < 2 && is_frozen; i++) {
        (void)CHECK_OK(shoal_set_requires_grad(
            shoal_module_parameter(stage.net.layers[1], i == 0 ? "weight" : "bias"), false));
    }
    shoal_status status = step(&stage, 1);
    status = status == SHOAL_OK ? step(&stage, 2) : status;
    (void)CHECK_INT(status, SHOAL_ERR_MISMATCH);
    close_stage(&stage, false);
}

/* All ranks of one pair do: their expert gets no gradients, and is another one than the others'. */
TEST_RANKS(one_pair_freezes_one_parameter, 4)
{
    struct stage stage;
    REQUIRE(open_stage(&stage, self));
    (void)CHECK_OK(step(&stage, 0));
    if (self->rank < 2) {
        (void)CHECK_OK(shoal_set_requires_grad(shoal_module_parameter(stage.net.layers[1], "weight"), false));
    }
    (void)CHECK_OK(step(&stage, 1));
    (void)CHECK_OK(step(&stage, 2));
    close_stage(&stage, true);
}

TEST_RANKS(an_expert_that_only_some_use, 4)
{
    struct stage stage;
    REQUIRE(open_stage(&stage, self));
    (void)CHECK_OK(shoal_fsdp_set_reduce_unused(shoal_fully_shard_unit(stage.net.root, true), true));
    for (int i = 0; i < 3; i++) {
        (void)CHECK_OK(step(&stage, i));
        net_update(&stage.net, 0.1F);
    }
    close_stage(&stage, true);
}

/* By hand ---------------------------------------------------------------------------------------------------- */

TEST_RANKS(written_shards_are_gathered_again, 4)
{
    struct stage stage;
    float full[NET_WIDTH] = {0};
    REQUIRE(open_stage(&stage, self));
    (void)CHECK_OK(shoal_fsdp_unshard(unit_of(&stage, 1)));
    (void)CHECK_OK(shoal_fsdp_wait(unit_of(&stage, 1)));
    (void)CHECK_OK(shoal_fsdp_reshard(unit_of(&stage, 1)));
    (void)CHECK_OK(step(&stage, 0));
    if (self->rank == 3) { /* only this rank writes, and all look */
        shoal_tensor *weight = shoal_module_parameter(stage.net.layers[1], "weight");
        float *data = shoal_mutable_data(weight);
        data[0] = 77.0F;
    }
    (void)CHECK_OK(
        shoal_fsdp_gather(shoal_fully_shard_param(stage.net.root, "1.weight"), full, SHOAL_FSDP_ALL_RANKS));
    int n_written = 0;
    for (int i = 0; i < NET_WIDTH; i++) {
        n_written += full[i] == 77.0F;
    }
    (void)CHECK_INT(n_written, self->rank >= 2); /* the other pair has an expert of its own */
    (void)CHECK_OK(step(&stage, 1));
    close_stage(&stage, true);
}

/* Functions of the program ----------------------------------------------------------------------------------- */

static shoal_status halve(void *context, const shoal_reduced_gradients *reduced, shoal_work **work_out)
{
    const struct rank *failing = context;
    float *data = reduced_here(reduced).data;
    (void)work_out;
    if (failing) {
        return error_set(SHOAL_ERR_INVALID, "the hook of rank %d is out of order", failing->rank);
    }
    for (size_t i = 0; i < reduced->count; i++) {
        data[i] *= 0.5F;
    }
    return SHOAL_OK;
}

TEST_RANKS(a_hook_fails_on_one_rank, 4)
{
    struct stage stage;
    REQUIRE(open_stage(&stage, self));
    (void)CHECK_OK(shoal_fsdp_set_all_reduce_hook(unit_of(&stage, 1), halve, NULL));
    (void)CHECK_OK(step(&stage, 0));
    if (self->rank == 1) {
        (void)CHECK_OK(shoal_fsdp_set_all_reduce_hook(unit_of(&stage, 1), halve, self));
    }
    int64_t began_ns = clock_now_ns();
    shoal_status status = step(&stage, 1);
    (void)CHECK_INT(status, self->rank == 1 ? SHOAL_ERR_INVALID : SHOAL_ERR_MISMATCH);
    (void)CHECK_ERROR_TEXT("the hook of rank 1 is out of order");
    CHECK((double)(clock_now_ns() - began_ns) * 1e-9 < 10 * test_time_scale());
    close_stage(&stage, false);
}

/* Groups ----------------------------------------------------------------------------------------------------- */

/* The program aborts the group of one pair: all ranks of the model get an error. */
TEST_RANKS(a_group_is_aborted, 4)
{
    struct stage stage;
    REQUIRE(open_stage(&stage, self));
    (void)CHECK_OK(step(&stage, 0));
    test_barrier(self);
    if (self->rank == 3) {
        (void)CHECK_OK(shoal_group_abort(stage.pair, "enough"));
    }
    int64_t began_ns = clock_now_ns();
    shoal_status status = SHOAL_OK;
    for (int i = 1; i < 4 && status == SHOAL_OK; i++) {
        status = step(&stage, i);
    }
    CHECK(status != SHOAL_OK && status != SHOAL_ERR_TIMEOUT);
    CHECK((double)(clock_now_ns() - began_ns) * 1e-9 < 10 * test_time_scale());
    close_stage(&stage, false);
}

/* Groups and meshes of a model are held. */
TEST_RANKS(groups_are_held, 4)
{
    struct stage stage;
    REQUIRE(open_stage(&stage, self));
    shoal_mesh_free(stage.rows);
    stage.rows = NULL;
    (void)CHECK_OK(step(&stage, 0));
    (void)CHECK_STATUS(shoal_group_close(stage.pair), SHOAL_ERR_STATE);
    (void)CHECK_OK(step(&stage, 1));
    close_stage(&stage, true);
}

/* Shapes of models ---------------------------------------------------------------------------------------------- */

static shoal_tensor *call_again(shoal_module *root, shoal_tensor *x)
{
    for (int i = 0; i < N_LAYERS; i++) {
        char name[8];
        (void)snprintf(name, sizeof name, "%d", i);
        x = net_recompute(shoal_module_child(root, name), x);
    }
    return x;
}

/* Layers that are computed again in the backward pass are gathered again, in the order of the backward pass. */
TEST_RANKS(computed_again, 4)
{
    struct stage stage;
    struct net plain;
    REQUIRE(open_world(&stage, self));
    net_make(&stage.net, N_LAYERS, call_again);
    net_make(&plain, N_LAYERS, NULL);
    REQUIRE(shard(&stage, &stage.net) && shard(&stage, &plain));
    for (int i = 0; i < 3; i++) {
        (void)CHECK_OK(step(&stage, i));
        (void)CHECK_OK(step_of(&stage, &plain, i));
        net_update(&stage.net, 0.1F);
        net_update(&plain, 0.1F);
        check_alike(&stage.net, &plain);
    }
    net_free(&plain);
    close_stage(&stage, true);
}

/* Each rank has an expert of its own, which nobody shares: nothing of it is communicated. */
TEST_RANKS(experts_of_one_rank, 3)
{
    struct stage stage = {.self = self, .world = rank_world_open(self, 0)};
    shoal_group *alone = NULL;
    REQUIRE(stage.world && CHECK_OK(shoal_scope_begin()));
    REQUIRE_OK(shoal_group_create_blocks(stage.world, 1, "alone", &alone));
    net_make(&stage.net, N_LAYERS, NULL);
    shoal_fully_shard_options all = net_options(stage.world);
    shoal_fully_shard_options one = all;
    one.group = alone;
    REQUIRE_OK(shoal_fully_shard(stage.net.layers[1], &one));
    REQUIRE_OK(shoal_fully_shard(stage.net.root, &all));
    for (int i = 0; i < 3; i++) {
        double norm = 0.0;
        (void)CHECK_OK(step(&stage, i));
        (void)CHECK_OK(shoal_fsdp_clip_grad_norm(fsdp_of_module(stage.net.root), 0.5, 2.0, false, &norm));
        CHECK(norm > 0.0);
        net_update(&stage.net, 0.1F);
    }
    float mine[NET_WIDTH];
    float all_of[3][NET_WIDTH];
    (void)CHECK_OK(shoal_fsdp_gather(shoal_fully_shard_param(stage.net.root, "1.weight"), mine, 0));
    (void)CHECK_OK(
        shoal_group_all_gather(shoal_world_group(stage.world), mine, all_of, NET_WIDTH, SHOAL_F32));
    CHECK(memcmp(all_of[0], all_of[1], sizeof mine) != 0);
    close_stage(&stage, true);
}

/* Parameters on the meta device get their values from one rank, before there is a root. */
TEST_RANKS(values_from_one_rank, 4)
{
    struct stage stage;
    struct net whole;
    REQUIRE(open_world(&stage, self));
    net_make(&whole, N_LAYERS, NULL);
    net_make(&stage.net, N_LAYERS, NULL);
    for (int i = 0; i < N_LAYERS; i++) {
        shoal_tensor *meta = shoal_empty_on((const int64_t[]){NET_WIDTH}, 1, SHOAL_F32, SHOAL_META);
        (void)CHECK_OK(shoal_set_requires_grad(meta, true));
        (void)CHECK_OK(shoal_module_set_parameter(stage.net.layers[i], "weight", meta));
    }
    REQUIRE(shard(&stage, &stage.net));
    (void)CHECK_INT(step(&stage, 0), SHOAL_ERR_STATE); /* on all ranks */
    (void)CHECK_OK(shoal_fully_shard_broadcast_all(stage.net.root, self->rank == 1 ? whole.root : NULL, 1));
    net_check_same(&stage.net, &whole);
    (void)CHECK_OK(step(&stage, 0));
    net_free(&whole);
    close_stage(&stage, true);
}
