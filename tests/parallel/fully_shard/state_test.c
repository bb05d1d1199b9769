/* SPDX-License-Identifier: MIT */
/*
 * What modules that are sharded have in their places at which time, where values come from, which dtypes they see, and
 * how gradients are kept over several backward passes.
 */
#include "fixtures/on_device.h"

#include "fixtures/fsdp_handles.h"
#include "base/completion.h"
#include "base/error.h"
#include "fixtures/module_bench.h"
#include "tensor/tensor.h"

/* In their places ---------------------------------------------------------------------------------------- */

/* "F" full or "S" sharded, for scale and the weights of the layers. */
static void check_places(const struct net *net, const char *wanted)
{
    char places[NET_MAX_LAYERS + 2] = "";
    for (int i = -1; i < net->n_layers; i++) {
        const shoal_tensor *tensor =
            shoal_module_parameter(i < 0 ? net->root : net->layers[i], i < 0 ? "scale" : "weight");
        places[i + 1] = shoal_tensor_count(tensor) == NET_WIDTH ? 'F' : 'S';
    }
    (void)CHECK_STRING(places, wanted);
}

/* "F" gathered or "S" not, for the units of the root and of the layers: what stays gathered is not in the places. */
static void check_gathered(const struct net *net, const char *wanted)
{
    char states[NET_MAX_LAYERS + 2] = "";
    for (int i = -1; i < net->n_layers; i++) {
        const struct fsdp_wrapper *wrapper = fsdp_wrapper_of(i < 0 ? net->root : net->layers[i]);
        states[i + 1] = wrapper->unit->state == FSDP_UNSHARDED ? 'F' : 'S';
    }
    (void)CHECK_STRING(states, wanted);
}

static void check_registration(struct rank *self, shoal_reshard reshard, const char *after_forward)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 3, NULL));
    bench.options.reshard = reshard;
    bench.options.reshard_ranks = 2;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    check_places(&bench.sharded, "SSSS");
    for (int step = 0; step < 2; step++) {
        size_t n_parameters;
        shoal_tensor *loss = net_loss(&bench.sharded, net_input(step, self->rank));
        check_gathered(&bench.sharded, after_forward);
        check_places(&bench.sharded, "SSSS");
        for (int i = 0; i < 3 && after_forward[i + 1] == 'F'; i++) { /* what is full has the values of all */
            CHECK_BYTES(shoal_data(fsdp_wrapper_of(bench.sharded.layers[i])->tensors[0].full),
                        shoal_data(shoal_module_parameter(bench.alone.layers[i], "weight")),
                        NET_WIDTH * sizeof(float));
        }
        CHECK_OK(shoal_backward(loss, NULL));
        check_places(&bench.sharded, "SSSS");
        CHECK(shoal_module_parameters(bench.sharded.root, &n_parameters) != NULL);
        CHECK_INT(n_parameters, 7);
        shoal_tensor *again = net_loss(&bench.sharded, net_input(step, self->rank));
        for (int i = 0; i < 3; i++) {
            CHECK_OK(shoal_fsdp_reshard(shoal_fully_shard_unit(bench.sharded.layers[i], false)));
        }
        CHECK_OK(shoal_fsdp_reshard(shoal_fully_shard_unit(bench.sharded.root, false)));
        check_places(&bench.sharded, "SSSS");
        CHECK_OK(shoal_backward(again, NULL));
        check_places(&bench.sharded, "SSSS");
    }
    bench_close(&bench);
}

TEST_RANKS(places_after_forward_and_backward, 4)
{
    check_registration(self, SHOAL_RESHARD_DEFAULT, "FSSS");
    check_registration(self, SHOAL_RESHARD_ALWAYS, "SSSS");
    check_registration(self, SHOAL_RESHARD_NEVER, "FFFF");
    check_registration(self, SHOAL_RESHARD_PARTLY, "SSSS");
}

/* Chunks of ceil(5/4) and ceil(1/4) elements; gradients look like their shards. */
TEST_RANKS(shards_and_their_gradients, 4)
{
    static const int64_t lengths[] = {2, 2, 1, 0};
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    const float *whole = shoal_data(shoal_module_parameter(bench.alone.layers[0], "weight"));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    shoal_tensor *weight = shoal_module_parameter(bench.sharded.layers[0], "weight");
    shoal_tensor *bias = shoal_module_parameter(bench.sharded.layers[0], "bias");
    (void)net_pass(&bench.sharded, 0, self->rank);
    CHECK(shoal_module_parameter(bench.sharded.layers[0], "weight") == weight);
    CHECK_INT(shoal_tensor_n_dims(weight), 1);
    CHECK_INT(shoal_tensor_count(weight), lengths[self->rank]);
    CHECK_INT(shoal_tensor_count(shoal_grad(weight)), lengths[self->rank]);
    CHECK_INT(shoal_tensor_count(bias), self->rank == 0);
    CHECK_INT(shoal_tensor_count(shoal_grad(bias)), self->rank == 0);
    CHECK(shoal_requires_grad(weight) && shoal_is_leaf(weight));
    if (lengths[self->rank] > 0) {
        CHECK_BYTES(shoal_data(weight), whole + 2 * self->rank, (size_t)lengths[self->rank] * sizeof(float));
    }
    bench_close(&bench);
}

/* Values ------------------------------------------------------------------------------------------------- */

static shoal_status make_meta(void *context, const shoal_module_entry *entry, shoal_tensor **tensor)
{
    (void)context;
    *tensor = shoal_empty_on(shoal_tensor_shape(entry->tensor), shoal_tensor_n_dims(entry->tensor), SHOAL_F32,
                             SHOAL_META);
    return SHOAL_OK;
}

static shoal_status load_entry(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct net *net = context;
    (void)next;
    return shoal_fsdp_load(shoal_fully_shard_param(net->root, entry->path), shoal_data(entry->tensor));
}

static void load(struct net *to, struct net *from)
{
    (void)CHECK_OK(shoal_module_walk(from->root, SHOAL_WALK_PARAMETERS, load_entry, to));
}

static shoal_status break_entry(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct completion *write = context;
    (void)next;
    return storage_add_write(entry->tensor->storage, write);
}

/* A parameter that a collective of the application has spoilt is good again when it is loaded. */
TEST_RANKS(loading_ends_a_failure, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    struct completion *write = completion_create();
    REQUIRE(write);
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    CHECK_OK(shoal_module_walk(bench.sharded.root, SHOAL_WALK_PARAMETERS, break_entry, write));
    completion_finish(write, error_set(SHOAL_ERR_PEER, "rank 7 died"));
    error_clear();
    shoal_tensor *weight = shoal_module_parameter(bench.sharded.root, "0.weight");
    CHECK_STATUS(shoal_wait(weight), SHOAL_ERR_PEER);
    load(&bench.sharded, &bench.alone);
    CHECK_OK(shoal_wait(weight));
    completion_unref(write);
    bench_close(&bench);
}

TEST_RANKS(made_without_values, 4)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    CHECK_OK(shoal_module_apply(bench.sharded.root, SHOAL_WALK_PARAMETERS, make_meta, NULL));
    bench.options.device = test_device();
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    for (int i = 0; i < 2; i++) { /* slices of nothing are no values */
        static const char *const paths[] = {"scale", "0.weight", "0.bias", "1.weight", "1.bias"};
        CHECK_OK(shoal_scope_begin());
        CHECK(shoal_module_call_one(bench.sharded.root, net_input(0, 0)) == NULL);
        CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_STATE);
        CHECK_ERROR_TEXT("meta");
        for (int k = 0; k < 5; k++) {
            CHECK_OK(
                shoal_fsdp_load_slice(shoal_fully_shard_param(bench.sharded.root, paths[k]), 1, 0, NULL));
        }
    }
    load(&bench.sharded, &bench.alone);
    net_train_both(&bench.sharded, &bench.alone, net_pass, self, 3);
    bench_close(&bench);
}

TEST_RANKS(made_on_different_devices, 2)
{
    struct bench bench;
    if (test_device() == SHOAL_CPU) {
        test_skip("it needs a second device");
        return;
    }
    REQUIRE(bench_open(&bench, self, 2, NULL));
    CHECK_OK(shoal_module_apply(bench.sharded.root, SHOAL_WALK_PARAMETERS, make_meta, NULL));
    bench.options.device = self->rank == 0 ? SHOAL_CPU : test_device();
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    load(&bench.sharded, &bench.alone);
    CHECK_OK(shoal_scope_begin());
    CHECK(shoal_module_call_one(bench.sharded.root, net_input(0, 0)) == NULL);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_MISMATCH);
    bench_close(&bench);
}

/* Also while what was gathered before is still there. */
TEST_RANKS(values_that_are_loaded_are_seen, 3)
{
    struct bench bench;
    struct net other;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    bench.options.reshard = SHOAL_RESHARD_NEVER;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    net_train_both(&bench.sharded, &bench.alone, net_pass, self, 2);
    (void)net_loss(&bench.sharded, net_input(9, self->rank));
    check_gathered(&bench.sharded, "FFF");
    check_places(&bench.sharded, "SSS");
    net_make(&other, 2, NULL);
    load(&bench.sharded, &other);
    check_places(&bench.sharded, "SSS");
    net_train_both(&bench.sharded, &other, net_pass, self, 2);
    net_free(&other);
    bench_close(&bench);
}

/* A change between forward and backward by whoever has the shards: the next gather has it. */
TEST_RANKS(values_that_are_written_are_seen, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    for (int i = 0; i < 3; i++) {
        (void)net_pass(&bench.sharded, i, self->rank);
        float full[NET_WIDTH];
        shoal_tensor *weight = shoal_module_parameter(bench.sharded.layers[0], "weight");
        float *data = shoal_mutable_data(weight);
        for (int64_t k = 0; k < shoal_tensor_count(weight); k++) {
            data[k] = (float)i;
        }
        CHECK_OK(shoal_fsdp_unshard(shoal_fully_shard_unit(bench.sharded.layers[0], false)));
        CHECK_OK(shoal_fsdp_wait(shoal_fully_shard_unit(bench.sharded.layers[0], false)));
        const float *values = shoal_data(shoal_module_parameter(bench.sharded.layers[0], "weight"));
        CHECK_OK(shoal_fsdp_gather(shoal_fully_shard_param(bench.sharded.root, "0.weight"), full,
                                   SHOAL_FSDP_ALL_RANKS));
        for (int k = 0; k < NET_WIDTH; k++) {
            CHECK_DOUBLE((double)values[k], i);
            CHECK_DOUBLE((double)full[k], i);
        }
        CHECK_OK(shoal_fsdp_reshard(shoal_fully_shard_unit(bench.sharded.layers[0], false)));
    }
    bench_close(&bench);
}

/* A tensor that is put in the place of a shard is not one. */
TEST_RANKS(a_shard_that_is_replaced, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    shoal_tensor *shard = shoal_module_parameter(bench.sharded.root, "0.weight");
    CHECK_OK(shoal_module_set_parameter(bench.sharded.root, "0.weight", net_parameter(1, NET_WIDTH)));
    CHECK_OK(shoal_scope_begin());
    CHECK(shoal_module_call_one(bench.sharded.root, net_input(0, 0)) == NULL);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("0 (layer): a pre-forward hook: parameter weight was replaced");
    CHECK_OK(shoal_module_set_parameter(bench.sharded.root, "0.weight", shard));
    CHECK_OK(shoal_fsdp_reset(fsdp_of_module(bench.sharded.root)));
    net_train_both(&bench.sharded, &bench.alone, net_pass, self, 2);
    bench_close(&bench);
}

/* Units without this or that ----------------------------------------------------------------------------- */

static shoal_status make_input(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                               shoal_tensor **outputs, size_t n_outputs)
{
    (void)inputs;
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = net_call(module, "net", net_input(0, 0));
    return SHOAL_OK;
}

/* The root has no parameters and no inputs. */
TEST_RANKS(a_root_without_anything, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    shoal_module *root = net_make_module("root", make_input, NULL);
    CHECK_OK(shoal_module_add_child(root, "net", bench.sharded.root));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    CHECK_OK(shoal_fully_shard(root, &bench.options));
    CHECK_OK(shoal_fsdp_unshard(shoal_fully_shard_unit(root, false)));
    CHECK_OK(shoal_fsdp_wait(shoal_fully_shard_unit(root, false)));
    for (int step = 0; step < 2; step++) {
        shoal_tensor *out;
        CHECK_OK(shoal_module_call(root, NULL, 0, &out, 1));
        CHECK_OK(shoal_backward(net_loss_of(out), NULL));
        CHECK(shoal_grad(shoal_module_parameter(root, "net.0.weight")) != NULL);
        net_update(&bench.sharded, 0.1F);
    }
    CHECK_OK(shoal_fsdp_reshard(shoal_fully_shard_unit(root, false)));
    net_free(&bench.sharded);
    shoal_module_unref(root);
    bench_close(&bench);
}

static shoal_status add_nothing(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = shoal_add(inputs[0], shoal_sum(shoal_module_parameter(module, "empty"), NULL, 0, false));
    return SHOAL_OK;
}

static void add_empty_layer(struct net *net)
{
    shoal_module *layer = net_make_module("empty", add_nothing, NULL);
    (void)CHECK_OK(shoal_module_add_parameter(layer, "empty", net_parameter(1, 0)));
    (void)CHECK_OK(shoal_module_add_child(net->root, "empty", layer));
    net->layers[net->n_layers++] = layer;
    shoal_module_unref(layer);
}

/* A parameter without elements, alone in its unit, has a gradient without elements. */
static void check_empty(struct rank *self, shoal_dtype reduce_dtype)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    add_empty_layer(&bench.sharded);
    add_empty_layer(&bench.alone);
    bench.options.reduce_dtype = reduce_dtype;
    bench.sharded.is_near = true;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    shoal_tensor *shard = shoal_module_parameter(bench.sharded.root, "empty.empty");
    net_train_both(&bench.sharded, &bench.alone, net_pass, self, 2);
    for (int is_on = 0; is_on < 2; is_on++) {
        CHECK_OK(shoal_fsdp_set_sync(shoal_fully_shard_unit(bench.sharded.root, true), is_on));
        (void)net_pass(&bench.sharded, 0, self->rank);
        CHECK((shoal_grad(shard) != NULL) == is_on);
    }
    CHECK_INT(shoal_tensor_count(shoal_grad(shard)), 0);
    bench_close(&bench);
}

TEST_RANKS(a_parameter_without_elements, 2)
{
    check_empty(self, 0);
    check_empty(self, SHOAL_F64);
}

TEST_RANKS(a_parameter_without_elements_alone, 1)
{
    check_empty(self, 0);
}

/* A factor of the root is of its own parameters; 1 is the sum. */
TEST_RANKS(a_divide_factor_of_the_root_alone, 2)
{
    struct bench bench;
    struct net_sum sum = {.has_any = {false}};
    REQUIRE(bench_open(&bench, self, 1, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    CHECK_OK(shoal_fsdp_set_divide_factor(shoal_fully_shard_unit(bench.sharded.root, false), 1.0));
    (void)net_pass(&bench.sharded, 0, self->rank);
    for (int part = 0; part < 2; part++) {
        (void)net_pass(&bench.alone, 0, part);
        net_add_gradients(&bench.alone, &sum);
    }
    for (int i = 0; i < NET_WIDTH; i++) {
        sum.values[1][i] /= 2; /* of the layer: scale comes first */
    }
    sum.values[2][0] /= 2;
    net_put_gradients(&bench.alone, &sum, 1);
    net_check_same(&bench.sharded, &bench.alone);
    bench_close(&bench);
}

/* The largest number of all units counts. */
TEST_RANKS(reductions_in_flight, 3)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 3, NULL));
    bench.options.max_reduces = 3;
    CHECK_OK(shoal_fully_shard(bench.sharded.layers[1], &bench.options));
    bench.options.max_reduces = 0;
    CHECK_OK(shoal_fully_shard(bench.sharded.layers[0], &bench.options));
    CHECK_OK(shoal_fully_shard(bench.sharded.layers[2], &bench.options));
    CHECK_OK(shoal_fully_shard(bench.sharded.root, &bench.options));
    net_train_both(&bench.sharded, &bench.alone, net_pass, self, 2);
    CHECK_INT(fsdp_wrapper_of(bench.sharded.root)->root->context->config.max_reduces, 3);
    bench_close(&bench);
}

/* Several backward passes -------------------------------------------------------------------------------- */

enum {
    N_MICRO = 3
};

/* Gradients of all but the last stay where they are. */
static bool pass_micro(struct net *net, int step, int part)
{
    bool is_sharded = shoal_is_fully_sharded(net->root);
    bool is_right = true;
    for (int micro = 0; micro < N_MICRO; micro++) {
        if (is_sharded) {
            (void)CHECK_OK(
                shoal_fsdp_set_sync(shoal_fully_shard_unit(net->root, true), micro == N_MICRO - 1));
        }
        is_right = net_pass(net, 10 * step + micro, part) && is_right;
    }
    return is_right;
}

static void check_accumulation(struct rank *self, shoal_reshard reshard, bool after_backward, int n_gathers)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 3, NULL));
    bench.options.reshard = reshard;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    for (int step = 0; step < 3; step++) {
        net_listen(&bench.sharded, "u");
        CHECK_OK(shoal_fsdp_set_reshard_after_backward(shoal_fully_shard_unit(bench.sharded.root, true),
                                                       after_backward));
        (void)pass_micro(&bench.sharded, step, self->rank);
        CHECK_INT(net_count_events(&bench.sharded, 'u'), n_gathers);
        for (int i = 0; i < 3 && !after_backward; i++) {
            CHECK_OK(shoal_fsdp_reshard(shoal_fully_shard_unit(bench.sharded.layers[i], false)));
        }
        CHECK_OK(shoal_fsdp_reshard(shoal_fully_shard_unit(bench.sharded.root, false)));
        net_pass_alone(&bench.alone, pass_micro, step, self->n_ranks);
        net_check_same(&bench.sharded, &bench.alone);
        net_update(&bench.sharded, 0.1F);
        net_update(&bench.alone, 0.1F);
    }
    bench_close(&bench);
}

TEST_RANKS(gradients_without_communication, 4)
{
    check_accumulation(self, SHOAL_RESHARD_ALWAYS, true, 2 * 4 * N_MICRO);
    check_accumulation(self, SHOAL_RESHARD_DEFAULT, true, (2 * 4 - 1) * N_MICRO);
    check_accumulation(self, SHOAL_RESHARD_NEVER, true, 4 * N_MICRO);
    check_accumulation(self, SHOAL_RESHARD_NEVER, false, 4);
}

/* Each is reduced, and added to those before. */
TEST_RANKS(gradients_reduced_each_time, 3)
{
    struct bench bench;
    struct net_sum total = {.has_any = {false}};
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    for (int micro = 0; micro < N_MICRO; micro++) {
        (void)net_pass(&bench.sharded, micro, self->rank);
        net_pass_alone(&bench.alone, net_pass, micro, self->n_ranks);
        net_add_gradients(&bench.alone, &total);
    }
    net_put_gradients(&bench.alone, &total, 1);
    net_check_same(&bench.sharded, &bench.alone);
    bench_close(&bench);
}

/* Gradients that stay, of one unit only: the others are reduced each time. */
TEST_RANKS(one_unit_without_communication, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    CHECK_OK(shoal_fsdp_set_sync(shoal_fully_shard_unit(bench.sharded.layers[0], false), false));
    (void)net_pass(&bench.sharded, 0, self->rank);
    CHECK(shoal_grad(shoal_module_parameter(bench.sharded.layers[0], "weight")) == NULL);
    CHECK(shoal_grad(shoal_module_parameter(bench.sharded.layers[1], "weight")) != NULL);
    CHECK_OK(shoal_fsdp_set_sync(shoal_fully_shard_unit(bench.sharded.layers[0], false), true));
    (void)net_pass(&bench.sharded, 1, self->rank);
    CHECK(shoal_grad(shoal_module_parameter(bench.sharded.layers[0], "weight")) != NULL);
    bench_close(&bench);
}

/* An optimizer inside the backward pass. */
static shoal_status update_leaf(void *context, shoal_tensor *leaf)
{
    int *n_updates = context;
    const float *gradient = shoal_data(shoal_grad(leaf));
    float *data = shoal_mutable_data(leaf);
    for (int64_t i = 0; gradient && data && i < shoal_tensor_count(leaf); i++) {
        data[i] -= 0.1F * gradient[i];
    }
    (*n_updates)++;
    return shoal_set_grad(leaf, NULL);
}

TEST_RANKS(an_optimizer_in_backward, 4)
{
    struct bench bench;
    int n_updates = 0;
    size_t n_parameters;
    REQUIRE(bench_open(&bench, self, 3, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    shoal_tensor *const *parameters = shoal_module_parameters(bench.sharded.root, &n_parameters);
    for (size_t i = 0; i < n_parameters; i++) {
        CHECK_OK(shoal_on_accumulated(parameters[i], update_leaf, &n_updates, NULL));
    }
    for (int step = 0; step < 3; step++) {
        (void)net_pass(&bench.sharded, step, self->rank);
        net_pass_alone(&bench.alone, net_pass, step, self->n_ranks);
        net_update(&bench.alone, 0.1F);
        net_check_same(&bench.sharded, &bench.alone);
        CHECK_INT(n_updates, 7 * (step + 1));
    }
    bench_close(&bench);
}

/* Dtypes ------------------------------------------------------------------------------------------------- */

/* What a layer has seen last. */
static _Thread_local shoal_dtype seen_input;
static _Thread_local shoal_dtype seen_weight;
static _Thread_local int n_seen;

static shoal_status see(void *context, const shoal_forward_call *call)
{
    (void)context;
    seen_input = shoal_tensor_dtype(call->inputs[0]);
    seen_weight = shoal_tensor_dtype(shoal_module_parameter(call->module, "weight"));
    n_seen++;
    return SHOAL_OK;
}

static shoal_tensor *again(shoal_module *root, shoal_tensor *x)
{
    return net_recompute(shoal_module_child(root, "0"), x);
}

struct dtype_case {
    shoal_dtype param_dtype;
    shoal_dtype output_dtype; /* of the root */
    bool keeps_inputs;
    net_function function;
    shoal_dtype input; /* of the layer */
    shoal_dtype output;
};

static void check_dtypes(struct rank *self, const struct dtype_case *row)
{
    struct bench bench;
    const shoal_module_hook_definition hook = {.struct_size = sizeof hook, .pre_forward = see};
    REQUIRE(bench_open(&bench, self, 1, row->function));
    bench.options.param_dtype = row->param_dtype;
    bench.options.keeps_inputs = row->keeps_inputs;
    bench.options.reduce_dtype = SHOAL_F32;
    CHECK_OK(shoal_module_add_hook(bench.sharded.layers[0], &hook, NULL));
    CHECK_OK(shoal_fully_shard(bench.sharded.layers[0], &bench.options));
    bench.options.output_dtype = row->output_dtype;
    CHECK_OK(shoal_fully_shard(bench.sharded.root, &bench.options));
    seen_input = seen_weight = 0;
    n_seen = 0;
    shoal_tensor *out = shoal_module_call_one(bench.sharded.root, net_input(0, self->rank));
    CHECK_INT(seen_input, row->input);
    CHECK_INT(seen_weight, row->param_dtype);
    CHECK_INT(shoal_tensor_dtype(out), row->output);
    seen_input = seen_weight = 0;
    CHECK_OK(shoal_backward(net_loss_of(out), NULL));
    CHECK_INT(n_seen, row->function ? 2 : 1);
    CHECK_INT(seen_input, row->function ? row->input : 0);
    CHECK_INT(seen_weight, row->function ? row->param_dtype : 0);
    shoal_tensor *weight = shoal_module_parameter(bench.sharded.layers[0], "weight");
    CHECK_INT(shoal_tensor_dtype(weight), SHOAL_F32);
    CHECK_INT(shoal_tensor_dtype(shoal_grad(weight)), SHOAL_F32);
    bench_close(&bench);
}

TEST_RANKS(dtypes_that_modules_see, 2)
{
    static const struct dtype_case rows[] = {
        {SHOAL_BF16, 0, false, NULL, SHOAL_BF16, SHOAL_BF16},
        {SHOAL_F16, 0, false, NULL, SHOAL_F16, SHOAL_F16},
        {SHOAL_BF16, SHOAL_F32, false, NULL, SHOAL_BF16, SHOAL_F32},
        {SHOAL_F16, SHOAL_F32, false, again, SHOAL_F16, SHOAL_F32},
        {SHOAL_F32, 0, true, NULL, SHOAL_F32, SHOAL_F32},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_dtypes(self, &rows[i]);
    }
}

/* Cast once, at the module whose parameters are cast. */
TEST_RANKS(a_half_in_the_middle, 2)
{
    struct bench bench;
    const shoal_module_hook_definition hook = {.struct_size = sizeof hook, .pre_forward = see};
    REQUIRE(bench_open(&bench, self, 2, NULL));
    CHECK_OK(shoal_module_add_hook(bench.sharded.layers[1], &hook, NULL));
    CHECK_OK(shoal_fully_shard(bench.sharded.layers[0], &bench.options));
    bench.options.param_dtype = SHOAL_F16;
    bench.options.output_dtype = SHOAL_F32;
    CHECK_OK(shoal_fully_shard(bench.sharded.layers[1], &bench.options));
    bench.options.param_dtype = bench.options.output_dtype = 0;
    CHECK_OK(shoal_fully_shard(bench.sharded.root, &bench.options));
    for (int step = 0; step < 2; step++) {
        shoal_tensor *out = shoal_module_call_one(bench.sharded.root, net_input(step, self->rank));
        CHECK_INT(seen_input, SHOAL_F16);
        CHECK_INT(shoal_tensor_dtype(out), SHOAL_F32);
        CHECK_OK(shoal_backward(net_loss_of(out), NULL));
        net_update(&bench.sharded, 0.1F);
    }
    bench_close(&bench);
}
