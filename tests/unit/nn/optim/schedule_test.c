/* SPDX-License-Identifier: MIT */
/* Schedules: rates against values that were computed by hand, at every boundary, and what is refused. */
#include "shoal_nn/schedule.h"

#include "fixtures/fp_modes.h"
#include "unit/nn/fixture.h"

#define CONSTANT SHOAL_NN_SCHEDULE_CONSTANT
#define COSINE SHOAL_NN_SCHEDULE_COSINE
#define INVERSE_SQRT SHOAL_NN_SCHEDULE_INVERSE_SQRT

static shoal_nn_schedule make(shoal_nn_schedule_kind kind, double lr, int64_t n_warmup, int64_t n_steps,
                              double min_lr)
{
    shoal_nn_schedule schedule = SHOAL_NN_SCHEDULE_INIT;
    schedule.kind = kind;
    schedule.lr = lr;
    schedule.n_warmup = n_warmup;
    schedule.n_steps = n_steps;
    schedule.min_lr = min_lr;
    return schedule;
}

/* Exact where the right side is a number of few bits; the cosines are from a program of 40 digits. */
static const struct {
    shoal_nn_schedule_kind kind;
    double lr;
    int64_t n_warmup;
    int64_t n_steps;
    double min_lr;
    int64_t step;
    double expected;
    double tolerance; /* relative */
} rows[] = {
    {CONSTANT, 0.5, 0, 0, 0, 0, 0.5, 0},
    {CONSTANT, 0.5, 0, 0, 0, INT64_MAX, 0.5, 0},
    {CONSTANT, 0, 7, 0, 0, 3, 0, 0},
    /* Warm-up: the last of its 3 steps has 3/4, the next one all. */
    {CONSTANT, 8, 3, 0, 0, 0, 2, 0},
    {CONSTANT, 8, 3, 0, 0, 1, 4, 0},
    {CONSTANT, 8, 3, 0, 0, 2, 6, 0},
    {CONSTANT, 8, 3, 0, 0, 3, 8, 0},
    {CONSTANT, 8, 3, 0, 0, 4, 8, 0},
    {COSINE, 8, 3, 5, 1, 0, 2, 0},
    {COSINE, 8, 3, 5, 1, 2, 6, 0},
    {COSINE, 8, 3, 5, 1, 3, 8, 0},
    {COSINE, 8, 3, 5, 1, 4, 4.5, 1e-15}, /* halfway */
    {COSINE, 8, 3, 5, 1, 5, 1, 0},
    {COSINE, 8, 3, 5, 1, 6, 1, 0},
    {COSINE, 8, 3, 5, 1, INT64_MAX, 1, 0},
    {COSINE, 1, 10, 100, 0.125, 9, 10.0 / 11.0, 1e-15},
    {COSINE, 1, 10, 100, 0.125, 10, 1, 0},
    {COSINE, 1, 10, 100, 0.125, 11, 0.99973348682085438188, 1e-15},
    {COSINE, 1, 10, 100, 0.125, 12, 0.99893427198867310833, 1e-15},
    {COSINE, 1, 10, 100, 0.125, 40, 0.78125, 1e-15},
    {COSINE, 1, 10, 100, 0.125, 55, 0.5625, 1e-15},
    {COSINE, 1, 10, 100, 0.125, 56, 0.54723147019265582490, 1e-15},
    {COSINE, 1, 10, 100, 0.125, 99, 0.12526651317914561812, 1e-15},
    {COSINE, 1, 10, 100, 0.125, 100, 0.125, 0},
    {COSINE, 0.1, 0, 1, 0, 0, 0.1, 0},
    {COSINE, 0.1, 0, 1, 0, 1, 0, 0},
    {COSINE, 0.3, 0, 4, 0.3, 3, 0.3, 0}, /* min_lr may be lr */
    {COSINE, 0.3, INT64_MAX - 1, INT64_MAX, 0, INT64_MAX - 1, 0.3, 0},
    {INVERSE_SQRT, 8, 0, 0, 0, 0, 8, 0},
    {INVERSE_SQRT, 8, 0, 0, 0, 3, 4, 0},
    {INVERSE_SQRT, 8, 0, 0, 0, 15, 2, 0},
    {INVERSE_SQRT, 8, 3, 0, 0, 2, 6, 0},
    {INVERSE_SQRT, 8, 3, 0, 0, 3, 8, 0},
    {INVERSE_SQRT, 8, 3, 0, 0, 4, 7.1554175279993270, 1e-15},
    {INVERSE_SQRT, 8, 3, 0, 0, 15, 4, 0},
    {INVERSE_SQRT, 8, 3, 0, 3, 63, 3, 0}, /* 2 without the minimum */
    {INVERSE_SQRT, 8, 3, 0, 3, INT64_MAX, 3, 0},
};

TEST(rates_are_those_of_the_header)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        shoal_nn_schedule schedule =
            make(rows[i].kind, rows[i].lr, rows[i].n_warmup, rows[i].n_steps, rows[i].min_lr);
        double lr = -1;
        CHECK_OK(shoal_nn_schedule_at(&schedule, rows[i].step, &lr));
        if (!(fabs(lr - rows[i].expected) <= rows[i].tolerance * rows[i].expected)) {
            test_failed(__FILE__, __LINE__, "row %zu: %.17g, expected %.17g", i, lr, rows[i].expected);
        }
    }
}

/* Bits, which no library of functions has a part in. */
TEST(rates_have_these_bits_everywhere)
{
    static const struct {
        int64_t step;
        double lr;
    } golden[] = {{0, 0x1.8eaaa0fa1332cp-19},   {50, 0x1.3daff847474c7p-13},  {99, 0x1.37754dc35effbp-12},
                  {100, 0x1.3a92a30553261p-12}, {101, 0x1.3a926a8058af4p-12}, {333, 0x1.0e4711616024ep-12},
                  {549, 0x1.5b04b1c5b7bdep-13}, {550, 0x1.5a07b352a8439p-13}, {551, 0x1.590ab4df98c91p-13},
                  {777, 0x1.20e38fb3c2d50p-14}, {999, 0x1.f7548d24f943ep-16}, {1000, 0x1.f75104d551d69p-16}};
    shoal_nn_schedule schedule = make(COSINE, 3e-4, 100, 1000, 3e-5);
    for (size_t mode = 0; mode <= FP_MODE_ROWS; mode++) {
        for (size_t i = 0; i < sizeof(golden) / sizeof(golden[0]); i++) {
            double lr = 0;
            if (mode > 0) {
                fp_modes_begin(mode - 1);
            }
            shoal_status status = shoal_nn_schedule_at(&schedule, golden[i].step, &lr);
            if (mode > 0) {
                fp_modes_end(mode - 1);
            }
            CHECK_OK(status);
            CHECK_BYTES(&lr, &golden[i].lr, sizeof(lr));
        }
    }
}

/* A cosine falls from step to step, and its two halves meet. */
TEST(a_cosine_falls)
{
    for (int64_t n_steps = 2; n_steps <= 1001; n_steps += 37) {
        shoal_nn_schedule schedule = make(COSINE, 1, 0, n_steps, 0.1);
        double last = 2;
        for (int64_t step = 0; step <= n_steps; step++) {
            double lr = 0;
            CHECK_OK(shoal_nn_schedule_at(&schedule, step, &lr));
            CHECK(lr < last);
            double exact = 0.1 + 0.9 * (1 + cos(M_PI * (double)step / (double)n_steps)) / 2;
            CHECK(fabs(lr - exact) <= 4e-16);
            last = lr;
        }
        CHECK(last == 0.1);
    }
}

NN_TEST(next_sets_the_rate_and_counts)
{
    shoal_tensor *x = require_grad(shoal_zeros(INTS(1), 1, SHOAL_F32));
    const shoal_nn_shard shard = {.count = 0, .dtype = SHOAL_F32};
    shoal_nn_optimizer *optimizers[2];
    REQUIRE_OK(shoal_nn_sgd_create(&x, 1, NULL, &optimizers[0]));
    REQUIRE_OK(shoal_nn_adamw_create_raw(&shard, 1, NULL, &optimizers[1]));
    for (int k = 0; k < 2; k++) {
        shoal_nn_schedule schedule = make(COSINE, 8, 3, 5, 1);
        for (int64_t step = 0; step < 8; step++) {
            double lr = 0;
            CHECK_INT(schedule.step, step);
            CHECK_OK(shoal_nn_schedule_at(&schedule, step, &lr));
            CHECK_OK(shoal_nn_schedule_next(&schedule, optimizers[k]));
            CHECK(shoal_nn_optimizer_lr(optimizers[k]) == lr);
        }
        schedule.step = 2; /* as after a load */
        CHECK_OK(shoal_nn_schedule_next(&schedule, optimizers[k]));
        CHECK_DOUBLE(shoal_nn_optimizer_lr(optimizers[k]), 6);
        CHECK_STATUS(shoal_nn_schedule_next(&schedule, NULL), SHOAL_ERR_INVALID);
        CHECK_INT(schedule.step, 3);
        schedule.step = INT64_MAX;
        CHECK_STATUS(shoal_nn_schedule_next(&schedule, optimizers[k]), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT("nn_schedule_next: step: there is none after 9223372036854775807");
        schedule.step = -1;
        CHECK_STATUS(shoal_nn_schedule_next(&schedule, optimizers[k]), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT("nn_schedule_next: step: -1 is negative");
        CHECK_DOUBLE(shoal_nn_optimizer_lr(optimizers[k]), 6);
        shoal_nn_optimizer_free(optimizers[k]);
    }
    CHECK_STATUS(shoal_nn_schedule_next(NULL, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_schedule_next: schedule is NULL");
}

TEST(schedules_are_checked)
{
    const double nan = (double)NAN;
    const struct {
        shoal_nn_schedule schedule;
        const char *words;
    } refused[] = {
        {make((shoal_nn_schedule_kind)0, 1, 0, 0, 0), "kind: 0 is not a shoal_nn_schedule_kind"},
        {make((shoal_nn_schedule_kind)4, 1, 0, 0, 0), "kind: 4 is not a shoal_nn_schedule_kind"},
        {make((shoal_nn_schedule_kind)-1, 1, 0, 0, 0), "kind: -1 is not a shoal_nn_schedule_kind"},
        {make(CONSTANT, nan, 0, 0, 0), "lr: nan is not at least 0"},
        {make(CONSTANT, -1, 0, 0, 0), "lr: -1 is not at least 0"},
        {make(CONSTANT, (double)INFINITY, 0, 0, 0), "lr: inf is not"},
        {make(CONSTANT, 1, -2, 0, 0), "n_warmup: -2 is negative"},
        {make(CONSTANT, 1, 0, 5, 0), "n_steps must be 0: a schedule of kind constant does not use it"},
        {make(CONSTANT, 1, 0, 0, 0.5), "min_lr must be 0: a schedule of kind constant does not use it"},
        {make(INVERSE_SQRT, 1, 0, 5, 0),
         "n_steps must be 0: a schedule of kind inverse_sqrt does not use it"},
        {make(COSINE, 1, 0, -5, 0), "n_steps: -5 is negative"},
        {make(COSINE, 1, 0, 0, 0), "n_steps: 0 is not above n_warmup, which is 0"},
        {make(COSINE, 1, 5, 5, 0), "n_steps: 5 is not above n_warmup, which is 5"},
        {make(COSINE, 1, 0, 5, 2), "min_lr: 2 is above lr, which is 1"},
        {make(COSINE, 1, 0, 5, nan), "min_lr: nan is not"},
        {make(INVERSE_SQRT, 1, 0, 0, -1), "min_lr: -1 is not"},
    };
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        double lr = 42;
        CHECK_STATUS(shoal_nn_schedule_at(&refused[i].schedule, 0, &lr), SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT("nn_schedule_at: ");
        CHECK_ERROR_TEXT(refused[i].words);
        CHECK_DOUBLE(lr, 42);
    }
    shoal_nn_schedule schedule = make(CONSTANT, 1, 0, 0, 0);
    double lr = 42;
    CHECK_STATUS(shoal_nn_schedule_at(&schedule, -1, &lr), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("nn_schedule_at: step: -1 is negative");
    CHECK_STATUS(shoal_nn_schedule_at(&schedule, 0, NULL), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("lr_out is NULL");
    CHECK_STATUS(shoal_nn_schedule_at(NULL, 0, &lr), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("schedule is NULL");
    schedule.struct_size = 4;
    CHECK_STATUS(shoal_nn_schedule_at(&schedule, 0, &lr), SHOAL_ERR_INVALID);
    CHECK_ERROR_TEXT("schedule: struct_size 4 is not");
}
