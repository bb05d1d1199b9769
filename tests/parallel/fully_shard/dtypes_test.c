/* SPDX-License-Identifier: MIT */
/*
 * Which dtypes sharded modules see, compute and reduce in: inputs of all kinds, half of a net in f16, parameters that learn
 * later, parameters that never do; that what is computed in halves has the same bits however parameters are kept; and how
 * a scale for gradients of halves is found.
 */
#include "fixtures/on_device.h"

#include "fixtures/module_bench.h"

/* Inputs and outputs ------------------------------------------------------------------------------------------- */

/* Several inputs and outputs, some of whole numbers, one absent. */
enum {
    N_INPUTS = 5,
    N_OUTPUTS = 3
};

static _Thread_local shoal_dtype seen[N_INPUTS];

static shoal_status many_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                 shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_outputs;
    for (size_t i = 0; i < n_inputs; i++) {
        seen[i] = inputs[i] ? shoal_tensor_dtype(inputs[i]) : 0;
    }
    shoal_tensor *weight = shoal_module_parameter(module, "weight");
    outputs[0] = shoal_mul(shoal_to_dtype(inputs[0], shoal_tensor_dtype(weight)), weight);
    outputs[1] = shoal_to_dtype(inputs[1], SHOAL_F64);
    outputs[2] = shoal_clone(inputs[2]);
    return SHOAL_OK;
}

static _Thread_local shoal_dtype given[N_OUTPUTS];

/* Calls the inner module with what it got from outside, and things of its own. */
static shoal_status outer_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                  shoal_tensor **outputs, size_t n_outputs)
{
    shoal_tensor *outs[N_OUTPUTS];
    (void)n_inputs;
    (void)n_outputs;
    shoal_tensor *const list[N_INPUTS] = {inputs[0], shoal_full((const int64_t[]){2}, 1, 1.0, SHOAL_F32),
                                          shoal_full((const int64_t[]){2}, 1, 3.0, SHOAL_I64), NULL,
                                          shoal_full((const int64_t[]){1}, 1, 1.0, SHOAL_BOOL)};
    if (shoal_module_call(shoal_module_child(module, "inner"), list, N_INPUTS, outs, N_OUTPUTS) == SHOAL_OK) {
        for (int i = 0; i < N_OUTPUTS; i++) {
            given[i] = shoal_tensor_dtype(outs[i]);
        }
        outputs[0] = outs[0];
    }
    return SHOAL_OK;
}

static void check_many(struct rank *self, shoal_dtype param_dtype, shoal_dtype output_dtype,
                       bool keeps_inputs)
{
    shoal_world *world = rank_world_open(self, 0);
    shoal_module *inner;
    const shoal_module_definition definition = {
        .struct_size = sizeof definition, .type = "many", .forward = many_forward, .n_outputs = N_OUTPUTS};
    REQUIRE(world && CHECK_OK(shoal_scope_begin()));
    REQUIRE_OK(shoal_module_create(&definition, &inner));
    shoal_module *root = net_make_module("outer", outer_forward, NULL);
    CHECK_OK(shoal_module_add_parameter(inner, "weight", net_parameter(1, NET_WIDTH)));
    CHECK_OK(shoal_module_add_child(root, "inner", inner));
    shoal_module_unref(inner);
    shoal_fully_shard_options options = net_options(world);
    CHECK_OK(shoal_fully_shard(inner, &(shoal_fully_shard_options){.struct_size = sizeof options,
                                                                   .group = options.group,
                                                                   .param_dtype = param_dtype,
                                                                   .output_dtype = output_dtype,
                                                                   .keeps_inputs = keeps_inputs}));
    CHECK_OK(shoal_fully_shard(root, &options));
    shoal_tensor *out = shoal_module_call_one(root, net_input(0, self->rank));
    shoal_dtype cast = keeps_inputs || param_dtype == 0 ? SHOAL_F32 : param_dtype;
    CHECK_INT(seen[0], cast);
    CHECK_INT(seen[1], cast); /* what comes from outside of the sharded module, too */
    CHECK_INT(seen[2], SHOAL_I64);
    CHECK_INT(seen[3], 0);
    CHECK_INT(seen[4], SHOAL_BOOL);
    shoal_dtype computed = param_dtype != 0 ? param_dtype : SHOAL_F32;
    CHECK_INT(given[0], output_dtype != 0 ? output_dtype : computed);
    CHECK_INT(given[1], output_dtype != 0 ? output_dtype : SHOAL_F64);
    CHECK_INT(given[2], SHOAL_I64);
    CHECK_OK(shoal_backward(net_loss_of(out), NULL));
    CHECK_INT(shoal_tensor_dtype(shoal_grad(shoal_module_parameter(inner, "weight"))), SHOAL_F32);
    shoal_module_unref(root);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(inputs_and_outputs_of_all_kinds, 2)
{
    check_many(self, 0, 0, false);
    check_many(self, SHOAL_BF16, 0, false);
    check_many(self, SHOAL_BF16, 0, true);
    check_many(self, SHOAL_F16, SHOAL_F32, false);
    check_many(self, 0, SHOAL_BF16, false);
}

/* Half of a net ---------------------------------------------------------------------------------------------- */

static shoal_status see(void *context, const shoal_forward_call *call)
{
    *(shoal_dtype *)context = shoal_tensor_dtype(call->inputs[0]);
    return SHOAL_OK;
}

/* The net casts what goes into layer 1, because nobody else does. */
static shoal_tensor *cast_by_the_net(shoal_module *root, shoal_tensor *x)
{
    x = shoal_to_dtype(net_call(root, "0", x), SHOAL_F16);
    return shoal_to_dtype(net_call(root, "1", x), SHOAL_F32);
}

struct half_row {
    shoal_dtype root;  /* parameters of the root, and of layer 0 */
    bool keeps_inputs; /* of layer 1 */
    net_function function;
    shoal_dtype seen[2]; /* by the layers */
};

/* Layer 1 is computed in f16: cast at its own door, by the net, or at the root's. */
TEST_RANKS(one_layer_in_f16, 2)
{
    static const struct half_row rows[] = {
        {0, false, NULL, {SHOAL_F32, SHOAL_F16}},
        {0, true, cast_by_the_net, {SHOAL_F32, SHOAL_F16}},
        {SHOAL_F16, true, NULL, {SHOAL_F16, SHOAL_F16}},
    };
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        struct bench bench;
        REQUIRE(bench_open(&bench, self, 2, rows[k].function));
        shoal_dtype layers[2] = {0};
        for (int i = 0; i < 2; i++) {
            const shoal_module_hook_definition hook = {
                .struct_size = sizeof hook, .pre_forward = see, .context = &layers[i]};
            CHECK_OK(shoal_module_add_hook(bench.sharded.layers[i], &hook, NULL));
        }
        bench.options.param_dtype = SHOAL_F16;
        bench.options.keeps_inputs = rows[k].keeps_inputs;
        bench.options.output_dtype = rows[k].root != 0 || rows[k].function ? 0 : SHOAL_F32;
        CHECK_OK(shoal_fully_shard(bench.sharded.layers[1], &bench.options));
        bench.options.param_dtype = rows[k].root;
        bench.options.keeps_inputs = false;
        bench.options.output_dtype = 0;
        CHECK_OK(shoal_fully_shard(bench.sharded.root, &bench.options));
        for (int step = 0; step < 2; step++) {
            (void)net_pass(&bench.sharded, step, self->rank);
            CHECK_INT(layers[0], rows[k].seen[0]);
            CHECK_INT(layers[1], rows[k].seen[1]);
            net_update(&bench.sharded, 0.01F);
        }
        bench_close(&bench);
    }
}

/* Parameters that do not learn -------------------------------------------------------------------------------- */

/* All are frozen at the first forward, and one is of whole numbers: later, gradients are reduced as was asked for. */
TEST_RANKS(frozen_at_first, 2)
{
    struct bench bench;
    size_t n_parameters;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    shoal_tensor *const *parameters = shoal_module_parameters(bench.sharded.root, &n_parameters);
    for (size_t i = 0; i < n_parameters; i++) {
        CHECK_OK(shoal_set_requires_grad(parameters[i], false));
    }
    CHECK_OK(shoal_module_add_parameter(bench.sharded.layers[0], "ids",
                                        shoal_full((const int64_t[]){3}, 1, 7.0, SHOAL_I64)));
    bench.options.param_dtype = SHOAL_BF16;
    bench.options.reduce_dtype = SHOAL_F32;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    CHECK_OK(shoal_scope_begin());
    CHECK_OK(shoal_scope_set_grad(false));
    CHECK(shoal_module_call_one(bench.sharded.root, net_input(0, self->rank)) != NULL);
    CHECK_OK(shoal_scope_end());
    shoal_tensor *weight = shoal_module_parameter(bench.sharded.layers[0], "weight");
    CHECK_OK(shoal_set_requires_grad(weight, true));
    (void)net_pass(&bench.sharded, 1, self->rank);
    CHECK_INT(bench_unit(bench.sharded.layers[0])->grads.dtype, SHOAL_F32);
    CHECK(shoal_grad(weight) && shoal_tensor_dtype(shoal_grad(weight)) == SHOAL_F32);
    /* A mean of bf16 numbers of both ranks, not rounded to bf16. */
    bool has_more_digits = false;
    for (int step = 2; step < 12; step++) {
        const float *gradient = shoal_data(shoal_grad(weight));
        for (int64_t i = 0; i < shoal_tensor_count(weight); i++) {
            uint32_t bits;
            memcpy(&bits, &gradient[i], sizeof bits);
            has_more_digits = has_more_digits || (bits & 0xFFFFU) != 0;
        }
        CHECK_OK(shoal_set_grad(weight, NULL));
        (void)net_pass(&bench.sharded, step, self->rank);
    }
    CHECK(has_more_digits);
    bench_close(&bench);
}

static _Thread_local unsigned char whole[3];

static shoal_status see_bytes(void *context, const shoal_forward_call *call)
{
    (void)context;
    const shoal_tensor *table = shoal_module_parameter(call->module, "table");
    if (CHECK_INT(shoal_tensor_dtype(table), SHOAL_U8) && CHECK_INT(shoal_tensor_count(table), 3)) {
        memcpy(whole, shoal_data(table), 3);
    }
    return SHOAL_OK;
}

/* Bytes that nobody learns next to f32 that does: both are gathered, and one is reduced. */
TEST_RANKS(bytes_next_to_gradients, 2)
{
    static const unsigned char bytes[] = {1, 200, 255};
    const shoal_module_hook_definition hook = {.struct_size = sizeof hook, .pre_forward = see_bytes};
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    shoal_tensor *table = shoal_empty((const int64_t[]){3}, 1, SHOAL_U8);
    memcpy(shoal_mutable_data(table), bytes, sizeof bytes);
    CHECK_OK(shoal_module_add_parameter(bench.sharded.layers[0], "table", table));
    CHECK_OK(shoal_module_add_hook(bench.sharded.layers[0], &hook, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    net_train_both(&bench.sharded, &bench.alone, net_pass, self, 2);
    CHECK_BYTES(whole, bytes, sizeof bytes);
    bench_close(&bench);
}

/* Bits ------------------------------------------------------------------------------------------------------- */

static shoal_status check_entry(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct net *const *nets = context;
    (void)next;
    for (int i = 0; i < 2; i++) {
        shoal_tensor *got = shoal_module_parameter(nets[0]->root, entry->path);
        shoal_tensor *want = shoal_module_parameter(nets[1]->root, entry->path);
        got = i == 1 ? shoal_grad(got) : got;
        want = i == 1 ? shoal_grad(want) : want;
        CHECK(got && want && shoal_tensor_dtype(got) == SHOAL_F32);
        (void)CHECK_BYTES(shoal_data(got), shoal_data(want),
                          (size_t)shoal_tensor_count(want) * sizeof(float));
    }
    return SHOAL_OK;
}

/* Computed in a half, reduced in the same or in f32: however parameters are kept, shards and gradients are the same. */
static void check_halves(struct rank *self, shoal_dtype param_dtype, shoal_dtype reduce_dtype,
                         shoal_reshard reshard)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 3, NULL));
    bench.options.param_dtype = param_dtype;
    bench.options.reduce_dtype = reduce_dtype;
    REQUIRE(net_shard(&bench.alone, &bench.options));
    bench.options.reshard = reshard;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    struct net *nets[] = {&bench.sharded, &bench.alone};
    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < 2; i++) {
            (void)net_pass(nets[i], step, self->rank);
        }
        CHECK_INT(bench_unit(bench.sharded.layers[0])->grads.dtype,
                  reduce_dtype ? reduce_dtype : param_dtype);
        CHECK_OK(shoal_module_walk(bench.alone.root, SHOAL_WALK_PARAMETERS, check_entry, nets));
        net_update(&bench.sharded, 0.1F);
        net_update(&bench.alone, 0.1F);
    }
    bench_close(&bench);
}

TEST_RANKS(halves_have_the_same_bits, 4)
{
    static const shoal_reshard reshards[] = {SHOAL_RESHARD_ALWAYS, SHOAL_RESHARD_NEVER, SHOAL_RESHARD_PARTLY};
    for (int i = 0; i < 3; i++) {
        check_halves(self, SHOAL_BF16, 0, reshards[i]);
        check_halves(self, SHOAL_F16, 0, reshards[i]);
        check_halves(self, SHOAL_BF16, SHOAL_F32, reshards[i]);
        check_halves(self, SHOAL_F32, SHOAL_BF16, reshards[i]);
    }
}

/* Scaling ---------------------------------------------------------------------------------------------------- */

struct scaler {
    float scale;
    int n_good; /* steps since the scale changed */
};

/* Divides gradients by the scale, here; whether one of them, anywhere, is not finite, everywhere. */
static bool unscale(struct net *net, const struct scaler *scaler, shoal_group *group, int *n_ranks_out)
{
    size_t n_parameters;
    float found[2] = {0.0F, 0.0F};
    shoal_tensor *const *parameters = shoal_module_parameters(net->root, &n_parameters);
    for (size_t i = 0; i < n_parameters; i++) {
        shoal_tensor *gradient = shoal_grad(parameters[i]);
        float *values = gradient ? shoal_mutable_data(gradient) : NULL;
        for (int64_t k = 0; values && k < shoal_tensor_count(gradient); k++) {
            values[k] /= scaler->scale;
            found[0] = isfinite(values[k]) ? found[0] : 1.0F;
        }
    }
    found[1] = found[0];
    (void)CHECK_OK(shoal_group_all_reduce(group, &found[0], &found[0], 1, SHOAL_F32, SHOAL_MAX));
    (void)CHECK_OK(shoal_group_all_reduce(group, &found[1], &found[1], 1, SHOAL_F32, SHOAL_SUM));
    *n_ranks_out = (int)found[1];
    return found[0] > 0.0F;
}

/* The step is skipped. */
static void drop_gradients(struct net *net)
{
    size_t n_parameters;
    shoal_tensor *const *parameters = shoal_module_parameters(net->root, &n_parameters);
    for (size_t i = 0; i < n_parameters; i++) {
        (void)CHECK_OK(shoal_set_grad(parameters[i], NULL));
    }
}

static void update_scale(struct scaler *scaler, bool has_infinite)
{
    scaler->n_good = has_infinite ? 0 : scaler->n_good + 1;
    scaler->scale *= has_infinite ? 0.5F : 1.0F;
    if (scaler->n_good == 3) {
        scaler->scale *= 2.0F;
        scaler->n_good = 0;
    }
}

static void check_scaling(struct rank *self, int n_replicas)
{
    static const float scales[] = {1024.0F, 512.0F, 512.0F, 512.0F, 1024.0F};
    struct scaler scaler = {.scale = 1024.0F};
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    CHECK(n_replicas == 1 || bench_replicate(&bench, n_replicas));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    for (int step = 0; step < 5; step++) {
        int n_found;
        CHECK_DOUBLE((double)scaler.scale, (double)scales[step]);
        shoal_tensor *x = net_input(step, self->rank);
        if (step == 0 && self->rank == 1) { /* one number, on one rank */
            ((float *)shoal_mutable_data(x))[1] = INFINITY;
        }
        shoal_tensor *loss = shoal_mul_scalar(net_loss(&bench.sharded, x), (double)scaler.scale);
        CHECK_OK(shoal_backward(loss, NULL));
        bool has_infinite = unscale(&bench.sharded, &scaler, shoal_world_group(bench.world), &n_found);
        CHECK_INT(has_infinite, step == 0);
        if (step == 0) { /* not all ranks could have known: some have shards of other numbers, or none */
            CHECK(n_found > 0 && n_found < self->n_ranks);
            drop_gradients(&bench.sharded);
        }
        update_scale(&scaler, has_infinite);
        if (!has_infinite) {
            net_pass_alone(&bench.alone, net_pass, step, self->n_ranks);
            net_check_same(&bench.sharded, &bench.alone);
            net_update(&bench.sharded, 0.1F);
            net_update(&bench.alone, 0.1F);
        }
        net_check_same(&bench.sharded, &bench.alone); /* the step that was skipped changed nothing */
    }
    bench_close(&bench);
}

TEST_RANKS(a_scale_for_gradients, 4)
{
    check_scaling(self, 1);
    check_scaling(self, 2);
}
