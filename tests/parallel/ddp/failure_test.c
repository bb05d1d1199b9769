/* SPDX-License-Identifier: MIT */
/*
 * What goes wrong under distributed data parallelism ends in an error that says what, on every rank, and the next
 * backward pass works again where it can: ranks that use other parameters, backward passes that fail halfway, ranks
 * that die, worlds and modules that end in any order, memory that runs out, and everything that is refused.
 */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <unistd.h>

#include "fixtures/on_device.h"

#include "base/clock.h"
#include "fixtures/ddp_net.h"
#include "parallel/ddp/ddp.h"

/* Other parameters --------------------------------------------------------------------------------------- */

TEST_RANKS(a_parameter_that_one_rank_does_not_use_is_named, 3)
{
    struct setting s;
    REQUIRE(setting_open_wrapped(self, &s, (shoal_ddp_options){.bucket_bytes = 1}));
    for (int step = 0; step < 6; step++) {
        s.net.skips[3] = self->rank == 1;
        CHECK_STATUS(net_backward(&s.net, step, self->rank, 0), SHOAL_ERR_STATE);
        CHECK_ERROR_TEXT("b3.weight");
        CHECK_ERROR_TEXT("rank 1");
        s.net.skips[3] = false;
        if (step % 2 == 1) {
            setting_step(&s, step, "after a failure");
        }
    }
    CHECK_INT(ddp_of(s.net.module)->lane.generation, 0); /* nothing was lost */
    setting_close(&s);
}

TEST_RANKS(a_parameter_that_nobody_uses_is_named, 2)
{
    struct setting s;
    REQUIRE(setting_open_wrapped(self, &s, (shoal_ddp_options){.bucket_bytes = 1}));
    s.net.skips[0] = true;
    CHECK_STATUS(net_backward(&s.net, 0, self->rank, 0), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("b0.weight got no gradient on rank 0");
    s.net.skips[0] = false;
    setting_step(&s, 1, "after a failure");
    setting_close(&s);
}

/* Halfway ------------------------------------------------------------------------------------------------ */

static shoal_status fail_once(void *context, shoal_tensor *leaf)
{
    bool *fails = context;
    (void)leaf;
    if (!*fails) {
        return SHOAL_OK;
    }
    *fails = false;
    return SHOAL_ERR_INTERNAL;
}

enum recovery {
    BEGIN_AGAIN, /* the rank that failed just goes on */
    RESET_FIRST  /* and says so before */
};

/* One rank fails at a parameter; others wait for it, and hear of it. */
static void fail_halfway(struct rank *self, int param, enum recovery recovery, int n_before)
{
    struct setting s;
    bool fails = false;
    REQUIRE(setting_open_wrapped(self, &s, (shoal_ddp_options){.first_bucket_bytes = 1, .bucket_bytes = 1}));
    CHECK_OK(shoal_on_accumulated(s.net.params[param], fail_once, &fails, NULL));
    for (int round = 0; round < 2; round++) {
        for (int step = 0; step < n_before; step++) {
            setting_step(&s, step, "after a failure");
        }
        net_zero(&s.net);
        /* By messages, a rank that is still in the step before may hear of the failure first
           (docs/design/message.md). */
        test_barrier(self);
        fails = self->rank == 0;
        shoal_status status = net_backward(&s.net, 9, self->rank, 0);
        if (self->rank == 0) {
            CHECK_STATUS(status, SHOAL_ERR_INTERNAL);
            if (recovery == RESET_FIRST) {
                CHECK_OK(shoal_ddp_reset(s.net.module));
            }
        } else {
            CHECK_STATUS(status, SHOAL_ERR_CANCELLED);
            CHECK_ERROR_TEXT("rank 0 abandoned");
        }
        setting_step(&s, 10, "after a failure");
        CHECK_INT(ddp_of(s.net.module)->lane.generation, round + 1);
        setting_step(&s, 11, "after a failure");
    }
    setting_close(&s);
}

TEST_RANKS(one_rank_fails_and_begins_again, 2)
{
    fail_halfway(self, 1, BEGIN_AGAIN, 2);
}

TEST_RANKS(one_rank_of_three_fails_and_begins_again, 3)
{
    fail_halfway(self, 4, BEGIN_AGAIN, 1);
}

TEST_RANKS(one_rank_fails_at_first_and_begins_again, 3)
{
    fail_halfway(self, 6, BEGIN_AGAIN, 0);
}

TEST_RANKS(one_rank_fails_and_resets, 3)
{
    fail_halfway(self, 3, RESET_FIRST, 2);
}

TEST_RANKS(all_ranks_fail_at_other_places, 3)
{
    struct setting s;
    bool fails = false;
    REQUIRE(setting_open_wrapped(self, &s, (shoal_ddp_options){.first_bucket_bytes = 1, .bucket_bytes = 1}));
    CHECK_OK(shoal_on_accumulated(s.net.params[2 * self->rank], fail_once, &fails, NULL));
    for (int round = 0; round < 3; round++) {
        setting_step(&s, 0, "after a failure");
        setting_step(&s, 1, "after a failure");
        net_zero(&s.net);
        fails = true;
        CHECK_STATUS(net_backward(&s.net, 2, self->rank, 0), SHOAL_ERR_INTERNAL);
        test_barrier(self);
    }
    setting_step(&s, 3, "after a failure");
    setting_close(&s);
}

/* Large buckets are reduced by threads, in memory that others write to. */
TEST_RANKS(large_buckets_that_are_given_up, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    bool fails = false;
    REQUIRE(world != NULL && CHECK_OK(shoal_scope_begin()));
    shoal_module *module = large_make(world);
    CHECK_OK(shoal_on_accumulated(shoal_module_parameter(module, "w0"), fail_once, &fails, NULL));
    for (int round = 0; round < 3; round++) {
        large_step(self, module, 0);
        large_step(self, module, 1);
        fails = self->rank == round;
        CHECK_STATUS(large_backward(module, self->rank, 2),
                     self->rank == round ? SHOAL_ERR_INTERNAL : SHOAL_ERR_CANCELLED);
    }
    large_step(self, module, 3);
    large_step(self, module, 4);
    shoal_module_unref(module);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

/* Half of a gradient is no gradient. */
TEST_RANKS(what_a_failed_backward_left_must_be_removed, 2)
{
    struct setting s;
    bool fails = false;
    REQUIRE(setting_open_wrapped(self, &s, (shoal_ddp_options){.first_bucket_bytes = 1, .bucket_bytes = 1}));
    CHECK_OK(shoal_on_accumulated(s.net.params[0], fail_once, &fails, NULL));
    for (int is_synchronised = 0; is_synchronised < 2; is_synchronised++) {
        CHECK_OK(shoal_ddp_set_sync(s.net.module, is_synchronised));
        fails = true;
        CHECK_STATUS(net_backward(&s.net, 0, self->rank, 0), SHOAL_ERR_INTERNAL);
        test_barrier(self);
        for (int i = 0; i < 2; i++) {
            CHECK_STATUS(net_backward(&s.net, 1, self->rank, 0), SHOAL_ERR_STATE);
            CHECK_ERROR_TEXT("left");
        }
        CHECK_OK(shoal_ddp_set_sync(s.net.module, true));
        setting_step(&s, 2, "after a failure");
        setting_step(&s, 3, "after a failure");
    }
    /* Zeros that are written will do, where nothing was on its way. */
    CHECK_OK(shoal_ddp_set_sync(s.net.module, false));
    fails = true;
    CHECK_STATUS(net_backward(&s.net, 4, self->rank, 0), SHOAL_ERR_INTERNAL);
    net_fill_zero(&s.net);
    CHECK_OK(shoal_ddp_set_sync(s.net.module, true));
    CHECK_OK(net_backward(&s.net, 5, self->rank, 0));
    setting_close(&s);
}

/* Without synchronization nobody else is concerned. */
TEST_RANKS(a_local_backward_that_fails_is_local, 2)
{
    struct setting s;
    bool fails = false;
    REQUIRE(setting_open_wrapped(self, &s, (shoal_ddp_options){.bucket_bytes = 1}));
    CHECK_OK(shoal_on_accumulated(s.net.params[0], fail_once, &fails, NULL));
    setting_step(&s, 0, "after a failure");
    if (self->rank == 1) {
        CHECK_OK(shoal_ddp_set_sync(s.net.module, false));
        fails = true;
        CHECK_STATUS(net_backward(&s.net, 1, self->rank, 0), SHOAL_ERR_INTERNAL);
        CHECK_OK(shoal_ddp_set_sync(s.net.module, true));
    }
    setting_step(&s, 2, "after a failure");
    CHECK_INT(ddp_of(s.net.module)->lane.generation, 0);
    setting_close(&s);
}

/* A rank that never comes: the deadline, on those that wait; then it comes. */
TEST_RANKS(a_rank_that_comes_after_the_deadline, 2)
{
    struct setting s;
    REQUIRE(setting_open_wrapped(self, &s, (shoal_ddp_options){.bucket_bytes = 1}));
    setting_step(&s, 0, "after a failure");
    setting_step(&s, 1, "after a failure");
    if (self->rank == 0) {
        CHECK_OK(shoal_group_set_timeout(shoal_world_group(s.world), 0.2));
        net_zero(&s.net);
        CHECK_STATUS(net_backward(&s.net, 2, self->rank, 0), SHOAL_ERR_TIMEOUT);
        CHECK_OK(shoal_group_set_timeout(shoal_world_group(s.world), 20 * test_time_scale()));
    }
    test_barrier(self);
    if (self->rank == 1) {
        net_zero(&s.net);
        CHECK(net_backward(&s.net, 2, self->rank, 0) != SHOAL_OK);
    }
    test_barrier(self);
    setting_step(&s, 3, "after a failure");
    setting_close(&s);
}

/* Death -------------------------------------------------------------------------------------------------- */

static shoal_status die(void *context, shoal_tensor *leaf)
{
    (void)leaf;
    if (*(const int *)context >= 0) {
        (void)kill(getpid(), SIGKILL);
    }
    return SHOAL_OK;
}

static void die_halfway(struct rank *self, int n_before)
{
    struct setting s;
    int is_dying = -1;
    test_expect_death(1, SIGKILL);
    REQUIRE(setting_open_wrapped(self, &s, (shoal_ddp_options){.first_bucket_bytes = 1, .bucket_bytes = 1}));
    if (self->rank == 1) {
        CHECK_OK(shoal_on_accumulated(s.net.params[0], die, &is_dying, NULL));
    }
    for (int step = 0; step < n_before; step++) {
        setting_step(&s, step, "after a failure");
    }
    net_zero(&s.net);
    CHECK_OK(shoal_group_barrier(shoal_world_group(s.world)));
    is_dying = 1;
    int64_t begin_ns = clock_now_ns();
    CHECK_STATUS(net_backward(&s.net, 5, self->rank, 0), SHOAL_ERR_PEER);
    CHECK_ERROR_TEXT("rank 1");
    CHECK((double)(clock_now_ns() - begin_ns) * 1e-9 < 10 * test_time_scale()); /* the deadline is 20 */
    for (int i = 0; i < 2; i++) {                                               /* and always from now on */
        net_zero(&s.net);
        CHECK_STATUS(net_backward(&s.net, 6, self->rank, 0), SHOAL_ERR_PEER);
    }
    /* Alone it can go on. */
    net_zero(&s.net);
    CHECK_OK(shoal_ddp_set_sync(s.net.module, false));
    CHECK_OK(net_backward(&s.net, 7, self->rank, 0));
    setting_close(&s);
}

TEST_PROCESSES(a_rank_dies_in_the_first_backward, 3)
{
    die_halfway(self, 0);
}

TEST_PROCESSES(a_rank_dies_in_a_backward, 3)
{
    die_halfway(self, 2);
}

/* Ends --------------------------------------------------------------------------------------------------- */

/* Gradients outlive the module, and the module its world. */
TEST_RANKS(ends_in_any_order, 2)
{
    for (int way = 0; way < 2; way++) {
        struct net net;
        shoal_world *world = rank_world_open(self, way);
        REQUIRE(world != NULL && CHECK_OK(shoal_scope_begin()));
        net_make(&net, NULL, 7);
        REQUIRE_OK(net_wrap(&net, world, (shoal_ddp_options){.bucket_bytes = 1}));
        CHECK_OK(net_backward(&net, 0, self->rank, 0));
        shoal_tensor *grad = shoal_tensor_ref(shoal_grad(net.params[0]));
        union net_values values;
        REQUIRE(net_copy_grad(&net, 0, &values));
        if (way == 0) {
            net_free(&net);
            CHECK_OK(shoal_world_close(world));
        } else {
            CHECK_OK(shoal_world_close(world));
            CHECK_BYTES(shoal_data(shoal_grad(net.params[0])), &values, net_bytes(&net, 0));
            CHECK_STATUS(net_backward(&net, 1, self->rank, 0), SHOAL_ERR_STATE);
            CHECK_ERROR_TEXT("closed");
            CHECK_OK(shoal_ddp_clip_grad_norm(net.module, 1e9, 2, false, NULL));
            CHECK_OK(shoal_ddp_reset(net.module));
            net_free(&net);
        }
        CHECK_BYTES(shoal_data(grad), &values, sizeof(float) * (size_t)shoal_tensor_count(grad));
        shoal_tensor_unref(grad);
        CHECK_OK(shoal_scope_end());
    }
}

/* A module that goes in the middle of a step, whether or not anything has left. */
static void end_halfway(struct rank *self, int n_before)
{
    struct setting s;
    bool fails = false;
    REQUIRE(setting_open_wrapped(self, &s, (shoal_ddp_options){.first_bucket_bytes = 1, .bucket_bytes = 1}));
    CHECK_OK(shoal_on_accumulated(s.net.params[4], fail_once, &fails, NULL));
    for (int step = 0; step < n_before; step++) {
        setting_step(&s, step, "before the failure");
    }
    net_zero(&s.net);
    fails = self->rank == 1;
    CHECK_STATUS(net_backward(&s.net, 1, self->rank, 0),
                 self->rank == 1 ? SHOAL_ERR_INTERNAL : SHOAL_ERR_CANCELLED);
    net_free(&s.net);
    net_make(&s.net, NULL, 7);
    REQUIRE_OK(net_wrap(&s.net, s.world, (shoal_ddp_options){.bucket_bytes = 1}));
    setting_step(&s, 2, "on a lane that has not failed");
    setting_close(&s);
}

/* Closes the world, once. */
static shoal_status close_in_hook(void *context, shoal_tensor *leaf)
{
    shoal_world **world = context;
    (void)leaf;
    shoal_status status = shoal_world_close(*world);
    *world = NULL;
    return status;
}

/* All ranks close their worlds in a hook, before all gradients have arrived or at the last one. */
TEST_RANKS(a_world_that_is_closed_in_a_backward_pass, 2)
{
    for (int param = 0; param < NET_PARAMS; param++) {
        struct setting s;
        REQUIRE(setting_open_wrapped(self, &s, (shoal_ddp_options){.bucket_bytes = 1}));
        CHECK_OK(shoal_on_accumulated(s.net.params[param], close_in_hook, &s.world, NULL));
        CHECK_STATUS(net_backward(&s.net, 0, self->rank, 0), SHOAL_ERR_STATE);
        CHECK_ERROR_TEXT("the world of the module's group is closed");
        setting_close(&s);
        test_barrier(self);
    }
}

TEST_RANKS(a_module_ends_with_gradients_on_their_way, 2)
{
    end_halfway(self, 1);
}

TEST_RANKS(a_module_ends_before_gradients_left, 2)
{
    end_halfway(self, 0);
}

/* Memory ------------------------------------------------------------------------------------------------- */

static shoal_status product_forward(shoal_module *module, shoal_tensor *const *inputs, size_t n_inputs,
                                    shoal_tensor **outputs, size_t n_outputs)
{
    shoal_tensor *x = shoal_mul(inputs[0], shoal_module_parameter(module, "a"));
    outputs[0] = shoal_sum(shoal_mul(x, shoal_module_parameter(module, "b")), NULL, 0, false);
    (void)n_inputs;
    (void)n_outputs;
    return SHOAL_OK;
}

#define KEEP(call)                \
    do {                          \
        if (status == SHOAL_OK) { \
            status = (call);      \
        }                         \
    } while (0)

static shoal_status add_leaf(shoal_module *module, const char *name)
{
    shoal_tensor *leaf = shoal_full((int64_t[]){3}, 1, 2, SHOAL_F32);
    shoal_status status = shoal_scope_error();
    KEEP(shoal_set_requires_grad(leaf, true));
    KEEP(shoal_module_add_parameter(module, name, leaf));
    return status;
}

static shoal_status train(shoal_module *module)
{
    shoal_status status = SHOAL_OK;
    for (int i = 0; i < 4 && status == SHOAL_OK; i++) { /* learns, goes on, adds to what is there, is local */
        KEEP(shoal_ddp_set_sync(module, i < 3));
        shoal_tensor *loss = shoal_module_call_one(module, shoal_full((int64_t[]){3}, 1, 3, SHOAL_F32));
        KEEP(shoal_scope_error());
        KEEP(shoal_backward(loss, NULL));
        if (i == 0 && status == SHOAL_OK) {
            KEEP(shoal_set_grad(shoal_module_parameter(module, "a"), NULL));
            KEEP(shoal_set_grad(shoal_module_parameter(module, "b"), NULL));
        }
    }
    return status;
}

static shoal_status run_in_world(shoal_world *world)
{
    const shoal_module_definition definition = {
        .struct_size = sizeof definition, .type = "product", .forward = product_forward};
    shoal_module *module = NULL;
    shoal_status status = shoal_scope_begin();
    if (status != SHOAL_OK) {
        return status;
    }
    KEEP(shoal_module_create(&definition, &module));
    KEEP(add_leaf(module, "a"));
    KEEP(add_leaf(module, "b"));
    KEEP(shoal_ddp(module, &(shoal_ddp_options){.struct_size = sizeof(shoal_ddp_options),
                                                .group = shoal_world_group(world),
                                                .first_bucket_bytes = 1}));
    KEEP(train(module));
    shoal_module_unref(module);
    shoal_status end = shoal_scope_end();
    return status == SHOAL_OK ? end : status;
}

static shoal_status run_alone(void *context)
{
    const shoal_world_options options = {.struct_size = sizeof options, .n_ranks = 1, .key = context};
    shoal_world *world;
    shoal_status status = shoal_world_open(&options, &world);
    if (status != SHOAL_OK) {
        return status;
    }
    status = run_in_world(world);
    shoal_status closed = shoal_world_close(world);
    return status == SHOAL_OK ? closed : status;
}

TEST(memory_that_runs_out)
{
    char key[64];
    (void)snprintf(key, sizeof key, "ddp-memory-%" PRIx64, test_process_number((int)getpid()));
    CHECK(test_sweep_allocations(run_alone, key) > 50);
}

/* Refused ------------------------------------------------------------------------------------------------ */

static void check_refused(struct net *net, shoal_world *world, shoal_ddp_options options,
                          shoal_status expected, const char *words)
{
    CHECK_STATUS(net_wrap(net, world, options), expected);
    CHECK_ERROR_TEXT(words);
    CHECK(!shoal_ddp_is_wrapped(net->module));
}

TEST_RANKS(wrong_arguments, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    struct net net;
    REQUIRE(world != NULL && CHECK_OK(shoal_scope_begin()));
    net_make(&net, NULL, 7);
    shoal_ddp_options options = {.struct_size = sizeof options, .group = shoal_world_group(world)};
    CHECK_STATUS(shoal_ddp(NULL, &options), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("ddp: module is NULL");
    CHECK_STATUS(shoal_ddp(net.module, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_ddp(net.module, &(shoal_ddp_options){.struct_size = 0}), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_ddp(net.module, &(shoal_ddp_options){.struct_size = sizeof options}),
                 SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("group is NULL");
    options.n_ignored = 3;
    CHECK_STATUS(shoal_ddp(net.module, &options), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("3");
    options.n_ignored = 0;
    static const double bad_factors[] = {-1.0, (double)NAN, (double)INFINITY};
    for (int k = 0; k < 3; k++) {
        options.divide_factor = bad_factors[k];
        CHECK_STATUS(shoal_ddp(net.module, &options), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT("ddp: divide_factor is");
    }
    CHECK_STATUS(shoal_ddp_set_sync(net.module, true), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("net is not wrapped");
    CHECK_STATUS(shoal_ddp_set_sync(NULL, true), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_ddp_reset(NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_ddp_reset(net.module), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_ddp_clip_grad_norm(NULL, 1, 2, false, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_ddp_clip_grad_norm(net.module, 1, 2, false, NULL), SHOAL_ERR_INVALID);
    CHECK(!shoal_ddp_is_wrapped(NULL) && !shoal_ddp_is_wrapped(net.module));
    net_free(&net);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(once_is_enough, 2)
{
    struct setting s;
    struct net outer;
    REQUIRE(setting_open_wrapped(self, &s, (shoal_ddp_options){.bucket_bytes = 1}));
    CHECK_STATUS(net_wrap(&s.net, s.world, (shoal_ddp_options){.bucket_bytes = 1}), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("net is wrapped by shoal_ddp already");
    /* Inside of one, and around one. */
    struct net inner = {.module = s.net.blocks[2]};
    check_refused(&inner, s.world, (shoal_ddp_options){.bucket_bytes = 0}, SHOAL_ERR_STATE, "inside");
    net_make(&outer, NULL, 9);
    CHECK_OK(shoal_module_add_child(outer.module, "inner", s.net.module));
    check_refused(&outer, s.world, (shoal_ddp_options){.bucket_bytes = 0}, SHOAL_ERR_STATE, "at inner");
    net_free(&outer);
    setting_step(&s, 0, "after a failure");
    /* When it is gone, what was inside is free again. */
    shoal_module *block = shoal_module_ref(s.net.blocks[2]);
    net_free(&s.net);
    inner.module = block;
    CHECK_OK(net_wrap(&inner, s.world, (shoal_ddp_options){.bucket_bytes = 0}));
    shoal_module_unref(block);
    net_make(&s.net, NULL, 7);
    setting_close(&s);
}

TEST_RANKS(modules_that_do_not_fit, 2)
{
    shoal_world *world = rank_world_open(self, 0);
    const shoal_ddp_options none = {.bucket_bytes = 0};
    struct net net;
    REQUIRE(world != NULL && CHECK_OK(shoal_scope_begin()));
    /* All frozen. */
    net_make(&net, NULL, 7);
    for (int i = 0; i < NET_PARAMS; i++) {
        CHECK_OK(shoal_set_requires_grad(net.params[i], false));
    }
    check_refused(&net, world, none, SHOAL_ERR_INVALID, "requires a gradient");
    net_free(&net);
    /* Fully sharded inside. */
    net_make(&net, NULL, 7);
    CHECK_OK(shoal_fully_shard(net.blocks[1],
                               &(shoal_fully_shard_options){.struct_size = sizeof(shoal_fully_shard_options),
                                                            .group = shoal_world_group(world)}));
    check_refused(&net, world, none, SHOAL_ERR_STATE,
                  "of a module that is fully sharded is not in the option `ignored`");
    net_free(&net);
    /* Without data. */
    net_make(&net, NULL, 7);
    CHECK_OK(shoal_module_add_parameter(net.module, "ghost",
                                        shoal_empty_on((int64_t[]){3}, 1, SHOAL_F32, SHOAL_META)));
    check_refused(&net, world, none, SHOAL_ERR_UNSUPPORTED, "ghost");
    net_free(&net);
    /* It failed on one rank: the other one hears of it. */
    net_make(&net, NULL, 7);
    if (self->rank == 1) {
        CHECK_OK(shoal_module_add_parameter(net.module, "ghost",
                                            shoal_empty_on((int64_t[]){3}, 1, SHOAL_F32, SHOAL_META)));
    }
    check_refused(&net, world, none, SHOAL_ERR_UNSUPPORTED, self->rank == 1 ? "ghost" : "rank 1");
    net_free(&net);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

TEST_RANKS(ranks_that_differ, 3)
{
    shoal_world *world = rank_world_open(self, 0);
    shoal_dtype dtypes[NET_BLOCKS] = {SHOAL_F32, SHOAL_F32, SHOAL_F32, SHOAL_F32};
    struct net net;
    REQUIRE(world != NULL && CHECK_OK(shoal_scope_begin()));
    bool differs = self->rank == 1;
    net_make(&net, NULL, 7);
    check_refused(&net, world, (shoal_ddp_options){.bucket_bytes = differs ? 5 : 6}, SHOAL_ERR_MISMATCH,
                  differs ? "bucket_bytes: 5 here, 6 on rank 0" : "5 on rank 1");
    check_refused(&net, world, (shoal_ddp_options){.divide_factor = differs ? 1.0 : 0.5}, SHOAL_ERR_MISMATCH,
                  differs ? "ranks differ in divide_factor: 1 here, 0.5 on rank 0"
                          : "ranks differ in divide_factor: 0.5 here, 1 on rank 1");
    check_refused(&net, world, (shoal_ddp_options){.keeps_parameters = differs}, SHOAL_ERR_MISMATCH,
                  "keeps_parameters");
    check_refused(&net, world, (shoal_ddp_options){.first_bucket_bytes = differs ? 5 : 6}, SHOAL_ERR_MISMATCH,
                  "first_bucket_bytes");
    check_refused(&net, world, (shoal_ddp_options){.reduce_unused = differs}, SHOAL_ERR_MISMATCH,
                  differs ? "ranks differ in reduce_unused: 1 here, 0 on rank 0"
                          : "ranks differ in reduce_unused: 0 here, 1 on rank 1");
    /* A parameter more, another dtype, another wish for a gradient. */
    shoal_tensor *extra[] = {net.params[3]};
    check_refused(&net, world, (shoal_ddp_options){.ignored = extra, .n_ignored = differs ? 1 : 0},
                  SHOAL_ERR_MISMATCH, "number of tensors");
    CHECK_OK(shoal_set_requires_grad(net.params[5], !differs));
    check_refused(&net, world, (shoal_ddp_options){.bucket_bytes = 0}, SHOAL_ERR_MISMATCH, "b2.bias");
    net_free(&net);
    dtypes[3] = differs ? SHOAL_F64 : SHOAL_F32;
    net_make(&net, dtypes, 7);
    check_refused(&net, world, (shoal_ddp_options){.bucket_bytes = 0}, SHOAL_ERR_MISMATCH, "b3.weight");
    net_free(&net);
    /* After all that, what is right works. */
    net_make(&net, NULL, 7);
    CHECK_OK(net_wrap(&net, world, (shoal_ddp_options){.bucket_bytes = 0}));
    CHECK_OK(net_backward(&net, 0, self->rank, 0));
    net_free(&net);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

/* Equal calls with different meaning --------------------------------------------------------------------- */

static shoal_status clip_norm(shoal_module *module, bool differs)
{
    return shoal_ddp_clip_grad_norm(module, differs ? 0.5 : 0.25, 2, false, NULL);
}

static shoal_status clip_power(shoal_module *module, bool differs)
{
    return shoal_ddp_clip_grad_norm(module, 0.25, differs ? 3.0 : 1.0, false, NULL);
}

static shoal_status clip_value(shoal_module *module, bool differs)
{
    return shoal_ddp_clip_grad_value(module, differs ? 0.5 : 0.25);
}

static void check_clipping(struct rank *self, shoal_status (*clip)(shoal_module *module, bool differs),
                           const char *word, const char *other)
{
    struct setting s;
    REQUIRE(setting_open_wrapped(self, &s, (shoal_ddp_options){.bucket_bytes = 1}));
    CHECK_OK(net_backward(&s.net, 0, self->rank, 0));
    CHECK_STATUS(clip(s.net.module, self->rank == 1), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT(word);
    CHECK_ERROR_TEXT(other);
    setting_close(&s);
}

TEST_RANKS(clipped_by_another_maximum, 3)
{
    check_clipping(self, clip_norm, "(max_norm 0.25, power 2", "(max_norm 0.5, power 2");
}

TEST_RANKS(clipped_by_another_power, 2)
{
    check_clipping(self, clip_power, "(max_norm 0.25, power 1", "(max_norm 0.25, power 3");
}

TEST_RANKS(clipped_by_another_value, 2)
{
    check_clipping(self, clip_value, "(max_value 0.25)", "(max_value 0.5)");
}

/* What is frozen on one rank only would be trained on the others. */
TEST_RANKS(frozen_on_one_rank, 2)
{
    struct setting s;
    REQUIRE(setting_open_wrapped(self, &s, (shoal_ddp_options){.bucket_bytes = 1}));
    CHECK_OK(net_backward(&s.net, 0, self->rank, 0));
    net_zero(&s.net);
    if (self->rank == 1) {
        CHECK_OK(shoal_set_requires_grad(s.net.params[2], false));
    }
    CHECK_STATUS(net_backward(&s.net, 1, self->rank, 0), SHOAL_ERR_MISMATCH);
    CHECK_ERROR_TEXT("of net with frozen b1.weight");
    setting_close(&s);
}
