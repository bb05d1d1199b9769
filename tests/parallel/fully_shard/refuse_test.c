/* SPDX-License-Identifier: MIT */
/*
 * What shoal_fully_shard and its settings refuse, with which words; that nothing is changed then; and how one goes on
 * after a step that failed in the middle.
 */
#include "fixtures/on_device.h"

#include "fixtures/fsdp_handles.h"
#include "fixtures/module_bench.h"
#include "shoal/ddp.h"

#define CHECK_REFUSED(call, status, words)    \
    do {                                      \
        (void)CHECK_STATUS((call), (status)); \
        (void)CHECK_ERROR_TEXT(words);        \
    } while (0)

/* A call of the module fails like that. */
static void check_call_refused(shoal_module *module, shoal_status status, const char *words)
{
    (void)CHECK_OK(shoal_scope_begin());
    CHECK(shoal_module_call_one(module, net_input(0, 0)) == NULL);
    (void)CHECK_STATUS(shoal_scope_end(), status);
    (void)CHECK_ERROR_TEXT(words);
}

/* Sharding ----------------------------------------------------------------------------------------------- */

static int along_1(void *context, const char *path, const shoal_tensor *parameter)
{
    (void)context;
    (void)path;
    (void)parameter;
    return 1;
}

static void replace(struct net *net, shoal_tensor *weight)
{
    (void)CHECK_OK(shoal_module_set_parameter(net->layers[0], "weight", weight));
}

TEST_RANKS(modules, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    shoal_module *layer = bench.sharded.layers[0];
    shoal_module *const twice[] = {layer, layer};
    shoal_module *const with_null[] = {layer, NULL};
    shoal_module *list = net_make_module("list", NULL, NULL);
    CHECK_REFUSED(shoal_fully_shard(NULL, &bench.options), SHOAL_ERR_INVALID, "fully_shard: module is NULL");
    REQUIRE_OK(shoal_scope_begin()); /* keeps the error, too */
    shoal_module *const misspelt[] = {layer, shoal_module_child(bench.sharded.root, "layer.0")};
    CHECK_REFUSED(shoal_fully_shard_list(misspelt, 2, &bench.options), SHOAL_ERR_INVALID,
                  "fully_shard: net has no child \"layer.0\"");
    CHECK_REFUSED(shoal_fully_shard(shoal_module_child(bench.sharded.root, "layer.0"), &bench.options),
                  SHOAL_ERR_INVALID, "fully_shard: net has no child \"layer.0\"");
    CHECK(!shoal_fully_shard_unit(shoal_module_child(bench.sharded.root, "layer.0"), false));
    CHECK_ERROR_TEXT("fully_shard_unit: net has no child \"layer.0\"");
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    CHECK_REFUSED(shoal_fully_shard_list(NULL, 2, &bench.options), SHOAL_ERR_INVALID, "no modules");
    CHECK_REFUSED(shoal_fully_shard_list(twice, 0, &bench.options), SHOAL_ERR_INVALID, "no modules");
    CHECK_REFUSED(shoal_fully_shard_list(twice, 2, &bench.options), SHOAL_ERR_INVALID, "are the same");
    CHECK_REFUSED(shoal_fully_shard_list(with_null, 2, &bench.options), SHOAL_ERR_INVALID,
                  "modules[1] is NULL");
    CHECK_REFUSED(shoal_fully_shard(list, &bench.options), SHOAL_ERR_INVALID, "no forward function");
    CHECK_REFUSED(shoal_fully_shard(layer, NULL), SHOAL_ERR_INVALID, "shoal_fully_shard_options");
    CHECK(!shoal_is_fully_sharded(layer) && !shoal_is_fully_sharded(NULL));
    CHECK_OK(shoal_fully_shard(layer, &bench.options));
    CHECK(shoal_is_fully_sharded(layer));
    CHECK_REFUSED(shoal_fully_shard(layer, &bench.options), SHOAL_ERR_STATE, "already");
    shoal_module_unref(list);
    bench_close(&bench);
}

/* Inside of what shoal_ddp has wrapped, which goes on as before. */
TEST_RANKS(inside_of_ddp, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE_OK(shoal_ddp(bench.alone.root, &(shoal_ddp_options){.struct_size = sizeof(shoal_ddp_options),
                                                                .group = bench.options.group}));
    CHECK_REFUSED(shoal_fully_shard(bench.alone.layers[1], &bench.options), SHOAL_ERR_STATE,
                  "module layer is inside of one that is wrapped by shoal_ddp");
    CHECK_REFUSED(shoal_fully_shard(bench.alone.root, &bench.options), SHOAL_ERR_STATE, "wrapped by");
    (void)net_pass(&bench.alone, 0, self->rank);
    CHECK(shoal_grad(shoal_module_parameter(bench.alone.root, "1.weight")) != NULL);
    bench_close(&bench);
}

TEST_RANKS(options, 4)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    shoal_module *layer = bench.sharded.layers[0];
    shoal_tensor *weight = shoal_module_parameter(layer, "weight");
    shoal_mesh *mesh;
    CHECK_OK(shoal_mesh_create(bench.world, "cpu", NULL, (const int[]){2, 2}, 2, NULL, &mesh));
    shoal_fully_shard_options options = bench.options;
    options.group = NULL;
    CHECK_REFUSED(shoal_fully_shard(layer, &options), SHOAL_ERR_INVALID, "neither a group nor a mesh");
    options.mesh = mesh;
    CHECK_REFUSED(shoal_fully_shard(layer, &options), SHOAL_ERR_INVALID, "name");
    options.group = bench.options.group;
    CHECK_REFUSED(shoal_fully_shard(layer, &options), SHOAL_ERR_INVALID, "both a group and a mesh");
    options = bench.options;
    options.reshard = SHOAL_RESHARD_PARTLY;
    options.reshard_ranks = 3;
    CHECK_REFUSED(shoal_fully_shard(layer, &options), SHOAL_ERR_INVALID, "3 does not divide the 4");
    options.reshard = (shoal_reshard)9;
    CHECK_REFUSED(shoal_fully_shard(layer, &options), SHOAL_ERR_INVALID, "reshard");
    options = bench.options;
    options.param_dtype = SHOAL_I32;
    CHECK_REFUSED(shoal_fully_shard(layer, &options), SHOAL_ERR_INVALID, "floating");
    options = bench.options;
    options.n_ignored = 2;
    CHECK_REFUSED(shoal_fully_shard(layer, &options), SHOAL_ERR_INVALID,
                  "ignored is NULL, but n_ignored is 2");
    options = bench.options;
    options.max_reduces = -1;
    CHECK_REFUSED(shoal_fully_shard(layer, &options), SHOAL_ERR_INVALID, "max_reduces is -1");
    options = bench.options;
    options.forward_prefetch = -2;
    CHECK_REFUSED(shoal_fully_shard(layer, &options), SHOAL_ERR_INVALID, "forward_prefetch is -2");
    options = bench.options;
    options.sharded = (shoal_sharded)4;
    CHECK_REFUSED(shoal_fully_shard(layer, &options), SHOAL_ERR_INVALID, "sharded is 4");
    options.sharded = SHOAL_SHARDED_STATE;
    options.reshard = SHOAL_RESHARD_ALWAYS;
    CHECK_REFUSED(shoal_fully_shard(layer, &options), SHOAL_ERR_INVALID,
                  "reshard is always (1), but sharded is state (2)");
    options.reshard = SHOAL_RESHARD_PARTLY;
    options.reshard_ranks = 2;
    CHECK_REFUSED(shoal_fully_shard(layer, &options), SHOAL_ERR_INVALID,
                  "reshard is partly (3), but sharded");
    options.reshard = SHOAL_RESHARD_DEFAULT;
    options.is_replicated = true;
    CHECK_REFUSED(shoal_fully_shard(layer, &options), SHOAL_ERR_INVALID,
                  "is_replicated is true, but sharded is state (2)");
    options = bench.options;
    options.placement = along_1;
    CHECK_REFUSED(shoal_fully_shard(layer, &options), SHOAL_ERR_INVALID,
                  "parameter weight: dim: 1 is not within -1..0");
    CHECK(shoal_module_parameter(layer, "weight") == weight);
    /* A failure leaves what it was: now it goes. */
    if (net_shard(&bench.sharded, &bench.options)) {
        net_train_both(&bench.sharded, &bench.alone, net_pass, self, 2);
    }
    shoal_mesh_free(mesh);
    bench_close(&bench);
}

TEST_RANKS(parameters, 4)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    shoal_module *layer = bench.sharded.layers[0];
    shoal_tensor *weight = shoal_module_parameter(layer, "weight");
    replace(&bench.sharded, shoal_full(NULL, 0, 1.0, SHOAL_F32));
    CHECK_REFUSED(shoal_fully_shard(layer, &bench.options), SHOAL_ERR_INVALID, "weight");
    replace(&bench.sharded,
            shoal_detach(shoal_transpose(net_numbers(1, (int64_t[]){3, NET_WIDTH}, 2), 0, 1)));
    CHECK_REFUSED(shoal_fully_shard(layer, &bench.options), SHOAL_ERR_UNSUPPORTED, "not contiguous");
    replace(&bench.sharded, net_numbers(1, (int64_t[]){3, NET_WIDTH}, 2));
    shoal_fully_shard_options options = bench.options;
    options.placement = along_1;
    CHECK_REFUSED(shoal_fully_shard(layer, &options), SHOAL_ERR_UNSUPPORTED,
                  "weight: dimension 1, which is 5, cannot be divided evenly into 4 shards");
    replace(&bench.sharded, weight);
    CHECK_OK(shoal_fully_shard(layer, &bench.options));
    bench_close(&bench);
}

TEST_RANKS(dtypes_that_differ, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    shoal_tensor *bias = shoal_full((int64_t[]){1}, 1, 1.0, SHOAL_F64);
    CHECK_OK(shoal_set_requires_grad(bias, true));
    CHECK_OK(shoal_module_set_parameter(bench.sharded.layers[0], "bias", bias));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    for (int i = 0; i < 2; i++) {
        check_call_refused(bench.sharded.root, SHOAL_ERR_UNSUPPORTED,
                           "0: parameters 0.weight (f32) and 0.bias (f64) get gradients and differ in dtype");
    }
    bench_close(&bench);
}

/* Roots -------------------------------------------------------------------------------------------------- */

TEST_RANKS(roots, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 3, NULL));
    CHECK_OK(shoal_fully_shard_list(bench.sharded.layers, 2, &bench.options));
    CHECK_OK(shoal_fully_shard(bench.sharded.layers[2], &bench.options));
    CHECK_OK(shoal_fully_shard(bench.sharded.root, &bench.options));
    check_call_refused(bench.sharded.layers[0], SHOAL_ERR_STATE, "2 modules");
    CHECK_REFUSED(on_context(bench.sharded.layers[0], shoal_fsdp_reset), SHOAL_ERR_STATE, "2 modules");
    CHECK(shoal_module_call_one(bench.sharded.layers[2], net_input(0, 0)) != NULL);
    check_call_refused(bench.sharded.root, SHOAL_ERR_STATE, "layer was called by itself before");
    bench_close(&bench);
}

/* Settings ----------------------------------------------------------------------------------------------- */

TEST_RANKS(settings, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    shoal_module *root = bench.sharded.root;
    shoal_module *layer = bench.sharded.layers[0];
    double norm;
    float full[NET_WIDTH];
    CHECK_OK(shoal_fully_shard(root, &bench.options));
    CHECK_REFUSED(shoal_fsdp_set_sync(shoal_fully_shard_unit(layer, true), true), SHOAL_ERR_INVALID,
                  "not fully sharded");
    CHECK_REFUSED(shoal_fsdp_set_all_reduce(shoal_fully_shard_unit(NULL, true), true), SHOAL_ERR_INVALID,
                  "NULL");
    CHECK_REFUSED(shoal_fsdp_set_reshard(shoal_fully_shard_unit(layer, true), SHOAL_RESHARD_ALWAYS),
                  SHOAL_ERR_INVALID, "not fully sharded");
    CHECK_REFUSED(shoal_fsdp_unshard(shoal_fully_shard_unit(layer, false)), SHOAL_ERR_INVALID,
                  "not fully sharded");
    CHECK_REFUSED(prefetch_modules(shoal_fsdp_set_forward_prefetch, root, &layer, 1), SHOAL_ERR_INVALID,
                  "not fully sharded");
    CHECK_REFUSED(prefetch_modules(shoal_fsdp_set_backward_prefetch, root, NULL, 1), SHOAL_ERR_INVALID,
                  "NULL");
    CHECK_REFUSED(shoal_fsdp_set_divide_factor(shoal_fully_shard_unit(root, false), -1.0), SHOAL_ERR_INVALID,
                  "-1");
    CHECK_REFUSED(shoal_fsdp_set_divide_factor(shoal_fully_shard_unit(root, false), (double)INFINITY),
                  SHOAL_ERR_INVALID, "inf");
    CHECK_REFUSED(shoal_fsdp_clip_grad_norm(fsdp_of_module(root), -1.0, 2.0, false, &norm), SHOAL_ERR_INVALID,
                  "-1");
    CHECK_REFUSED(shoal_fsdp_gather(shoal_fully_shard_param(root, "nothing"), full, SHOAL_FSDP_ALL_RANKS),
                  SHOAL_ERR_INVALID, "\"nothing\"");
    CHECK_REFUSED(shoal_fsdp_gather(shoal_fully_shard_param(root, NULL), full, SHOAL_FSDP_ALL_RANKS),
                  SHOAL_ERR_INVALID, "NULL");
    CHECK_REFUSED(shoal_fsdp_load(shoal_fully_shard_param(root, "scale"), NULL), SHOAL_ERR_INVALID, "NULL");
    CHECK_REFUSED(shard_place(NULL, "scale", NULL, NULL, NULL), SHOAL_ERR_INVALID, "NULL");
    (void)net_pass(&bench.sharded, 0, self->rank);
    bench_close(&bench);
}

/* Nets that have nothing to do with each other do not gather for each other. */
TEST_RANKS(lists_of_another_root, 2)
{
    for (int is_called = 0; is_called < 2; is_called++) {
        struct bench bench;
        REQUIRE(bench_open(&bench, self, 1, NULL));
        REQUIRE(net_shard(&bench.sharded, &bench.options) && net_shard(&bench.alone, &bench.options));
        shoal_module *root = bench.sharded.root;
        shoal_module *others[] = {bench.sharded.layers[0], bench.alone.layers[0]};
        if (is_called) {
            (void)net_pass(&bench.sharded, 0, self->rank);
            CHECK_REFUSED(prefetch_modules(shoal_fsdp_set_forward_prefetch, root, others, 2),
                          SHOAL_ERR_INVALID, "does not have the context of");
            CHECK_REFUSED(prefetch_modules(shoal_fsdp_set_backward_prefetch, root, others, 2),
                          SHOAL_ERR_INVALID, "does not have the context of");
        } else {
            CHECK_OK(prefetch_modules(shoal_fsdp_set_backward_prefetch, others[0], others, 2));
            CHECK_OK(prefetch_modules(shoal_fsdp_set_forward_prefetch, root, others, 2));
            check_call_refused(root, SHOAL_ERR_INVALID, "contains layer, which has another root");
        }
        net_free(&bench.alone); /* it is not gathered any more, nor looked at */
        (void)net_pass(&bench.sharded, 0, self->rank);
        (void)net_pass(&bench.sharded, 1, self->rank);
        CHECK_OK(prefetch_modules(shoal_fsdp_set_forward_prefetch, root, NULL, 0));
        (void)net_pass(&bench.sharded, 2, self->rank);
        bench_close(&bench);
    }
}

/* Calls on a context may be made through any module under its root. */
/* Modules call their units: the calls of shoal/fsdp.h would do it once more, behind their back. */
TEST_RANKS(calls_of_explicit_contexts, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    shoal_fsdp *f = fsdp_of_module(bench.sharded.root);
    REQUIRE(f);
    const int64_t shape[1] = {4};
    shoal_fsdp_shard shard = SHOAL_FSDP_SHARD_INIT;
    bool has_values = false;
    int id = -1;
#define REFUSED(call)                                                \
    do {                                                             \
        CHECK_STATUS(call, SHOAL_ERR_INVALID);                       \
        CHECK_ERROR_TEXT("fsdp is the context of a module, which "); \
    } while (0)
    for (int pass = 0; pass < 2; pass++) {
        REFUSED(shoal_fsdp_add_param(f, 3, "x", SHOAL_F32, 1, shape, NULL, &id));
        REFUSED(shoal_fsdp_pre_forward(f, 1));
        REFUSED(shoal_fsdp_post_forward(f, 1));
        REFUSED(shoal_fsdp_pre_backward(f, 1));
        REFUSED(shoal_fsdp_post_backward(f, 1));
        REFUSED(shoal_fsdp_end_backward(f));
        REFUSED(shoal_fsdp_end_forward(f));
        REFUSED(shoal_fsdp_set_requires_grad(f, 0, false));
        REFUSED(shoal_fsdp_update_shard(f, 0, &shard));
        REFUSED(shoal_fsdp_find_param(f, "weight", &id));
        CHECK(!shoal_fsdp_full_param(f, 0) && !shoal_fsdp_grad(f, 0) &&
              !shoal_fsdp_grad_to_store(f, 0, &has_values));
        CHECK_ERROR_TEXT("grad_to_store: fsdp is the context of a module");
        CHECK_INT(id, -1);
        (void)net_pass(&bench.sharded, 0, self->rank);
    }
#undef REFUSED
    bench_close(&bench);
}

TEST_RANKS(one_context_under_a_root, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    (void)net_pass(&bench.sharded, 0, self->rank);
    shoal_fsdp *fsdp = fsdp_of_module(bench.sharded.root);
    CHECK(fsdp != NULL && fsdp_of_module(bench.sharded.layers[0]) == fsdp);
    CHECK(shoal_fsdp_unit_of(fsdp, 1) == shoal_fully_shard_unit(bench.sharded.layers[0], false));
    CHECK(shoal_fsdp_param_of(fsdp, 0) == NULL);
    CHECK_ERROR_TEXT("param_of: there is no parameter 0: there are 0");
    shoal_fsdp_free(fsdp); /* it ends with its module, not before */
    CHECK_OK(shoal_fsdp_reset(fsdp_of_module(bench.sharded.layers[1])));
    bench_close(&bench);
}

/* Going on ----------------------------------------------------------------------------------------------- */

static _Thread_local bool fails_in_forward;
static _Thread_local bool fails_in_backward;

static shoal_tensor *fail(void *context, shoal_tensor *gradient)
{
    (void)context;
    return fails_in_backward ? shoal_view(gradient, (int64_t[]){77}, 1) : NULL;
}

static shoal_tensor *faulty(shoal_module *root, shoal_tensor *x)
{
    x = net_call(root, "1", net_call(root, "0", x));
    (void)CHECK_OK(shoal_on_gradient(x, fail, NULL, NULL));
    x = fails_in_forward ? shoal_view(x, (int64_t[]){77}, 1) : x;
    return net_call(root, "2", x);
}

TEST_RANKS(after_a_forward_that_failed, 3)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 3, faulty));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    for (int round = 0; round < 3; round++) {
        net_train_both(&bench.sharded, &bench.alone, net_pass, self, round);
        fails_in_forward = true;
        check_call_refused(bench.sharded.root, SHOAL_ERR_INVALID, "net: ");
        fails_in_forward = false;
        CHECK_OK(shoal_fsdp_reset(fsdp_of_module(bench.sharded.root)));
    }
    net_train_both(&bench.sharded, &bench.alone, net_pass, self, 2);
    bench_close(&bench);
}

TEST_RANKS(after_a_backward_that_failed, 3)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 3, faulty));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    for (int round = 0; round < 3; round++) {
        net_train_both(&bench.sharded, &bench.alone, net_pass, self, round);
        CHECK_OK(shoal_scope_begin());
        shoal_tensor *loss = net_loss(&bench.sharded, net_input(0, self->rank));
        fails_in_backward = true;
        CHECK_STATUS(shoal_backward(loss, NULL), SHOAL_ERR_INVALID);
        fails_in_backward = false;
        CHECK_OK(shoal_scope_end());
        check_call_refused(bench.sharded.root, SHOAL_ERR_STATE, "shoal_fsdp_reset");
        CHECK_OK(shoal_fsdp_reset(fsdp_of_module(bench.sharded.root)));
        net_update(&bench.sharded, 0.0F); /* gradients that did arrive */
    }
    net_train_both(&bench.sharded, &bench.alone, net_pass, self, 2);
    bench_close(&bench);
}

/* Ending ------------------------------------------------------------------------------------------------- */

/* Layers that outlive their root, and the other way round. */
TEST_RANKS(modules_end_in_any_order, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    shoal_module *layer = shoal_module_ref(bench.sharded.layers[1]);
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    (void)net_pass(&bench.sharded, 0, self->rank);
    net_free(&bench.sharded);
    check_call_refused(layer, SHOAL_ERR_STATE, "was freed");
    CHECK_REFUSED(shoal_fsdp_set_sync(shoal_fully_shard_unit(layer, true), true), SHOAL_ERR_INVALID,
                  "not fully sharded");
    shoal_module_unref(layer);
    bench_close(&bench);
}

/* What was gathered goes with the root: layers, and modules inside of the root's own unit, have their shards again. */
TEST_RANKS(layers_outlive_a_root_that_has_gathered, 2)
{
    for (int is_unit = 0; is_unit < 2; is_unit++) {
        struct bench bench;
        float values[NET_WIDTH];
        REQUIRE(bench_open(&bench, self, 2, NULL));
        shoal_module *layer = shoal_module_ref(bench.sharded.layers[0]);
        REQUIRE_OK(is_unit ? shoal_fully_shard_list(bench.sharded.layers, 2, &bench.options) : SHOAL_OK);
        REQUIRE_OK(shoal_fully_shard(bench.sharded.root, &bench.options));
        shoal_tensor *shard = shoal_module_parameter(layer, "weight");
        size_t bytes = (size_t)shoal_tensor_count(shard) * sizeof(float);
        memcpy(values, shoal_data(shard), bytes);
        (void)net_pass(&bench.sharded, 0, self->rank);
        CHECK_OK(shoal_fsdp_unshard(shoal_fully_shard_unit(is_unit ? layer : bench.sharded.root, false)));
        CHECK_OK(shoal_fsdp_wait(shoal_fully_shard_unit(is_unit ? layer : bench.sharded.root, false)));
        CHECK(shoal_module_parameter(layer, "weight") != shard);
        net_free(&bench.sharded);
        CHECK(shoal_module_parameter(layer, "weight") == shard);
        if (!test_has_failed()) {
            CHECK_BYTES(shoal_data(shard), values, bytes);
        }
        shoal_module_unref(layer);
        bench_close(&bench);
    }
}

/* Before the first forward, between forward and backward, with gradients that stayed. */
TEST_RANKS(modules_end_at_any_time, 2)
{
    for (int when = 0; when < 4; when++) {
        struct bench bench;
        REQUIRE(bench_open(&bench, self, 2, NULL));
        REQUIRE(net_shard(&bench.sharded, &bench.options));
        if (when == 1) {
            CHECK_OK(shoal_scope_begin());
            (void)net_loss(&bench.sharded, net_input(0, self->rank));
            CHECK_OK(shoal_scope_end());
        }
        if (when == 2) {
            CHECK_OK(shoal_fsdp_set_sync(shoal_fully_shard_unit(bench.sharded.root, true), false));
            (void)net_pass(&bench.sharded, 0, self->rank);
        }
        if (when == 3) {
            CHECK_OK(shoal_fsdp_unshard(shoal_fully_shard_unit(bench.sharded.root, false)));
            CHECK_OK(shoal_fsdp_unshard(shoal_fully_shard_unit(bench.sharded.layers[0], false)));
        }
        bench_close(&bench);
    }
}

/* Between a forward and its backward pass the places hold what was gathered. */
TEST_RANKS(inner_modules_after_the_first_call, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    CHECK_OK(shoal_fully_shard(bench.sharded.root, &bench.options));
    shoal_tensor *loss = net_loss(&bench.sharded, net_input(0, self->rank));
    CHECK_STATUS(shoal_fully_shard(bench.sharded.layers[0], &bench.options), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("call shoal_fully_shard on inner modules before the modules around them");
    CHECK_OK(shoal_backward(loss, NULL));
    CHECK_STATUS(shoal_fully_shard(bench.sharded.layers[0], &bench.options), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("call shoal_fully_shard on inner modules before the modules around them");
    CHECK(shoal_grad(shoal_module_parameter(bench.sharded.root, "0.weight")) != NULL);
    bench_close(&bench);
}

/* What is given up is given up, but another step could only fail again. */
TEST_RANKS(resetting_does_not_help_a_group_that_failed, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    net_pass(&bench.sharded, 0, self->rank);
    shoal_group *lane = fsdp_wrapper_of(bench.sharded.root)->mesh.reduce;
    CHECK_OK(shoal_fsdp_reset(fsdp_of_module(bench.sharded.root)));
    test_barrier(self);
    CHECK_OK(shoal_group_abort(lane, "enough"));
    CHECK(shoal_fsdp_reset(fsdp_of_module(bench.sharded.root)) != SHOAL_OK);
    CHECK_ERROR_TEXT("enough");
    bench_close(&bench);
}

/* What is refused for the second parameter of a unit is undone for the first, and still said. */
static int cut_weights_along_one(void *context, const char *path, const shoal_tensor *parameter)
{
    (void)context;
    (void)parameter;
    return strcmp(path, "wide") == 0 ? 1 : 0;
}

static shoal_module *make_two(const char *first, const char *second)
{
    shoal_module *module = net_make_module("two", net_layer_forward, NULL);
    CHECK_OK(
        shoal_module_add_parameter(module, first, shoal_full((const int64_t[]){4, 5}, 2, 1.0, SHOAL_F32)));
    CHECK_OK(
        shoal_module_add_parameter(module, second, shoal_full((const int64_t[]){4, 5}, 2, 1.0, SHOAL_F32)));
    return module;
}

TEST_RANKS(second_parameters_of_modules, 2)
{
    static const char *const orders[][2] = {{"wide", "tall"}, {"tall", "wide"}};
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    CHECK_OK(shoal_scope_begin());
    for (int i = 0; i < 2; i++) {
        shoal_fully_shard_options options = net_options(world);
        shoal_module *module = make_two(orders[i][0], orders[i][1]);
        options.placement = cut_weights_along_one;
        CHECK_STATUS(shoal_fully_shard(module, &options), SHOAL_ERR_UNSUPPORTED);
        CHECK_STRING(shoal_error_text(),
                     "fully_shard: parameter wide: dimension 1, which is 5, cannot be divided "
                     "evenly into 2 shards; only dimension 0 may be uneven");
        CHECK_INT(shoal_tensor_count(shoal_module_parameter(module, "tall")), 20); /* whole again */
        shoal_module_unref(module);
    }
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

/* Hooks --------------------------------------------------------------------------------------------------- */

static _Thread_local int n_seen;

static shoal_tensor *see_gradient(void *context, shoal_tensor *gradient)
{
    (void)context;
    (void)gradient;
    n_seen++;
    return NULL;
}

static shoal_status see_leaf(void *context, shoal_tensor *leaf)
{
    (void)context;
    (void)leaf;
    n_seen++;
    return SHOAL_OK;
}

/* No backward pass comes to a shard: a hook on its gradient would never run. One after it has landed does. */
TEST_RANKS(hooks_on_shards, 2)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 1, NULL));
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    shoal_tensor *shard = shoal_tensor_ref(shoal_module_parameter(bench.sharded.root, "0.weight"));
    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(shoal_on_gradient(shard, see_gradient, NULL, NULL), SHOAL_ERR_STATE);
        CHECK_ERROR_TEXT("weight is a shard");
        CHECK_ERROR_TEXT("shoal_on_accumulated");
        CHECK_OK(shoal_set_requires_grad(shard, false)); /* frozen: neither would run */
        CHECK_STATUS(shoal_on_accumulated(shard, see_leaf, NULL, NULL), SHOAL_ERR_STATE);
        CHECK_STATUS(shoal_on_gradient(shard, see_gradient, NULL, NULL), SHOAL_ERR_STATE);
        CHECK_OK(shoal_set_requires_grad(shard, true));
        CHECK_OK(shoal_on_accumulated(shard, see_leaf, NULL, NULL));
        n_seen = 0;
        CHECK(net_pass(&bench.sharded, i, self->rank));
        CHECK_INT(n_seen, 1);
        CHECK_OK(shoal_set_grad(shard, NULL));
    }
    net_free(&bench.sharded);
    CHECK_OK(shoal_on_gradient(shard, see_gradient, NULL, NULL)); /* a tensor like others now */
    shoal_tensor_unref(shard);
    bench_close(&bench);
}
