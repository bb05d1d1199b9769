/* SPDX-License-Identifier: MIT */
/* Mistakes that would train wrongly without a word: a backward pass that is not ended, units sharded from outside
   in. */
#include "fixtures/fsdp_on_device.h"

#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/autograd.h"
#include "shoal/fsdp.h"
#include "shoal/fully_shard.h"
#include "shoal/module.h"
#include "shoal/ops.h"
#include "shoal/scope.h"

#define SHAPE(...) ((const int64_t[]){__VA_ARGS__})

TEST_RANKS(a_backward_must_be_ended, 2)
{
    shoal_fsdp *fsdp;
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), NULL, &fsdp));
    CHECK_OK(shoal_fsdp_add_param(fsdp, 0, "w", SHOAL_F32, 1, SHAPE(5), NULL, NULL));
    CHECK_OK(shoal_fsdp_add_param(fsdp, 1, "v", SHOAL_F32, 1, SHAPE(3), NULL, NULL));
    CHECK_OK(shoal_fsdp_pre_forward(fsdp, 0));
    CHECK_OK(shoal_fsdp_post_forward(fsdp, 0));
    CHECK_STATUS(shoal_fsdp_pre_backward(fsdp, 1), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("unit 1 has had no forward pass");
    CHECK_OK(shoal_fsdp_pre_backward(fsdp, 0));
    CHECK_OK(shoal_fsdp_post_backward(fsdp, 0));
    CHECK_STATUS(shoal_fsdp_update_shard(fsdp, 0, &shard), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("update_shard: the backward pass has not been ended");
    CHECK_STATUS(shoal_fsdp_clip_grad_norm(fsdp, 1.0, 2.0, false, NULL), SHOAL_ERR_STATE);
    CHECK_STATUS(shoal_fsdp_pre_forward(fsdp, 0), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("pre_forward: the backward pass has not been ended");
    CHECK_OK(shoal_fsdp_end_backward(fsdp));
    CHECK_OK(shoal_fsdp_update_shard(fsdp, 0, &shard));
    CHECK(shard.grad != NULL);
    CHECK_STATUS(shoal_fsdp_pre_backward(fsdp, 0), SHOAL_ERR_STATE);
    CHECK_OK(shoal_fsdp_pre_forward(fsdp, 0));
    CHECK_OK(shoal_fsdp_post_forward(fsdp, 0));
    shoal_fsdp_free(fsdp);
    CHECK_OK(shoal_world_close(world));
}

static shoal_status double_it(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                              shoal_tensor **outputs, size_t n_outputs)
{
    (void)module;
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = shoal_add(inputs[0], inputs[0]);
    return SHOAL_OK;
}

static shoal_module *make_module(const char *type)
{
    shoal_module *module = NULL;
    const shoal_module_definition definition = {
        .struct_size = sizeof definition, .type = type, .forward = double_it, .n_inputs = 1};
    CHECK_OK(shoal_module_create(&definition, &module));
    return module;
}

TEST_RANKS(inner_modules_come_first, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    REQUIRE_OK(shoal_scope_begin());
    shoal_module *outer = make_module("outer");
    shoal_module *inner = make_module("inner");
    const shoal_fully_shard_options options = {.struct_size = sizeof options,
                                               .group = shoal_world_group(world)};
    CHECK_OK(shoal_module_add_parameter(inner, "w", shoal_full(SHAPE(8), 1, 1.0, SHOAL_F32)));
    CHECK_OK(shoal_module_add_child(outer, "inner", inner));
    CHECK_OK(shoal_fully_shard(outer, &options));
    CHECK_STATUS(shoal_fully_shard(inner, &options), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("w belongs to a unit already");
    CHECK_INT(shoal_tensor_count(shoal_module_parameter(inner, "w")), 4);
    shoal_module_unref(inner);
    shoal_module_unref(outer);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(the_world_may_be_closed_first, 2)
{
    shoal_fsdp *fsdp;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), NULL, &fsdp));
    CHECK_OK(shoal_fsdp_add_param(fsdp, 0, "w", SHOAL_F32, 1, SHAPE(5), NULL, NULL));
    CHECK_OK(shoal_fsdp_pre_forward(fsdp, 0));
    CHECK_OK(shoal_world_close(world));
    CHECK_STATUS(shoal_fsdp_post_forward(fsdp, 0), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT(": the world was closed");
    CHECK(!shoal_fsdp_full_param(fsdp, 0));
    CHECK_STATUS(shoal_fsdp_reset(fsdp), SHOAL_ERR_STATE);
    shoal_fsdp_free(fsdp);
}

TEST_RANKS(modules_outlive_the_world, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    REQUIRE_OK(shoal_scope_begin());
    shoal_module *module = make_module("root");
    const shoal_fully_shard_options options = {.struct_size = sizeof options,
                                               .group = shoal_world_group(world)};
    CHECK_OK(shoal_module_add_parameter(module, "w", shoal_full(SHAPE(8), 1, 3.0, SHOAL_F32)));
    CHECK_OK(shoal_fully_shard(module, &options));
    CHECK(shoal_module_call_one(module, shoal_full(SHAPE(2), 1, 1.0, SHOAL_F32)));
    CHECK_INT(shoal_tensor_count(shoal_module_parameter(module, "w")), 4);
    CHECK_OK(shoal_world_close(world));
    shoal_tensor *shard = shoal_module_parameter(module, "w");
    CHECK_INT(shoal_tensor_count(shard), 4);
    const float *values = shoal_data(shard);
    CHECK(values && values[3] == 3.0F);
    CHECK_STATUS(shoal_fsdp_unshard(shoal_fully_shard_unit(module, false)), SHOAL_ERR_STATE);
    CHECK(!shoal_module_call_one(module, shard));
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT(": the world was closed");
    shoal_module_unref(module);
}

/* Memory that runs out half way leaves the modules as they were: not cut without anybody to gather them. */
static shoal_status shard_two(void *context)
{
    shoal_group *group = context;
    shoal_status status = shoal_scope_begin();
    if (status != SHOAL_OK) {
        return status;
    }
    const shoal_fully_shard_options options = {.struct_size = sizeof options, .group = group};
    const shoal_module_definition definition = {
        .struct_size = sizeof definition, .type = "one", .forward = double_it, .n_inputs = 1};
    shoal_module *modules[2] = {NULL, NULL};
    shoal_tensor *whole[2] = {NULL, NULL};
    for (int i = 0; i < 2 && status == SHOAL_OK; i++) {
        status = shoal_module_create(&definition, &modules[i]);
        whole[i] = shoal_full(SHAPE(8), 1, 1.0, SHOAL_F32);
        status = status == SHOAL_OK ? shoal_scope_error() : status;
        status = status == SHOAL_OK ? shoal_module_add_parameter(modules[i], "w", whole[i]) : status;
    }
    bool is_ready = status == SHOAL_OK;
    status = is_ready ? shoal_fully_shard_list(modules, 2, &options) : status;
    for (int i = 0; i < 2 && is_ready && status != SHOAL_OK; i++) {
        CHECK(shoal_module_parameter(modules[i], "w") == whole[i]);
        CHECK(!shoal_is_fully_sharded(modules[i]));
    }
    for (int i = 0; i < 2; i++) {
        shoal_module_unref(modules[i]);
    }
    shoal_status end = shoal_scope_end();
    return status == SHOAL_OK ? end : status;
}

TEST_RANKS(sharding_without_memory_changes_nothing, 1)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    CHECK(test_sweep_allocations(shard_two, shoal_world_group(world)) >= 1);
    CHECK_OK(shoal_world_close(world));
}

/* A whole step in which any allocation may fail: an error, and nothing lost. */
static shoal_status scale_it(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                             shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = shoal_mul(inputs[0], shoal_module_parameter(module, "w"));
    return SHOAL_OK;
}

static shoal_status train_module(shoal_module *module, shoal_group *group)
{
    const shoal_fully_shard_options options = {
        .struct_size = sizeof options, .group = group, .param_dtype = SHOAL_BF16, .reduce_dtype = SHOAL_F32};
    shoal_tensor *weight = shoal_full(SHAPE(3), 1, 2.0, SHOAL_F32);
    shoal_status status = weight ? shoal_set_requires_grad(weight, true) : shoal_scope_error();
    status = status == SHOAL_OK ? shoal_module_add_parameter(module, "w", weight) : status;
    status = status == SHOAL_OK ? shoal_fully_shard(module, &options) : status;
    for (int i = 0; i < 2 && status == SHOAL_OK; i++) {
        shoal_tensor *y = shoal_module_call_one(module, shoal_full(SHAPE(3), 1, 1.0, SHOAL_F32));
        shoal_tensor *loss = shoal_sum(y, NULL, 0, false);
        status = loss ? shoal_backward(loss, NULL) : shoal_scope_error();
    }
    return status;
}

static shoal_status train_in_scope(void *context)
{
    shoal_module *module = NULL;
    const shoal_module_definition definition = {
        .struct_size = sizeof definition, .type = "scale", .forward = scale_it, .n_inputs = 1};
    shoal_status status = shoal_scope_begin();
    if (status != SHOAL_OK) {
        return status;
    }
    status = shoal_module_create(&definition, &module);
    status = status == SHOAL_OK ? train_module(module, context) : status;
    shoal_status end = shoal_scope_end();
    shoal_module_unref(module);
    return status == SHOAL_OK ? end : status;
}

TEST_RANKS(a_step_without_memory_loses_nothing, 1)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    CHECK(test_sweep_allocations(train_in_scope, shoal_world_group(world)) >= 1);
    CHECK_OK(shoal_world_close(world));
}
