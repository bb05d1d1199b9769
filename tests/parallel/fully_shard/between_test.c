/* SPDX-License-Identifier: MIT */
/*
 * What sharded modules are between steps: after forwards without gradients, and after what failed, places hold shards,
 * and the next call computes with what is written there.
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

/* A forward without gradients of both nets gives the same. */
static void check_same_outputs(struct bench *bench)
{
    REQUIRE_OK(shoal_scope_begin());
    CHECK_OK(shoal_scope_set_grad(false));
    shoal_tensor *sharded = shoal_module_call_one(bench->sharded.root, net_input(0, 0));
    shoal_tensor *alone = shoal_module_call_one(bench->alone.root, net_input(0, 0));
    REQUIRE(sharded && alone);
    CHECK_BYTES(shoal_data(sharded), shoal_data(alone), NET_BATCH * NET_WIDTH * sizeof(float));
    CHECK_OK(shoal_scope_end());
}

static void check_shards_in_places(struct net *net)
{
    size_t n;
    shoal_tensor *const *parameters = shoal_module_parameters(net->root, &n);
    for (size_t i = 0; parameters && i < n; i++) {
        int dim;
        int64_t offset;
        int64_t length;
        CHECK_OK(shard_place(net->root, shoal_tensor_name(parameters[i]), &dim, &offset, &length));
        CHECK_INT(shoal_tensor_shape(parameters[i])[dim], length);
    }
}

/* Evaluations -------------------------------------------------------------------------------------------- */

static void check_evaluations(struct rank *self, shoal_reshard reshard)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    bench.options.reshard = reshard;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    static const char *const paths[] = {"scale", "0.weight", "1.bias"};
    shoal_tensor *shards[3];
    for (int i = 0; i < 3; i++) {
        shards[i] = shoal_module_parameter(bench.sharded.root, paths[i]);
    }
    for (int step = 0; step < 3 && !test_has_failed(); step++) {
        check_same_outputs(&bench);
        check_shards_in_places(&bench.sharded);
        for (int i = 0; i < 3; i++) {
            CHECK(shoal_module_parameter(bench.sharded.root, paths[i]) == shards[i]);
            fill(shards[i], (float)(step + i) + 1.5F);
            fill(shoal_module_parameter(bench.alone.root, paths[i]), (float)(step + i) + 1.5F);
        }
    }
    bench_close(&bench);
}

TEST_RANKS(evaluations_see_what_was_written_between_them, 2)
{
    check_evaluations(self, SHOAL_RESHARD_DEFAULT);
    check_evaluations(self, SHOAL_RESHARD_NEVER);
    check_evaluations(self, SHOAL_RESHARD_ALWAYS);
    check_evaluations(self, SHOAL_RESHARD_PARTLY);
}

/* An optimizer that is made after the first evaluation has the shards. */
TEST_RANKS(parameters_after_an_evaluation_get_gradients, 3)
{
    struct bench bench;
    size_t n;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    check_same_outputs(&bench);
    shoal_tensor *const *parameters = shoal_module_parameters(bench.sharded.root, &n);
    net_pass(&bench.sharded, 0, self->rank);
    for (size_t i = 0; i < n; i++) {
        CHECK(shoal_grad(parameters[i]) != NULL);
    }
    bench_close(&bench);
}

/* An evaluation between a forward and its backward pass leaves what that needs. */
TEST_RANKS(an_evaluation_inside_a_step, 2)
{
    static const shoal_reshard reshards[] = {SHOAL_RESHARD_DEFAULT, SHOAL_RESHARD_NEVER,
                                             SHOAL_RESHARD_PARTLY};
    for (int i = 0; i < 3 && !test_has_failed(); i++) {
        struct bench bench;
        REQUIRE(bench_open(&bench, self, 2, NULL));
        bench.options.reshard = reshards[i];
        REQUIRE(net_shard(&bench.sharded, &bench.options));
        shoal_tensor *loss = net_loss(&bench.sharded, net_input(0, self->rank));
        check_same_outputs(&bench);
        CHECK_OK(shoal_backward(loss, NULL));
        CHECK(shoal_grad(shoal_module_parameter(bench.sharded.root, "0.weight")) != NULL);
        check_same_outputs(&bench);
        bench_close(&bench);
    }
}

static _Thread_local int n_used;
static _Thread_local bool must_fail;

static shoal_tensor *call_some(shoal_module *root, shoal_tensor *x)
{
    x = net_call(root, "0", x);
    if (must_fail) {
        return shoal_narrow(x, 7, 0, 1); /* there is no dimension 7 */
    }
    return n_used > 1 ? net_call(root, "1", x) : x;
}

/* What was gathered ahead for a layer that is not called this time. */
TEST_RANKS(an_evaluation_that_stops_early, 2)
{
    struct bench bench;
    must_fail = false;
    REQUIRE(bench_open(&bench, self, 2, call_some));
    bench.options.reshard = SHOAL_RESHARD_ALWAYS;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    shoal_tensor *shard = shoal_module_parameter(bench.sharded.root, "1.weight");
    for (n_used = 2; n_used > 0; n_used--) {
        check_same_outputs(&bench);
    }
    n_used = 2;
    fill(shard, 3.0F);
    fill(shoal_module_parameter(bench.alone.root, "1.weight"), 3.0F);
    check_same_outputs(&bench);
    bench_close(&bench);
}

/* Failures ----------------------------------------------------------------------------------------------- */

/* The call that failed had gathered a layer, and another one ahead. */
TEST_RANKS(after_a_forward_that_failed, 2)
{
    struct bench bench;
    must_fail = false;
    n_used = 2;
    REQUIRE(bench_open(&bench, self, 2, call_some));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    shoal_tensor *shards[] = {shoal_module_parameter(bench.sharded.root, "scale"),
                              shoal_module_parameter(bench.sharded.root, "1.weight")};
    check_same_outputs(&bench);
    for (int has_grad = 0; has_grad < 2; has_grad++) {
        must_fail = true;
        REQUIRE_OK(shoal_scope_begin());
        CHECK_OK(shoal_scope_set_grad(has_grad));
        CHECK(shoal_module_call_one(bench.sharded.root, net_input(0, 0)) == NULL);
        CHECK(shoal_scope_end() != SHOAL_OK);
        must_fail = false;
        fill(shards[0], 2.0F + (float)has_grad);
        fill(shards[1], 3.0F + (float)has_grad);
        fill(shoal_module_parameter(bench.alone.root, "scale"), 2.0F + (float)has_grad);
        fill(shoal_module_parameter(bench.alone.root, "1.weight"), 3.0F + (float)has_grad);
        check_same_outputs(&bench);
        check_shards_in_places(&bench.sharded);
    }
    bench_close(&bench);
}

static shoal_status fail_if_told(void *context, const shoal_reduced_gradients *reduced, shoal_work **work_out)
{
    (void)reduced;
    (void)work_out;
    return *(bool *)context ? SHOAL_ERR_UNSUPPORTED : SHOAL_OK;
}

/* The last reduction ends, and fails, when the backward pass is over but for that. */
TEST_RANKS(after_a_backward_that_failed_at_its_end, 2)
{
    struct bench bench;
    bool fails = true;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    shoal_module *root = bench.sharded.root;
    CHECK_OK(shoal_fsdp_set_all_reduce_hook(shoal_fully_shard_unit(root, false), fail_if_told, &fails));
    REQUIRE_OK(shoal_scope_begin());
    CHECK_STATUS(shoal_backward(net_loss(&bench.sharded, net_input(0, self->rank)), NULL),
                 SHOAL_ERR_UNSUPPORTED);
    (void)!shoal_scope_end();
    fails = false;
    REQUIRE_OK(shoal_scope_begin());
    CHECK(shoal_module_call_one(root, net_input(0, self->rank)) == NULL);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("call shoal_fsdp_reset first");
    CHECK_STATUS(shoal_fsdp_zero_grad(fsdp_of_module(root)), SHOAL_ERR_STATE);
    CHECK_OK(shoal_fsdp_reset(fsdp_of_module(root)));
    CHECK_OK(shoal_fsdp_zero_grad(fsdp_of_module(root)));
    check_shards_in_places(&bench.sharded);
    check_same_outputs(&bench);
    net_pass(&bench.sharded, 0, self->rank);
    CHECK(shoal_grad(shoal_module_parameter(root, "scale")) != NULL);
    bench_close(&bench);
}

/* Reductions on their way -------------------------------------------------------------------------------- */

TEST_RANKS(clipping_waits_for_the_last_backward, 2)
{
    struct bench bench;
    double norm;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    shoal_module *root = bench.sharded.root;
    CHECK_OK(shoal_fsdp_set_is_last_backward(fsdp_of_module(root), false));
    net_pass(&bench.sharded, 0, self->rank);
    CHECK_STATUS(shoal_fsdp_clip_grad_norm(fsdp_of_module(root), 1.0, 2.0, false, &norm), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("clip_grad_norm: gradients are still being reduced");
    CHECK_STATUS(shoal_fsdp_clip_grad_value(fsdp_of_module(root), 1.0), SHOAL_ERR_STATE);
    CHECK_OK(shoal_fsdp_set_is_last_backward(fsdp_of_module(root), true));
    net_pass(&bench.sharded, 0, self->rank);
    CHECK_OK(shoal_fsdp_clip_grad_norm(fsdp_of_module(root), 1.0, 2.0, false, &norm));
    bench_close(&bench);
}

TEST_RANKS(zeroing_takes_what_is_on_its_way, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    shoal_module *root = bench.sharded.root;
    shoal_tensor *shard = shoal_module_parameter(root, "0.weight");
    float wanted[NET_WIDTH * NET_WIDTH];
    net_pass(&bench.sharded, 0, self->rank);
    size_t bytes = (size_t)shoal_tensor_count(shard) * sizeof(float);
    memcpy(wanted, shoal_data(shoal_grad(shard)), bytes);
    CHECK_OK(shoal_fsdp_zero_grad(fsdp_of_module(root)));
    CHECK_OK(shoal_fsdp_set_is_last_backward(fsdp_of_module(root), false));
    net_pass(&bench.sharded, 1, self->rank);
    CHECK_OK(shoal_fsdp_zero_grad(fsdp_of_module(root)));
    CHECK_OK(shoal_fsdp_set_is_last_backward(fsdp_of_module(root), true));
    net_pass(&bench.sharded, 0, self->rank);
    CHECK_BYTES(shoal_data(shoal_grad(shard)), wanted, bytes);
    bench_close(&bench);
}
