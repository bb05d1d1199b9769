/* SPDX-License-Identifier: MIT */
/* Modules: gradients that wait on tensors, in buffers or for replicas; looked at, changed, reduced by hand. */
#include "fixtures/fsdp_on_device.h"

#include "fixtures/fsdp_handles.h"
#include "fixtures/module_bench.h"

enum {
    N_MICRO = 3
};

/* Only a net that is sharded has something to be reduced by hand. */
static bool pass_by_hand(struct net *net, int step, int part)
{
    bool is_sharded = shoal_is_fully_sharded(net->root);
    bool is_right = true;
    for (int micro = 0; micro < N_MICRO; micro++) {
        if (is_sharded) {
            (void)CHECK_OK(shoal_fsdp_set_sync(shoal_fully_shard_unit(net->root, true), false));
        }
        is_right = net_pass(net, 10 * step + micro, part) && is_right;
    }
    for (int i = 0; is_sharded && i < 2; i++) { /* the second time there is nothing left */
        is_right = CHECK_OK(shoal_fsdp_synchronize(fsdp_of_module(net->root))) && is_right;
    }
    return is_right;
}

static void check_bits(struct rank *self, shoal_reshard reshard, bool is_replicated, int max_reduces)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 3, NULL));
    bench.options.reshard = reshard;
    bench.options.is_replicated = is_replicated;
    bench.options.max_reduces = max_reduces;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    net_train_both(&bench.sharded, &bench.alone, pass_by_hand, self, 3);
    bench_close(&bench);
}

TEST_RANKS(bits_alone, 1)
{
    check_bits(self, SHOAL_RESHARD_DEFAULT, false, 0);
}

TEST_RANKS(bits_of_three, 3)
{
    check_bits(self, SHOAL_RESHARD_DEFAULT, false, 0);
    check_bits(self, SHOAL_RESHARD_NEVER, false, 2);
    check_bits(self, SHOAL_RESHARD_DEFAULT, true, 0);
}

/* How they wait for it must not matter: with another dtype, for the replicas, or both. */
static void check_like_backward(struct rank *self, shoal_dtype reduce_dtype, bool is_partial)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE(bench_replicate(&bench, 2));
    bench.options.reduce_dtype = reduce_dtype;
    struct net *nets[] = {&bench.sharded, &bench.alone};
    for (int by_hand = 0; by_hand < 2; by_hand++) {
        struct net *net = nets[by_hand];
        REQUIRE(net_shard(net, &bench.options));
        CHECK_OK(shoal_fsdp_set_all_reduce(shoal_fully_shard_unit(net->root, true), false));
        CHECK(net_pass(net, 0, self->rank)); /* waits for the replicas */
        if (!is_partial) {
            CHECK_OK(shoal_fsdp_set_sync(shoal_fully_shard_unit(net->root, true), false));
            CHECK(net_pass(net, 1, self->rank));
        }
        CHECK_OK(shoal_fsdp_set_sync(shoal_fully_shard_unit(net->root, true), by_hand == 0));
        CHECK_OK(shoal_fsdp_set_all_reduce(shoal_fully_shard_unit(net->root, true), by_hand == 0));
        CHECK(net_pass(net, 2, self->rank));
        if (by_hand == 1) {
            CHECK_OK(shoal_fsdp_synchronize(fsdp_of_module(net->root)));
        }
    }
    for (int i = 0; i < 2; i++) {
        shoal_tensor *got = shoal_grad(shoal_module_parameter(bench.alone.layers[i], "weight"));
        shoal_tensor *want = shoal_grad(shoal_module_parameter(bench.sharded.layers[i], "weight"));
        REQUIRE(got && want);
        CHECK_BYTES(shoal_data(got), shoal_data(want), (size_t)shoal_tensor_count(want) * sizeof(float));
    }
    bench_close(&bench);
}

TEST_RANKS(like_a_backward_that_reduces, 4)
{
    check_like_backward(self, 0, true);
    check_like_backward(self, 0, false);
    check_like_backward(self, SHOAL_F64, true);
    check_like_backward(self, SHOAL_F64, false);
}

/* Of units that the last backward pass does not use -------------------------------------------------------- */

static _Thread_local bool uses_both;

static shoal_tensor *one_or_both(shoal_module *root, shoal_tensor *x)
{
    shoal_tensor *y = net_call(root, "0", x);
    return uses_both ? net_call(root, "1", y) : y;
}

/* The backward pass that reduces comes after one that does not, and to one layer less. */
static bool pass_fewer(struct net *net, int step, int part)
{
    bool is_sharded = shoal_is_fully_sharded(net->root);
    bool is_right = true;
    for (int micro = 0; micro < 2; micro++) {
        uses_both = micro == 0;
        if (is_sharded) {
            (void)CHECK_OK(shoal_fsdp_set_sync(shoal_fully_shard_unit(net->root, true), micro == 1));
        }
        is_right = net_pass(net, 10 * step + micro, part) && is_right;
    }
    return is_right;
}

static void check_fewer(struct rank *self, shoal_reshard reshard, shoal_dtype reduce_dtype)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, one_or_both));
    bench.options.reshard = reshard;
    bench.options.reduce_dtype = reduce_dtype;
    bench.sharded.is_near = reduce_dtype != 0;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    net_train_both(&bench.sharded, &bench.alone, pass_fewer, self, 3);
    bench_close(&bench);
}

TEST_RANKS(units_that_the_last_backward_does_not_use, 3)
{
    check_fewer(self, SHOAL_RESHARD_DEFAULT, 0);
    check_fewer(self, SHOAL_RESHARD_NEVER, 0);
    check_fewer(self, SHOAL_RESHARD_ALWAYS, SHOAL_F64);
}

TEST_RANKS(units_that_the_last_backward_does_not_use_alone, 1)
{
    check_fewer(self, SHOAL_RESHARD_DEFAULT, 0);
}

/* Frozen ------------------------------------------------------------------------------------------------- */

/* While its gradient waits a parameter cannot be frozen, or what it has would be gone without a word. */
TEST_RANKS(frozen_while_gradients_wait, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    shoal_tensor *weight = shoal_module_parameter(bench.sharded.root, "0.weight");
    for (int is_given_up = 0; is_given_up < 2; is_given_up++) {
        CHECK_OK(shoal_fsdp_set_sync(shoal_fully_shard_unit(bench.sharded.root, true), false));
        CHECK(net_pass(&bench.sharded, 0, self->rank));
        CHECK_OK(shoal_set_requires_grad(weight, false));
        if (is_given_up == 0) {
            CHECK_OK(shoal_scope_begin());
            CHECK(shoal_module_call_one(bench.sharded.root, net_input(0, 0)) == NULL);
            CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_STATE);
            CHECK_ERROR_TEXT("parameter 0.weight was frozen while a gradient of it waits");
            CHECK_OK(shoal_fsdp_reset(fsdp_of_module(bench.sharded.root)));
        }
        CHECK_OK(shoal_fsdp_zero_grad(fsdp_of_module(bench.sharded.root)));
        CHECK(net_pass(&bench.sharded, 1, self->rank));
        CHECK_OK(shoal_fsdp_zero_grad(fsdp_of_module(bench.sharded.root)));
        CHECK_OK(shoal_set_requires_grad(weight, true));
        CHECK_OK(shoal_fsdp_set_sync(shoal_fully_shard_unit(bench.sharded.root, true), true));
        net_train_both(&bench.sharded, &bench.alone, net_pass, self, 2);
    }
    bench_close(&bench);
}

/* Looking ------------------------------------------------------------------------------------------------ */

static shoal_pending_gradient pending_in(shoal_module *root, const char *path)
{
    shoal_pending_gradient pending = SHOAL_PENDING_GRADIENT_INIT;
    (void)CHECK_OK(shoal_fsdp_get_pending(shoal_fully_shard_param(root, path), &pending));
    return pending;
}

static shoal_pending_gradient pending_of(struct net *net, const char *path)
{
    return pending_in(net->root, path);
}

static void multiply(const shoal_pending_gradient *pending, double factor)
{
    for (size_t i = 0; i < pending->full_count; i++) {
        if (pending->full_dtype == SHOAL_F64) {
            ((double *)pending->full)[i] *= factor;
        } else {
            ((float *)pending->full)[i] *= (float)factor;
        }
    }
}

static void check_looking(struct rank *self, shoal_dtype reduce_dtype)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    bench.options.reduce_dtype = reduce_dtype;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    CHECK(pending_of(&bench.sharded, "0.weight").full == NULL); /* before any call */
    CHECK_OK(shoal_fsdp_set_sync(shoal_fully_shard_unit(bench.sharded.root, true), false));
    /* The same part everywhere: averages are what one rank has. */
    CHECK(net_pass(&bench.sharded, 0, 0));
    CHECK(net_pass(&bench.alone, 0, 0));
    shoal_tensor *alone = shoal_grad(shoal_module_parameter(bench.alone.layers[0], "weight"));
    const float *want = shoal_data(alone);
    shoal_pending_gradient pending = pending_of(&bench.sharded, "0.weight");
    REQUIRE(pending.full && want);
    CHECK_INT(pending.full_count, NET_WIDTH);
    CHECK_INT(pending.full_dtype, reduce_dtype == 0 ? SHOAL_F32 : reduce_dtype);
    CHECK_INT(pending.n_blocks, 1);
    CHECK(pending.partial == NULL);
    for (int i = 0; i < NET_WIDTH; i++) {
        double got = reduce_dtype == SHOAL_F64 ? ((const double *)pending.full)[i]
                                               : (double)((const float *)pending.full)[i];
        CHECK_DOUBLE(got, (double)want[i]);
    }
    multiply(&pending, 4.0);
    CHECK(pending_of(&bench.sharded, "0.weight").full == pending.full);
    pending = pending_of(&bench.sharded, "scale");
    multiply(&pending, 0.0);
    CHECK(shoal_grad(shoal_module_parameter(bench.sharded.layers[0], "weight")) == NULL);
    CHECK_OK(shoal_fsdp_synchronize(fsdp_of_module(bench.sharded.root)));
    CHECK(pending_of(&bench.sharded, "0.weight").full == NULL);
    shoal_tensor *grad = shoal_grad(shoal_module_parameter(bench.sharded.layers[0], "weight"));
    int64_t offset;
    CHECK_OK(shard_place(bench.sharded.root, "0.weight", NULL, &offset, NULL));
    for (int64_t i = 0; grad && i < shoal_tensor_count(grad); i++) {
        CHECK_DOUBLE((double)((const float *)shoal_data(grad))[i], 4.0 * (double)want[offset + i]);
    }
    grad = shoal_grad(shoal_module_parameter(bench.sharded.root, "scale"));
    for (int64_t i = 0; grad && i < shoal_tensor_count(grad); i++) {
        CHECK_DOUBLE((double)((const float *)shoal_data(grad))[i], 0.0);
    }
    /* Given up. */
    CHECK(net_pass(&bench.sharded, 1, 0));
    CHECK(pending_of(&bench.sharded, "1.bias").full != NULL);
    CHECK_OK(shoal_fsdp_zero_grad(fsdp_of_module(bench.sharded.root)));
    CHECK(pending_of(&bench.sharded, "1.bias").full == NULL);
    CHECK_OK(shoal_fsdp_synchronize(fsdp_of_module(bench.sharded.root)));
    CHECK(shoal_grad(shoal_module_parameter(bench.sharded.layers[1], "bias")) == NULL);
    bench_close(&bench);
}

TEST_RANKS(whole_gradients, 2)
{
    check_looking(self, 0);
    check_looking(self, SHOAL_F64);
}

/* The gradient of a sum: one number that all elements share, in memory of somebody else. */
static shoal_status add_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = shoal_sum(shoal_add(shoal_add(inputs[0], shoal_module_parameter(module, "a")),
                                     shoal_module_parameter(module, "b")),
                           NULL, 0, false);
    return SHOAL_OK;
}

TEST_RANKS(gradients_that_share_memory, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    shoal_module *root = net_make_module("adding", add_forward, NULL);
    CHECK_OK(shoal_module_add_parameter(root, "a", net_parameter(1, NET_WIDTH)));
    CHECK_OK(shoal_module_add_parameter(root, "b", net_parameter(2, NET_WIDTH)));
    CHECK_OK(shoal_fully_shard(root, &bench.options));
    CHECK_OK(shoal_fsdp_set_sync(shoal_fully_shard_unit(root, true), false));
    shoal_tensor *x = net_numbers(3, (int64_t[]){NET_WIDTH}, 1);
    CHECK_OK(shoal_backward(shoal_module_call_one(root, x), NULL));
    shoal_pending_gradient pending = pending_in(root, "a");
    REQUIRE(pending.full != NULL);
    for (int i = 0; i < NET_WIDTH; i++) {
        CHECK_DOUBLE((double)((float *)pending.full)[i], 1.0);
        ((float *)pending.full)[i] = (float)(10 + i);
    }
    CHECK_OK(shoal_fsdp_synchronize(fsdp_of_module(root)));
    for (int k = 0; k < 2; k++) {
        const char *path = k == 0 ? "a" : "b";
        shoal_tensor *grad = shoal_grad(shoal_module_parameter(root, path));
        int64_t offset;
        CHECK_OK(shard_place(root, path, NULL, &offset, NULL));
        for (int64_t i = 0; grad && i < shoal_tensor_count(grad); i++) {
            CHECK_DOUBLE((double)((const float *)shoal_data(grad))[i],
                         k == 0 ? (double)(10 + offset + i) : 1.0);
        }
    }
    shoal_module_unref(root);
    bench_close(&bench);
}

TEST_RANKS(shards_that_wait_for_replicas, 4)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    REQUIRE(bench_replicate(&bench, 2));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    CHECK_OK(shoal_fsdp_set_all_reduce(shoal_fully_shard_unit(bench.sharded.root, true), false));
    CHECK(net_pass(&bench.sharded, 0, self->rank / 2));
    shoal_pending_gradient pending = pending_of(&bench.sharded, "0.weight");
    CHECK(pending.full == NULL);
    REQUIRE(pending.partial != NULL);
    CHECK_INT(pending.partial_count, self->rank % 2 == 0 ? 3 : 2);
    for (size_t i = 0; i < pending.partial_count; i++) {
        ((float *)pending.partial)[i] = (float)(self->rank / 2 == 0 ? 8 : 2);
    }
    CHECK_OK(shoal_fsdp_synchronize(fsdp_of_module(bench.sharded.root)));
    CHECK(pending_of(&bench.sharded, "0.weight").partial == NULL);
    shoal_tensor *grad = shoal_grad(shoal_module_parameter(bench.sharded.layers[0], "weight"));
    REQUIRE(grad != NULL);
    for (int64_t i = 0; i < shoal_tensor_count(grad); i++) {
        CHECK_DOUBLE((double)((const float *)shoal_data(grad))[i], 5.0);
    }
    bench_close(&bench);
}

/* Some ranks ---------------------------------------------------------------------------------------------- */

static _Thread_local int which_part;

static shoal_tensor *one_of_two(shoal_module *root, shoal_tensor *x)
{
    return net_call(root, which_part % 2 == 0 ? "0" : "1", x);
}

static bool pass_part_by_hand(struct net *net, int step, int part)
{
    which_part = part;
    return pass_by_hand(net, step, part);
}

/* One unit of two layers, of which each rank uses one. */
static void check_unused(struct rank *self, shoal_dtype reduce_dtype)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, one_of_two));
    bench.options.reduce_dtype = reduce_dtype;
    bench.sharded.is_near = reduce_dtype != 0; /* added up with more digits */
    REQUIRE(CHECK_OK(shoal_fully_shard_list(bench.sharded.layers, 2, &bench.options)) &&
            CHECK_OK(shoal_fully_shard(bench.sharded.root, &bench.options)));
    CHECK_OK(shoal_fsdp_set_reduce_unused(shoal_fully_shard_unit(bench.sharded.root, true), true));
    net_train_both(&bench.sharded, &bench.alone, pass_part_by_hand, self, 3);
    bench_close(&bench);
}

TEST_RANKS(parameters_that_some_ranks_use, 2)
{
    check_unused(self, 0);
    check_unused(self, SHOAL_F64);
}

/* Units that only some ranks walk back through: rank 1 not through the first. */
static shoal_tensor *cut_off(shoal_module *root, shoal_tensor *x)
{
    x = net_call(root, "0", x);
    return net_call(root, "1", which_part > 0 ? shoal_detach(x) : x);
}

static void check_unused_units(struct rank *self, shoal_dtype reduce_dtype)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, cut_off));
    bench.options.reduce_dtype = reduce_dtype;
    bench.options.reshard = SHOAL_RESHARD_NEVER;
    bench.options.forward_prefetch = -1;
    bench.sharded.is_near = reduce_dtype != 0;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    CHECK_OK(shoal_fsdp_set_reduce_unused(shoal_fully_shard_unit(bench.sharded.root, true), true));
    net_train_both(&bench.sharded, &bench.alone, pass_part_by_hand, self, 3);
    bench_close(&bench);
}

TEST_RANKS(units_that_some_ranks_use, 2)
{
    check_unused_units(self, 0);
    check_unused_units(self, SHOAL_F64);
}

/* Refused ------------------------------------------------------------------------------------------------ */

static shoal_status look_inside(void *context, shoal_tensor *leaf)
{
    struct net *net = context;
    shoal_pending_gradient pending = SHOAL_PENDING_GRADIENT_INIT;
    (void)leaf;
    CHECK_STATUS(shoal_fsdp_get_pending(shoal_fully_shard_param(net->root, "0.weight"), &pending),
                 SHOAL_ERR_STATE);
    CHECK_STATUS(shoal_fsdp_synchronize(fsdp_of_module(net->root)), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("has failed (shoal_fsdp_reset)");
    return SHOAL_OK;
}

static shoal_status fail(void *context, void *out, const void *in, size_t count, shoal_dtype dtype,
                         shoal_reduce_op reduce, double factor, shoal_group *group, shoal_work **work_out)
{
    (void)context, (void)out, (void)in, (void)count, (void)dtype;
    (void)reduce, (void)factor, (void)group, (void)work_out;
    return SHOAL_ERR_CANCELLED;
}

TEST_RANKS(refused, 2)
{
    struct bench bench;
    shoal_pending_gradient pending = SHOAL_PENDING_GRADIENT_INIT;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    CHECK_STATUS(shoal_fsdp_synchronize(fsdp_of_module(NULL)), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_fsdp_synchronize(fsdp_of_module(bench.sharded.root)), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_fsdp_get_pending(shoal_fully_shard_param(NULL, "scale"), &pending), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_fsdp_get_pending(shoal_fully_shard_param(bench.sharded.root, "scale"), &pending),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("get_pending: there is no parameter \"scale\" that is sharded");
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    CHECK_STATUS(shoal_fsdp_get_pending(shoal_fully_shard_param(bench.sharded.root, "scale"), NULL),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("pending_out is NULL");
    CHECK_OK(shoal_fsdp_synchronize(fsdp_of_module(bench.sharded.root))); /* nothing yet */
    CHECK_OK(on_context(bench.sharded.layers[0], shoal_fsdp_synchronize));
    shoal_tensor *weight = shoal_module_parameter(bench.sharded.layers[0], "weight");
    CHECK_OK(shoal_on_accumulated(weight, look_inside, &bench.sharded, NULL));
    CHECK(net_pass(&bench.sharded, 0, self->rank));
    /* A backward pass that failed leaves a step behind that has to be given up. */
    const shoal_custom_reduce_scatter failing = {.struct_size = sizeof failing, .call = fail};
    CHECK_OK(shoal_fsdp_set_custom_reduce_scatter(shoal_fully_shard_unit(bench.sharded.layers[0], false),
                                                  &failing));
    CHECK_STATUS(shoal_backward(net_loss(&bench.sharded, net_input(1, self->rank)), NULL),
                 SHOAL_ERR_CANCELLED);
    CHECK_STATUS(shoal_fsdp_get_pending(shoal_fully_shard_param(bench.sharded.root, "0.weight"), &pending),
                 SHOAL_ERR_STATE);
    CHECK_STATUS(shoal_fsdp_synchronize(fsdp_of_module(bench.sharded.root)), SHOAL_ERR_STATE);
    CHECK_OK(shoal_fsdp_reset(fsdp_of_module(bench.sharded.root)));
    CHECK_OK(shoal_fsdp_synchronize(fsdp_of_module(bench.sharded.root)));
    bench_close(&bench);
}
