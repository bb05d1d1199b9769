/* SPDX-License-Identifier: MIT */
/*
 * Every gradient of libshoal_nn against finite differences, in f64, with contiguous leaves and with leaves of other
 * strides, on the BLAS that is found and on the plain loops. An op with a gradient and no case here fails the suite.
 */
#include <stdio.h>

#include "fixtures/finite_differences.h"
#include "nn/ops/ops.h"
#include "shoal_nn/attention.h"
#include "shoal_nn/random.h"
#include "unit/nn/fixture.h"

#define TARGETS(...) make_indices(INTS(__VA_ARGS__), INTS(sizeof(INTS(__VA_ARGS__)) / 8), 1, SHOAL_I64)

#define MASK(...) make_indices(INTS(__VA_ARGS__), INTS(sizeof(INTS(__VA_ARGS__)) / 8), 1, SHOAL_BOOL)

static shoal_tensor *cross_entropy_with(shoal_tensor *logits, shoal_tensor *targets, int64_t ignore_index,
                                        double smoothing)
{
    shoal_nn_cross_entropy_options options = SHOAL_NN_CROSS_ENTROPY_OPTIONS_INIT;
    options.ignore_index = ignore_index;
    options.label_smoothing = smoothing;
    return shoal_nn_cross_entropy_with(logits, targets, &options);
}

static shoal_tensor *attend(shoal_tensor *const *x, bool is_causal, double scale, double dropout)
{
    shoal_nn_attention_options options = SHOAL_NN_ATTENTION_OPTIONS_INIT;
    options.is_causal = is_causal;
    options.scale = scale;
    options.dropout = dropout;
    options.position = TARGETS(3, 5, 40);
    return shoal_nn_attention(x[0], x[1], x[2], &options);
}

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
    CASE(projection, plain, square(shoal_nn_projection(x[0], x[1], x[2])), 3, S(3, 4), S(4, 2), S(2)) \
    CASE(projection, no_bias, square(shoal_nn_projection(x[0], x[1], NULL)), 2, S(3, 4), S(4, 2)) \
    CASE(projection, vector, square(shoal_nn_projection(x[0], x[1], x[2])), 3, S(4), S(4, 2), S(2)) \
    CASE(projection, deep, square(shoal_nn_projection(x[0], x[1], x[2])), 3, S(2, 3, 2), S(2, 3), S(3)) \
    CASE(projection, no_rows, square(shoal_nn_projection(x[0], x[1], x[2])), 3, S(0, 4), S(4, 2), S(2)) \
    CASE(bmm, plain, square(shoal_nn_bmm(x[0], x[1])), 2, S(2, 3, 4), S(2, 4, 2)) \
    CASE(bmm, matrices, square(shoal_nn_bmm(x[0], x[1])), 2, S(3, 4), S(4, 2)) \
    CASE(bmm, deep, square(shoal_nn_bmm(x[0], x[1])), 2, S(2, 2, 1, 3), S(2, 2, 3, 2)) \
    CASE(bmm, transposes, square(shoal_nn_bmm(shoal_transpose(x[0], 1, 2), shoal_transpose(x[1], 0, 2))), 2, S(2, 4, 3), S(2, 4, 2)) \
    CASE(bmm, expanded, square(shoal_nn_bmm(shoal_expand(x[0], INTS(3, 2, 2), 3), x[1])), 2, S(1, 2, 2), S(3, 2, 2)) \
    CASE(bmm, no_batch, square(shoal_nn_bmm(x[0], x[1])), 2, S(0, 3, 4), S(0, 4, 2)) \
    CASE(bmm, no_terms, square(shoal_nn_bmm(x[0], x[1])), 2, S(2, 3, 0), S(2, 0, 2)) \
    CASE(tanh, plain, square(shoal_nn_tanh(x[0])), 1, S(3, 4)) \
    CASE(tanh, scalar, square(shoal_nn_tanh(x[0])), 1, S0) \
    CASE(relu, plain, square(shoal_nn_relu(x[0])), 1, S(3, 4)) \
    CASE(gelu, plain, square(shoal_nn_gelu(x[0])), 1, S(3, 4)) \
    CASE(gelu, wide, square(shoal_nn_gelu(shoal_mul_scalar(x[0], 5))), 1, S(3, 4)) \
    CASE(gelu_tanh, plain, square(shoal_nn_gelu_tanh(x[0])), 1, S(3, 4)) \
    CASE(gelu_tanh, wide, square(shoal_nn_gelu_tanh(shoal_mul_scalar(x[0], 5))), 1, S(3, 4)) \
    CASE(exp, plain, square(shoal_nn_exp(x[0])), 1, S(3, 4)) \
    CASE(log, plain, square(shoal_nn_log(shoal_add_scalar(square(x[0]), 0.5))), 1, S(3, 4)) \
    CASE(sqrt, plain, square(shoal_nn_sqrt(shoal_add_scalar(square(x[0]), 0.5))), 1, S(3, 4)) \
    CASE(sigmoid, plain, square(shoal_nn_sigmoid(shoal_mul_scalar(x[0], 3))), 1, S(3, 4)) \
    CASE(silu, plain, square(shoal_nn_silu(shoal_mul_scalar(x[0], 3))), 1, S(3, 4)) \
    CASE(softmax, last, square(shoal_nn_softmax(x[0], -1)), 1, S(3, 4)) \
    CASE(softmax, first, square(shoal_nn_softmax(x[0], 0)), 1, S(3, 4)) \
    CASE(softmax, middle, square(shoal_nn_softmax(shoal_mul_scalar(x[0], 4), 1)), 1, S(2, 3, 2)) \
    CASE(softmax, long_row, square(shoal_nn_softmax(x[0], 0)), 1, S(37)) \
    CASE(softmax, scalar, square(shoal_nn_softmax(x[0], 0)), 1, S0) \
    CASE(softmax, no_rows, square(shoal_nn_softmax(x[0], 1)), 1, S(0, 4)) \
    CASE(softmax, no_classes, square(shoal_nn_softmax(x[0], 1)), 1, S(3, 0)) \
    CASE(log_softmax, last, square(shoal_nn_log_softmax(x[0], 1)), 1, S(3, 4)) \
    CASE(log_softmax, first, square(shoal_nn_log_softmax(x[0], -2)), 1, S(3, 4)) \
    CASE(log_softmax, large, square(shoal_nn_log_softmax(shoal_mul_scalar(x[0], 20), 1)), 1, S(2, 3, 2)) \
    CASE(log_softmax, no_rows, square(shoal_nn_log_softmax(x[0], 1)), 1, S(0, 4)) \
    CASE(mse, plain, square(shoal_nn_mse(x[0], x[1])), 2, S(3, 4), S(3, 4)) \
    CASE(mse, itself, shoal_nn_mse(x[0], square(x[0])), 1, S(5)) \
    CASE(cross_entropy, plain, square(shoal_nn_cross_entropy(x[0], TARGETS(0, 3, 3))), 1, S(3, 4)) \
    CASE(cross_entropy, large, shoal_nn_cross_entropy(shoal_mul_scalar(x[0], 20), TARGETS(1, 2, 0)), 1, S(3, 4)) \
    CASE(cross_entropy, one_class, square(shoal_nn_cross_entropy(x[0], TARGETS(0, 0))), 1, S(2, 1)) \
    CASE(cross_entropy, deep, square(shoal_nn_cross_entropy(x[0], make_indices(INTS(2, 0, 1, 1), INTS(2, 2), 2, SHOAL_I32))), 1, S(2, 2, 3)) \
    CASE(cross_entropy, ignored, square(shoal_nn_cross_entropy(x[0], TARGETS(0, -100, 3))), 1, S(3, 4)) \
    CASE(cross_entropy, ignored_class, square(cross_entropy_with(x[0], TARGETS(1, 2, 1, 0), 1, 0)), 1, S(4, 3)) \
    CASE(cross_entropy, smooth, square(cross_entropy_with(x[0], TARGETS(0, -100, 3), -100, 0.3)), 1, S(3, 4)) \
    CASE(cross_entropy, smoothest, square(cross_entropy_with(x[0], TARGETS(0, 1, 3), -100, 1)), 1, S(3, 4)) \
    CASE(cross_entropy, long_rows, square(cross_entropy_with(x[0], TARGETS(0, 29), -100, 0.1)), 1, S(2, 30)) \
    CASE(embedding, plain, square(shoal_nn_embedding(TARGETS(2, 0, 2, 4), x[0])), 1, S(5, 3)) \
    CASE(embedding, deep, square(shoal_nn_embedding(make_indices(INTS(1, 1, 0, 2), INTS(2, 2), 2, SHOAL_U8), x[0])), 1, S(3, 2)) \
    CASE(embedding, none, square(shoal_nn_embedding(make_indices(NULL, INTS(0), 1, SHOAL_I64), x[0])), 1, S(3, 2)) \
    CASE(dropout, plain, square(shoal_nn_dropout(x[0], TARGETS(3, 5, 40), 2, 0.3)), 1, S(3, 4)) \
    CASE(dropout, deep, square(shoal_nn_dropout(x[0], TARGETS(3, 5, 40), 2, 0.5)), 1, S(2, 3, 2)) \
    CASE(dropout, none, square(shoal_nn_dropout(x[0], TARGETS(3, 5, 40), 2, 0)), 1, S(3, 2)) \
    CASE(dropout, all, square(shoal_nn_dropout(x[0], TARGETS(3, 5, 40), 2, 1)), 1, S(3, 2)) \
    CASE(dropout, no_samples, square(shoal_nn_dropout(x[0], TARGETS(3, 5, 40), 2, 0.5)), 1, S(0, 4)) \
    CASE(attention, plain, square(attend(x, true, 0, 0)), 3, S(2, 3, 2, 2), S(2, 3, 2, 2), S(2, 3, 2, 2)) \
    CASE(attention, whole, square(attend(x, false, 0.7, 0)), 3, S(1, 3, 2, 2), S(1, 4, 2, 2), S(1, 4, 2, 2)) \
    CASE(attention, shared, square(attend(x, true, 0, 0)), 3, S(1, 2, 4, 2), S(1, 5, 2, 2), S(1, 5, 2, 2)) \
    CASE(attention, few_keys, square(attend(x, true, 0, 0)), 3, S(1, 4, 1, 3), S(1, 2, 1, 3), S(1, 2, 1, 3)) \
    CASE(attention, dropped, square(attend(x, true, 0, 0.4)), 3, S(2, 4, 2, 2), S(2, 4, 2, 2), S(2, 4, 2, 2)) \
    CASE(attention, no_queries, square(attend(x, true, 0, 0)), 3, S(1, 0, 2, 2), S(1, 2, 2, 2), S(1, 2, 2, 2)) \
    CASE(attention, no_keys, square(attend(x, true, 0, 0)), 3, S(1, 2, 2, 2), S(1, 0, 2, 2), S(1, 0, 2, 2)) \
    CASE(attention, itself, square(shoal_nn_attention(x[0], x[0], x[0], NULL)), 1, S(2, 3, 2, 2)) \
    CASE(attention_packed, plain, square(shoal_nn_attention_packed(x[0], NULL)), 1, S(2, 3, 3, 2, 2)) \
    CASE(layer_norm, plain, square(shoal_nn_layer_norm(x[0], x[1], x[2], 1e-5)), 3, S(3, 4), S(4), S(4)) \
    CASE(layer_norm, bare, square(shoal_nn_layer_norm(x[0], NULL, NULL, 0.1)), 1, S(2, 2, 3)) \
    CASE(layer_norm, no_bias, square(shoal_nn_layer_norm(x[0], x[1], NULL, 1e-3)), 2, S(2, 5), S(5)) \
    CASE(layer_norm, no_weight, square(shoal_nn_layer_norm(x[0], NULL, x[1], 1e-3)), 2, S(2, 5), S(5)) \
    CASE(layer_norm, vector, square(shoal_nn_layer_norm(x[0], x[1], x[2], 1e-5)), 3, S(4), S(4), S(4)) \
    CASE(layer_norm, no_rows, square(shoal_nn_layer_norm(x[0], x[1], x[2], 1e-5)), 3, S(0, 4), S(4), S(4)) \
    CASE(rms_norm, plain, square(shoal_nn_rms_norm(x[0], x[1], 1e-5)), 2, S(3, 4), S(4)) \
    CASE(rms_norm, bare, square(shoal_nn_rms_norm(x[0], NULL, 0.1)), 1, S(2, 2, 3)) \
    CASE(rms_norm, vector, square(shoal_nn_rms_norm(x[0], x[1], 1e-5)), 2, S(4), S(4)) \
    CASE(rms_norm, no_rows, square(shoal_nn_rms_norm(x[0], x[1], 1e-5)), 2, S(0, 4), S(4)) \
    CASE(rotary, plain, square(shoal_nn_rotary(x[0], 0, 10000)), 1, S(3, 2, 4)) \
    CASE(rotary, later, square(shoal_nn_rotary(x[0], 1000, 100)), 1, S(2, 3, 1, 6)) \
    CASE(rotary, no_positions, square(shoal_nn_rotary(x[0], 0, 10000)), 1, S(0, 2, 4)) \
    CASE(max, last, square(shoal_nn_max(x[0], -1, false)), 1, S(3, 4)) \
    CASE(max, first, square(shoal_nn_max(x[0], 0, true)), 1, S(3, 4)) \
    CASE(max, middle, square(shoal_nn_max(x[0], 1, false)), 1, S(2, 3, 4)) \
    CASE(max, scalar, square(shoal_nn_max(x[0], 0, true)), 1, S0) \
    CASE(max, vector, square(shoal_nn_max(x[0], 0, false)), 1, S(20)) \
    CASE(max, no_rows, square(shoal_nn_max(x[0], 1, false)), 1, S(0, 4)) \
    CASE(index_select, first, square(shoal_nn_index_select(x[0], 0, TARGETS(2, 0, 2))), 1, S(3, 4)) \
    CASE(index_select, last, square(shoal_nn_index_select(x[0], -1, TARGETS(3, 3, 0, 1, 3))), 1, S(3, 4)) \
    CASE(index_select, middle, square(shoal_nn_index_select(x[0], 1, TARGETS(1, 1))), 1, S(2, 3, 2)) \
    CASE(index_select, none, square(shoal_nn_index_select(x[0], 0, make_indices(NULL, INTS(0), 1, SHOAL_I64))), 1, S(3, 2)) \
    CASE(index_select, vector, square(shoal_nn_index_select(x[0], 0, TARGETS(1, 0))), 1, S(4)) \
    CASE(where, plain, square(shoal_nn_where(MASK(1, 0, 0, 1, 1, 0), x[0], x[1])), 2, S(1, 6), S(1, 6)) \
    CASE(where, broadcast, square(shoal_nn_where(MASK(1, 0, 1), x[0], x[1])), 2, S(2, 3), S(4, 1, 1)) \
    CASE(where, scalars, square(shoal_nn_where(MASK(1, 0, 1), x[0], x[1])), 2, S0, S(1)) \
    CASE(where, itself, square(shoal_nn_where(MASK(1, 0, 1), x[0], square(x[0]))), 1, S(2, 3)) \
    CASE(where, none, square(shoal_nn_where(MASK(1, 0, 1), x[0], x[1])), 2, S(0, 3), S(3)) \
    CASE(masked_fill, plain, square(shoal_nn_masked_fill(x[0], MASK(1, 0, 1, 0), 0.25)), 1, S(3, 4)) \
    CASE(masked_fill, none, square(shoal_nn_masked_fill(x[0], MASK(1, 0, 1, 0), 0.25)), 1, S(0, 4))
/* clang-format on */

#define CASE(op, label, result, n, ...)                             \
    static shoal_tensor *run_##op##_##label(shoal_tensor *const *x) \
    {                                                               \
        return result;                                              \
    }
CASES
#undef CASE

static const struct gradient_case cases[] = {
#define CASE(op, label, result, n, ...) {#op, #op ": " #label, false, run_##op##_##label, n, {__VA_ARGS__}},
    CASES
#undef CASE
};

#define N_CASES (sizeof(cases) / sizeof(cases[0]))

TEST(every_gradient_agrees_with_finite_differences)
{
    begin_nn();
    check_gradient_cases(cases, N_CASES);
}

TEST(every_op_with_a_gradient_has_a_case)
{
    begin_nn();
#define gradient_none 0
#define gradient_matmul 1
#define gradient_linear 1
#define gradient_projection 1
#define gradient_activation 1
#define gradient_softmax 1
#define gradient_mse 1
#define gradient_cross_entropy 1
#define gradient_embedding 1
#define gradient_dropout 1
#define gradient_attention 1
#define gradient_attention_packed 1
#define gradient_layer_norm 1
#define gradient_max 1
#define gradient_index_select 1
#define gradient_bmm 1
#define gradient_rms_norm 1
#define gradient_rotary 1
#define gradient_where 1
#define gradient_masked_fill 1
    static const struct {
        const char *name;
        bool has_gradient;
    } rows[] = {
#define NN_OP(name, signature, flags, meta, kernel, gradient, saves, context, doc) \
    {#name, gradient_##gradient},
#include "nn/ops/ops.def"
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
    const char *const environment[] = {"SHOAL_NN_BLAS=none", NULL};
    char output[4096];
    int code = test_run_program(arguments, environment, output, sizeof(output));
    if (code != 0) {
        test_failed(__FILE__, __LINE__, "without a BLAS: exit %d: %s", code, output);
    }
}
