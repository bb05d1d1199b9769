/* SPDX-License-Identifier: MIT */
/*
 * Norms in sharded nets that compute in halves: their parameters are cast like all others, their buffers never are. A norm
 * with statistics in f32 therefore refuses halves, unless it has buffers or settings of its own.
 */
#include "fixtures/module_bench.h"
#include "shoal_nn/nn.h"

static shoal_status layer_norm(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                               shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = shoal_nn_layer_norm(inputs[0], shoal_module_parameter(module, "weight"),
                                     shoal_module_parameter(module, "bias"), 1e-5);
    return SHOAL_OK;
}

/* With the means and deviations of batches that were seen before. */
static shoal_status batch_norm(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                               shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    shoal_tensor *centred = shoal_sub(inputs[0], shoal_module_buffer(module, "mean"));
    shoal_tensor *x = shoal_div(centred, shoal_module_buffer(module, "deviation"));
    outputs[0] = shoal_add(shoal_mul(x, shoal_module_parameter(module, "weight")),
                           shoal_module_parameter(module, "bias"));
    return SHOAL_OK;
}

/* Layer 1 of three is the norm. */
static void add_norm(struct net *net, shoal_module_forward forward)
{
    static const char *const names[] = {"0", "1", "2"};
    for (uint32_t i = 0; i < 3; i++) {
        shoal_module *layer = i == 1 ? net_make_module("norm", forward, NULL) : net_make_layer(10 * i);
        if (i == 1) {
            const int64_t shape[] = {NET_WIDTH};
            CHECK_OK(shoal_module_add_parameter(layer, "weight", net_parameter(50, NET_WIDTH)));
            CHECK_OK(shoal_module_add_parameter(layer, "bias", net_parameter(51, NET_WIDTH)));
            CHECK_OK(shoal_module_add_buffer(layer, "mean", shoal_full(shape, 1, 0.25, SHOAL_F32)));
            CHECK_OK(shoal_module_add_buffer(layer, "deviation", shoal_full(shape, 1, 2.0, SHOAL_F32)));
        }
        CHECK_OK(shoal_module_add_child(net->root, names[i], layer));
        net->layers[i] = layer;
        shoal_module_unref(layer);
    }
    net->n_layers = 3;
}

static void check_trained(struct bench *bench, struct rank *self, shoal_dtype dtype)
{
    size_t n_parameters;
    for (int step = 0; step < 2; step++) {
        shoal_tensor *out = shoal_module_call_one(bench->sharded.root, net_input(step, self->rank));
        REQUIRE(out != NULL);
        CHECK_INT(shoal_tensor_dtype(out), dtype);
        CHECK_OK(shoal_backward(net_loss_of(out), NULL));
        shoal_tensor *const *parameters = shoal_module_parameters(bench->sharded.root, &n_parameters);
        for (size_t i = 0; i < n_parameters; i++) {
            CHECK(shoal_grad(parameters[i]) && shoal_tensor_dtype(shoal_grad(parameters[i])) == SHOAL_F32);
        }
        net_update(&bench->sharded, 0.01F);
    }
}

static bool open_norm(struct bench *bench, struct rank *self, shoal_module_forward forward, shoal_dtype dtype)
{
    if (!bench_open(bench, self, 0, NULL)) {
        return false;
    }
    add_norm(&bench->sharded, forward);
    bench->options.param_dtype = dtype;
    return !test_has_failed();
}

static void check_layer_norm(struct rank *self, shoal_dtype dtype)
{
    struct bench bench;
    REQUIRE(open_norm(&bench, self, layer_norm, dtype));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    check_trained(&bench, self, dtype);
    bench_close(&bench);
}

/* Operations stay registered, once in a process. */
static void begin_nn(struct rank *self)
{
    size_t n_before = test_live_blocks();
    test_barrier(self);
    CHECK_OK(shoal_nn_init());
    test_barrier(self);
    if (self->rank == 0 || self->is_process) {
        test_keep_blocks(test_live_blocks() - n_before);
    }
    test_barrier(self);
}

TEST_RANKS(layer_norms, 2)
{
    begin_nn(self);
    check_layer_norm(self, SHOAL_BF16);
    check_layer_norm(self, SHOAL_F16);
}

/* What FSDP casts is not what the norm has: an error that names both dtypes, on every rank. */
static void check_refused(struct rank *self, shoal_dtype dtype)
{
    struct bench bench;
    REQUIRE(open_norm(&bench, self, batch_norm, dtype));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    CHECK_OK(shoal_scope_begin());
    CHECK(shoal_module_call_one(bench.sharded.root, net_input(0, self->rank)) == NULL);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT(shoal_dtype_name(dtype));
    CHECK_ERROR_TEXT("f32");
    CHECK_INT(shoal_tensor_dtype(shoal_module_buffer(bench.sharded.layers[1], "mean")), SHOAL_F32);
    bench_close(&bench);
}

static shoal_status cast_buffer(void *context, const shoal_module_entry *entry, shoal_tensor **tensor)
{
    *tensor = shoal_to_dtype(entry->tensor, *(const shoal_dtype *)context);
    return SHOAL_OK;
}

/* Buffers that were cast by hand. */
static void check_cast_buffers(struct rank *self, shoal_dtype dtype)
{
    struct bench bench;
    REQUIRE(open_norm(&bench, self, batch_norm, dtype));
    CHECK_OK(shoal_module_apply(bench.sharded.root, SHOAL_WALK_BUFFERS, cast_buffer, &dtype));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    check_trained(&bench, self, dtype);
    CHECK_INT(shoal_tensor_dtype(shoal_module_buffer(bench.sharded.layers[1], "mean")), dtype);
    bench_close(&bench);
}

/* The norm is a unit with settings of its own: f32 inside, and out of it comes what the others compute in. */
static void check_own_settings(struct rank *self, shoal_dtype dtype)
{
    struct bench bench;
    REQUIRE(open_norm(&bench, self, batch_norm, dtype));
    shoal_fully_shard_options own = bench.options;
    own.param_dtype = SHOAL_F32;
    own.output_dtype = dtype;
    CHECK_OK(shoal_fully_shard(bench.sharded.layers[1], &own));
    CHECK_OK(shoal_fully_shard(bench.sharded.layers[0], &bench.options));
    CHECK_OK(shoal_fully_shard(bench.sharded.layers[2], &bench.options));
    CHECK_OK(shoal_fully_shard(bench.sharded.root, &bench.options));
    check_trained(&bench, self, dtype);
    CHECK_INT(shoal_tensor_dtype(shoal_module_buffer(bench.sharded.layers[1], "mean")), SHOAL_F32);
    bench_close(&bench);
}

TEST_RANKS(batch_norms, 2)
{
    static const shoal_dtype dtypes[] = {SHOAL_BF16, SHOAL_F16};
    for (int i = 0; i < 2; i++) {
        check_refused(self, dtypes[i]);
        check_cast_buffers(self, dtypes[i]);
        check_own_settings(self, dtypes[i]);
    }
}
