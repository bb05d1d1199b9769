/* SPDX-License-Identifier: MIT */
/*
 * Every gradient of libshoal_nn against finite differences, in f64, with contiguous leaves and with leaves of other
 * strides, on the BLAS that is found and on the plain loops. An op with a gradient and no case here fails the suite.
 */
#include <stdio.h>

#include "nn/ops.h"
#include "unit/nn/fixture.h"

#define MAX_INPUTS 3
#define MAX_ELEMS 64
#define STEP 1e-5

struct shape {
    int n_dims;
    int64_t sizes[SHOAL_MAX_DIMS];
};

struct gradient_case {
    const char *op;
    const char *text;
    shoal_tensor *(*run)(shoal_tensor *const *x);
    size_t n_inputs;
    struct shape shapes[MAX_INPUTS];
};

enum strides {
    CONTIGUOUS,
    TRANSPOSED, /* the last two dimensions lie the other way round in memory */
    SPACED,     /* every second element of a larger tensor */
    N_STRIDES
};

static shoal_tensor *square(shoal_tensor *tensor)
{
    return shoal_mul(tensor, tensor);
}

#define S(...)                                              \
    {                                                       \
        sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), \
        {                                                   \
            __VA_ARGS__                                     \
        }                                                   \
    }
#define S0 \
    {      \
        0  \
    }
#define TARGETS(...) make_indices(INTS(__VA_ARGS__), INTS(sizeof(INTS(__VA_ARGS__)) / 8), 1, SHOAL_I64)

/* Rows: CASE(op, label, result, number of inputs, shapes...) */
/* clang-format off */
#define CASES \
    CASE(matmul, plain, square(shoal_nn_matmul(x[0], x[1])), 2, S(3, 4), S(4, 2)) \
    CASE(matmul, vector, square(shoal_nn_matmul(x[0], x[1])), 2, S(4), S(4, 2)) \
    CASE(matmul, deep, square(shoal_nn_matmul(x[0], x[1])), 2, S(2, 1, 3, 2), S(2, 3)) \
    CASE(matmul, transposes, square(shoal_nn_matmul(shoal_transpose(x[0], 0, 1), shoal_transpose(x[1], 0, 1))), 2, S(4, 3), S(2, 4)) \
    CASE(matmul, no_rows, square(shoal_nn_matmul(x[0], x[1])), 2, S(0, 4), S(4, 2)) \
    CASE(matmul, no_terms, square(shoal_nn_matmul(x[0], x[1])), 2, S(3, 0), S(0, 2)) \
    CASE(matmul, itself, square(shoal_nn_matmul(x[0], x[0])), 1, S(3, 3)) \
    CASE(linear, plain, square(shoal_nn_linear(x[0], x[1], x[2])), 3, S(3, 4), S(2, 4), S(2)) \
    CASE(linear, no_bias, square(shoal_nn_linear(x[0], x[1], NULL)), 2, S(3, 4), S(2, 4)) \
    CASE(linear, vector, square(shoal_nn_linear(x[0], x[1], x[2])), 3, S(4), S(2, 4), S(2)) \
    CASE(linear, deep, square(shoal_nn_linear(x[0], x[1], x[2])), 3, S(2, 3, 2), S(3, 2), S(3)) \
    CASE(linear, no_rows, square(shoal_nn_linear(x[0], x[1], x[2])), 3, S(0, 4), S(2, 4), S(2)) \
    CASE(tanh, plain, square(shoal_nn_tanh(x[0])), 1, S(3, 4)) \
    CASE(tanh, scalar, square(shoal_nn_tanh(x[0])), 1, S0) \
    CASE(relu, plain, square(shoal_nn_relu(x[0])), 1, S(3, 4)) \
    CASE(gelu, plain, square(shoal_nn_gelu(x[0])), 1, S(3, 4)) \
    CASE(gelu, wide, square(shoal_nn_gelu(shoal_mul_scalar(x[0], 5))), 1, S(3, 4)) \
    CASE(mse, plain, square(shoal_nn_mse(x[0], x[1])), 2, S(3, 4), S(3, 4)) \
    CASE(mse, itself, shoal_nn_mse(x[0], square(x[0])), 1, S(5)) \
    CASE(cross_entropy, plain, square(shoal_nn_cross_entropy(x[0], TARGETS(0, 3, 3))), 1, S(3, 4)) \
    CASE(cross_entropy, large, shoal_nn_cross_entropy(shoal_mul_scalar(x[0], 20), TARGETS(1, 2, 0)), 1, S(3, 4)) \
    CASE(cross_entropy, one_class, square(shoal_nn_cross_entropy(x[0], TARGETS(0, 0))), 1, S(2, 1)) \
    CASE(cross_entropy, deep, square(shoal_nn_cross_entropy(x[0], make_indices(INTS(2, 0, 1, 1), INTS(2, 2), 2, SHOAL_I32))), 1, S(2, 2, 3)) \
    CASE(embedding, plain, square(shoal_nn_embedding(TARGETS(2, 0, 2, 4), x[0])), 1, S(5, 3)) \
    CASE(embedding, deep, square(shoal_nn_embedding(make_indices(INTS(1, 1, 0, 2), INTS(2, 2), 2, SHOAL_U8), x[0])), 1, S(3, 2)) \
    CASE(embedding, none, square(shoal_nn_embedding(make_indices(NULL, INTS(0), 1, SHOAL_I64), x[0])), 1, S(3, 2)) \
    CASE(layer_norm, plain, square(shoal_nn_layer_norm(x[0], x[1], x[2], 1e-5)), 3, S(3, 4), S(4), S(4)) \
    CASE(layer_norm, bare, square(shoal_nn_layer_norm(x[0], NULL, NULL, 0.1)), 1, S(2, 2, 3)) \
    CASE(layer_norm, no_bias, square(shoal_nn_layer_norm(x[0], x[1], NULL, 1e-3)), 2, S(2, 5), S(5)) \
    CASE(layer_norm, no_weight, square(shoal_nn_layer_norm(x[0], NULL, x[1], 1e-3)), 2, S(2, 5), S(5)) \
    CASE(layer_norm, vector, square(shoal_nn_layer_norm(x[0], x[1], x[2], 1e-5)), 3, S(4), S(4), S(4)) \
    CASE(layer_norm, no_rows, square(shoal_nn_layer_norm(x[0], x[1], x[2], 1e-5)), 3, S(0, 4), S(4), S(4))
/* clang-format on */

#define CASE(op, label, result, n, ...)                             \
    static shoal_tensor *run_##op##_##label(shoal_tensor *const *x) \
    {                                                               \
        return result;                                              \
    }
CASES
#undef CASE

static const struct gradient_case cases[] = {
#define CASE(op, label, result, n, ...) {#op, #op ": " #label, run_##op##_##label, n, {__VA_ARGS__}},
    CASES
#undef CASE
};

#define N_CASES (sizeof(cases) / sizeof(cases[0]))

static int64_t count_elems(const struct shape *shape)
{
    int64_t count = 1;
    for (int i = 0; i < shape->n_dims; i++) {
        count *= shape->sizes[i];
    }
    return count;
}

static shoal_tensor *make_input(const struct shape *shape, const double *values, enum strides strides)
{
    struct shape wide = *shape;
    int n_dims = shape->n_dims;
    shoal_tensor *source = make_tensor(values, shape->sizes, n_dims, SHOAL_F64);
    shoal_tensor *tensor;
    if (strides == TRANSPOSED && n_dims >= 2) {
        wide.sizes[n_dims - 1] = shape->sizes[n_dims - 2];
        wide.sizes[n_dims - 2] = shape->sizes[n_dims - 1];
        tensor = shoal_transpose(shoal_empty(wide.sizes, n_dims, SHOAL_F64), -1, -2);
    } else if (strides == SPACED && n_dims >= 1) {
        wide.sizes[n_dims - 1] = 2 * shape->sizes[n_dims - 1];
        tensor = shoal_slice(shoal_zeros(wide.sizes, n_dims, SHOAL_F64), -1, 0, INT64_MAX, 2);
    } else {
        tensor = shoal_empty(shape->sizes, n_dims, SHOAL_F64);
    }
    return shoal_copy_(tensor, source);
}

/* What the result's elements count for in the loss. */
static shoal_tensor *weigh(shoal_tensor *result)
{
    if (!result) {
        return NULL;
    }
    shoal_tensor *weights = shoal_empty(shoal_tensor_shape(result), shoal_tensor_n_dims(result), SHOAL_F64);
    double *data = shoal_mutable_data(weights);
    for (int64_t i = 0; data && i < shoal_tensor_count(weights); i++) {
        data[i] = 0.5 + 0.125 * (double)((i * 5) % 11);
    }
    return sum_all(shoal_mul(result, weights));
}

static double evaluate(const struct gradient_case *tested, double values[MAX_INPUTS][MAX_ELEMS],
                       enum strides strides)
{
    double loss = (double)NAN;
    if (!CHECK_OK(shoal_scope_begin())) {
        return loss;
    }
    shoal_tensor *x[MAX_INPUTS];
    for (size_t i = 0; i < tested->n_inputs; i++) {
        x[i] = make_input(&tested->shapes[i], values[i], strides);
    }
    const double *data = shoal_data(weigh(tested->run(x)));
    loss = data ? *data : loss;
    CHECK_OK(shoal_scope_end());
    return loss;
}

static void compare(const struct gradient_case *tested, double values[MAX_INPUTS][MAX_ELEMS], size_t input,
                    int64_t index, enum strides strides, double gradient)
{
    double kept = values[input][index];
    values[input][index] = kept + STEP;
    double above = evaluate(tested, values, strides);
    values[input][index] = kept - STEP;
    double below = evaluate(tested, values, strides);
    values[input][index] = kept;
    double expected = (above - below) / (2 * STEP);
    if (!(fabs(gradient - expected) <= 1e-6 * (1 + fabs(expected)))) {
        test_failed(__FILE__, __LINE__, "%s, strides %d: input %zu[%lld]: gradient %.10g, differences %.10g",
                    tested->text, (int)strides, input, (long long)index, gradient, expected);
    }
}

static void check_case(const struct gradient_case *tested, enum strides strides,
                       double values[MAX_INPUTS][MAX_ELEMS])
{
    REQUIRE_OK(shoal_scope_begin());
    shoal_tensor *x[MAX_INPUTS];
    for (size_t i = 0; i < tested->n_inputs; i++) {
        x[i] = require_grad(make_input(&tested->shapes[i], values[i], strides));
    }
    if (CHECK_OK(shoal_backward(weigh(tested->run(x)), NULL))) {
        for (size_t i = 0; i < tested->n_inputs; i++) {
            shoal_tensor *gradient = shoal_grad(x[i]);
            const double *data = gradient ? doubles_of(gradient) : NULL;
            CHECK(data != NULL);
            for (int64_t k = 0; data && k < count_elems(&tested->shapes[i]); k++) {
                compare(tested, values, i, k, strides, data[k]);
            }
        }
    }
    if (!CHECK_OK(shoal_scope_end())) {
        test_failed(__FILE__, __LINE__, "in %s", tested->text);
    }
}

TEST(every_gradient_agrees_with_finite_differences)
{
    begin_nn();
    struct test_random random = test_random_begin(1);
    for (size_t i = 0; i < N_CASES; i++) {
        for (int strides = 0; strides < N_STRIDES; strides++) {
            double values[MAX_INPUTS][MAX_ELEMS];
            for (size_t k = 0; k < MAX_INPUTS * MAX_ELEMS; k++) {
                /* Away from 0, where relu has a corner. */
                double number = 0.1 + 0.9 * test_random_unit(&random);
                values[k / MAX_ELEMS][k % MAX_ELEMS] = test_random_below(&random, 2) != 0 ? number : -number;
            }
            check_case(&cases[i], (enum strides)strides, values);
        }
    }
}

TEST(every_op_with_a_gradient_has_a_case)
{
    begin_nn();
#define gradient_none 0
#define gradient_matmul 1
#define gradient_linear 1
#define gradient_activation 1
#define gradient_mse 1
#define gradient_cross_entropy 1
#define gradient_embedding 1
#define gradient_layer_norm 1
    static const struct {
        const char *name;
        bool has_gradient;
    } rows[] = {
#define NN_OP(name, signature, flags, meta, kernel, gradient, saves, context, doc) \
    {#name, gradient_##gradient},
#include "nn/ops.def"
#undef NN_OP
    };
    for (size_t i = 0; i < NN_OP_COUNT; i++) {
        bool has_case = false;
        for (size_t k = 0; k < N_CASES; k++) {
            has_case = has_case || strcmp(cases[k].op, rows[i].name) == 0;
        }
        if (has_case != rows[i].has_gradient) {
            test_failed(__FILE__, __LINE__, "nn.%s: %s", rows[i].name,
                        has_case ? "has a case, but no gradient" : "has no case");
        }
        char name[64];
        const shoal_op *op;
        (void)snprintf(name, sizeof(name), "nn.%s", rows[i].name);
        CHECK_OK(shoal_op_find(name, &op));
    }
}

/* A gradient is an op that has none itself: asking for the gradient of a gradient is an error, not a wrong number. */
NN_TEST(gradients_have_no_gradients)
{
    shoal_tensor *x = require_grad(make_tensor((double[]){0.5}, INTS(1), 1, SHOAL_F64));
    const shoal_op *op;
    REQUIRE_OK(shoal_op_find("nn.tanh_backward", &op));
    const shoal_value arguments[] = {nn_tensor(x), nn_tensor(x)};
    shoal_value result;
    REQUIRE_OK(shoal_scope_begin());
    CHECK_STATUS(shoal_op_call(op, arguments, 2, &result), SHOAL_ERR_UNSUPPORTED);
    CHECK_STATUS(shoal_scope_end(), SHOAL_ERR_UNSUPPORTED);
}

TEST(all_of_this_without_a_blas)
{
    const char *const arguments[] = {test_program(), "every_gradient_agrees_with_finite_differences", NULL};
    /* Looking for leaks takes seconds, and this program does so itself. */
    const char *const environment[] = {"SHOAL_NN_BLAS=none", "ASAN_OPTIONS=detect_leaks=0", NULL};
    char output[4096];
    int code = test_run_program(arguments, environment, output, sizeof(output));
    if (code != 0) {
        test_failed(__FILE__, __LINE__, "without a BLAS: exit %d: %s", code, output);
    }
}
