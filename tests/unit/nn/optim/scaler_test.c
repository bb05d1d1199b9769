/* SPDX-License-Identifier: MIT */
/* Gradient scalers of one process: bits of gradients, skipped steps, the scale's way, the order of calls. */
#include "shoal_nn/scaler.h"

#include <float.h>

#include "shoal/compile.h"
#include "shoal_nn/schedule.h"
#include "fixtures/on_device.h"
#include "unit/nn/fixture.h"

#define N 700 /* more than one piece of those that 16-bit numbers are computed in */

static shoal_nn_scaler *make_scaler(double scale, int64_t growth_interval)
{
    shoal_nn_scaler *scaler = NULL;
    shoal_nn_scaler_options options = SHOAL_NN_SCALER_OPTIONS_INIT;
    options.scale = scale;
    options.growth_interval = growth_interval;
    CHECK_OK(shoal_nn_scaler_create(&options, &scaler));
    return scaler;
}

static shoal_nn_scaler_state state_of(const shoal_nn_scaler *scaler)
{
    shoal_nn_scaler_state state = SHOAL_NN_SCALER_STATE_INIT;
    CHECK_OK(shoal_nn_scaler_get_state(scaler, &state));
    return state;
}

static shoal_nn_optimizer *make_sgd(shoal_tensor *parameter)
{
    shoal_nn_optimizer *optimizer = NULL;
    const shoal_nn_sgd_options options = {.struct_size = sizeof(options), .lr = 0.5};
    CHECK_OK(shoal_nn_sgd_create(&parameter, 1, &options, &optimizer));
    return optimizer;
}

NN_TEST(defaults_are_those_of_the_header)
{
    shoal_nn_scaler *scaler = NULL;
    REQUIRE_OK(shoal_nn_scaler_create(NULL, &scaler));
    shoal_nn_scaler_state state = state_of(scaler);
    CHECK_DOUBLE(state.scale, 65536);
    CHECK_INT(state.n_clean, 0);
    CHECK_INT(state.n_skipped, 0);
    CHECK(state.is_clean);
    shoal_nn_scaler_free(scaler);
    shoal_nn_scaler_free(NULL);
}

NN_TEST(a_loss_is_scaled_in_its_dtype)
{
    const shoal_dtype dtypes[] = {SHOAL_F64, SHOAL_F32, SHOAL_BF16, SHOAL_F16};
    shoal_nn_scaler *scaler = make_scaler(1024, 2000);
    for (int i = 0; i < 4; i++) {
        shoal_tensor *x = require_grad(shoal_full(INTS(1), 1, 3, dtypes[i]));
        shoal_tensor *loss = sum_all(shoal_mul(x, x));
        shoal_tensor *scaled = shoal_nn_scaler_scale(scaler, loss);
        CHECK_INT(shoal_tensor_dtype(scaled), dtypes[i]);
        CHECK_INT(shoal_tensor_n_dims(scaled), 0);
        CHECK_DOUBLE(doubles_of(scaled)[0], 9 * 1024);
        CHECK_OK(shoal_backward(scaled, NULL));
        CHECK_INT(shoal_tensor_dtype(shoal_grad(x)), dtypes[i]);
        CHECK_DOUBLE(doubles_of(shoal_grad(x))[0], 6 * 1024);
    }
    shoal_nn_scaler_free(scaler);
}

NN_TEST(scaling_nothing_is_an_error_of_the_scope)
{
    shoal_nn_scaler *scaler = make_scaler(2, 1);
    REQUIRE_OK(shoal_scope_begin());
    CHECK(shoal_nn_scaler_scale(scaler, NULL) == NULL);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    REQUIRE_OK(shoal_scope_begin());
    CHECK(shoal_nn_scaler_scale(NULL, shoal_full(NULL, 0, 1, SHOAL_F32)) == NULL);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_INVALID);
    shoal_nn_scaler_free(scaler);
}

/* A gradient that was multiplied by a power of two has its bits again, in every dtype and with other strides. */
NN_TEST(gradients_keep_their_bits)
{
    const shoal_dtype dtypes[] = {SHOAL_F64, SHOAL_F32, SHOAL_BF16, SHOAL_F16};
    struct test_random random = test_random_begin(30);
    for (int k = 0; k < 8; k++) {
        bool is_strided = k >= 4;
        shoal_dtype dtype = dtypes[k % 4];
        shoal_tensor *plain = make_random(&random, INTS(2, N), 2, dtype);
        shoal_tensor *scaled = shoal_clone(shoal_mul_scalar(plain, 1024));
        shoal_tensor *parameter =
            require_grad(shoal_zeros(is_strided ? INTS(N, 2) : INTS(2, N), 2, SHOAL_F32));
        CHECK_OK(shoal_set_grad(parameter, is_strided ? shoal_transpose(scaled, 0, 1) : scaled));
        shoal_nn_scaler *scaler = make_scaler(1024, 2000);
        shoal_nn_optimizer *optimizer = make_sgd(parameter);
        CHECK_OK(shoal_nn_scaler_unscale(scaler, optimizer));
        CHECK(state_of(scaler).is_clean);
        CHECK_BYTES(shoal_data(scaled), shoal_data(plain), 2 * N * shoal_dtype_bytes(dtype));
        CHECK_OK(shoal_nn_scaler_step(scaler, optimizer)); /* it is not unscaled again */
        CHECK_BYTES(shoal_data(scaled), shoal_data(plain), 2 * N * shoal_dtype_bytes(dtype));
        CHECK_OK(shoal_nn_scaler_update(scaler));
        shoal_nn_optimizer_free(optimizer);
        shoal_nn_scaler_free(scaler);
    }
}

NN_TEST(other_scales_are_rounded_once)
{
    struct test_random random = test_random_begin(31);
    shoal_tensor *gradient = make_random(&random, INTS(N), 1, SHOAL_F32);
    const float *before = shoal_data(shoal_clone(gradient));
    shoal_tensor *parameter = require_grad(shoal_zeros(INTS(N), 1, SHOAL_F32));
    CHECK_OK(shoal_set_grad(parameter, gradient));
    shoal_nn_scaler *scaler = make_scaler(3, 2000);
    shoal_nn_optimizer *optimizer = make_sgd(parameter);
    CHECK_OK(shoal_nn_scaler_unscale(scaler, optimizer));
    const float *after = shoal_data(gradient);
    for (int i = 0; i < N; i++) {
        volatile float expected = before[i] * (float)(1.0 / 3);
        CHECK(after[i] == expected);
    }
    shoal_nn_optimizer_free(optimizer);
    shoal_nn_scaler_free(scaler);
}

/* Steps with a scaler have the bits of steps without, while nothing overflows. */
NN_TEST(training_has_the_same_bits)
{
    struct test_random random = test_random_begin(32);
    shoal_tensor *start = make_random(&random, INTS(5, 3), 2, SHOAL_F32);
    shoal_tensor *weights[2];
    shoal_nn_optimizer *optimizers[2];
    shoal_nn_scaler *scaler = make_scaler(65536, 2);
    for (int k = 0; k < 2; k++) {
        weights[k] = require_grad(shoal_clone(start));
        REQUIRE_OK(shoal_nn_adamw_create(&weights[k], 1, NULL, &optimizers[k]));
    }
    for (int step = 0; step < 6; step++) {
        shoal_tensor *x = make_random(&random, INTS(5, 3), 2, SHOAL_F32);
        for (int k = 0; k < 2; k++) {
            shoal_tensor *product = shoal_mul(x, weights[k]);
            shoal_tensor *loss = sum_all(shoal_mul(product, product));
            CHECK_OK(shoal_backward(k == 0 ? loss : shoal_nn_scaler_scale(scaler, loss), NULL));
        }
        CHECK_OK(shoal_nn_optimizer_step(optimizers[0]));
        CHECK_OK(shoal_nn_scaler_step(scaler, optimizers[1]));
        CHECK_OK(shoal_nn_scaler_update(scaler));
        CHECK_BYTES(shoal_data(weights[1]), shoal_data(weights[0]), 15 * sizeof(float));
        for (int k = 0; k < 2; k++) {
            CHECK_OK(shoal_nn_optimizer_zero_grad(optimizers[k]));
        }
    }
    CHECK_DOUBLE(state_of(scaler).scale, 65536 * 8); /* it grew three times */
    shoal_nn_optimizer_free(optimizers[0]);
    shoal_nn_optimizer_free(optimizers[1]);
    shoal_nn_scaler_free(scaler);
}

/* One number that is not finite, in any dtype and place, leaves the step out. */
NN_TEST(steps_that_are_not_finite_are_skipped)
{
    const shoal_dtype dtypes[] = {SHOAL_F64, SHOAL_F32, SHOAL_BF16, SHOAL_F16};
    const double bad[] = {(double)INFINITY, -(double)INFINITY, (double)NAN};
    const int places[] = {0, 1, 511, 512, N - 1};
    for (int k = 0; k < 4 * 3 * 5; k++) {
        double values[N] = {0};
        values[places[k % 5]] = bad[k / 5 % 3];
        shoal_tensor *parameter = require_grad(shoal_full(INTS(N), 1, 2, SHOAL_F32));
        CHECK_OK(shoal_set_grad(parameter, make_tensor(values, INTS(N), 1, dtypes[k / 15])));
        shoal_nn_scaler *scaler = make_scaler(8, 1);
        shoal_nn_optimizer *optimizer = make_sgd(parameter);
        CHECK_OK(shoal_nn_scaler_step(scaler, optimizer));
        CHECK(!state_of(scaler).is_clean);
        CHECK_DOUBLE(doubles_of(parameter)[places[k % 5]], 2);
        shoal_nn_optimizer_state state = SHOAL_NN_OPTIMIZER_STATE_INIT;
        CHECK_OK(shoal_nn_optimizer_get_state(optimizer, 0, &state));
        CHECK_INT(state.n_updates, 0);
        CHECK_DOUBLE(state_of(scaler).scale, 8);
        CHECK_OK(shoal_nn_scaler_update(scaler));
        CHECK_DOUBLE(state_of(scaler).scale, 4);
        CHECK_INT(state_of(scaler).n_skipped, 1);
        CHECK(state_of(scaler).is_clean); /* of the next step */
        shoal_nn_optimizer_free(optimizer);
        shoal_nn_scaler_free(scaler);
    }
    /* The largest numbers are finite. */
    shoal_tensor *parameter = require_grad(shoal_zeros(INTS(2), 1, SHOAL_F32));
    CHECK_OK(shoal_set_grad(
        parameter, make_tensor((double[]){(double)FLT_MAX, -(double)FLT_MAX}, INTS(2), 1, SHOAL_F32)));
    shoal_nn_scaler *scaler = make_scaler(8, 1);
    shoal_nn_optimizer *optimizer = make_sgd(parameter);
    CHECK_OK(shoal_nn_scaler_unscale(scaler, optimizer));
    CHECK(state_of(scaler).is_clean);
    shoal_nn_optimizer_free(optimizer);
    shoal_nn_scaler_free(scaler);
}

static void run_once(shoal_nn_scaler *scaler, shoal_nn_optimizer *optimizer, shoal_tensor *parameter,
                     bool is_clean)
{
    double value = is_clean ? 1 : (double)NAN;
    CHECK_OK(shoal_set_grad(parameter, make_tensor(&value, INTS(1), 1, SHOAL_F32)));
    CHECK_OK(shoal_nn_scaler_step(scaler, optimizer));
    CHECK_OK(shoal_nn_scaler_update(scaler));
}

NN_TEST(the_scale_grows_and_backs_off)
{
    static const struct {
        bool is_clean;
        double scale;
        int64_t n_clean;
        int64_t n_skipped;
    } steps[] = {{true, 4, 1, 0},  {true, 4, 2, 0}, {true, 8, 0, 0}, {true, 8, 1, 0}, {false, 4, 0, 1},
                 {false, 2, 0, 2}, {true, 2, 1, 2}, {true, 2, 2, 2}, {true, 4, 0, 2}, {true, 4, 1, 2}};
    shoal_tensor *parameter = require_grad(shoal_zeros(INTS(1), 1, SHOAL_F32));
    shoal_nn_optimizer *optimizer = make_sgd(parameter);
    shoal_nn_scaler *scaler = make_scaler(4, 3);
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        run_once(scaler, optimizer, parameter, steps[i].is_clean);
        shoal_nn_scaler_state state = state_of(scaler);
        CHECK_DOUBLE(state.scale, steps[i].scale);
        CHECK_INT(state.n_clean, steps[i].n_clean);
        CHECK_INT(state.n_skipped, steps[i].n_skipped);
    }
    /* The state of another scaler goes on as that one does. */
    shoal_nn_scaler *other = make_scaler(1, 3);
    shoal_nn_scaler_state state = state_of(scaler);
    CHECK_OK(shoal_nn_scaler_set_state(other, &state));
    for (int i = 0; i < 2; i++) {
        run_once(other, optimizer, parameter, true);
    }
    CHECK_DOUBLE(state_of(other).scale, 8);
    CHECK_INT(state_of(other).n_skipped, 2);
    shoal_tensor *scaled = shoal_nn_scaler_scale(other, shoal_full(NULL, 0, 3, SHOAL_F32));
    CHECK_DOUBLE(doubles_of(scaled)[0], 24);
    shoal_nn_scaler_free(other);
    shoal_nn_scaler_free(scaler);
    shoal_nn_optimizer_free(optimizer);
}

static void run_scheduled(shoal_nn_scaler *scaler, shoal_nn_optimizer *optimizer, shoal_tensor *parameter,
                          shoal_nn_schedule *schedule, double gradient)
{
    CHECK_OK(shoal_set_grad(parameter, make_tensor(&gradient, INTS(1), 1, SHOAL_F32)));
    CHECK(!shoal_nn_scaler_skips(scaler, optimizer));
    CHECK_OK(shoal_nn_scaler_unscale(scaler, optimizer));
    CHECK_INT(shoal_nn_scaler_skips(scaler, optimizer), !isfinite(gradient));
    if (!shoal_nn_scaler_skips(scaler, optimizer)) {
        CHECK_OK(shoal_nn_schedule_next(schedule, optimizer));
    }
    CHECK_OK(shoal_nn_scaler_step(scaler, optimizer));
    CHECK_INT(shoal_nn_scaler_skips(scaler, optimizer), !isfinite(gradient));
    CHECK_OK(shoal_nn_scaler_update(scaler));
    CHECK(!shoal_nn_scaler_skips(scaler, optimizer));
}

/* A schedule that is counted by updates: a training with skipped steps has the bits of one without them. */
NN_TEST(skipped_steps_use_no_rate_up)
{
    static const double gradients[] = {1, (double)INFINITY, 2, -3, (double)NAN, (double)NAN, 5, 0.5};
    shoal_tensor *parameters[2];
    shoal_nn_optimizer *optimizers[2] = {NULL, NULL};
    shoal_nn_schedule schedules[2];
    shoal_nn_scaler *scaler = make_scaler(4096, 1000);
    for (int i = 0; i < 2; i++) {
        parameters[i] = require_grad(shoal_zeros(INTS(1), 1, SHOAL_F32));
        REQUIRE_OK(shoal_nn_adamw_create(&parameters[i], 1, NULL, &optimizers[i]));
        schedules[i] = (shoal_nn_schedule){.struct_size = sizeof(shoal_nn_schedule),
                                           .kind = SHOAL_NN_SCHEDULE_COSINE,
                                           .lr = 0.25,
                                           .n_warmup = 2,
                                           .n_steps = 6};
    }
    for (size_t i = 0; i < sizeof(gradients) / sizeof(gradients[0]); i++) {
        run_scheduled(scaler, optimizers[0], parameters[0], &schedules[0],
                      gradients[i] * state_of(scaler).scale);
        if (isfinite(gradients[i])) {
            CHECK_OK(shoal_set_grad(parameters[1], make_tensor(&gradients[i], INTS(1), 1, SHOAL_F32)));
            CHECK_OK(shoal_nn_schedule_next(&schedules[1], optimizers[1]));
            CHECK_OK(shoal_nn_optimizer_step(optimizers[1]));
        }
    }
    CHECK_INT(state_of(scaler).n_skipped, 3);
    CHECK_INT(schedules[0].step, 5);
    CHECK_INT(schedules[1].step, 5);
    CHECK_BYTES(shoal_data(parameters[0]), shoal_data(parameters[1]), sizeof(float));
    CHECK(!shoal_nn_scaler_skips(NULL, optimizers[0]) && !shoal_nn_scaler_skips(scaler, NULL));
    shoal_nn_scaler_free(scaler);
    shoal_nn_optimizer_free(optimizers[0]);
    shoal_nn_optimizer_free(optimizers[1]);
}

NN_TEST(the_scale_stays_within_its_bounds)
{
    shoal_tensor *parameter = require_grad(shoal_zeros(INTS(1), 1, SHOAL_F32));
    shoal_nn_optimizer *optimizer = make_sgd(parameter);
    shoal_nn_scaler *scaler = make_scaler(0x1p125, 1);
    run_once(scaler, optimizer, parameter, true);
    CHECK_DOUBLE(state_of(scaler).scale, 0x1p126);
    run_once(scaler, optimizer, parameter, true);
    CHECK_DOUBLE(state_of(scaler).scale, 0x1p126);
    shoal_nn_scaler_free(scaler);
    scaler = make_scaler(0x1p-126, 1);
    run_once(scaler, optimizer, parameter, false);
    CHECK_DOUBLE(state_of(scaler).scale, 0x1p-126);
    CHECK_INT(state_of(scaler).n_skipped, 1);
    shoal_nn_scaler_free(scaler);
    shoal_nn_optimizer_free(optimizer);
}

NN_TEST(the_order_of_calls_is_checked)
{
    shoal_tensor *parameter = require_grad(shoal_zeros(INTS(1), 1, SHOAL_F32));
    CHECK_OK(shoal_set_grad(parameter, shoal_full(INTS(1), 1, 8, SHOAL_F32)));
    shoal_nn_optimizer *optimizer = make_sgd(parameter);
    shoal_nn_scaler *scaler = make_scaler(4, 3);
    shoal_nn_scaler_state state = state_of(scaler);
    CHECK_STATUS(shoal_nn_scaler_update(scaler), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("nn_scaler_update: no optimizer has made a step since the last update");
    CHECK_OK(shoal_nn_scaler_unscale(scaler, optimizer));
    CHECK_STATUS(shoal_nn_scaler_unscale(scaler, optimizer), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("nn_scaler_unscale: the optimizer was unscaled already; call shoal_nn_scaler_update");
    CHECK_STATUS(shoal_nn_scaler_update(scaler), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("nn_scaler_update: an optimizer that was unscaled has not made its step");
    CHECK_STATUS(shoal_nn_scaler_set_state(scaler, &state), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("nn_scaler_set_state: gradients were unscaled");
    CHECK_OK(shoal_nn_scaler_step(scaler, optimizer));
    CHECK_STATUS(shoal_nn_scaler_step(scaler, optimizer), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("nn_scaler_step: the optimizer has made its step already");
    CHECK_STATUS(shoal_nn_scaler_unscale(scaler, optimizer), SHOAL_ERR_STATE);
    CHECK_DOUBLE(doubles_of(shoal_grad(parameter))[0], 2);
    CHECK_DOUBLE(doubles_of(parameter)[0], -1);
    CHECK_OK(shoal_nn_scaler_update(scaler));
    CHECK_STATUS(shoal_nn_scaler_update(scaler), SHOAL_ERR_STATE);
    CHECK_OK(shoal_nn_scaler_step(scaler, optimizer));
    CHECK_OK(shoal_nn_scaler_update(scaler));
    CHECK_OK(shoal_nn_scaler_set_state(scaler, &state));
    CHECK_INT(state_of(scaler).n_clean, 0);
    shoal_nn_scaler_free(scaler);
    shoal_nn_optimizer_free(optimizer);
}

/* Each is skipped by itself; the scale backs off if one was. More of them than there is room for at first. */
NN_TEST(optimizers_share_a_scaler)
{
    enum {
        N_OPTIMIZERS = 6
    };
    shoal_tensor *parameters[N_OPTIMIZERS];
    shoal_nn_optimizer *optimizers[N_OPTIMIZERS];
    shoal_nn_scaler *scaler = make_scaler(4, 1);
    for (int i = 0; i < N_OPTIMIZERS; i++) {
        double value = i == 3 ? (double)INFINITY : 4;
        parameters[i] = require_grad(shoal_zeros(INTS(1), 1, SHOAL_F32));
        CHECK_OK(shoal_set_grad(parameters[i], make_tensor(&value, INTS(1), 1, SHOAL_F32)));
        optimizers[i] = make_sgd(parameters[i]);
        if (i % 2 == 0) {
            CHECK_OK(shoal_nn_scaler_unscale(scaler, optimizers[i]));
        }
    }
    for (int i = N_OPTIMIZERS - 1; i >= 0; i--) {
        CHECK_OK(shoal_nn_scaler_step(scaler, optimizers[i]));
        CHECK_DOUBLE(doubles_of(parameters[i])[0], i == 3 ? 0 : -0.5);
    }
    CHECK_OK(shoal_nn_scaler_update(scaler));
    CHECK_DOUBLE(state_of(scaler).scale, 2);
    for (int i = 0; i < N_OPTIMIZERS; i++) {
        shoal_nn_optimizer_free(optimizers[i]);
    }
    shoal_nn_scaler_free(scaler);
}

NN_TEST(raw_shards_are_unscaled)
{
    float values[2] = {1, 2};
    float gradient[2] = {4, 8};
    uint16_t half[1] = {0x4400}; /* 4 */
    float other[1] = {1};
    shoal_nn_shard shards[] = {{values, gradient, 2, SHOAL_F32, SHOAL_F32},
                               {NULL, NULL, 3, SHOAL_F64, SHOAL_F64},
                               {other, half, 1, SHOAL_F32, SHOAL_F16},
                               {NULL, gradient, 0, SHOAL_F32, SHOAL_F32}};
    shoal_nn_optimizer *optimizer = NULL;
    const shoal_nn_sgd_options options = {.struct_size = sizeof(options), .lr = 0.5};
    shoal_nn_scaler *scaler = make_scaler(4, 1);
    REQUIRE_OK(shoal_nn_sgd_create_raw(shards, 4, &options, &optimizer));
    CHECK_STATUS(shoal_nn_scaler_unscale(scaler, optimizer), SHOAL_ERR_STATE);
    CHECK_ERROR_TEXT("nn_scaler_unscale: the optimizer was created for raw memory");
    CHECK_STATUS(shoal_nn_scaler_unscale_raw(scaler, optimizer, shards, 3), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_scaler_unscale_raw: 3 shards, but it was made with 4");
    CHECK_STATUS(shoal_nn_scaler_unscale_raw(scaler, optimizer, NULL, 4), SHOAL_ERR_INVALID);
    shards[2].gradient_dtype = SHOAL_I32;
    CHECK_STATUS(shoal_nn_scaler_step_raw(scaler, optimizer, shards, 4), SHOAL_ERR_UNSUPPORTED);
    CHECK_ERROR_TEXT("nn_scaler_step_raw: shard 2: a gradient of i32");
    shards[2].gradient_dtype = SHOAL_F16;
    CHECK_DOUBLE((double)gradient[0], 4);
    CHECK_OK(shoal_nn_scaler_unscale_raw(scaler, optimizer, shards, 4));
    CHECK_DOUBLE((double)gradient[1], 2);
    CHECK_INT(half[0], 0x3c00);
    CHECK_OK(shoal_nn_scaler_step_raw(scaler, optimizer, shards, 4));
    CHECK_DOUBLE((double)values[0], 0.5);
    CHECK_DOUBLE((double)values[1], 1);
    CHECK_DOUBLE((double)other[0], 0.5);
    CHECK_OK(shoal_nn_scaler_update(scaler));
    half[0] = 0x7c00; /* infinity */
    CHECK_OK(shoal_nn_scaler_step_raw(scaler, optimizer, shards, 4));
    CHECK_DOUBLE((double)values[0], 0.5);
    CHECK_OK(shoal_nn_scaler_update(scaler));
    CHECK_DOUBLE(state_of(scaler).scale, 4);
    shoal_nn_optimizer_free(optimizer);
    shoal_nn_scaler_free(scaler);
}

NN_TEST(scalers_refuse_nonsense)
{
    static const struct {
        shoal_nn_scaler_options options;
        const char *words;
    } rows[] = {
        {{8, 1, 2, 0.5, 1, NULL}, "options: struct_size 8 is not"},
        {{sizeof(shoal_nn_scaler_options), 0, 2, 0.5, 1, NULL},
         "scale is 0, perhaps forgotten; begin with SHOAL_NN_SCALER_OPTIONS_INIT (65536)"},
        {{sizeof(shoal_nn_scaler_options), 0x1p-127, 2, 0.5, 1, NULL}, "is not within 2^-126..2^126"},
        {{sizeof(shoal_nn_scaler_options), -4, 2, 0.5, 1, NULL}, "scale: -4 is not"},
        {{sizeof(shoal_nn_scaler_options), (double)NAN, 2, 0.5, 1, NULL}, "scale: nan is not"},
        {{sizeof(shoal_nn_scaler_options), 0x1p127, 2, 0.5, 1, NULL}, "scale: 1.70141e+38 is not"},
        {{sizeof(shoal_nn_scaler_options), 1, 1, 0.5, 1, NULL}, "growth: 1 is not a number above 1"},
        {{sizeof(shoal_nn_scaler_options), 1, (double)INFINITY, 0.5, 1, NULL}, "growth: inf is not"},
        {{sizeof(shoal_nn_scaler_options), 1, (double)NAN, 0.5, 1, NULL}, "growth: nan is not"},
        {{sizeof(shoal_nn_scaler_options), 1, 2, 1, 1, NULL}, "backoff: 1 is not between 0 and 1"},
        {{sizeof(shoal_nn_scaler_options), 1, 2, 0, 1, NULL}, "backoff: 0 is not between"},
        {{sizeof(shoal_nn_scaler_options), 1, 2, (double)NAN, 1, NULL}, "backoff: nan is not"},
        {{sizeof(shoal_nn_scaler_options), 1, 2, 0.5, 0, NULL}, "growth_interval: 0 is not at least 1"},
    };
    shoal_nn_scaler *scaler = NULL;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        CHECK_STATUS(shoal_nn_scaler_create(&rows[i].options, &scaler), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT(rows[i].words);
        CHECK(scaler == NULL);
    }
    CHECK_STATUS(shoal_nn_scaler_create(NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_nn_scaler_update(NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_nn_scaler_step(NULL, NULL), SHOAL_ERR_INVALID);
    scaler = make_scaler(4, 1);
    CHECK_STATUS(shoal_nn_scaler_step(scaler, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_scaler_step: optimizer is NULL");
    shoal_nn_scaler_state state = state_of(scaler);
    CHECK_STATUS(shoal_nn_scaler_get_state(scaler, NULL), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_nn_scaler_get_state(NULL, &state), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_nn_scaler_set_state(scaler, NULL), SHOAL_ERR_INVALID);
    state.n_clean = -1;
    CHECK_STATUS(shoal_nn_scaler_set_state(scaler, &state), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("n_clean: -1 is negative");
    state.n_clean = 0;
    state.n_skipped = -2;
    CHECK_STATUS(shoal_nn_scaler_set_state(scaler, &state), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("n_skipped: -2 is negative");
    state.n_skipped = 0;
    state.scale = (double)INFINITY;
    CHECK_STATUS(shoal_nn_scaler_set_state(scaler, &state), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_scaler_set_state: scale: inf is not");
    state.struct_size = 3;
    CHECK_STATUS(shoal_nn_scaler_set_state(scaler, &state), SHOAL_ERR_INVALID);
    CHECK_STATUS(shoal_nn_scaler_get_state(scaler, &state), SHOAL_ERR_INVALID);
    CHECK_DOUBLE(state_of(scaler).scale, 4);
    shoal_nn_scaler_free(scaler);
}

/* Captured steps --------------------------------------------------------------------------------------- */

struct captured {
    shoal_tensor *weight;
    shoal_nn_scaler *scaler;
};

static shoal_status run_step(void *context, shoal_tensor *const *inputs, size_t n_inputs,
                             shoal_tensor **outputs, size_t n_outputs)
{
    const struct captured *captured = context;
    (void)n_inputs;
    (void)n_outputs;
    outputs[0] = sum_all(shoal_mul(inputs[0], captured->weight));
    return shoal_backward(shoal_nn_scaler_scale(captured->scaler, outputs[0]), NULL);
}

/* The scale is not frozen in a compiled step. */
NN_TEST(a_compiled_step_sees_the_present_scale)
{
    TEST_NEEDS_HOST();
    shoal_tensor *x = shoal_full(INTS(2), 1, 3, SHOAL_F32);
    struct captured captured = {require_grad(shoal_full(INTS(2), 1, 1, SHOAL_F32)), make_scaler(4, 1)};
    shoal_nn_optimizer *optimizer = make_sgd(captured.weight);
    shoal_compiled *compiled = NULL;
    REQUIRE_OK(shoal_compile(NULL, run_step, &captured, 1, NULL, &compiled));
    for (int step = 0; step < 4; step++) {
        shoal_tensor *loss = NULL;
        CHECK_DOUBLE(state_of(captured.scaler).scale, 4 << step);
        CHECK_OK(shoal_compiled_run(compiled, &x, 1, &loss, 1));
        CHECK_DOUBLE(doubles_of(shoal_grad(captured.weight))[0], 3 * (4 << step));
        CHECK_OK(shoal_nn_scaler_unscale(captured.scaler, optimizer));
        CHECK_DOUBLE(doubles_of(shoal_grad(captured.weight))[0], 3);
        CHECK_OK(shoal_nn_scaler_step(captured.scaler, optimizer));
        CHECK_OK(shoal_nn_scaler_update(captured.scaler));
        CHECK_OK(shoal_nn_optimizer_zero_grad(optimizer));
        shoal_tensor_unref(loss);
    }
    CHECK_DOUBLE(doubles_of(captured.weight)[1], 1 - 4 * 1.5);
    shoal_compiled_free(compiled);
    shoal_nn_optimizer_free(optimizer);
    shoal_nn_scaler_free(captured.scaler);
}

/* Failing allocations ---------------------------------------------------------------------------------- */

static shoal_status make_and_free(void *context)
{
    shoal_nn_scaler *scaler = NULL;
    (void)context;
    shoal_status status = shoal_nn_scaler_create(NULL, &scaler);
    CHECK((status == SHOAL_OK) == (scaler != NULL));
    shoal_nn_scaler_free(scaler);
    return status;
}

TEST(failing_allocations_are_errors)
{
    begin_nn();
    CHECK(test_sweep_allocations(make_and_free, NULL) >= 2);
}
