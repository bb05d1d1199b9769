/* SPDX-License-Identifier: MIT */
/* Modules that are sharded after their world was closed: shards can be read, everything else is an error. */
#include "fixtures/on_device.h"

#include "fixtures/fsdp_handles.h"
#include "fixtures/module_net.h"

/* How far the net got before the world was closed. */
enum stage {
    SHARDED,
    GATHERING, /* by hand, and nobody has waited */
    GATHERED,  /* somebody has */
    TRAINED,
    N_STAGES
};

static void advance(struct net *net, enum stage stage, int rank)
{
    if (stage == GATHERING || stage == GATHERED) {
        (void)CHECK_OK(shoal_fsdp_unshard(shoal_fully_shard_unit(net->root, false)));
        (void)CHECK_OK(stage == GATHERED ? shoal_fsdp_wait(shoal_fully_shard_unit(net->root, false))
                                         : SHOAL_OK);
    } else if (stage == TRAINED) {
        (void)net_pass(net, 0, rank);
    }
}

static shoal_status call(shoal_module *module)
{
    if (shoal_scope_begin() == SHOAL_OK) {
        CHECK(shoal_module_call_one(module, net_input(0, 0)) == NULL);
    }
    return shoal_scope_end();
}

#define CHECK_CLOSED(call)                              \
    do {                                                \
        (void)CHECK_STATUS((call), SHOAL_ERR_STATE);    \
        (void)CHECK_ERROR_TEXT("the world was closed"); \
    } while (0)

static shoal_status clip_all(shoal_fsdp *fsdp)
{
    return shoal_fsdp_clip_grad_norm(fsdp, 1.0, 2.0, false, NULL);
}

static void check_refused(shoal_module *root, shoal_module *layer, const shoal_module *whole)
{
    float full[NET_WIDTH] = {0};
    CHECK_CLOSED(call(root));
    CHECK_CLOSED(call(layer));
    CHECK_CLOSED(shoal_fsdp_unshard(shoal_fully_shard_unit(root, false)));
    CHECK_CLOSED(shoal_fsdp_wait(shoal_fully_shard_unit(root, false)));
    CHECK_CLOSED(shoal_fsdp_reshard(shoal_fully_shard_unit(layer, false)));
    CHECK_CLOSED(on_context(root, shoal_fsdp_zero_grad));
    CHECK_CLOSED(on_context(root, shoal_fsdp_reset));
    CHECK_CLOSED(on_context(root, shoal_fsdp_synchronize));
    CHECK_CLOSED(shoal_fsdp_set_sync(shoal_fully_shard_unit(root, true), true));
    CHECK_CLOSED(prefetch_modules(shoal_fsdp_set_forward_prefetch, root, &layer, 1));
    CHECK_CLOSED(on_context(root, clip_all));
    CHECK_CLOSED(shoal_fsdp_gather(shoal_fully_shard_param(root, "0.weight"), full, SHOAL_FSDP_ALL_RANKS));
    CHECK_CLOSED(shoal_fsdp_gather(shoal_fully_shard_param(root, "scale"), full, 0));
    CHECK_CLOSED(shoal_fsdp_load(shoal_fully_shard_param(root, "scale"), full));
    CHECK_CLOSED(shoal_fsdp_load_slice(shoal_fully_shard_param(root, "scale"), 0, 1, full));
    CHECK_CLOSED(shoal_fsdp_broadcast(shoal_fully_shard_param(root, "scale"), full, 0));
    CHECK_CLOSED(shoal_fully_shard_broadcast_all(root, whole, 0));
}

static void check_closed(struct rank *self, enum stage stage)
{
    struct net sharded;
    struct net alone;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world && CHECK_OK(shoal_scope_begin()));
    shoal_fully_shard_options options = net_options(world);
    net_make(&sharded, 1, NULL);
    net_make(&alone, 1, NULL);
    REQUIRE(net_shard(&sharded, &options));
    shoal_tensor *shard = shoal_module_parameter(sharded.root, "scale");
    advance(&sharded, stage, self->rank);
    CHECK_OK(shoal_world_close(world));
    check_refused(sharded.root, sharded.layers[0], alone.root);
    CHECK(shoal_module_parameter(sharded.root, "scale") == shard);
    net_check_shard(&sharded, "scale", shard, shoal_module_parameter(alone.root, "scale"));
    net_free(&sharded);
    net_free(&alone);
    CHECK_OK(shoal_scope_end());
}

TEST_RANKS(at_any_time, 2)
{
    for (int stage = 0; stage < N_STAGES && !test_has_failed(); stage++) {
        check_closed(self, (enum stage)stage);
    }
}

TEST_RANKS(at_any_time_alone, 1)
{
    for (int stage = 0; stage < N_STAGES && !test_has_failed(); stage++) {
        check_closed(self, (enum stage)stage);
    }
}

/* The layers of a world that was closed cannot be units of a root in another. */
TEST_RANKS(layers_of_another_world, 2)
{
    struct net net;
    shoal_world *worlds[] = {rank_world_open(self, 0), rank_world_open(self, 1)};
    REQUIRE(worlds[0] && worlds[1] && CHECK_OK(shoal_scope_begin()));
    shoal_fully_shard_options first = net_options(worlds[0]);
    shoal_fully_shard_options second = net_options(worlds[1]);
    net_make(&net, 1, NULL);
    CHECK_OK(shoal_fully_shard(net.layers[0], &first));
    CHECK_OK(shoal_fully_shard(net.root, &second));
    CHECK_OK(shoal_world_close(worlds[0]));
    CHECK_CLOSED(call(net.root));
    net_free(&net);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(worlds[1]));
}

/* Failed steps ------------------------------------------------------------------------------------------- */

/* What a rank's backward pass does after most layers. */
enum turn {
    GO_ON,
    FAIL,
    CLOSE
};

static _Thread_local enum turn turn;
static _Thread_local bool is_reversed;
static _Thread_local shoal_world *open_world;

static shoal_tensor *take_turn(void *context, shoal_tensor *gradient)
{
    (void)context;
    (void)gradient;
    if (turn == FAIL) {
        (void)shoal_scope_fail(SHOAL_ERR_UNSUPPORTED);
    } else if (turn == CLOSE) {
        CHECK_OK(shoal_world_close(open_world));
    }
    return NULL;
}

/* The layers in one order or the other. When the gradient of what the first gives comes, the others are reduced. */
static shoal_tensor *call_layers(shoal_module *root, shoal_tensor *x)
{
    static const char *const names[] = {"0", "1", "2"};
    for (int i = 0; i < 3; i++) {
        x = net_call(root, names[is_reversed ? 2 - i : i], x);
        if (i == 0 && x) {
            CHECK_OK(shoal_on_gradient(x, take_turn, NULL, NULL));
        }
    }
    return x;
}

/* A net whose last step took the turn of the rank; `loss` can be walked again. */
struct failed_step {
    struct net net;
    shoal_tensor *loss;
    shoal_status status;
};

static shoal_status walk_back(shoal_tensor *loss)
{
    const shoal_backward_options options = {.struct_size = sizeof options, .keeps_graph = true};
    return shoal_backward_roots(&loss, NULL, 1, &options);
}

static bool make_failed_step(struct failed_step *step, struct rank *self, shoal_sharded sharded,
                             enum turn last_turn)
{
    open_world = rank_world_open(self, 0);
    if (!open_world || !CHECK_OK(shoal_scope_begin())) {
        return false;
    }
    shoal_fully_shard_options options = net_options(open_world);
    options.sharded = sharded;
    options.max_reduces = 4;
    turn = GO_ON;
    is_reversed = false;
    net_make(&step->net, 3, call_layers);
    if (!net_shard(&step->net, &options) || !net_pass(&step->net, 0, self->rank)) {
        return false;
    }
    turn = last_turn;
    is_reversed = self->rank == 1 && last_turn == FAIL;
    step->loss = net_loss(&step->net, net_input(1, self->rank));
    step->status = walk_back(step->loss);
    return true;
}

/*
 * Whole parameters stay, so a forward pass gathers nothing, and ranks that call layers in another order find out only
 * by their reductions, for which nobody waits. The module is freed when the groups of these are gone.
 */
static void end_after_mismatch(struct rank *self, shoal_sharded sharded)
{
    struct failed_step step;
    REQUIRE(make_failed_step(&step, self, sharded, FAIL));
    CHECK(step.status != SHOAL_OK);
    test_barrier(self); /* both have started their reductions */
    CHECK_OK(shoal_world_close(open_world));
    net_free(&step.net);
    (void)!shoal_scope_end();
}

TEST_RANKS(freed_after_a_failed_step_of_zero_1, 2)
{
    end_after_mismatch(self, SHOAL_SHARDED_STATE);
}

TEST_RANKS(freed_after_a_failed_step_of_zero_2, 2)
{
    end_after_mismatch(self, SHOAL_SHARDED_GRADIENTS);
}

/* Gradients of a backward pass that failed are lost: another one does not go on where it stopped. */
TEST_RANKS(walked_again_after_a_failure, 2)
{
    struct failed_step step;
    REQUIRE(make_failed_step(&step, self, SHOAL_SHARDED_GRADIENTS, FAIL));
    turn = GO_ON;
    CHECK_STATUS(walk_back(step.loss), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("the last backward pass failed; call shoal_fsdp_reset first");
    test_barrier(self);
    CHECK_OK(shoal_world_close(open_world));
    CHECK_CLOSED(walk_back(step.loss));
    net_free(&step.net);
    (void)!shoal_scope_end();
}

/* All ranks close their worlds in a hook of the backward pass. */
TEST_RANKS(closed_in_a_backward_pass, 2)
{
    struct failed_step step;
    REQUIRE(make_failed_step(&step, self, SHOAL_SHARDED_PARAMETERS, CLOSE));
    CHECK_INT(step.status, SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("the world was closed");
    turn = GO_ON;
    CHECK_CLOSED(walk_back(step.loss));
    net_free(&step.net);
    (void)!shoal_scope_end();
}
