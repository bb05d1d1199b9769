/* SPDX-License-Identifier: MIT */
/* The application's floating-point mode does not change what layers, losses and optimizers compute on its thread. */
#include "fixtures/fp_modes.h"

#include "shoal_nn/optim.h"
#include "unit/nn/fixture.h"

enum {
    ROWS = 5,
    SIZE = 7
};

static double numbers[SIZE * SIZE];

/* Numbers that must be rounded, and ones whose squares and products are subnormal. */
static void draw_numbers(void)
{
    struct test_random random = test_random_begin(3);
    for (int i = 0; i < SIZE * SIZE; i++) {
        double value = 2 * test_random_unit(&random) - 1;
        numbers[i] = i % 3 == 0 ? value * 1e-20 : value;
    }
}

/* A loss through everything, and two steps of AdamW. */
static void train(shoal_dtype dtype, struct outcome *outcome)
{
    static const int64_t classes[ROWS] = {0, 3, 6, 2, 2};
    shoal_tensor *targets =
        shoal_from_memory((void *)(uintptr_t)classes, INTS(ROWS), 1, SHOAL_I64, NULL, NULL, NULL);
    shoal_tensor *weight = require_grad(make_tensor(numbers, INTS(SIZE, SIZE), 2, dtype));
    shoal_tensor *scale = require_grad(make_tensor(numbers + 5, INTS(SIZE), 1, dtype));
    shoal_tensor *parameters[] = {weight, scale};
    shoal_tensor *input = make_tensor(numbers + 2, INTS(ROWS, SIZE), 2, dtype);
    shoal_nn_optimizer *optimizer;
    REQUIRE_OK(shoal_nn_adamw_create(parameters, 2, NULL, &optimizer));
    for (int step = 0; step < 2; step++) {
        shoal_tensor *hidden = shoal_nn_linear(input, weight, NULL);
        outcome_append_tensor(outcome, hidden);
        hidden = shoal_nn_gelu(shoal_nn_layer_norm(hidden, scale, NULL, 1e-5));
        outcome_append_tensor(outcome, hidden);
        hidden = shoal_nn_tanh(shoal_nn_matmul(hidden, weight));
        outcome_append_tensor(outcome, hidden);
        shoal_tensor *loss = shoal_nn_cross_entropy(hidden, targets);
        outcome_append_tensor(outcome, loss);
        outcome_append_tensor(outcome, shoal_nn_mse(hidden, input));
        REQUIRE_OK(shoal_backward(loss, NULL));
        REQUIRE_OK(shoal_nn_optimizer_step(optimizer));
        for (int i = 0; i < 2; i++) {
            outcome_append_tensor(outcome, shoal_grad(parameters[i]));
            outcome_append_tensor(outcome, parameters[i]);
        }
        REQUIRE_OK(shoal_nn_optimizer_zero_grad(optimizer));
    }
    shoal_nn_optimizer_free(optimizer);
}

static void multiply(struct outcome *outcome)
{
    float a[SIZE * SIZE];
    float c[SIZE * SIZE];
    uint64_t mode = shoal_fp_mode_enter();
    for (int i = 0; i < SIZE * SIZE; i++) {
        a[i] = (float)numbers[i];
    }
    shoal_fp_mode_leave(mode);
    REQUIRE_OK(shoal_nn_sgemm(false, true, SIZE, SIZE, SIZE, a, a, false, c));
    outcome_append(outcome, c, sizeof c);
}

static void compute(shoal_dtype dtype, struct outcome *outcome)
{
    outcome->n_bytes = 0;
    REQUIRE_OK(shoal_scope_begin());
    train(dtype, outcome);
    multiply(outcome);
    REQUIRE_OK(shoal_scope_end());
}

NN_TEST(no_mode_changes_bits)
{
    static const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_F64, SHOAL_BF16, SHOAL_F16};
    static struct outcome expected;
    static struct outcome actual;
    draw_numbers();
    REQUIRE_OK(shoal_nn_set_threads(1)); /* threads of a BLAS have a mode of their own */
    for (int d = 0; d < 4; d++) {
        compute(dtypes[d], &expected);
        for (size_t row = 0; row < FP_MODE_ROWS; row++) {
            fp_modes_begin(row);
            compute(dtypes[d], &actual);
            fp_modes_end(row);
            if (memcmp(actual.bytes, expected.bytes, expected.n_bytes) != 0) {
                test_failed(__FILE__, __LINE__, "%s in mode %s gives other bits", shoal_dtype_name(dtypes[d]),
                            fp_mode_rows[row].name);
            }
        }
    }
    REQUIRE_OK(shoal_nn_set_threads(0));
}
