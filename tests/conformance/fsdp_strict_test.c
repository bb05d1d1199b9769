/* SPDX-License-Identifier: MIT */
/* Mistakes that would train wrongly without a word: a backward that is not ended, units sharded from outside in. */
#include "fixtures/rank_world.h"
#include "harness/test.h"
#include "shoal/fsdp.h"
#include "shoal/fully_shard.h"
#include "shoal/module.h"
#include "shoal/ops.h"
#include "shoal/scope.h"

#define SHAPE(...) ((const int64_t[]){__VA_ARGS__})

TEST_RANKS(a_backward_must_be_ended, 2)
{
    shoal_fsdp *fsdp;
    shoal_fsdp_shard shard;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    REQUIRE_OK(shoal_fsdp_create(shoal_world_group(world), NULL, &fsdp));
    CHECK_OK(shoal_fsdp_add_param(fsdp, 0, "w", SHOAL_F32, 1, SHAPE(5), NULL, NULL));
    CHECK_OK(shoal_fsdp_add_param(fsdp, 1, "v", SHOAL_F32, 1, SHAPE(3), NULL, NULL));
    CHECK_OK(shoal_fsdp_pre_forward(fsdp, 0));
    CHECK_OK(shoal_fsdp_post_forward(fsdp, 0));
    CHECK_STATUS(shoal_fsdp_pre_backward(fsdp, 1), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("unit 1 has had no forward");
    CHECK_OK(shoal_fsdp_pre_backward(fsdp, 0));
    CHECK_OK(shoal_fsdp_post_backward(fsdp, 0));
    CHECK_STATUS(shoal_fsdp_get_shard(fsdp, 0, &shard), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("get_shard: the backward has not been ended");
    CHECK_STATUS(shoal_fsdp_clip_grad_norm(fsdp, 1.0, NULL), SHOAL_ERR_STATE);
    CHECK_STATUS(shoal_fsdp_pre_forward(fsdp, 0), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("pre_forward: the backward has not been ended");
    CHECK_OK(shoal_fsdp_end_backward(fsdp));
    CHECK_OK(shoal_fsdp_get_shard(fsdp, 0, &shard));
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
    CHECK_ERROR_TEXT("the world was closed");
    CHECK(!shoal_fsdp_param(fsdp, 0));
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
    CHECK_INT(shoal_tensor_count(shoal_module_parameter(module, "w")), 8); /* a root keeps its parameters */
    CHECK_OK(shoal_world_close(world));
    shoal_tensor *shard = shoal_module_parameter(module, "w");
    CHECK_INT(shoal_tensor_count(shard), 4);
    const float *values = shoal_data(shard);
    CHECK(values && values[3] == 3.0F);
    CHECK_STATUS(shoal_fully_shard_unshard(module), SHOAL_ERR_STATE);
    CHECK(!shoal_module_call_one(module, shard));
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("the world was closed");
    shoal_module_unref(module);
}
