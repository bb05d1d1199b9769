/* SPDX-License-Identifier: MIT */
/* Training on another device: optimizers, scalers, clipping and initial values have the bits of the CPU. */
#include <stdlib.h>

#include "fixtures/test_device.h"
#include "shoal_nn/modules.h"
#include "shoal_nn/random.h"
#include "shoal_nn/scaler.h"
#include "unit/nn/fixture.h"

#define N_STEPS 6
#define N_PARAMETERS 5

static shoal_device apart(void)
{
    shoal_device device = SHOAL_CPU;
    CHECK_OK(shoal_device_find("apart", &device));
    return device;
}

static void check_same(shoal_tensor *apart_tensor, shoal_tensor *here)
{
    bool has_grad = shoal_scope_has_grad();
    CHECK_OK(shoal_scope_set_grad(false));
    shoal_tensor *there = shoal_contiguous(shoal_to_device(apart_tensor, SHOAL_CPU));
    shoal_tensor *wanted = shoal_contiguous(here);
    CHECK_OK(shoal_scope_set_grad(has_grad));
    REQUIRE(there && wanted && shoal_tensor_device(apart_tensor) == apart());
    CHECK_BYTES(shoal_data(there), shoal_data(wanted), tensor_bytes(wanted));
}

/* The same parameters twice: on the CPU, and on the device. */
struct pair {
    shoal_tensor *parameters[2][N_PARAMETERS];
    shoal_nn_optimizer *optimizers[2];
};

static const shoal_dtype dtypes[N_PARAMETERS] = {SHOAL_F32, SHOAL_F16, SHOAL_BF16, SHOAL_F64, SHOAL_F32};
static const shoal_dtype gradient_dtypes[N_PARAMETERS] = {SHOAL_F32, SHOAL_F16, SHOAL_F32, SHOAL_F64,
                                                          SHOAL_BF16};

static int64_t rows_of(int i)
{
    return i == 2 ? 0 : 40 + 60 * i; /* one has no elements */
}

static void make_parameters(struct pair *pair, struct test_random *random)
{
    for (int i = 0; i < N_PARAMETERS; i++) {
        shoal_tensor *values = make_random(random, INTS(rows_of(i), 7), 2, dtypes[i]);
        pair->parameters[0][i] = require_grad(values);
        pair->parameters[1][i] = require_grad(shoal_to_device(shoal_detach(values), apart()));
    }
}

/* Gradients of any dtype, every other one with other strides. Parameter 4 has none in the first step. */
static void make_gradients(const struct pair *pair, struct test_random *random, int step, double factor)
{
    for (int i = 0; i < N_PARAMETERS - (step == 0); i++) {
        shoal_tensor *values = make_random(random, INTS(7, rows_of(i)), 2, gradient_dtypes[i]);
        shoal_tensor *scaled = shoal_mul_scalar(values, factor);
        shoal_tensor *turned = shoal_transpose(scaled, 0, 1);
        shoal_tensor *apart_turned = shoal_transpose(shoal_to_device(scaled, apart()), 0, 1);
        CHECK_OK(shoal_set_grad(pair->parameters[0][i], i % 2 == 0 ? shoal_clone(turned) : turned));
        CHECK_OK(shoal_set_grad(pair->parameters[1][i],
                                i % 2 == 0 ? shoal_contiguous(apart_turned) : apart_turned));
    }
}

static void check_pair(const struct pair *pair)
{
    for (int i = 0; i < N_PARAMETERS; i++) {
        check_same(pair->parameters[1][i], pair->parameters[0][i]);
        shoal_nn_optimizer_state states[2] = {SHOAL_NN_OPTIMIZER_STATE_INIT, SHOAL_NN_OPTIMIZER_STATE_INIT};
        for (int k = 0; k < 2; k++) {
            CHECK_OK(shoal_nn_optimizer_get_state(pair->optimizers[k], (size_t)i, &states[k]));
        }
        CHECK_INT(states[1].n_updates, states[0].n_updates);
        if (states[0].first_moment) {
            check_same(states[1].first_moment, states[0].first_moment);
            check_same(states[1].second_moment, states[0].second_moment);
        }
    }
}

static void free_pair(const struct pair *pair)
{
    shoal_nn_optimizer_free(pair->optimizers[0]);
    shoal_nn_optimizer_free(pair->optimizers[1]);
}

/* Several steps, with delays on the device. */
static void train(struct pair *pair, struct test_random *random)
{
    atomic_store(&test_apart()->seed, 21);
    for (int t = 0; t < N_STEPS; t++) {
        make_gradients(pair, random, t, 1);
        for (int k = 0; k < 2; k++) {
            CHECK_OK(shoal_nn_optimizer_set_lr(pair->optimizers[k], 0.01 * (t + 1)));
            CHECK_OK(shoal_nn_optimizer_step(pair->optimizers[k]));
            CHECK_OK(shoal_nn_optimizer_step_one(pair->optimizers[k], 1));
            CHECK_OK(shoal_nn_optimizer_zero_grad(pair->optimizers[k]));
            CHECK(shoal_grad(pair->parameters[k][0]) == NULL);
        }
    }
    check_pair(pair);
    atomic_store(&test_apart()->seed, 0);
}

NN_TEST(sgd_has_the_bits_of_the_cpu)
{
    struct pair pair;
    struct test_random random = test_random_begin(1);
    make_parameters(&pair, &random);
    for (int k = 0; k < 2; k++) {
        REQUIRE_OK(shoal_nn_sgd_create(pair.parameters[k], N_PARAMETERS, NULL, &pair.optimizers[k]));
    }
    train(&pair, &random);
    free_pair(&pair);
}

NN_TEST(adamw_has_the_bits_of_the_cpu)
{
    struct pair pair;
    struct test_random random = test_random_begin(2);
    make_parameters(&pair, &random);
    for (int k = 0; k < 2; k++) {
        REQUIRE_OK(shoal_nn_adamw_create(pair.parameters[k], N_PARAMETERS, NULL, &pair.optimizers[k]));
    }
    train(&pair, &random);
    /* The state goes from one device to the other, into moments that are there and into new ones. */
    shoal_nn_optimizer *fresh;
    REQUIRE_OK(shoal_nn_adamw_create(pair.parameters[1], N_PARAMETERS, NULL, &fresh));
    for (size_t i = 0; i < N_PARAMETERS; i++) {
        shoal_nn_optimizer_state state = SHOAL_NN_OPTIMIZER_STATE_INIT;
        CHECK_OK(shoal_nn_optimizer_get_state(pair.optimizers[0], i, &state));
        CHECK_OK(shoal_nn_optimizer_set_state(fresh, i, &state));
        CHECK_OK(shoal_nn_optimizer_get_state(pair.optimizers[1], i, &state));
        CHECK_OK(shoal_nn_optimizer_set_state(pair.optimizers[0], i, &state));
    }
    shoal_nn_optimizer_free(pair.optimizers[1]);
    pair.optimizers[1] = fresh;
    train(&pair, &random);
    const shoal_nn_optimizer_state zeros = SHOAL_NN_OPTIMIZER_STATE_INIT;
    for (size_t i = 0; i < N_PARAMETERS; i++) {
        CHECK_OK(shoal_nn_optimizer_set_state(pair.optimizers[0], i, &zeros));
        CHECK_OK(shoal_nn_optimizer_set_state(pair.optimizers[1], i, &zeros));
    }
    train(&pair, &random);
    free_pair(&pair);
}

/* With clipping between unscale and step, and a step that is skipped. */
NN_TEST(scaled_gradients_have_the_bits_of_the_cpu)
{
    struct pair pair;
    shoal_nn_scaler *scalers[2];
    struct test_random random = test_random_begin(3);
    const shoal_nn_scaler_options options = {
        .struct_size = sizeof options, .scale = 48, .growth = 1.5, .backoff = 0.5, .growth_interval = 2};
    make_parameters(&pair, &random);
    for (int k = 0; k < 2; k++) {
        REQUIRE_OK(shoal_nn_adamw_create(pair.parameters[k], N_PARAMETERS, NULL, &pair.optimizers[k]));
        REQUIRE_OK(shoal_nn_scaler_create(&options, &scalers[k]));
    }
    atomic_store(&test_apart()->seed, 22);
    for (int t = 0; t < N_STEPS; t++) {
        double norms[2] = {0};
        make_gradients(&pair, &random, 1, t == 3 ? (double)INFINITY : 100);
        for (int k = 0; k < 2; k++) {
            CHECK_OK(shoal_nn_scaler_unscale(scalers[k], pair.optimizers[k]));
            CHECK(shoal_nn_scaler_skips(scalers[k], pair.optimizers[k]) == (t == 3));
            CHECK_OK(shoal_clip_grad_norm(pair.parameters[k], N_PARAMETERS, 1, 2, /*must_be_finite=*/false,
                                          &norms[k]));
            CHECK_OK(shoal_nn_scaler_step(scalers[k], pair.optimizers[k]));
            CHECK_OK(shoal_nn_scaler_update(scalers[k]));
        }
        CHECK_DOUBLE(norms[1], norms[0]);
        check_pair(&pair);
    }
    atomic_store(&test_apart()->seed, 0);
    shoal_tensor *loss = make_random(&random, INTS(1), 1, SHOAL_F16);
    check_same(shoal_nn_scaler_scale(scalers[1], shoal_to_device(loss, apart())),
               shoal_nn_scaler_scale(scalers[0], loss));
    shoal_nn_scaler_free(scalers[0]);
    shoal_nn_scaler_free(scalers[1]);
    free_pair(&pair);
}

/* The device does nothing for a while, and what the step was told is gone. */
NN_TEST(a_step_does_not_wait)
{
    struct pair pair;
    struct test_random random = test_random_begin(4);
    make_parameters(&pair, &random);
    for (int k = 0; k < 2; k++) {
        REQUIRE_OK(shoal_nn_adamw_create(pair.parameters[k], N_PARAMETERS, NULL, &pair.optimizers[k]));
    }
    test_finish(apart());
    atomic_store(&test_apart()->is_held, 1);
    REQUIRE_OK(shoal_scope_begin());
    make_gradients(&pair, &random, 1, 1);
    CHECK_OK(shoal_nn_optimizer_step(pair.optimizers[1]));
    CHECK_OK(shoal_nn_optimizer_zero_grad(pair.optimizers[1]));
    CHECK_OK(shoal_nn_optimizer_step(pair.optimizers[0]));
    REQUIRE_OK(shoal_scope_end());
    atomic_store(&test_apart()->is_held, 0);
    check_pair(&pair);
    free_pair(&pair);
}

static shoal_module *make_module(void)
{
    shoal_module *module = NULL;
    const shoal_module_definition definition = {.struct_size = sizeof definition, .type = "container"};
    CHECK_OK(shoal_module_create(&definition, &module));
    return module;
}

NN_TEST(an_optimizer_has_one_device)
{
    shoal_nn_optimizer *optimizer = NULL;
    shoal_tensor *here = require_grad(shoal_zeros(INTS(2), 1, SHOAL_F32));
    shoal_tensor *there = require_grad(shoal_to_device(shoal_zeros(INTS(2), 1, SHOAL_F32), apart()));
    shoal_tensor *list[] = {here, there};
    CHECK_STATUS(shoal_nn_sgd_create(list, 2, NULL, &optimizer), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_sgd_create: parameter 1 is on device apart, but parameters before it are on cpu");
    shoal_module *module = make_module();
    CHECK_OK(shoal_module_add_parameter(module, "there", there));
    CHECK_OK(shoal_module_add_parameter(module, "here", here));
    CHECK_STATUS(shoal_nn_adamw_create_for(module, NULL, NULL, 0, &optimizer), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT(
        "nn_adamw_create_for: parameter here is on device cpu, but parameters before it are on apart");
    CHECK(optimizer == NULL);
    shoal_module_unref(module);
}

/* Initial values: the bits of the CPU, also of a tensor with other strides. */
NN_TEST(initial_values_have_the_bits_of_the_cpu)
{
    const shoal_nn_distribution normal = SHOAL_NN_NORMAL(0.5, 2);
    const shoal_nn_draws draws = {.seed = 7, .stream = 8};
    shoal_module *modules[2];
    for (int k = 0; k < 2; k++) {
        modules[k] = make_module();
        for (int i = 0; i < N_PARAMETERS; i++) {
            const char *names[N_PARAMETERS] = {"a", "b", "c", "d", "e"};
            shoal_tensor *tensor =
                shoal_empty_on(INTS(rows_of(i), 7), 2, dtypes[i], k == 0 ? SHOAL_CPU : apart());
            CHECK_OK(shoal_module_add_parameter(modules[k], names[i], tensor));
        }
        CHECK_OK(shoal_nn_initialize(modules[k], "*", &normal, 5));
    }
    for (int i = 0; i < N_PARAMETERS; i++) {
        const char *names[N_PARAMETERS] = {"a", "b", "c", "d", "e"};
        check_same(shoal_module_parameter(modules[1], names[i]),
                   shoal_module_parameter(modules[0], names[i]));
        shoal_tensor *here = shoal_empty(INTS(rows_of(i), 7), 2, dtypes[i]);
        shoal_tensor *there = shoal_empty_on(INTS(rows_of(i), 7), 2, dtypes[i], apart());
        CHECK_OK(shoal_nn_fill(&draws, &normal, shoal_transpose(here, 0, 1)));
        CHECK_OK(shoal_nn_fill(&draws, &normal, shoal_transpose(there, 0, 1)));
        check_same(there, here);
    }
    shoal_module_unref(modules[0]);
    shoal_module_unref(modules[1]);
}

/* Ready-made modules are made on the device with the values of the CPU. */
NN_TEST(modules_are_made_on_the_device)
{
    shoal_module *modules[2] = {NULL};
    for (int k = 0; k < 2; k++) {
        shoal_nn_linear_options options = SHOAL_NN_LINEAR_OPTIONS_INIT;
        options.n_in = 5;
        options.n_out = 3;
        options.device = k == 0 ? SHOAL_CPU : apart();
        REQUIRE_OK(shoal_nn_linear_create(&options, &modules[k]));
    }
    check_same(shoal_module_parameter(modules[1], "weight"), shoal_module_parameter(modules[0], "weight"));
    check_same(shoal_module_parameter(modules[1], "bias"), shoal_module_parameter(modules[0], "bias"));
    shoal_module_unref(modules[0]);
    shoal_module_unref(modules[1]);
}

/* Failures ----------------------------------------------------------------------------------------------- */

/* A step of everything; `values` get the parameter. */
static shoal_status train_once(double *values)
{
    const shoal_nn_distribution normal = SHOAL_NN_NORMAL(0, 1);
    const shoal_nn_draws draws = {.seed = 1};
    shoal_nn_optimizer *optimizer = NULL;
    shoal_nn_scaler *scaler = NULL;
    shoal_status status = shoal_scope_begin();
    if (status != SHOAL_OK) {
        return status;
    }
    shoal_tensor *x = shoal_empty_on(INTS(3, 2), 2, SHOAL_F64, apart());
    if (x && (status = shoal_nn_fill(&draws, &normal, x)) == SHOAL_OK &&
        (status = shoal_set_requires_grad(x, true)) == SHOAL_OK &&
        (status = shoal_nn_adamw_create(&x, 1, NULL, &optimizer)) == SHOAL_OK &&
        (status = shoal_nn_scaler_create(NULL, &scaler)) == SHOAL_OK &&
        (status = shoal_backward(shoal_nn_scaler_scale(scaler, sum_all(shoal_mul(x, x))), NULL)) ==
            SHOAL_OK &&
        (status = shoal_nn_scaler_unscale(scaler, optimizer)) == SHOAL_OK &&
        (status = shoal_clip_grad_norm(&x, 1, 1, 2, true, NULL)) == SHOAL_OK &&
        (status = shoal_nn_scaler_step(scaler, optimizer)) == SHOAL_OK &&
        (status = shoal_nn_scaler_update(scaler)) == SHOAL_OK) {
        const shoal_nn_optimizer_state zeros = SHOAL_NN_OPTIMIZER_STATE_INIT;
        status = shoal_nn_optimizer_set_state(optimizer, 0, &zeros);
        status = status == SHOAL_OK ? shoal_read(x, values, 6 * sizeof values[0]) : status;
    }
    shoal_nn_scaler_free(scaler);
    shoal_nn_optimizer_free(optimizer);
    shoal_status ended = shoal_scope_end();
    return status == SHOAL_OK ? ended : status;
}

TEST(each_call_of_the_device_can_fail)
{
    double wanted[6] = {0};
    begin_nn();
    struct apart_settings *settings = (apart(), test_apart());
    REQUIRE_OK(train_once(wanted));
    int64_t n_calls = (int64_t)atomic_load(&settings->n_calls);
    REQUIRE_OK(train_once(wanted));
    n_calls = (int64_t)atomic_load(&settings->n_calls) - n_calls;
    REQUIRE(n_calls > 25);
    size_t blocks = test_live_blocks();
    for (int64_t i = 1; i <= n_calls; i++) {
        double values[6] = {0};
        uint64_t n_bytes = atomic_load(&settings->n_bytes);
        atomic_store(&settings->fail_at, i);
        CHECK_STATUS(train_once(values), SHOAL_ERR_SYSTEM);
        CHECK_ERROR_TEXT("device apart has failed: call ");
        test_forget_failure();
        CHECK_INT(atomic_load(&settings->n_bytes), n_bytes);
        CHECK_OK(train_once(values)); /* this also frees a copy that came too late */
        CHECK_INT(test_live_blocks(), blocks);
        CHECK_BYTES(values, wanted, sizeof values);
    }
}
