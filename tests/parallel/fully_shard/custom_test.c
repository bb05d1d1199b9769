/* SPDX-License-Identifier: MIT */
/* Modules whose parameters are gathered and whose gradients are reduced by objects of the program. */
#include "fixtures/on_device.h"

#include "fixtures/fsdp_handles.h"
#include "fixtures/module_bench.h"

struct object {
    bool starts;
    int fails_at;  /* which call; 0: none */
    int scarce_at; /* which allocation; 0: none */
    int n_calls;
    int n_allocations;
    int n_live;
    size_t count; /* of the last call */
};

static void *allocate(void *context, size_t bytes)
{
    struct object *object = context;
    if (++object->n_allocations == object->scarce_at) {
        return NULL;
    }
    struct address memory;
    object->n_live++;
    return CHECK_OK(device_memory_allocate(test_device(), bytes, &memory)) ? address_pointer(memory) : NULL;
}

static void release(void *context, void *memory, size_t bytes)
{
    struct object *object = context;
    (void)bytes;
    object->n_live--;
    device_memory_free(test_device(), address_of(memory));
}

static shoal_status run(const struct object *object, shoal_group *group, const shoal_collective *call,
                        shoal_work **work_out)
{
    return object->starts ? shoal_group_collective_start(group, call, work_out)
                          : shoal_group_collective(group, call);
}

static shoal_status gather(void *context, void *out, const void *in, size_t count, shoal_dtype dtype,
                           shoal_group *group, shoal_work **work_out)
{
    struct object *object = context;
    object->count = count;
    if (++object->n_calls == object->fails_at) {
        return SHOAL_ERR_CANCELLED;
    }
    const shoal_collective call = {.struct_size = sizeof call,
                                   .kind = SHOAL_KIND_ALL_GATHER,
                                   .dtype = dtype,
                                   .send = in,
                                   .recv = out,
                                   .count = count,
                                   .device = test_device()};
    return run(object, group, &call, work_out);
}

static shoal_status scatter(void *context, void *out, const void *in, size_t count, shoal_dtype dtype,
                            shoal_reduce_op reduce, double factor, shoal_group *group, shoal_work **work_out)
{
    struct object *object = context;
    (void)factor;
    object->count = count;
    if (++object->n_calls == object->fails_at) {
        return SHOAL_ERR_CANCELLED;
    }
    const shoal_collective call = {.struct_size = sizeof call,
                                   .kind = SHOAL_KIND_REDUCE_SCATTER,
                                   .dtype = dtype,
                                   .reduce = reduce,
                                   .send = in,
                                   .recv = out,
                                   .count = count,
                                   .device = test_device()};
    return run(object, group, &call, work_out);
}

static void use_objects(shoal_module *module, struct object *gatherer, struct object *scatterer, bool is_deep)
{
    const shoal_custom_all_gather custom_gather = {.struct_size = sizeof custom_gather,
                                                   .allocate = allocate,
                                                   .release = release,
                                                   .call = gather,
                                                   .context = gatherer};
    const shoal_custom_reduce_scatter custom_scatter = {.struct_size = sizeof custom_scatter,
                                                        .allocate = allocate,
                                                        .release = release,
                                                        .call = scatter,
                                                        .context = scatterer};
    CHECK_OK(shoal_fsdp_set_custom_all_gather(shoal_fully_shard_unit(module, is_deep),
                                              gatherer ? &custom_gather : NULL));
    CHECK_OK(shoal_fsdp_set_custom_reduce_scatter(shoal_fully_shard_unit(module, is_deep),
                                                  scatterer ? &custom_scatter : NULL));
}

/* Bits --------------------------------------------------------------------------------------------------- */

static shoal_tensor *all_again(shoal_module *root, shoal_tensor *x)
{
    for (int i = 0; i < 3; i++) {
        x = net_recompute(shoal_module_child(root, (const char *[]){"0", "1", "2"}[i]), x);
    }
    return x;
}

static void train(struct rank *self, net_function function, shoal_reshard reshard, int n_replicas)
{
    for (int k = 0; k < 4 && !test_has_failed(); k++) {
        struct bench bench;
        struct object gatherer = {.starts = k % 2 == 1};
        struct object scatterer = {.starts = k / 2 == 1};
        REQUIRE(bench_open(&bench, self, 3, function));
        bench.options.reshard = reshard;
        REQUIRE(n_replicas == 1 || bench_replicate(&bench, n_replicas));
        bench.options.reshard_ranks = self->n_ranks / n_replicas / 2;
        REQUIRE(net_shard(&bench.sharded, &bench.options));
        use_objects(bench.sharded.root, &gatherer, &scatterer, true);
        net_train_both(&bench.sharded, &bench.alone, net_pass, self, 2);
        CHECK(gatherer.n_calls > 0);
        CHECK_INT(scatterer.n_calls, 2 * 4);
        CHECK_INT(gatherer.n_live + scatterer.n_live, 0);
        /* Back to what the library does, and some units again not. */
        int n_calls = gatherer.n_calls;
        use_objects(bench.sharded.root, NULL, NULL, true);
        net_train_both(&bench.sharded, &bench.alone, net_pass, self, 2);
        CHECK_INT(gatherer.n_calls, n_calls);
        use_objects(bench.sharded.layers[1], &gatherer, &scatterer, false);
        net_train_both(&bench.sharded, &bench.alone, net_pass, self, 2);
        CHECK_INT(scatterer.n_calls, 2 * 4 + 2);
        bench_close(&bench);
        CHECK_INT(gatherer.n_live + scatterer.n_live, 0);
    }
}

TEST_RANKS(bits_of_two, 2)
{
    train(self, NULL, SHOAL_RESHARD_DEFAULT, 1);
    train(self, NULL, SHOAL_RESHARD_NEVER, 1);
    train(self, all_again, SHOAL_RESHARD_ALWAYS, 1);
}

TEST_RANKS(bits_of_four, 4)
{
    train(self, NULL, SHOAL_RESHARD_PARTLY, 1);
    train(self, NULL, SHOAL_RESHARD_DEFAULT, 2);
}

/* Sizes -------------------------------------------------------------------------------------------------- */

/* One gather for each unit in forward, and for each layer in backward; 5 and 1 elements in shards of 3 and 1. */
TEST_RANKS(calls_of_a_step, 2)
{
    struct bench bench;
    struct object gatherer = {0};
    struct object scatterer = {0};
    REQUIRE(bench_open(&bench, self, 3, NULL));
    bench.options.param_dtype = SHOAL_BF16;
    bench.options.reduce_dtype = SHOAL_F32;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    for (int i = 0; i < 3; i++) {
        use_objects(bench.sharded.layers[i], &gatherer, &scatterer, false);
    }
    for (int step = 0; step < 2; step++) {
        CHECK(net_pass(&bench.sharded, step, self->rank));
        CHECK_INT(gatherer.n_calls, 6 * (step + 1));
        CHECK_INT(gatherer.count, 3 + 1);
        CHECK_INT(scatterer.n_calls, 3 * (step + 1));
        CHECK_INT(scatterer.count, 3 + 1);
        CHECK_INT(scatterer.n_allocations, 2 * scatterer.n_calls);
        CHECK_INT(gatherer.n_live + scatterer.n_live, 0);
    }
    bench_close(&bench);
}

/* What fails --------------------------------------------------------------------------------------------- */

static void check_failing(struct rank *self, struct object *gatherer, struct object *scatterer)
{
    struct bench bench;
    REQUIRE(bench_open(&bench, self, 2, NULL));
    bench.options.reshard = SHOAL_RESHARD_ALWAYS;
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    use_objects(bench.sharded.root, gatherer, scatterer, true);
    bool is_scarce = gatherer->scarce_at + scatterer->scarce_at > 0;
    bool is_gather = gatherer->scarce_at + gatherer->fails_at > 0;
    shoal_status wanted = is_scarce ? SHOAL_ERR_NO_MEMORY : SHOAL_ERR_CANCELLED;
    CHECK_OK(shoal_scope_begin());
    shoal_tensor *loss = net_loss(&bench.sharded, net_input(9, self->rank));
    shoal_status status = loss ? shoal_backward(loss, NULL) : wanted;
    CHECK_INT(status, wanted);
    if (!loss) { /* the error is the scope's */
        CHECK_STATUS(shoal_scope_end(), wanted);
    }
    CHECK_ERROR_TEXT(is_gather ? "gathering parameters: a custom all-gather"
                               : "reducing gradients: a custom reduce-scatter");
    if (loss) {
        CHECK_OK(shoal_scope_end());
    }
    CHECK_OK(shoal_fsdp_reset(fsdp_of_module(bench.sharded.root)));
    CHECK_INT(gatherer->n_live + scatterer->n_live, 0);
    net_update(&bench.sharded, 0.0F);
    net_train_both(&bench.sharded, &bench.alone, net_pass, self, 2);
    CHECK_INT(gatherer->n_live + scatterer->n_live, 0);
    bench_close(&bench);
}

TEST_RANKS(failing, 2)
{
    for (int k = 1; k <= 6 && !test_has_failed(); k++) {
        check_failing(self, &(struct object){.fails_at = k}, &(struct object){.starts = true});
        check_failing(self, &(struct object){.scarce_at = k, .starts = true}, &(struct object){0});
        check_failing(self, &(struct object){.starts = true}, &(struct object){.scarce_at = k});
    }
    for (int k = 1; k <= 3 && !test_has_failed(); k++) {
        check_failing(self, &(struct object){.starts = true}, &(struct object){.fails_at = k});
    }
}

TEST_RANKS(refused, 2)
{
    struct bench bench;
    const shoal_custom_all_gather custom_gather = {.struct_size = sizeof custom_gather};
    const shoal_custom_reduce_scatter custom_scatter = {
        .struct_size = sizeof custom_scatter, .call = scatter, .allocate = allocate};
    REQUIRE(bench_open(&bench, self, 1, NULL));
    CHECK_STATUS(shoal_fsdp_set_custom_all_gather(shoal_fully_shard_unit(NULL, true), NULL),
                 SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_fsdp_set_custom_all_gather(shoal_fully_shard_unit(bench.alone.root, true), NULL),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("set_custom_all_gather: module net is not fully sharded");
    CHECK_STATUS(shoal_fsdp_set_custom_reduce_scatter(shoal_fully_shard_unit(bench.alone.root, true), NULL),
                 SHOAL_ERR_INVALID);
    REQUIRE(net_shard(&bench.sharded, &bench.options));
    CHECK_STATUS(
        shoal_fsdp_set_custom_all_gather(shoal_fully_shard_unit(bench.sharded.root, true), &custom_gather),
        SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("set_custom_all_gather: call is NULL");
    CHECK_STATUS(shoal_fsdp_set_custom_reduce_scatter(shoal_fully_shard_unit(bench.sharded.root, true),
                                                      &custom_scatter),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("allocate is given, but release is not");
    net_train_both(&bench.sharded, &bench.alone, net_pass, self, 2);
    bench_close(&bench);
}
