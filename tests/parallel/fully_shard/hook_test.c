/* SPDX-License-Identifier: MIT */
/*
 * Modules: the hook behind reductions, and parameters or units that only some ranks use. The two nets of a test are
 * trained on the same batches.
 */
#include "fixtures/on_device.h"

#include "fixtures/fsdp_handles.h"
#include "fixtures/module_bench.h"
#include "fixtures/reduced.h"

#include "shoal/group.h"

/* The hook ----------------------------------------------------------------------------------------------- */

struct hook {
    shoal_group *group;
    bool starts;
    int fails_at; /* 0: never */
    int n_calls;
};

static shoal_status average(void *context, const shoal_reduced_gradients *reduced, shoal_work **work_out)
{
    struct hook *hook = context;
    hook->n_calls++;
    if (hook->n_calls == hook->fails_at) {
        return SHOAL_ERR_CANCELLED;
    }
    if (!hook->group) {
        return SHOAL_OK;
    }
    return reduced_all_reduce(reduced, hook->group, SHOAL_AVG, hook->starts ? work_out : NULL);
}

static shoal_group *make_group(shoal_world *world, int first, int second, const char *tag)
{
    const int ranks[] = {first, second};
    shoal_group *group = NULL;
    (void)CHECK_OK(shoal_group_create(world, ranks, 2, tag, &group));
    return group;
}

/* Parameters as wholes. */
static shoal_status compare_entry(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct net *const *nets = context;
    float values[2][64];
    (void)next;
    for (int i = 0; i < 2; i++) {
        CHECK_OK(shoal_fsdp_gather(shoal_fully_shard_param(nets[i]->root, entry->path), values[i],
                                   SHOAL_FSDP_ALL_RANKS));
    }
    int64_t count = strstr(entry->path, "bias") ? 1 : NET_WIDTH;
    (void)CHECK_BYTES(values[0], values[1], (size_t)count * sizeof(float));
    return SHOAL_OK;
}

static void check_like_replicas(struct rank *self, bool starts, int max_reduces)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 3, NULL));
    struct hook hook = {.group = make_group(bench.world, self->rank % 2, self->rank % 2 + 2, "columns"),
                        .starts = starts};
    shoal_group *row = make_group(bench.world, self->rank / 2 * 2, self->rank / 2 * 2 + 1, "rows");
    REQUIRE(bench_replicate(&bench, 2));
    bench.options.max_reduces = max_reduces;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    bench.options.mesh = NULL;
    bench.options.group = row;
    REQUIRE(net_shard(&bench.alone, &bench.options));
    CHECK_OK(shoal_fsdp_set_all_reduce_hook(shoal_fully_shard_unit(bench.alone.root, true), average, &hook));
    struct net *nets[] = {&bench.sharded, &bench.alone};
    for (int step = 0; step < 3 && !test_has_failed(); step++) {
        for (int i = 0; i < 2; i++) {
            (void)net_pass(nets[i], step, self->rank);
            net_update(nets[i], 0.1F);
        }
        CHECK_OK(shoal_module_walk(bench.alone.root, SHOAL_WALK_PARAMETERS, compare_entry, nets));
        CHECK_INT(hook.n_calls, 4 * (step + 1));
    }
    net_free(&bench.alone);
    net_free(&bench.sharded);
    bench_close(&bench);
}

TEST_RANKS(a_hook_instead_of_replicas, 4)
{
    check_like_replicas(self, false, 0);
    check_like_replicas(self, true, 0);
    check_like_replicas(self, true, 3);
}

/* y_i = sum_j w_ij x_j */
static shoal_status matrix_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                   shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] =
        shoal_sum(shoal_mul(inputs[0], shoal_module_parameter(module, "weight")), (int64_t[]){1}, 1, false);
    return SHOAL_OK;
}

static shoal_status two_matrices(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                 shoal_tensor **outputs, size_t n_outputs)
{
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = net_call(module, "1", net_call(module, "0", inputs[0]));
    return SHOAL_OK;
}

static shoal_module *make_matrix(float value)
{
    shoal_module *module = net_make_module("matrix", matrix_forward, NULL);
    shoal_tensor *weight = shoal_full((int64_t[]){10, 10}, 2, (double)value, SHOAL_F32);
    CHECK_OK(shoal_set_requires_grad(weight, true));
    CHECK_OK(shoal_module_add_parameter(module, "weight", weight));
    return module;
}

/* Rows of the gradient are row_0, row_0 + slope, ... */
static void check_matrix(shoal_module *layer, float first, float slope)
{
    shoal_tensor *grad = shoal_grad(shoal_module_parameter(layer, "weight"));
    REQUIRE(grad != NULL);
    CHECK_INT(shoal_tensor_shape(grad)[0], 5);
    const float *values = shoal_data(grad);
    for (int i = 0; values && i < 50; i++) {
        CHECK_DOUBLE((double)values[i], (double)(first + slope * (float)(i % 10)));
    }
}

/* Replicas that differ: 0 and 0 in one, 1 and 2 in the other. */
TEST_RANKS(the_numbers_of_the_example, 4)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    float replica = (float)(self->rank / 2);
    struct hook hook = {.group = make_group(bench.world, self->rank % 2, self->rank % 2 + 2, "columns")};
    shoal_group *row = make_group(bench.world, self->rank / 2 * 2, self->rank / 2 * 2 + 1, "rows");
    shoal_module *root = net_make_module("two", two_matrices, NULL);
    shoal_module *layers[2];
    bench.options.group = row;
    for (int i = 0; i < 2; i++) {
        layers[i] = make_matrix(replica * (float)(i + 1));
        CHECK_OK(shoal_module_add_child(root, i == 0 ? "0" : "1", layers[i]));
        shoal_module_unref(layers[i]);
        CHECK_OK(shoal_fully_shard(layers[i], &bench.options));
        CHECK_OK(shoal_fsdp_set_all_reduce_hook(shoal_fully_shard_unit(layers[i], false), average, &hook));
    }
    CHECK_OK(shoal_fully_shard(root, &bench.options));
    shoal_tensor *x = shoal_empty((int64_t[]){10}, 1, SHOAL_F32);
    float *values = shoal_mutable_data(x);
    for (int i = 0; values && i < 10; i++) {
        values[i] = (float)i;
    }
    shoal_tensor *out = shoal_module_call_one(root, x);
    CHECK_OK(shoal_backward(shoal_sum(out, NULL, 0, false), NULL));
    check_matrix(layers[1], 22.5F, 0.0F);
    check_matrix(layers[0], 0.0F, 10.0F);
    CHECK_INT(hook.n_calls, 2);
    shoal_module_unref(root);
    bench_close(&bench);
}

TEST_RANKS(a_hook_that_fails, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    for (int fails_at = 1; fails_at <= 3; fails_at++) {
        struct hook hook = {.fails_at = fails_at};
        CHECK_OK(
            shoal_fsdp_set_all_reduce_hook(shoal_fully_shard_unit(bench.sharded.root, true), average, &hook));
        CHECK_OK(shoal_scope_begin());
        CHECK_STATUS(shoal_backward(net_loss(&bench.sharded, net_input(9, self->rank)), NULL),
                     SHOAL_ERR_CANCELLED);
        CHECK_ERROR_TEXT("its all-reduce hook");
        CHECK_STATUS(shoal_scope_end(), SHOAL_OK);
        CHECK_OK(shoal_fsdp_reset(fsdp_of_module(bench.sharded.root)));
        CHECK_OK(
            shoal_fsdp_set_all_reduce_hook(shoal_fully_shard_unit(bench.sharded.root, true), NULL, NULL));
        net_update(&bench.sharded, 0.0F);
        net_train_both(&bench.sharded, &bench.alone, net_pass, self, 1);
    }
    bench_close(&bench);
}

TEST_RANKS(refused, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    CHECK_STATUS(shoal_fsdp_set_all_reduce_hook(shoal_fully_shard_unit(NULL, true), average, NULL),
                 SHOAL_ERR_INVALID);
    CHECK_STATUS(
        shoal_fsdp_set_all_reduce_hook(shoal_fully_shard_unit(bench.alone.root, true), average, NULL),
        SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("set_all_reduce_hook: module net is not fully sharded");
    CHECK_STATUS(shoal_fsdp_set_reduce_unused(shoal_fully_shard_unit(bench.alone.root, true), true),
                 SHOAL_ERR_INVALID);
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    net_train_both(&bench.sharded, &bench.alone, net_pass, self, 1);
    CHECK_OK(shoal_fsdp_unshard(shoal_fully_shard_unit(bench.sharded.layers[0], false)));
    CHECK_STATUS(
        shoal_fsdp_set_all_reduce_hook(shoal_fully_shard_unit(bench.sharded.root, true), average, NULL),
        SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("is in the middle of a step");
    CHECK_OK(shoal_fsdp_set_all_reduce_hook(shoal_fully_shard_unit(bench.sharded.root, false), NULL, NULL));
    CHECK_OK(shoal_fsdp_wait(shoal_fully_shard_unit(bench.sharded.layers[0], false)));
    CHECK_OK(shoal_fsdp_reshard(shoal_fully_shard_unit(bench.sharded.layers[0], false)));
    net_train_both(&bench.sharded, &bench.alone, net_pass, self, 2);
    bench_close(&bench);
}

/* Parameters that only some ranks use ---------------------------------------------------------------------- */

static _Thread_local int which_part;

static bool pass_part(struct net *net, int step, int part)
{
    which_part = part;
    return net_pass(net, step, part);
}

/* One of two layers, which are one unit. */
static shoal_tensor *one_of_two(shoal_module *root, shoal_tensor *x)
{
    return net_call(root, which_part % 2 == 0 ? "0" : "1", x);
}

static bool open_two(struct bench *bench, struct rank *self, net_function function, shoal_dtype reduce_dtype)
{
    if (!bench_open(bench, self, 2, function)) {
        return false;
    }
    bench->options.reduce_dtype = reduce_dtype;
    return CHECK_OK(shoal_fully_shard_list(bench->sharded.layers, 2, &bench->options)) &&
           CHECK_OK(shoal_fully_shard(bench->sharded.root, &bench->options));
}

TEST_RANKS(parameters_of_one_unit, 3)
{
    struct bench bench;
    REQUIRE(open_two(&bench, self, one_of_two, 0));
    CHECK_OK(shoal_fsdp_set_reduce_unused(shoal_fully_shard_unit(bench.sharded.root, true), true));
    net_train_both(&bench.sharded, &bench.alone, pass_part, self, 4);
    bench_close(&bench);
}

TEST_RANKS(parameters_of_replicas, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, one_of_two));
    bench.options.is_replicated = true;
    REQUIRE(CHECK_OK(shoal_fully_shard_list(bench.sharded.layers, 2, &bench.options)) &&
            CHECK_OK(shoal_fully_shard(bench.sharded.root, &bench.options)));
    CHECK_OK(shoal_fsdp_set_reduce_unused(shoal_fully_shard_unit(bench.sharded.root, true), true));
    net_train_both(&bench.sharded, &bench.alone, pass_part, self, 3);
    bench_close(&bench);
}

/* Without it they hear that they differ, though the gradients look alike. */
TEST_RANKS(parameters_that_differ_are_found, 2)
{
    struct bench bench;
    REQUIRE(open_two(&bench, self, one_of_two, 0));
    which_part = self->rank;
    shoal_tensor *loss = net_loss(&bench.sharded, net_input(0, self->rank));
    CHECK_STATUS(shoal_backward(loss, NULL), SHOAL_ERR_MISMATCH);
    net_free(&bench.alone);
    net_free(&bench.sharded);
    (void)CHECK_OK(shoal_scope_end());
    (void)!shoal_world_close(bench.world);
}

/* Parts 0 and 1 without synchronization, then the same: every layer has had gradients on every rank by then, or none. */
static void check_accumulated(struct rank *self, shoal_dtype reduce_dtype)
{
    struct bench bench;
    REQUIRE(open_two(&bench, self, one_of_two, reduce_dtype));
    CHECK_OK(shoal_fsdp_set_reduce_unused(shoal_fully_shard_unit(bench.sharded.root, true), true));
    for (int micro = 0; micro < 3; micro++) {
        CHECK_OK(shoal_fsdp_set_sync(shoal_fully_shard_unit(bench.sharded.root, true), micro == 2));
        which_part = self->rank == 0 ? 0 : micro;
        CHECK(net_pass(&bench.sharded, micro, 0));
    }
    for (int i = 0; i < 2; i++) {
        shoal_tensor *grad = shoal_grad(shoal_module_parameter(bench.sharded.layers[i], "weight"));
        CHECK(grad != NULL);
        for (int64_t k = 0; grad && k < shoal_tensor_count(grad); k++) {
            CHECK(((const float *)shoal_data(grad))[k] != 0.0F);
        }
    }
    bench_close(&bench);
}

TEST_RANKS(parameters_without_synchronisation, 2)
{
    check_accumulated(self, 0);
    check_accumulated(self, SHOAL_F64);
}

/* Units that only some ranks walk back through: rank r does not go below layer r. */
static shoal_tensor *cut_off(shoal_module *root, shoal_tensor *x)
{
    for (int i = 0; i < 3; i++) {
        x = i > 0 && i == which_part ? shoal_detach(x) : x;
        x = net_call(root, (const char *[]){"0", "1", "2"}[i], x);
    }
    return x;
}

TEST_RANKS(units, 3)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 3, cut_off));
    bench.options.reshard = SHOAL_RESHARD_NEVER;
    bench.options.forward_prefetch = -1;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    CHECK_OK(shoal_fsdp_set_reduce_unused(shoal_fully_shard_unit(bench.sharded.root, true), true));
    net_train_both(&bench.sharded, &bench.alone, pass_part, self, 4);
    bench_close(&bench);
}

/* On no rank: there is a gradient, of zeros. */
static shoal_tensor *first_only(shoal_module *root, shoal_tensor *x)
{
    return net_call(root, "0", x);
}

TEST_RANKS(parameters_that_nobody_uses, 2)
{
    struct bench bench;
    REQUIRE(open_two(&bench, self, first_only, 0));
    for (int is_on = 0; is_on < 2; is_on++) {
        CHECK_OK(shoal_fsdp_set_reduce_unused(shoal_fully_shard_unit(bench.sharded.root, true), is_on == 1));
        CHECK(net_pass(&bench.sharded, 0, self->rank));
        shoal_tensor *grad = shoal_grad(shoal_module_parameter(bench.sharded.layers[1], "weight"));
        CHECK_INT(grad != NULL, is_on);
        for (int64_t i = 0; grad && i < shoal_tensor_count(grad); i++) {
            CHECK_DOUBLE((double)((const float *)shoal_data(grad))[i], 0.0);
        }
        net_update(&bench.sharded, 0.1F);
    }
    bench_close(&bench);
}
