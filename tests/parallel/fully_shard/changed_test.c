/* SPDX-License-Identifier: MIT */
/*
 * Shards that are written while something that was gathered from them is still there, or still needed: the next
 * forward computes with the new values, and the backward pass of a forward that saw the old ones is an error, as
 * without sharding.
 */
#include "fixtures/on_device.h"

#include "fixtures/fsdp_handles.h"
#include "fixtures/module_bench.h"

static void fill(shoal_tensor *tensor, float value)
{
    float *data = shoal_mutable_data(tensor);
    for (int64_t i = 0; data && i < shoal_tensor_count(tensor); i++) {
        data[i] = value;
    }
}

/* In both nets. `is_mine`: this rank writes its shard; what the whole is like everybody knows. */
static void fill_both(struct bench *bench, const char *path, float value, bool is_mine)
{
    if (is_mine) {
        fill(shoal_module_parameter(bench->sharded.root, path), value);
    }
    fill(shoal_module_parameter(bench->alone.root, path), value);
}

/* Recorded forwards give the same; no backward pass follows. */
static void check_same_outputs(struct bench *bench, int step)
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *sharded = shoal_module_call_one(bench->sharded.root, net_input(step, 0));
    shoal_tensor *alone = shoal_module_call_one(bench->alone.root, net_input(step, 0));
    REQUIRE(sharded && alone);
    CHECK_BYTES(shoal_data(sharded), shoal_data(alone), NET_BATCH * NET_WIDTH * sizeof(float));
    CHECK_OK(shoal_scope_end());
}

static const shoal_reshard reshards[] = {SHOAL_RESHARD_DEFAULT, SHOAL_RESHARD_NEVER, SHOAL_RESHARD_ALWAYS,
                                         SHOAL_RESHARD_PARTLY};

/* Backwards that are skipped ----------------------------------------------------------------------------- */

static void check_skipped(struct rank *self, const shoal_fully_shard_options *wanted)
{
    static const char *const paths[] = {"scale", "0.weight", "1.weight", "1.bias"};
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    bench.options.reshard = wanted->reshard;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    for (int step = 0; step < 4 && !test_has_failed(); step++) {
        check_same_outputs(&bench, step);
        fill_both(&bench, paths[step], 1.5F + (float)step, true);
    }
    check_same_outputs(&bench, 4);
    net_train_both(&bench.sharded, &bench.alone, net_pass, self, 2);
    bench_close(&bench);
}

TEST_RANKS(forwards_after_backwards_that_were_skipped, 2)
{
    for (int i = 0; i < 4 && !test_has_failed(); i++) {
        check_skipped(self, &(shoal_fully_shard_options){.reshard = reshards[i]});
    }
}

TEST_RANKS(forwards_after_backwards_that_were_skipped_by_four, 4)
{
    for (int i = 0; i < 4 && !test_has_failed(); i++) {
        check_skipped(self, &(shoal_fully_shard_options){.reshard = reshards[i]});
    }
}

/* Alone there is nothing to gather, but what is cast is a copy. */
TEST_RANKS(alone_in_another_dtype, 1)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 0, NULL));
    bench.options.reshard = SHOAL_RESHARD_NEVER;
    bench.options.param_dtype = SHOAL_F64;
    bench.options.output_dtype = SHOAL_F32;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    for (int step = 0; step < 3; step++) {
        fill_both(&bench, "scale", 2.0F + (float)step, true);
        check_same_outputs(&bench, step);
    }
    bench_close(&bench);
}

/* Only whoever wrote knows, and all gather again or none does: the bias is one number, which rank 0 has. */
TEST_RANKS(one_rank_writes, 3)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    bench.options.reshard = SHOAL_RESHARD_NEVER;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    for (int step = 0; step < 3 && !test_has_failed(); step++) {
        check_same_outputs(&bench, step);
        fill_both(&bench, step % 2 == 0 ? "0.bias" : "1.bias", 3.0F + (float)step, self->rank == 0);
    }
    check_same_outputs(&bench, 3);
    bench_close(&bench);
}

/* What did not change is not gathered again. */
TEST_RANKS(units_that_did_not_change_stay, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    bench.options.reshard = SHOAL_RESHARD_NEVER;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    net_listen(&bench.sharded, "ur");
    check_same_outputs(&bench, 0);
    CHECK_EVENTS(&bench.sharded, "uR u0 u1");
    check_same_outputs(&bench, 1);
    CHECK_EVENTS(&bench.sharded, "");
    fill_both(&bench, "0.weight", 1.25F, true);
    check_same_outputs(&bench, 2);
    CHECK_EVENTS(&bench.sharded, "r0 u0");
    bench_close(&bench);
}

/* Parameters that stay after a backward pass, or were gathered by hand before they were written. */
TEST_RANKS(whatever_keeps_parameters, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    CHECK_OK(shoal_fsdp_set_reshard_after_backward(shoal_fully_shard_unit(bench.sharded.root, true), false));
    net_train_both(&bench.sharded, &bench.alone, net_pass, self, 3);
    CHECK_OK(shoal_fsdp_unshard(shoal_fully_shard_unit(bench.sharded.layers[0], false)));
    fill_both(&bench, "0.weight", 5.0F, true);
    check_same_outputs(&bench, 0);
    CHECK_OK(shoal_fsdp_unshard(shoal_fully_shard_unit(bench.sharded.layers[1], false)));
    CHECK_OK(shoal_fsdp_wait(shoal_fully_shard_unit(bench.sharded.layers[1], false)));
    CHECK_INT(shoal_tensor_count(shoal_module_parameter(bench.sharded.root, "1.weight")), NET_WIDTH);
    check_same_outputs(&bench, 1);
    CHECK(shoal_tensor_count(shoal_module_parameter(bench.sharded.root, "1.weight")) < NET_WIDTH);
    bench_close(&bench);
}

/* Changes between forward and backward -------------------------------------------------------------------- */

enum way {
    BY_ADDRESS,
    BY_OPERATION,
    BY_LOADING,
    N_WAYS
};

static void change(struct net *net, const char *path, enum way way, bool is_sharded)
{
    shoal_tensor *tensor = shoal_module_parameter(net->root, path);
    float full[NET_WIDTH] = {4, 4, 4, 4, 4};
    if (way == BY_LOADING && is_sharded) {
        (void)CHECK_OK(shoal_fsdp_load(shoal_fully_shard_param(net->root, path), full));
        return;
    }
    (void)CHECK_OK(shoal_scope_begin());
    (void)CHECK_OK(shoal_scope_set_grad(false));
    if (way == BY_OPERATION) {
        CHECK(shoal_mul_scalar_(tensor, 2.0) != NULL);
    } else {
        fill(tensor, 4.0F);
    }
    (void)CHECK_OK(shoal_scope_end());
}

/* A weight is what the gradient of its input is computed with; "f32 [5] was saved for backward in version ..." */
static void check_weight(struct rank *self, shoal_reshard reshard, enum way way)
{
    struct bench bench;
    struct net *nets[] = {&bench.alone, &bench.sharded};
    REQUIRE(bench_open(&bench, self, 2, NULL));
    bench.options.reshard = reshard;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    CHECK_OK(shoal_tensor_set_name(shoal_module_parameter(bench.alone.root, "1.weight"), "1.weight"));
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(shoal_scope_begin());
        shoal_tensor *x = net_input(0, self->rank);
        CHECK_OK(shoal_set_requires_grad(x, true));
        shoal_tensor *loss = net_loss(nets[i], x);
        change(nets[i], "1.weight", way, i == 1);
        CHECK_STATUS(shoal_backward(loss, NULL), SHOAL_ERR_STATE);
        CHECK_ERROR_TEXT("1.weight: f32 [5] was saved for backward in version");
        CHECK_ERROR_TEXT("changed in place since");
        CHECK_OK(shoal_scope_end());
    }
    CHECK_OK(shoal_fsdp_reset(fsdp_of_module(bench.sharded.root)));
    CHECK_OK(shoal_fsdp_zero_grad(fsdp_of_module(bench.sharded.root)));
    CHECK(net_pass(&bench.sharded, 1, self->rank));
    bench_close(&bench);
}

TEST_RANKS(a_parameter_changed_before_its_backward, 2)
{
    for (int i = 0; i < 4 && !test_has_failed(); i++) {
        for (int way = 0; way < N_WAYS && !test_has_failed(); way++) {
            check_weight(self, reshards[i], (enum way)way);
        }
    }
}

TEST_RANKS(a_parameter_changed_before_its_backward_alone, 1)
{
    for (int way = 0; way < N_WAYS && !test_has_failed(); way++) {
        check_weight(self, SHOAL_RESHARD_DEFAULT, (enum way)way);
        check_weight(self, SHOAL_RESHARD_ALWAYS, (enum way)way);
    }
}

/* Nobody needs the values of a bias in backward: that is no error without sharding either. */
TEST_RANKS(a_bias_changed_before_its_backward, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    for (int step = 0; step < 2; step++) {
        shoal_tensor *loss = net_loss(&bench.sharded, net_input(step, self->rank));
        change(&bench.sharded, "0.bias", BY_ADDRESS, true);
        CHECK_OK(shoal_backward(loss, NULL));
    }
    bench_close(&bench);
}

/* The second forward gathers again; the first one's record is of values that are gone. */
TEST_RANKS(two_forwards_and_a_change_between_them, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    bench.options.reshard = SHOAL_RESHARD_NEVER;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    shoal_tensor *first = net_loss(&bench.sharded, net_input(0, self->rank));
    change(&bench.sharded, "scale", BY_ADDRESS, true);
    shoal_tensor *second = net_loss(&bench.sharded, net_input(0, self->rank));
    CHECK_OK(shoal_backward(second, NULL));
    CHECK_STATUS(shoal_backward(first, NULL), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("scale: f32 [5] was saved for backward");
    bench_close(&bench);
}

/* Without a change both may be walked back, in any order. */
TEST_RANKS(two_forwards_without_a_change, 2)
{
    for (int i = 0; i < 4 && !test_has_failed(); i++) {
        struct bench bench;
        REQUIRE(bench_open(&bench, self, 2, NULL));
        bench.options.reshard = reshards[i];
        REQUIRE(net_shard(&bench.sharded, &bench.options));
        shoal_tensor *first = net_loss(&bench.sharded, net_input(0, self->rank));
        shoal_tensor *second = net_loss(&bench.sharded, net_input(1, self->rank));
        CHECK_OK(shoal_backward(first, NULL));
        CHECK_OK(shoal_backward(second, NULL));
        bench_close(&bench);
    }
}

/* Only one rank has changed its shard, and only its backward pass fails: the others are told, and wait for no
   deadline. */
TEST_RANKS(a_parameter_changed_by_one_rank, 3)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    CHECK(net_pass(&bench.sharded, 0, self->rank));
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *x = net_input(1, self->rank);
    CHECK_OK(shoal_set_requires_grad(x, true));
    shoal_tensor *loss = net_loss(&bench.sharded, x);
    if (self->rank == 0) {
        change(&bench.sharded, "0.weight", BY_ADDRESS, true);
    }
    CHECK_STATUS(shoal_backward(loss, NULL), self->rank == 0 ? SHOAL_ERR_STATE : SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("0.weight: f32 [5] was saved for backward");
    CHECK_OK(shoal_scope_end());
    bench_close(&bench);
}

/* A backward pass that fails leaves lists of parameters as they were: shards, which can be written. */
TEST_RANKS(what_is_listed_after_a_backward_that_failed, 2)
{
    size_t n;
    for (int i = 0; i < 4 && !test_has_failed(); i++) {
        struct bench bench;
        REQUIRE(bench_open(&bench, self, 2, NULL));
        bench.options.reshard = reshards[i];
        REQUIRE(net_shard(&bench.sharded, &bench.options));
        shoal_tensor *const *before = shoal_module_parameters(bench.sharded.root, &n);
        shoal_tensor *loss = net_loss(&bench.sharded, net_input(1, self->rank));
        change(&bench.sharded, "1.weight", BY_ADDRESS, true);
        CHECK_STATUS(shoal_backward(loss, NULL), SHOAL_ERR_STATE);
        shoal_tensor *const *after = shoal_module_parameters(bench.sharded.root, &n);
        for (size_t k = 0; k < n; k++) {
            CHECK(before[k] == after[k]);
        }
        bench_close(&bench);
    }
}

/* Frozen where a backward pass still needs the gradient. */
TEST_RANKS(a_parameter_frozen_by_one_rank, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    bench.options.reshard = SHOAL_RESHARD_ALWAYS;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    CHECK(net_pass(&bench.sharded, 0, self->rank));
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *loss = net_loss(&bench.sharded, net_input(1, self->rank));
    if (self->rank == 0) {
        CHECK_OK(shoal_set_requires_grad(shoal_module_parameter(bench.sharded.root, "0.weight"), false));
    }
    CHECK_STATUS(shoal_backward(loss, NULL), self->rank == 0 ? SHOAL_ERR_STATE : SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("parameter 0.weight was frozen between its forward and its backward pass");
    CHECK_OK(shoal_scope_end());
    bench_close(&bench);
}
