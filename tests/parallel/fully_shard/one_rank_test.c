/* SPDX-License-Identifier: MIT */
/*
 * One rank of several does something else than the others, or fails where they go on: the others are told, and do not
 * wait until their deadline, which would be another status. Models have one mesh, or an expert on pairs of ranks (layer 1) beside units on all ranks.
 */
#include "fixtures/on_device.h"

#include "base/error.h"
#include "fixtures/module_net.h"
#include "harness/harness.h"
#include "shoal/compile.h"

enum {
    N_LAYERS = 2,
    ODD_ONE = 1
};

struct stage {
    struct rank *self;
    shoal_world *world;
    shoal_group *pair;
    struct net net;
    shoal_compiled *compiled;
};

static bool is_odd(const struct stage *stage)
{
    return stage->self->rank == ODD_ONE;
}

static bool open_stage(struct stage *stage, struct rank *self, int round)
{
    *stage = (struct stage){.self = self, .world = rank_world_open(self, round)};
    if (!stage->world || !CHECK_OK(shoal_scope_begin()) ||
        !CHECK_OK(shoal_group_create_blocks(stage->world, 2, "expert", &stage->pair))) {
        return false;
    }
    net_make(&stage->net, N_LAYERS, NULL);
    return !test_has_failed();
}

static bool shard(struct stage *stage, bool has_expert)
{
    shoal_fully_shard_options all = net_options(stage->world);
    shoal_fully_shard_options expert = all;
    expert.group = has_expert ? stage->pair : all.group;
    return CHECK_OK(shoal_fully_shard(stage->net.layers[0], &all)) &&
           CHECK_OK(shoal_fully_shard(stage->net.layers[1], &expert)) &&
           CHECK_OK(shoal_fully_shard(stage->net.root, &all));
}

static void close_stage(struct stage *stage)
{
    test_barrier(stage->self);
    shoal_compiled_free(stage->compiled);
    net_free(&stage->net);
    (void)CHECK_OK(shoal_scope_end());
    (void)shoal_world_close(stage->world); /* lanes have failed */
}

static shoal_status run_eager(struct stage *stage)
{
    (void)CHECK_OK(shoal_scope_begin());
    shoal_status status = shoal_backward(net_loss(&stage->net, net_input(0, stage->self->rank)), NULL);
    shoal_status ended = shoal_scope_end();
    return status == SHOAL_OK ? ended : status;
}

/* Compiled steps ------------------------------------------------------------------------------------------- */

static shoal_status step(void *context, shoal_tensor *const *inputs, size_t n_inputs, shoal_tensor **outputs,
                         size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = net_loss(context, inputs[0]);
    return shoal_backward(outputs[0], NULL);
}

static shoal_status run_compiled(struct stage *stage)
{
    shoal_tensor *loss = NULL;
    (void)CHECK_OK(shoal_scope_begin());
    shoal_tensor *x = net_input(0, stage->self->rank);
    shoal_status status = shoal_compiled_run(stage->compiled, &x, 1, &loss, 1);
    shoal_tensor_unref(loss);
    (void)CHECK_OK(shoal_scope_end());
    return status;
}

/* What the odd rank does while the others run a step that all have run before. */
static shoal_status freeze_and_run(struct stage *stage)
{
    shoal_tensor *weight = shoal_module_parameter(stage->net.root, "0.weight");
    (void)CHECK_OK(shoal_set_requires_grad(weight, false));
    return run_compiled(stage);
}

static shoal_status set_and_run(struct stage *stage)
{
    (void)CHECK_OK(shoal_fsdp_set_divide_factor(shoal_fully_shard_unit(stage->net.layers[1], false), 3));
    return run_compiled(stage);
}

static shoal_status clip(struct stage *stage)
{
    shoal_fsdp *fsdp = NULL;
    (void)CHECK_OK(shoal_fully_shard_context(stage->net.root, &fsdp));
    return shoal_fsdp_clip_grad_norm(fsdp, 1, 2, false, NULL);
}

static shoal_status gather_by_hand(struct stage *stage)
{
    float full[NET_WIDTH];
    return shoal_fsdp_gather(shoal_fully_shard_param(stage->net.root, "1.weight"), full,
                             SHOAL_FSDP_ALL_RANKS);
}

static void differ_from_compiled(struct rank *self, bool has_expert)
{
    static shoal_status (*const deeds[])(struct stage * stage) = {run_eager, freeze_and_run, set_and_run,
                                                                  clip, gather_by_hand};
    for (size_t i = 0; i < sizeof deeds / sizeof deeds[0] && !test_has_failed(); i++) {
        struct stage stage;
        REQUIRE(open_stage(&stage, self, (int)i) && shard(&stage, has_expert));
        (void)CHECK_OK(shoal_compile(stage.world, step, &stage.net, 1, NULL, &stage.compiled));
        for (int run = 0; run < 2; run++) { /* the second finds gradients */
            (void)CHECK_OK(run_compiled(&stage));
        }
        (void)CHECK_OK(run_compiled(&stage));
        (void)CHECK_INT(is_odd(&stage) ? deeds[i](&stage) : run_compiled(&stage), SHOAL_ERR_MISMATCH);
        close_stage(&stage);
    }
}

TEST_RANKS(others_run_a_compiled_step, 2)
{
    TEST_NEEDS_HOST();
    differ_from_compiled(self, /*has_expert=*/false);
}

TEST_RANKS(others_run_a_compiled_step_on_several_meshes, 4)
{
    TEST_NEEDS_HOST();
    differ_from_compiled(self, /*has_expert=*/true);
}

/* Forward passes ------------------------------------------------------------------------------------------- */

struct broken {
    struct rank *self;
    bool is_on;
};

static shoal_status break_down(void *context, const shoal_forward_call *call)
{
    const struct broken *broken = context;
    (void)call;
    return broken->is_on ? error_set(SHOAL_ERR_INVALID, "rank %d is broken", broken->self->rank) : SHOAL_OK;
}

static void fail_forward(struct rank *self, bool has_expert)
{
    struct stage stage;
    struct broken broken = {.self = self};
    REQUIRE(open_stage(&stage, self, 0) && shard(&stage, has_expert));
    const shoal_module_hook_definition hook = {
        .struct_size = sizeof hook, .post_forward = break_down, .context = &broken};
    (void)CHECK_OK(shoal_module_add_hook(stage.net.layers[0], &hook, NULL));
    (void)CHECK_OK(run_eager(&stage));
    broken.is_on = true; /* on all ranks: nobody has to be told, and the next step works */
    (void)CHECK_STATUS(run_eager(&stage), SHOAL_ERR_INVALID);
    broken.is_on = false;
    (void)CHECK_OK(run_eager(&stage));
    broken.is_on = is_odd(&stage);
    (void)CHECK_INT(run_eager(&stage), is_odd(&stage) ? SHOAL_ERR_INVALID : SHOAL_ERR_MISMATCH);
    (void)CHECK_ERROR_TEXT("rank 1 is broken");
    close_stage(&stage);
}

TEST_RANKS(a_forward_pass_fails, 2)
{
    fail_forward(self, /*has_expert=*/false);
}

TEST_RANKS(a_forward_pass_fails_on_several_meshes, 4)
{
    fail_forward(self, /*has_expert=*/true);
}

/* First calls ---------------------------------------------------------------------------------------------- */

static void tie_on_one(struct rank *self, bool has_expert)
{
    struct stage stage;
    REQUIRE(open_stage(&stage, self, 0));
    if (is_odd(&stage)) {
        (void)CHECK_OK(shoal_module_set_parameter(stage.net.root, "1.bias",
                                                  shoal_module_parameter(stage.net.root, "0.bias")));
    }
    REQUIRE(shard(&stage, has_expert));
    (void)CHECK_INT(run_eager(&stage), is_odd(&stage) ? SHOAL_ERR_INVALID : SHOAL_ERR_MISMATCH);
    (void)CHECK_ERROR_TEXT("parameter 1.bias is in two units");
    close_stage(&stage);
}

TEST_RANKS(parameters_are_tied, 2)
{
    tie_on_one(self, /*has_expert=*/false);
}

TEST_RANKS(parameters_are_tied_on_several_meshes, 4)
{
    tie_on_one(self, /*has_expert=*/true);
}

/* Makes a root in which allocation `number` of the odd rank fails, if there are so many, and runs a step. Others may
   have made theirs before it failed. Returns whether it did. */
static bool make_root(struct rank *self, bool has_expert, size_t number)
{
    struct stage stage;
    shoal_fsdp *fsdp = NULL;
    bool *has_failed = self->shared;
    if (!open_stage(&stage, self, (int)number) || !shard(&stage, has_expert)) {
        return false;
    }
    test_barrier(self);
    test_fail_allocation(is_odd(&stage) ? number : 0, false);
    shoal_status status = shoal_fully_shard_context(stage.net.root, &fsdp);
    test_fail_allocation(0, false);
    if (is_odd(&stage)) {
        *has_failed = status != SHOAL_OK;
    }
    CHECK(!is_odd(&stage) || status == SHOAL_OK || status == SHOAL_ERR_NO_MEMORY);
    test_barrier(self);
    if (status == SHOAL_OK) {
        status = run_eager(&stage);
        CHECK(status == (*has_failed ? SHOAL_ERR_MISMATCH : SHOAL_OK));
    }
    CHECK(status == SHOAL_OK || status == SHOAL_ERR_NO_MEMORY || status == SHOAL_ERR_MISMATCH);
    if (status != SHOAL_OK) {
        (void)CHECK_ERROR_TEXT("no memory");
    }
    bool is_over = !*has_failed;
    close_stage(&stage);
    return !is_over;
}

/* Each of the first allocations, and then some of the rest. Threads share the allocator. */
static void run_out_of_memory(struct rank *self, bool has_expert)
{
    size_t number = 1;
    while (make_root(self, has_expert, number) && !test_has_failed()) {
        number += number < 40 ? 1 : 7;
    }
    CHECK(number > 40);
}

TEST_PROCESSES(memory_ends_in_a_first_call, 2)
{
    test_deadline(300);
    run_out_of_memory(self, /*has_expert=*/false);
}

TEST_PROCESSES(memory_ends_in_a_first_call_on_several_meshes, 4)
{
    test_deadline(600);
    run_out_of_memory(self, /*has_expert=*/true);
}
