/* SPDX-License-Identifier: MIT */
/* Compiled steps whose world, memory or thread is another one: ends, threads, what is kept, and whose memory a gradient is. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "fixtures/compiled_pair.h"
#include "tensor/tensor.h"

/* Worlds ----------------------------------------------------------------------------------------------------- */

TEST_RANKS(a_world_may_end_before_its_steps, 2)
{
    static const enum wrapping wrappings[] = {WRAP_NOTHING, WRAP_DDP, WRAP_SHARDS};
    for (size_t i = 0; i < sizeof wrappings / sizeof wrappings[0]; i++) {
        for (int n_runs = 0; n_runs < 2; n_runs++) {
            struct pair pair;
            if (!pair_begin(&pair, self, wrappings[i], NULL)) {
                return;
            }
            for (int k = 0; k < n_runs; k++) {
                pair_run(&pair, k, NET_BATCH);
            }
            shoal_tensor *x = net_numbers(1, (int64_t[]){NET_BATCH, NET_WIDTH}, 2);
            shoal_tensor *output = NULL;
            shoal_compiled *compiled = pair.compiled;
            pair.compiled = NULL;
            x = shoal_tensor_ref(x);
            pair_end(&pair);
            CHECK_STATUS(shoal_compiled_run(compiled, &x, 1, &output, 1), SHOAL_ERR_STATE);
            CHECK_ERROR_TEXT("compiled_run: the world of the step was closed");
            shoal_tensor_unref(x);
            shoal_compiled_free(compiled);
        }
    }
}

/* Threads ---------------------------------------------------------------------------------------------------- */

struct meeting {
    shoal_compiled *compiled;
    shoal_tensor *x;
    _Atomic int state; /* 1: the step is being captured, 2: the other thread was refused */
};

static shoal_status wait_in_step(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                 shoal_tensor **outputs, size_t n_outputs)
{
    struct meeting *meeting = context;
    atomic_store(&meeting->state, 1);
    while (atomic_load(&meeting->state) == 1) {
        (void)sched_yield();
    }
    outputs[0] = shoal_neg(inputs[0]);
    return outputs[0] ? SHOAL_OK : shoal_scope_error();
}

static void *run_beside(void *context)
{
    struct meeting *meeting = context;
    shoal_tensor *output = NULL;
    while (atomic_load(&meeting->state) == 0) {
        (void)sched_yield();
    }
    CHECK_STATUS(shoal_compiled_run(meeting->compiled, &meeting->x, 1, &output, 1), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("compiled_run: the step is running already");
    CHECK(output == NULL);
    atomic_store(&meeting->state, 2);
    return NULL;
}

TEST(a_second_thread_is_refused)
{
    struct meeting meeting = {.state = 0};
    pthread_t thread;
    shoal_tensor *output = NULL;
    REQUIRE_OK(shoal_scope_begin());
    meeting.x = net_numbers(1, (int64_t[]){4}, 1);
    REQUIRE_OK(shoal_compile(NULL, wait_in_step, &meeting, 1, NULL, &meeting.compiled));
    REQUIRE(pthread_create(&thread, NULL, run_beside, &meeting) == 0);
    CHECK_OK(shoal_compiled_run(meeting.compiled, &meeting.x, 1, &output, 1));
    CHECK_INT(pthread_join(thread, NULL), 0);
    shoal_tensor_unref(output);
    output = NULL;
    CHECK_OK(shoal_compiled_run(meeting.compiled, &meeting.x, 1, &output, 1)); /* once more, and alone */
    shoal_tensor_unref(output);
    shoal_compiled_free(meeting.compiled);
    CHECK_OK(shoal_scope_end());
}

/* Whose memory a gradient is --------------------------------------------------------------------------------- */

static const float three[] = {1, 2, 3};

/* The first leaf gets the input, the second a constant; the output is one too. */
static shoal_status set_gradients(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                  shoal_tensor **outputs, size_t n_outputs)
{
    shoal_tensor **leaves = context;
    shoal_tensor *constant =
        shoal_from_memory((void *)(uintptr_t)three, (int64_t[]){3}, 1, SHOAL_F32, NULL, NULL, NULL);
    shoal_tensor *output =
        shoal_from_memory((void *)(uintptr_t)three, (int64_t[]){3}, 1, SHOAL_F32, NULL, NULL, NULL);
    outputs[0] = output;
    shoal_status status = shoal_set_grad(leaves[0], inputs[0]);
    return status == SHOAL_OK ? shoal_set_grad(leaves[1], constant) : status;
}

TEST(gradients_that_are_inputs_or_constants)
{
    shoal_compiled *compiled = NULL;
    shoal_tensor *leaves[2] = {NULL};
    REQUIRE_OK(shoal_scope_begin());
    for (int i = 0; i < 2; i++) {
        leaves[i] = net_numbers((uint32_t)i, (int64_t[]){3}, 1);
        REQUIRE_OK(shoal_set_requires_grad(leaves[i], true));
    }
    REQUIRE_OK(shoal_compile(NULL, set_gradients, leaves, 1, NULL, &compiled));
    for (int i = 0; i < 4; i++) {
        shoal_tensor *output = NULL;
        shoal_tensor *x = net_numbers((uint32_t)(10 + i), (int64_t[]){3}, 1);
        REQUIRE_OK(shoal_compiled_run(compiled, &x, 1, &output, 1));
        CHECK(shoal_grad(leaves[0]) != x && shoal_data(shoal_grad(leaves[0])) == shoal_data(x));
        CHECK_BYTES(shoal_data(shoal_grad(leaves[1])), three, sizeof three);
        CHECK_BYTES(shoal_data(output), three, sizeof three);
        /* What the caller does with them is not seen by the next run. */
        (void)shoal_mul_scalar_(shoal_grad(leaves[1]), 7);
        (void)shoal_mul_scalar_(output, 7);
        shoal_tensor_unref(output);
        if (i == 1) {
            CHECK_OK(shoal_set_grad(leaves[0], NULL));
            CHECK_OK(shoal_set_grad(leaves[1], NULL));
        }
    }
    shoal_compiled_free(compiled);
    CHECK_OK(shoal_scope_end());
}

/* A parameter and its gradient lie in one storage. */
struct halves {
    shoal_tensor *both;
    shoal_tensor *leaf;
};

static void halves_make(struct halves *halves)
{
    halves->both = net_numbers(5, (int64_t[]){8}, 1);
    halves->leaf = shoal_detach(shoal_narrow(halves->both, 0, 0, 4));
    CHECK_OK(shoal_set_requires_grad(halves->leaf, true));
    CHECK_OK(shoal_set_grad(halves->leaf, shoal_narrow(halves->both, 0, 4, 4)));
}

static shoal_status add_to_gradient(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                                    shoal_tensor **outputs, size_t n_outputs)
{
    struct halves *halves = context;
    shoal_tensor *y = shoal_mul(shoal_mul(halves->leaf, halves->leaf), inputs[0]);
    outputs[0] = shoal_sum(y, NULL, 0, false);
    return outputs[0] ? shoal_backward(outputs[0], NULL) : shoal_scope_error();
}

TEST(a_gradient_beside_its_parameter)
{
    struct halves eager;
    struct halves other;
    shoal_compiled *compiled = NULL;
    REQUIRE_OK(shoal_scope_begin());
    halves_make(&eager);
    halves_make(&other);
    REQUIRE_OK(shoal_compile(NULL, add_to_gradient, &other, 1, NULL, &compiled));
    for (uint32_t i = 0; i < 4; i++) {
        shoal_tensor *x = net_numbers(20 + i, (int64_t[]){4}, 1);
        shoal_tensor *want = NULL;
        shoal_tensor *got = NULL;
        if (i == 2) { /* it goes into a storage of the same kind, where the parameter is not */
            shoal_tensor *eager_memory = net_numbers(9, (int64_t[]){8}, 1);
            shoal_tensor *other_memory = net_numbers(9, (int64_t[]){8}, 1);
            CHECK_OK(shoal_set_grad(eager.leaf, shoal_narrow(eager_memory, 0, 4, 4)));
            CHECK_OK(shoal_set_grad(other.leaf, shoal_narrow(other_memory, 0, 4, 4)));
        }
        CHECK_OK(add_to_gradient(&eager, &x, 1, &want, 1));
        if (CHECK_OK(shoal_compiled_run(compiled, &x, 1, &got, 1))) {
            CHECK(pair_is_same(got, want));
            CHECK(pair_is_same(shoal_grad(other.leaf), shoal_grad(eager.leaf)));
            CHECK(pair_is_same(other.both, eager.both));
            shoal_tensor_unref(got);
        }
    }
    shoal_compiled_free(compiled);
    CHECK_OK(shoal_scope_end());
}

/* What is kept ----------------------------------------------------------------------------------------------- */

static void count_end(void *context, void *data)
{
    (void)data;
    ++*(int *)context;
}

static shoal_status square(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                           shoal_tensor **outputs, size_t n_outputs)
{
    outputs[0] = shoal_sum(shoal_mul(inputs[0], inputs[0]), NULL, 0, false);
    return outputs[0] ? shoal_backward(outputs[0], NULL) : shoal_scope_error();
}

TEST(an_input_that_requires_a_gradient_is_not_kept)
{
    float numbers[4] = {1, 2, 3, 4};
    int n_ended = 0;
    shoal_compiled *compiled = NULL;
    REQUIRE_OK(shoal_compile(NULL, square, NULL, 1, NULL, &compiled));
    for (int i = 0; i < 3; i++) {
        shoal_tensor *output = NULL;
        REQUIRE_OK(shoal_scope_begin());
        shoal_tensor *x = shoal_from_memory(numbers, (int64_t[]){4}, 1, SHOAL_F32, NULL, count_end, &n_ended);
        CHECK_OK(shoal_set_requires_grad(x, true));
        CHECK_OK(shoal_compiled_run(compiled, &x, 1, &output, 1));
        CHECK_BYTES(shoal_data(shoal_grad(x)), ((const float[]){2, 4, 6, 8}), 16);
        shoal_tensor_unref(output);
        CHECK_OK(shoal_scope_end());
        CHECK_INT(n_ended, i + 1);
    }
    shoal_compiled_free(compiled);
}

/* The caller's whole weights, of a model that is never called. */
TEST_RANKS(whole_weights_are_not_kept, 2)
{
    int n_ended = 0;
    shoal_compiled *compiled = NULL;
    shoal_world *world = rank_world_open(self, 0);
    REQUIRE(world != NULL);
    REQUIRE_OK(shoal_scope_begin());
    struct net net;
    net_make(&net, PAIR_LAYERS, NULL);
    static float numbers[NET_WIDTH];
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *whole =
        shoal_from_memory(numbers, (int64_t[]){NET_WIDTH}, 1, SHOAL_F32, NULL, count_end, &n_ended);
    REQUIRE_OK(shoal_set_requires_grad(whole, true));
    REQUIRE_OK(shoal_module_set_parameter(net.layers[1], "weight", whole));
    shoal_fully_shard_options options = net_options(world);
    REQUIRE(
        net_shard(&net, &options)); /* while the caller has the weight: it might be tied to another unit */
    CHECK_OK(shoal_scope_end());
    REQUIRE_OK(shoal_compile(world, pair_step, &net, 1, NULL, &compiled));
    shoal_tensor *x = net_numbers(3, (int64_t[]){NET_BATCH, NET_WIDTH}, 2);
    shoal_tensor *output = NULL;
    CHECK_OK(shoal_compiled_run(compiled, &x, 1, &output, 1));
    shoal_tensor_unref(output);
    CHECK_INT(n_ended, 1);
    shoal_compiled_free(compiled);
    net_free(&net);
    CHECK_OK(shoal_scope_end());
    CHECK_OK(shoal_world_close(world));
}

/* An update inside the step, of shards that are padded on some ranks: the padded shard lies over the shard. -------------------- */

static shoal_status train_step(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                               shoal_tensor **outputs, size_t n_outputs)
{
    struct net *net = context;
    shoal_status status = pair_step(context, inputs, n_inputs, outputs, n_outputs);
    size_t n_parameters;
    shoal_tensor *const *parameters = shoal_module_parameters(net->root, &n_parameters);
    status = status == SHOAL_OK ? shoal_scope_set_grad(false) : status;
    for (size_t i = 0; i < n_parameters && status == SHOAL_OK; i++) {
        shoal_tensor *gradient = shoal_grad(parameters[i]);
        if (gradient && !shoal_sub_(parameters[i], shoal_mul_scalar(gradient, 0.25))) {
            status = shoal_scope_error();
        }
        status = status == SHOAL_OK ? shoal_set_grad(parameters[i], NULL) : status;
    }
    return status == SHOAL_OK ? shoal_scope_set_grad(true) : status;
}

static void update_in_step(const struct rank *self, enum wrapping wrapping)
{
    struct pair pair;
    shoal_compiled *compiled = NULL;
    if (pair_begin(&pair, self, wrapping, NULL) &&
        CHECK_OK(shoal_compile(pair.world, train_step, &pair.other, 1, NULL, &compiled))) {
        for (int i = 0; i < 4 && !test_has_failed(); i++) {
            shoal_tensor *want = NULL;
            shoal_tensor *got = NULL;
            REQUIRE_OK(shoal_scope_begin());
            shoal_tensor *x =
                net_numbers((uint32_t)(100 * i + self->rank), (int64_t[]){NET_BATCH, NET_WIDTH}, 2);
            CHECK_OK(train_step(&pair.eager, &x, 1, &want, 1));
            if (CHECK_OK(shoal_compiled_run(compiled, &x, 1, &got, 1))) {
                CHECK(pair_is_same(got, want));
                shoal_tensor_unref(got);
            }
            CHECK_OK(shoal_scope_end());
            pair_check(&pair);
        }
    }
    shoal_compiled_free(compiled);
    pair_end(&pair);
}

TEST_RANKS(updates_inside_the_step, 2)
{
    update_in_step(self, WRAP_NOTHING);
    update_in_step(self, WRAP_DDP);
    update_in_step(self, WRAP_SHARDS);
}
