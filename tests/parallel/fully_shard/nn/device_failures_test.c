/* SPDX-License-Identifier: MIT */
/*
 * A device that fails at any of its calls, or has no memory for any allocation, while sharded modules are made, trained
 * and freed: an error that names the device each time, and nothing of its memory is lost.
 */
#include "fixtures/test_device.h"

#include "fixtures/rank_world.h"
#include "harness/harness.h"
#include "shoal/autograd.h"
#include "shoal/fully_shard.h"
#include "shoal/module.h"
#include "shoal/ops.h"
#include "shoal/scope.h"
#include "shoal/update.h"
#include "shoal_nn/optim.h"

enum {
    WIDTH = 5,
    N_STEPS = 2,
    CALLS_MOST = 5000
};

#define THEN(status, call) ((status) = (status) == SHOAL_OK ? (call) : (status))

static shoal_status or_scope_error(const void *made)
{
    return made ? SHOAL_OK : shoal_scope_error();
}

static shoal_status layer_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                  shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = shoal_mul(inputs[0], shoal_module_parameter(module, "weight"));
    return or_scope_error(outputs[0]);
}

static shoal_status root_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                 shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    shoal_tensor *x = shoal_module_call_one(shoal_module_child(module, "layer"), inputs[0]);
    outputs[0] = x ? shoal_add(x, shoal_module_parameter(module, "weight")) : NULL;
    return or_scope_error(outputs[0]);
}

/* A module with one parameter. */
static shoal_status make(shoal_module_forward forward, shoal_module **module_out)
{
    const shoal_module_definition definition = {
        .struct_size = sizeof definition, .type = "layer", .forward = forward};
    shoal_status status = shoal_module_create(&definition, module_out);
    shoal_tensor *weight = status == SHOAL_OK ? test_full((int64_t[]){WIDTH}, 1, 2, SHOAL_F32) : NULL;
    THEN(status, or_scope_error(weight));
    THEN(status, shoal_set_requires_grad(weight, true));
    THEN(status, shoal_module_add_parameter(*module_out, "weight", weight));
    return status;
}

struct life {
    shoal_group *group;
    shoal_module *root;
    shoal_module *layer;
    shoal_nn_optimizer *adamw;
};

static shoal_status build(struct life *life)
{
    const shoal_fully_shard_options options = {.struct_size = sizeof options,
                                               .group = life->group,
                                               .param_dtype = SHOAL_BF16,
                                               .reduce_dtype = SHOAL_F32};
    shoal_status status = make(root_forward, &life->root);
    THEN(status, make(layer_forward, &life->layer));
    THEN(status, shoal_module_add_child(life->root, "layer", life->layer));
    THEN(status, shoal_fully_shard(life->layer, &options));
    THEN(status, shoal_fully_shard(life->root, &options));
    THEN(status, shoal_nn_adamw_create_for(life->root, NULL, NULL, 0, &life->adamw));
    return status;
}

static shoal_status pass(struct life *life)
{
    shoal_tensor *out = NULL;
    shoal_tensor *x = test_full((int64_t[]){3, WIDTH}, 2, 1, SHOAL_BF16);
    shoal_status status = or_scope_error(x);
    THEN(status, shoal_module_call(life->root, &x, 1, &out, 1));
    shoal_tensor *loss = status == SHOAL_OK ? shoal_sum(out, NULL, 0, false) : NULL;
    THEN(status, or_scope_error(loss));
    THEN(status, shoal_backward(loss, NULL));
    return status;
}

static shoal_status train(struct life *life)
{
    shoal_fsdp *fsdp = NULL;
    double norm = 0;
    shoal_status status = SHOAL_OK;
    for (int step = 0; step < N_STEPS; step++) {
        THEN(status, shoal_scope_begin());
        if (status != SHOAL_OK) {
            break;
        }
        THEN(status, pass(life));
        THEN(status, shoal_fully_shard_context(life->root, &fsdp));
        THEN(status, shoal_fsdp_clip_grad_norm(fsdp, 1, 2, false, &norm));
        THEN(status, shoal_nn_optimizer_step(life->adamw));
        THEN(status, shoal_nn_optimizer_zero_grad(life->adamw));
        shoal_status ended = shoal_scope_end();
        status = status == SHOAL_OK ? ended : status;
    }
    return status;
}

/* The text of the first error stays. */
static shoal_status live(shoal_group *group)
{
    struct life life = {.group = group};
    char text[ERROR_TEXT_BYTES];
    shoal_status status = shoal_scope_begin();
    if (status != SHOAL_OK) {
        return status;
    }
    THEN(status, build(&life));
    THEN(status, train(&life));
    THEN(status, shoal_device_synchronize(test_device()));
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    shoal_status ended = shoal_scope_end();
    shoal_nn_optimizer_free(life.adamw);
    shoal_module_unref(life.layer);
    shoal_module_unref(life.root);
    if (status != SHOAL_OK) {
        (void)error_set(SHOAL_OK, "%s", text);
    }
    return status == SHOAL_OK ? ended : status;
}

/* Counts down `at`; lives again and again, with another n each time, until no call has failed. */
static void fail_at_each(struct rank *self, _Atomic int64_t *at, shoal_status wanted, const char *words)
{
    bool has_failed = true;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    REQUIRE_OK(live(shoal_world_group(world)));
    for (int n = 1; has_failed && !test_has_failed(); n++) {
        uint64_t n_bytes = atomic_load(&test_apart()->n_bytes);
        atomic_store(at, n);
        shoal_status status = live(shoal_world_group(world));
        has_failed = atomic_exchange(at, 0) == 0;
        /* `cuda` has its pools give back what was freed, and asks again. */
        bool is_mended = status == SHOAL_OK && wanted == SHOAL_ERR_NO_MEMORY && test_is_cuda();
        if (has_failed && !is_mended && CHECK_STATUS(status, wanted)) {
            CHECK_ERROR_TEXT(words);
        }
        test_forget_failure();
        CHECK_OK(live(shoal_world_group(world))); /* and whatever was freed behind work is free now */
        CHECK_INT(atomic_load(&test_apart()->n_bytes), n_bytes);
        if (test_has_failed()) {
            test_failed(__FILE__, __LINE__, "that was with number %d", n);
        }
        REQUIRE(n < CALLS_MOST);
    }
    CHECK_OK(shoal_world_close(world));
}

static bool has_device(void)
{
    if (test_device() == SHOAL_CPU || HARNESS_HAS_TSAN) {
        test_skip("it needs a device, and nothing orders the work of one that has failed");
        return false;
    }
    return true;
}

TEST_RANKS(the_nth_call_fails, 1)
{
    if (has_device()) {
        TEST_NEEDS_CONTROLS();
        fail_at_each(self, &test_apart()->fail_at, SHOAL_ERR_SYSTEM, "has failed: ");
    }
}

TEST_RANKS(the_nth_allocation_has_no_memory, 1)
{
    if (has_device()) {
        TEST_NEEDS_CONTROLS();
        fail_at_each(self, &test_apart()->no_memory_at, SHOAL_ERR_NO_MEMORY, "no memory");
    }
}
