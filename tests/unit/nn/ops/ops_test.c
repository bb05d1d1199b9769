/* SPDX-License-Identifier: MIT */
/* Values, roundings and refusals of the ops that are no products; what tracers see of all of them. */
#include <stdio.h>

#include "nn/ops/ops.h"
#include "op/dispatch.h"
#include "op/tracer.h"
#include "unit/nn/fixture.h"

/* The first test: nobody has registered anything yet. */
TEST_RANKS(two_threads_may_register_at_once, 2)
{
    size_t n_before = test_live_blocks();
    test_barrier(self);
    CHECK_OK(shoal_nn_init());
    test_barrier(self);
    if (self->rank == 0 || self->is_process) {
        test_keep_blocks(test_live_blocks() - n_before);
    }
    const shoal_op *op;
    CHECK_OK(shoal_op_find("nn.layer_norm_weight_backward", &op));
}

static shoal_tensor *make_values(const double *values, int64_t count, shoal_dtype dtype)
{
    return make_tensor(values, &count, 1, dtype);
}

/* Elements --------------------------------------------------------------------------------------------- */

static double plain_tanh(double x)
{
    return tanh(x);
}

static double plain_relu(double x)
{
    return x > 0 ? x : 0;
}

static double plain_gelu(double x)
{
    return 0.5 * x * erfc(-x / sqrt(2.0));
}

static double plain_gelu_tanh(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double plain_exp(double x)
{
    return exp(x);
}

static double plain_log(double x)
{
    return log(x);
}

static double plain_sqrt(double x)
{
    return sqrt(x);
}

static double plain_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double plain_silu(double x)
{
    return x / (1 + exp(-x));
}

static const struct {
    const char *name;
    shoal_tensor *(*call)(shoal_tensor *self);
    double (*plain)(double x);
    bool saves_argument;
    bool is_difference; /* small results are differences of larger numbers */
} activations[] = {{"tanh", shoal_nn_tanh, plain_tanh, false, false},
                   {"relu", shoal_nn_relu, plain_relu, false, false},
                   {"gelu", shoal_nn_gelu, plain_gelu, true, true},
                   {"gelu_tanh", shoal_nn_gelu_tanh, plain_gelu_tanh, true, true},
                   {"exp", shoal_nn_exp, plain_exp, false, false},
                   {"log", shoal_nn_log, plain_log, true, false},
                   {"sqrt", shoal_nn_sqrt, plain_sqrt, false, false},
                   {"sigmoid", shoal_nn_sigmoid, plain_sigmoid, false, false},
                   {"silu", shoal_nn_silu, plain_silu, true, false}};

/* The last place of a number near 1, in each dtype. */
static double epsilon_of(shoal_dtype dtype)
{
    return dtype == SHOAL_F64   ? 0x1p-52
           : dtype == SHOAL_F32 ? 0x1p-23
           : dtype == SHOAL_F16 ? 0x1p-10
                                : 0x1p-7;
}

/* Far out the derivative of both forms of GELU is 0 or 1, also where the argument is infinite. */
NN_TEST(gelu_has_a_gradient_at_infinity)
{
    const shoal_dtype dtypes[] = {SHOAL_F64, SHOAL_F32, SHOAL_F16, SHOAL_BF16};
    const double infinity = (double)INFINITY;
    for (int d = 0; d < 4; d++) {
        shoal_tensor *x = require_grad(
            make_tensor((double[]){infinity, -infinity, 1e4, -1e4, (double)NAN}, INTS(5), 1, dtypes[d]));
        shoal_tensor *y = shoal_nn_gelu_tanh(x);
        CHECK_OK(shoal_backward(y, shoal_full(INTS(5), 1, 1, dtypes[d])));
        const double *g = doubles_of(shoal_grad(x));
        CHECK_DOUBLE(g[0], 1);
        CHECK_DOUBLE(g[1], 0);
        CHECK_DOUBLE(g[2], 1);
        CHECK_DOUBLE(g[3], 0);
        CHECK(isnan(g[4]));
    }
}

NN_TEST(elements_have_the_right_values)
{
    const shoal_dtype dtypes[] = {SHOAL_F64, SHOAL_F32, SHOAL_F16, SHOAL_BF16};
    struct test_random random = test_random_begin(7);
    double numbers[200];
    for (int i = 0; i < 200; i++) {
        numbers[i] = 8 * test_random_unit(&random) - 4;
    }
    for (int d = 0; d < 4; d++) {
        shoal_tensor *x = shoal_transpose(make_tensor(numbers, INTS(10, 20), 2, dtypes[d]), 0, 1);
        const double *rounded = doubles_of(x);
        for (size_t a = 0; a < sizeof(activations) / sizeof(activations[0]); a++) {
            shoal_tensor *y = activations[a].call(x);
            CHECK_INT(shoal_tensor_dtype(y), dtypes[d]);
            CHECK_INT(shoal_tensor_shape(y)[0], 20);
            const double *actual = doubles_of(y);
            for (int i = 0; i < 200; i++) {
                double expected = activations[a].plain(rounded[i]);
                /* libm may be off by some last places; gelu of negative numbers is a small difference of larger ones. */
                double bound = 4 * epsilon_of(dtypes[d]) * (fabs(expected) + 0x1p-14) +
                               (activations[a].is_difference
                                    ? fabs(rounded[i]) * epsilon_of(d == 0 ? SHOAL_F64 : SHOAL_F32)
                                    : 0);
                bool is_right = isnan(expected) ? isnan(actual[i]) : fabs(actual[i] - expected) <= bound;
                if (!is_right) {
                    test_failed(__FILE__, __LINE__, "%s(%g) in %s: %.17g, expected %.17g",
                                activations[a].name, rounded[i], shoal_dtype_name(dtypes[d]), actual[i],
                                expected);
                }
            }
        }
    }
}

/* In 16 bits: the f32 result, rounded once, and the gradient the same. */
NN_TEST(halves_are_rounded_once)
{
    struct test_random random = test_random_begin(8);
    const shoal_dtype dtypes[] = {SHOAL_F16, SHOAL_BF16};
    for (int d = 0; d < 2; d++) {
        for (size_t a = 0; a < sizeof(activations) / sizeof(activations[0]); a++) {
            shoal_tensor *half = require_grad(make_random(&random, INTS(2500), 1, dtypes[d]));
            shoal_tensor *single = require_grad(shoal_to_dtype(shoal_detach(half), SHOAL_F32));
            shoal_tensor *incoming = make_random(&random, INTS(2500), 1, dtypes[d]);
            shoal_tensor *y = activations[a].call(half);
            shoal_tensor *y_single = activations[a].call(single);
            CHECK_BYTES(shoal_data(y), shoal_data(shoal_to_dtype(shoal_detach(y_single), dtypes[d])), 5000);
            /* tanh and relu save the rounded result: their gradients start from it. */
            CHECK_OK(shoal_backward(y, incoming));
            CHECK_INT(shoal_tensor_dtype(shoal_grad(half)), dtypes[d]);
            const shoal_op *op;
            char name[32];
            (void)snprintf(name, sizeof(name), "nn.%s_backward", activations[a].name);
            REQUIRE_OK(shoal_op_find(name, &op));
            shoal_tensor *saved = shoal_detach(activations[a].saves_argument ? half : y);
            const shoal_value arguments[] = {nn_tensor(shoal_to_dtype(incoming, SHOAL_F32)),
                                             nn_tensor(shoal_to_dtype(saved, SHOAL_F32))};
            shoal_value result;
            REQUIRE_OK(shoal_op_call(op, arguments, 2, &result));
            CHECK_BYTES(shoal_data(shoal_grad(half)), shoal_data(shoal_to_dtype(result.as.tensor, dtypes[d])),
                        5000);
        }
    }
}

NN_TEST(relu_at_its_corner)
{
    shoal_tensor *x = require_grad(make_values((double[]){0.0, -0.0, (double)NAN, 1, -1}, 5, SHOAL_F32));
    shoal_tensor *y = shoal_nn_relu(x);
    const float *data = shoal_data(y);
    CHECK(data[0] == 0 && data[1] == 0 && isnan(data[2]) && data[3] == 1 && data[4] == 0);
    CHECK_OK(shoal_backward(sum_all(y), NULL));
    const float *gradient = shoal_data(shoal_grad(x));
    CHECK(gradient[0] == 0 && gradient[1] == 0 && gradient[2] == 1 && gradient[3] == 1 && gradient[4] == 0);
}

/* Losses ----------------------------------------------------------------------------------------------- */

/* The output is cast to f32, not the target to bf16; gradients have the dtype of what they belong to. */
NN_TEST(mse_is_computed_in_f32)
{
    shoal_tensor *out = require_grad(make_values((double[]){1.0, -2.0, 0.5}, 3, SHOAL_BF16));
    shoal_tensor *y = require_grad(make_values((double[]){1.001, -2.25, 0.4}, 3, SHOAL_F32));
    shoal_tensor *loss = shoal_nn_mse(out, y);
    CHECK_INT(shoal_tensor_dtype(loss), SHOAL_F32);
    CHECK_INT(shoal_tensor_n_dims(loss), 0);
    double sum = 0;
    float differences[3];
    for (int i = 0; i < 3; i++) {
        differences[i] =
            (float)((const double[]){1.0, -2.0, 0.5})[i] - ((const float[]){1.001f, -2.25f, 0.4f})[i];
        sum += (double)differences[i] * (double)differences[i];
    }
    CHECK_DOUBLE((double)*(const float *)shoal_data(loss), (double)(float)(sum / 3));
    CHECK_OK(shoal_backward(shoal_mul_scalar(loss, 0.5), NULL));
    CHECK_INT(shoal_tensor_dtype(shoal_grad(out)), SHOAL_BF16);
    CHECK_INT(shoal_tensor_dtype(shoal_grad(y)), SHOAL_F32);
    float expected[3];
    for (int i = 0; i < 3; i++) {
        expected[i] = 0.5f / 3.0f * (2 * differences[i]);
        CHECK_DOUBLE((double)((const float *)shoal_data(shoal_grad(y)))[i], -(double)expected[i]);
    }
    shoal_tensor *rounded =
        shoal_to_dtype(shoal_from_memory(expected, INTS(3), 1, SHOAL_F32, NULL, NULL, NULL), SHOAL_BF16);
    CHECK_BYTES(shoal_data(shoal_grad(out)), shoal_data(rounded), 6);
}

NN_TEST(losses_of_nothing_are_nan)
{
    shoal_tensor *none = shoal_zeros(INTS(0, 3), 2, SHOAL_F32);
    CHECK(isnan(*(const float *)shoal_data(shoal_nn_mse(none, none))));
    CHECK(
        isnan(*(const float *)shoal_data(shoal_nn_cross_entropy(none, shoal_zeros(INTS(0), 1, SHOAL_I64)))));
}

NN_TEST(cross_entropy_stays_finite)
{
    shoal_tensor *logits =
        make_tensor((double[]){1000, 0, -1000, -1000, 1000, 1000}, INTS(2, 3), 2, SHOAL_F32);
    shoal_tensor *targets = make_indices(INTS(1, 2), INTS(2), 1, SHOAL_I16);
    shoal_tensor *loss = shoal_nn_cross_entropy(require_grad(logits), targets);
    CHECK_DOUBLE((double)*(const float *)shoal_data(loss), (double)(float)((1000 + log(2.0)) / 2));
    CHECK_OK(shoal_backward(loss, NULL));
    const float expected[] = {0.5f, -0.5f, 0, 0, 0.25f, -0.25f};
    CHECK_BYTES(shoal_data(shoal_grad(logits)), expected, sizeof(expected));
}

NN_TEST(losses_refuse_what_does_not_fit)
{
    shoal_tensor *x = shoal_zeros(INTS(2, 3), 2, SHOAL_F32);
    CHECK_SCOPE_ERROR(shoal_nn_mse(x, shoal_zeros(INTS(3), 1, SHOAL_F32)), SHOAL_ERR_INVALID,
                      "nn.mse: target has shape [3], but input has [2, 3]");
    CHECK_SCOPE_ERROR(shoal_nn_mse(x, shoal_zeros(INTS(2, 3), 2, SHOAL_F64)), SHOAL_ERR_INVALID,
                      "nn.mse: target is f64, but input is f32");
    CHECK_SCOPE_ERROR(shoal_nn_mse(shoal_zeros(INTS(2), 1, SHOAL_F16), shoal_zeros(INTS(2), 1, SHOAL_BF16)),
                      SHOAL_ERR_INVALID, "nn.mse: target is bf16, but input is f16");
    CHECK_SCOPE_ERROR(shoal_nn_mse(shoal_zeros(INTS(2), 1, SHOAL_I64), shoal_zeros(INTS(2), 1, SHOAL_I64)),
                      SHOAL_ERR_UNSUPPORTED, "nn.mse: input: i64 is not one of");
    CHECK_SCOPE_ERROR(shoal_nn_cross_entropy(x, make_indices(INTS(0, 3), INTS(2), 1, SHOAL_I64)),
                      SHOAL_ERR_INVALID, "nn.cross_entropy: targets: element 1 is 3, not one of 3 classes");
    CHECK_SCOPE_ERROR(shoal_nn_cross_entropy(x, make_indices(INTS(-1, 0), INTS(2), 1, SHOAL_I8)),
                      SHOAL_ERR_INVALID, "nn.cross_entropy: targets: element 0 is -1, not one of 3 classes");
    CHECK_SCOPE_ERROR(shoal_nn_cross_entropy(x, make_indices(INTS(0, 1, 2), INTS(3), 1, SHOAL_I64)),
                      SHOAL_ERR_INVALID,
                      "nn.cross_entropy: targets has shape [3], which is not that of logits, [2, 3], without "
                      "the last dimension");
    CHECK_SCOPE_ERROR(shoal_nn_cross_entropy(x, shoal_zeros(INTS(2), 1, SHOAL_F32)), SHOAL_ERR_UNSUPPORTED,
                      "nn.cross_entropy: targets: f32 is not one of i8");
    CHECK_SCOPE_ERROR(shoal_nn_cross_entropy(x, NULL), SHOAL_ERR_INVALID,
                      "nn.cross_entropy: targets is NULL");
}

/* Layers ----------------------------------------------------------------------------------------------- */

NN_TEST(embedding_takes_rows_and_gives_them_back)
{
    const double rows[] = {1, 2, 3, 4, 5, 6};
    const shoal_dtype dtypes[] = {SHOAL_F64, SHOAL_F32, SHOAL_F16, SHOAL_BF16};
    for (int d = 0; d < 4; d++) {
        shoal_tensor *weight = require_grad(make_tensor(rows, INTS(3, 2), 2, dtypes[d]));
        shoal_tensor *taken = shoal_nn_embedding(make_indices(INTS(2, 0, 2), INTS(3), 1, SHOAL_I32), weight);
        const double *values = doubles_of(taken);
        const double expected[] = {5, 6, 1, 2, 5, 6};
        CHECK_BYTES(values, expected, sizeof(expected));
        /* bf16 has no 257: the even neighbour is 256. */
        shoal_tensor *incoming = make_tensor((double[]){256, 1, 7, 8, 1, 256}, INTS(3, 2), 2, dtypes[d]);
        CHECK_OK(shoal_backward(taken, incoming));
        const double summed[] = {7, 8, 0, 0, d == 3 ? 256 : 257, d == 3 ? 256 : 257};
        CHECK_BYTES(doubles_of(shoal_grad(weight)), summed, sizeof(summed));
    }
}

/* In bf16 257 is no number: three ones on 256 are 259 when added in f32, and 260 in bf16; 256 if rounded each time. */
NN_TEST(embedding_adds_gradients_in_f32)
{
    shoal_tensor *weight = require_grad(shoal_zeros(INTS(1, 1), 2, SHOAL_BF16));
    shoal_tensor *taken = shoal_nn_embedding(make_indices(INTS(0, 0, 0, 0), INTS(4), 1, SHOAL_I64), weight);
    CHECK_OK(shoal_backward(taken, make_tensor((double[]){256, 1, 1, 1}, INTS(4, 1), 2, SHOAL_BF16)));
    CHECK_DOUBLE(doubles_of(shoal_grad(weight))[0], 260);
}

NN_TEST(layer_norm_normalises)
{
    shoal_tensor *x = make_tensor((double[]){1, 3, -2, 2}, INTS(2, 2), 2, SHOAL_F64);
    shoal_tensor *weight = make_values((double[]){2, 3}, 2, SHOAL_F64);
    shoal_tensor *bias = make_values((double[]){10, 20}, 2, SHOAL_F64);
    const double expected[] = {8, 23, 8, 23};
    CHECK_BYTES(doubles_of(shoal_nn_layer_norm(x, weight, bias, 0)), expected, sizeof(expected));
    shoal_tensor *flat = shoal_full(INTS(1, 5), 2, 3, SHOAL_F32);
    CHECK_DOUBLE(doubles_of(shoal_nn_layer_norm(flat, NULL, NULL, 1e-5))[4], 0);
}

NN_TEST(layers_refuse_what_does_not_fit)
{
    shoal_tensor *x = shoal_zeros(INTS(2, 3), 2, SHOAL_F32);
    shoal_tensor *indices = make_indices(INTS(0, 2), INTS(2), 1, SHOAL_I64);
    CHECK_SCOPE_ERROR(shoal_nn_embedding(indices, x), SHOAL_ERR_INVALID,
                      "nn.embedding: indices: element 1 is 2, not one of 2 rows");
    CHECK_SCOPE_ERROR(shoal_nn_embedding(x, x), SHOAL_ERR_UNSUPPORTED,
                      "nn.embedding: indices: f32 is not one of i8");
    CHECK_SCOPE_ERROR(shoal_nn_embedding(indices, indices), SHOAL_ERR_UNSUPPORTED,
                      "nn.embedding: weight: i64");
    CHECK_SCOPE_ERROR(shoal_nn_embedding(indices, shoal_zeros(INTS(3), 1, SHOAL_F32)), SHOAL_ERR_INVALID,
                      "nn.embedding: weight has shape [3], which is not a matrix");
    CHECK_SCOPE_ERROR(shoal_nn_layer_norm(x, shoal_zeros(INTS(2), 1, SHOAL_F32), NULL, 1e-5),
                      SHOAL_ERR_INVALID,
                      "nn.layer_norm: weight has shape [2], not [3], the last dimension of input");
    CHECK_SCOPE_ERROR(shoal_nn_layer_norm(x, NULL, shoal_zeros(INTS(3), 1, SHOAL_F64), 1e-5),
                      SHOAL_ERR_INVALID, "nn.layer_norm: bias is f64, but input is f32");
    CHECK_SCOPE_ERROR(shoal_nn_layer_norm(x, NULL, NULL, -1), SHOAL_ERR_INVALID,
                      "nn.layer_norm: eps: -1 is not a number from 0 up");
    CHECK_SCOPE_ERROR(shoal_nn_layer_norm(x, NULL, NULL, (double)NAN), SHOAL_ERR_INVALID,
                      "nn.layer_norm: eps: ");
    CHECK_SCOPE_ERROR(shoal_nn_tanh(NULL), SHOAL_ERR_INVALID, "nn.tanh: self is NULL");
    CHECK_SCOPE_ERROR(shoal_nn_gelu(indices), SHOAL_ERR_UNSUPPORTED, "nn.gelu: self: i64 is not one of");
    CHECK(shoal_nn_tanh(x) != NULL);
}

TEST(calls_need_a_scope)
{
    begin_nn();
    CHECK(shoal_nn_tanh(NULL) == NULL);
    CHECK_ERROR_TEXT("scope");
}

/* Tracers ---------------------------------------------------------------------------------------------- */

struct recorder {
    struct op_tracer base;
    size_t n_calls;
    char names[32][40];
};

static shoal_status record(struct op_tracer *tracer, const shoal_op *op, const shoal_value *arguments,
                           shoal_value *result_out)
{
    struct recorder *recorder = (struct recorder *)tracer;
    if (recorder->n_calls < 32) {
        (void)snprintf(recorder->names[recorder->n_calls++], sizeof(recorder->names[0]), "%s",
                       shoal_op_name(op));
    }
    return op_execute(op, arguments, result_out);
}

/* A tracer sees the ops of forward and backward, and nothing of what kernels do inside, strided or not. */
NN_TEST(tracers_see_ops_and_no_insides)
{
    struct test_random random = test_random_begin(9);
    shoal_tensor *x = shoal_transpose(make_random(&random, INTS(4, 3), 2, SHOAL_BF16), 0, 1);
    shoal_tensor *weight = require_grad(make_random(&random, INTS(2, 4), 2, SHOAL_BF16));
    shoal_tensor *target = make_random(&random, INTS(3, 2), 2, SHOAL_F32);
    struct recorder recorder = {.base = {.call = record}};
    REQUIRE_OK(shoal_scope_begin());
    CHECK_OK(op_set_tracer(&recorder.base));
    shoal_tensor *loss = shoal_nn_mse(shoal_nn_tanh(shoal_nn_linear(x, weight, NULL)), target);
    CHECK_OK(shoal_backward(loss, NULL));
    CHECK_OK(shoal_scope_end());
    const char *const expected[] = {"nn.linear",        "nn.tanh",   "nn.mse",   "nn.mse_backward",
                                    "nn.tanh_backward", "transpose", "nn.matmul"};
    size_t n_seen = 0;
    for (size_t i = 0; i < recorder.n_calls; i++) {
        if (n_seen < 7 && strcmp(recorder.names[i], expected[n_seen]) == 0) {
            n_seen++;
        } else if (strncmp(recorder.names[i], "nn.", 3) == 0 ||
                   strcmp(recorder.names[i], "contiguous") == 0 ||
                   strcmp(recorder.names[i], "to_dtype") == 0) {
            test_failed(__FILE__, __LINE__, "call %zu is %s", i, recorder.names[i]);
        }
    }
    CHECK_INT(n_seen, 7);
}

/* Every op can be found, describes itself, and has a doc. */
TEST(ops_are_in_the_registry)
{
    begin_nn();
    size_t n_ours = 0;
    const shoal_op *op;
    for (size_t i = 0; (op = shoal_op_at(i)) != NULL; i++) {
        if (strncmp(shoal_op_name(op), "nn.", 3) == 0) {
            n_ours++;
            shoal_op_info info = SHOAL_OP_INFO_INIT;
            CHECK_OK(shoal_op_describe(op, &info));
            CHECK(info.doc[0] != '\0');
        }
    }
    CHECK_INT(n_ours, NN_OP_COUNT);
}

/* Failing allocations ---------------------------------------------------------------------------------- */

static shoal_status train_once(void *context)
{
    shoal_status status = shoal_scope_begin();
    if (status != SHOAL_OK) {
        return status;
    }
    shoal_tensor *x = shoal_full(INTS(3, 2), 2, 0.5, SHOAL_BF16);
    shoal_tensor *weight = shoal_full(INTS(4, 2), 2, 0.25, SHOAL_BF16);
    shoal_tensor *target = shoal_zeros(INTS(3, 4), 2, SHOAL_F32);
    shoal_tensor *loss = NULL;
    if (target) {
        status = shoal_set_requires_grad(weight, true);
        loss = shoal_nn_mse(shoal_nn_gelu(shoal_nn_linear(x, weight, NULL)), target);
    }
    if (status == SHOAL_OK && loss) {
        status = shoal_backward(loss, NULL);
    }
    shoal_status ended = shoal_scope_end();
    return status == SHOAL_OK ? ended : status;
}

TEST(failing_allocations_are_errors)
{
    begin_nn();
    CHECK(test_sweep_allocations(train_once, NULL) > 10);
}
