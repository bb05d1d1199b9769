/* SPDX-License-Identifier: MIT */
/*
 * Parameters of 8-bit floats under shoal_fully_shard: they are frozen, gathered as they are or cast to the dtype of
 * parameters, and refused where something would be computed with them: gradients, reductions, norms.
 */
#include "fixtures/on_device.h"

#include "fixtures/module_net.h"

#include "shoal/group.h"

enum {
    ROWS = 7
};

static _Thread_local unsigned char seen[ROWS * 4];
static _Thread_local shoal_dtype seen_dtype;

/* Writes down what it sees, and computes with the other parameter. */
static shoal_status forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                            shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    shoal_tensor *codes = shoal_module_parameter(module, "codes");
    seen_dtype = shoal_tensor_dtype(codes);
    memcpy(seen, shoal_data(codes), ROWS * shoal_dtype_bytes(seen_dtype));
    shoal_tensor *weight = shoal_module_parameter(module, "weight");
    outputs[0] = shoal_mul(shoal_to_dtype(inputs[0], shoal_tensor_dtype(weight)), weight);
    return SHOAL_OK;
}

static void train(struct rank *self, shoal_dtype dtype, shoal_dtype param_dtype)
{
    static const unsigned char bytes[ROWS] = {0x00, 0x80, 0x38, 0x01, 0x7b, 0xc1, 0x7f};
    const int64_t rows = ROWS;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world && CHECK_OK(shoal_scope_begin()));
    shoal_module *module = net_make_module("codes", forward, NULL);
    shoal_tensor *codes = shoal_empty(&rows, 1, dtype);
    memcpy(shoal_mutable_data(codes), bytes, ROWS);
    CHECK_OK(shoal_module_add_parameter(module, "codes", codes));
    CHECK_OK(shoal_module_add_parameter(module, "weight", net_parameter(1, NET_WIDTH)));
    shoal_fully_shard_options options = net_options(world);
    options.param_dtype = param_dtype;
    CHECK_OK(shoal_fully_shard(module, &options));
    for (int step = 0; step < 2; step++) {
        shoal_tensor *out = shoal_module_call_one(module, net_input(step, self->rank));
        CHECK_OK(shoal_backward(net_loss_of(out), NULL));
        shoal_dtype expected = param_dtype != 0 ? param_dtype : dtype;
        CHECK_INT(seen_dtype, expected);
        shoal_tensor *whole = shoal_from_memory((void *)(uintptr_t)bytes, &rows, 1, dtype, NULL, NULL, NULL);
        CHECK_BYTES(seen, shoal_data(shoal_to_dtype(whole, expected)), ROWS * shoal_dtype_bytes(expected));
        CHECK(!shoal_grad(shoal_module_parameter(module, "codes")));
        CHECK(shoal_grad(shoal_module_parameter(module, "weight")));
    }
    shoal_module_unref(module);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(frozen_parameters_are_gathered, 3)
{
    train(self, SHOAL_F8_E4M3FN, 0);
    train(self, SHOAL_F8_E5M2, 0);
    train(self, SHOAL_F8_E4M3FN, SHOAL_BF16);
    train(self, SHOAL_F8_E5M2, SHOAL_F32);
}

/* A dtype of parameters or reductions has arithmetic. */
TEST_RANKS(options_are_refused, 1)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world && CHECK_OK(shoal_scope_begin()));
    shoal_module *module = net_make_module("layer", forward, NULL);
    CHECK_OK(shoal_module_add_parameter(module, "weight", net_parameter(1, NET_WIDTH)));
    shoal_fully_shard_options options = net_options(world);
    options.param_dtype = SHOAL_F8_E4M3FN;
    CHECK_STATUS(shoal_fully_shard(module, &options), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("param_dtype: f8_e4m3fn");
    options.param_dtype = 0;
    options.reduce_dtype = SHOAL_F8_E5M2;
    CHECK_STATUS(shoal_fully_shard(module, &options), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("reduce_dtype: f8_e5m2");
    shoal_module_unref(module);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

/* Bytes move; what combines values names operator and dtype. Nobody waits: all ranks get the refusal. */
TEST_RANKS(reductions_are_refused, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world);
    shoal_group *group = shoal_world_group(world);
    unsigned char mine[2] = {(unsigned char)(0x7f - self->rank), 0x80};
    unsigned char all[4] = {0};
    CHECK_STATUS(shoal_group_all_reduce(group, mine, mine, 2, SHOAL_F8_E4M3FN, SHOAL_SUM),
                 SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("all_reduce: reduce operator sum");
    CHECK_ERROR_TEXT("f8_e4m3fn");
    CHECK_STATUS(shoal_group_reduce_scatter(group, mine, all, 1, SHOAL_F8_E5M2, SHOAL_MAX),
                 SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("f8_e5m2");
    CHECK_OK(shoal_group_all_gather(group, mine, all, 2, SHOAL_F8_E5M2));
    CHECK_BYTES(all, "\x7f\x80\x7e\x80", 4);
    CHECK_OK(shoal_world_close(world));
}
