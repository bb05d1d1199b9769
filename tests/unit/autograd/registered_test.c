/* SPDX-License-Identifier: MIT */
/* Gradients of ops that users register: what they see, and what is refused. */
#include <string.h>

#include "unit/autograd/fixture.h"

#define INTS(...) ((int64_t[]){__VA_ARGS__})

/* Blocks that a registered op keeps: the entry with its strings. Found by counting, the registry is not ours. */
static const shoal_op *register_op(const shoal_op_definition *definition)
{
    const shoal_op *op = NULL;
    size_t n_before = test_live_blocks();
    CHECK_OK(shoal_op_register(definition, &op));
    test_keep_blocks(test_live_blocks() - n_before);
    return op;
}

static shoal_tensor *call_op(const shoal_op *op, const shoal_value *arguments, size_t n_arguments)
{
    shoal_value result;
    return shoal_op_call(op, arguments, n_arguments, &result) == SHOAL_OK ? result.as.tensor : NULL;
}

/* scaled_square: self * self * factor + bias, where there is one. */
static shoal_status declare_same(shoal_op_call_context *call, const shoal_value *arguments)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    return shoal_op_output(call, shoal_tensor_shape(self), shoal_tensor_n_dims(self),
                           shoal_tensor_dtype(self));
}

static shoal_status run_square(shoal_op_call_context *call, const shoal_value *arguments,
                               shoal_tensor *const *outputs, size_t n_outputs)
{
    const double *from = shoal_data(arguments[0].as.tensor);
    const double *bias = arguments[4].kind == SHOAL_VALUE_TENSOR ? shoal_data(arguments[4].as.tensor) : NULL;
    double *to = shoal_mutable_data(outputs[0]);
    for (int64_t i = 0; from && to && i < shoal_tensor_count(outputs[0]); i++) {
        to[i] = from[i] * from[i] * arguments[1].as.real + (bias ? bias[i] : 0);
    }
    return SHOAL_OK;
}

static int magic = 42;

static shoal_status flow_square(shoal_op_call_context *call, const shoal_value *arguments,
                                shoal_tensor *const *outputs, shoal_tensor *const *output_gradients,
                                shoal_tensor **input_gradients)
{
    CHECK(shoal_op_context(call) == &magic);
    CHECK_INT(shoal_tensor_device(outputs[0]), SHOAL_META);
    CHECK_STRING(arguments[2].as.string, "note");
    CHECK_INT(arguments[3].count, 2);
    CHECK_INT(arguments[3].as.integers[1], -7);
    if (shoal_op_needs_gradient(call, 0)) {
        input_gradients[0] = shoal_mul_scalar(shoal_mul(output_gradients[0], arguments[0].as.tensor),
                                              2 * arguments[1].as.real);
    }
    if (shoal_op_needs_gradient(call, 1)) {
        CHECK_INT(shoal_tensor_device(arguments[4].as.tensor), SHOAL_META);
        input_gradients[1] = output_gradients[0];
    }
    CHECK(!shoal_op_needs_gradient(call, 2));
    return SHOAL_OK;
}

static const shoal_op *find_square(void)
{
    static const shoal_op *op;
    if (!op) {
        op = register_op(&(shoal_op_definition){
            .struct_size = sizeof(shoal_op_definition),
            .name = "test.scaled_square",
            .signature = "tensor self, float factor, string note, ints numbers, tensor? bias -> tensor",
            .meta = declare_same,
            .kernel = run_square,
            .gradient = flow_square,
            .saves = "self",
            .doc = "A test.",
            .context = &magic});
    }
    return op;
}

SCOPED_TEST(a_registered_op_has_its_gradient)
{
    for (int has_bias = 0; has_bias < 2; has_bias++) {
        char text[] = "note";
        int64_t numbers[] = {3, -7};
        shoal_tensor *x = make_leaf(2, 3, 1);
        shoal_tensor *bias = make_leaf(2, 10, 0);
        const shoal_value arguments[] = {
            {.kind = SHOAL_VALUE_TENSOR, .as.tensor = x},
            {.kind = SHOAL_VALUE_FLOAT, .as.real = 0.5},
            {.kind = SHOAL_VALUE_STRING, .as.string = text},
            {.kind = SHOAL_VALUE_INTS, .count = 2, .as.integers = numbers},
            has_bias ? (shoal_value){.kind = SHOAL_VALUE_TENSOR, .as.tensor = bias}
                     : (shoal_value){.kind = SHOAL_VALUE_NONE},
        };
        shoal_tensor *y = call_op(find_square(), arguments, 5);
        memset(text, 'x', sizeof(text) - 1); /* strings and numbers were copied */
        numbers[1] = 0;
        CHECK_DOUBLE(value_at(y, 1), has_bias ? 18 : 8);
        CHECK_OK(shoal_backward(sum_all(y), NULL));
        CHECK_DOUBLE(grad_at(x, 1), 4);
        CHECK_DOUBLE(grad_at(bias, 1), has_bias ? 1 : (double)NAN);
    }
}

/* A gradient function that gives back nonsense */
static shoal_status flow_wrong(shoal_op_call_context *call, const shoal_value *arguments,
                               shoal_tensor *const *outputs, shoal_tensor *const *output_gradients,
                               shoal_tensor **input_gradients)
{
    int kind = *(const int *)shoal_op_context(call);
    if (kind == 0) {
        input_gradients[0] = sum_all(output_gradients[0]);
    } else if (kind == 1) {
        input_gradients[0] = arguments[0].as.tensor; /* a stand-in */
    } else if (kind == 2) {
        input_gradients[0] = shoal_mul(output_gradients[0], arguments[0].as.tensor); /* not saved */
    } else if (kind == 3) {
        input_gradients[0] = shoal_to_dtype(output_gradients[0], SHOAL_F32);
    } else {
        return shoal_fail(SHOAL_ERR_CANCELLED, "I will not");
    }
    return SHOAL_OK;
}

static shoal_status run_copy(shoal_op_call_context *call, const shoal_value *arguments,
                             shoal_tensor *const *outputs, size_t n_outputs)
{
    memcpy(shoal_mutable_data(outputs[0]), shoal_data(arguments[0].as.tensor),
           (size_t)shoal_tensor_count(outputs[0]) * sizeof(double));
    return SHOAL_OK;
}

SCOPED_TEST(wrong_gradients_are_noticed)
{
    static int kind;
    static const char *const texts[] = {
        "gradient of test.wrong: the gradient for input 0: f64 [] on cpu does not fit its tensor, f64 [2]",
        "the gradient for input 0: f64 [2] on meta does not fit its tensor, f64 [2] on cpu",
        "gradient of test.wrong: mul: one call has tensors on devices cpu and meta",
        "the gradient for input 0: f32 [2]",
        "gradient of test.wrong: I will not",
    };
    const shoal_op *op = register_op(&(shoal_op_definition){.struct_size = sizeof(shoal_op_definition),
                                                            .name = "test.wrong",
                                                            .signature = "tensor self -> tensor",
                                                            .meta = declare_same,
                                                            .kernel = run_copy,
                                                            .gradient = flow_wrong,
                                                            .saves = "",
                                                            .doc = "A test.",
                                                            .context = &kind});
    for (kind = 0; kind < 5; kind++) {
        shoal_tensor *x = make_leaf(2, 3, 1);
        shoal_tensor *y = call_op(op, &(shoal_value){.kind = SHOAL_VALUE_TENSOR, .as.tensor = x}, 1);
        CHECK_STATUS(shoal_backward(sum_all(y), NULL), kind == 4 ? SHOAL_ERR_CANCELLED : SHOAL_ERR_INVALID);
        CHECK_ERROR_TEXT(texts[kind]);
        CHECK(!shoal_grad(x));
    }
}

/* Without a gradient function an input that needs one is refused, and nothing was computed. */
SCOPED_TEST(no_gradient_function)
{
    const shoal_op *op = register_op(&(shoal_op_definition){.struct_size = sizeof(shoal_op_definition),
                                                            .name = "test.opaque",
                                                            .signature = "tensor self -> tensor",
                                                            .meta = declare_same,
                                                            .kernel = run_copy,
                                                            .doc = "A test."});
    shoal_tensor *x = make_leaf(2, 3, 1);
    const shoal_value argument = {.kind = SHOAL_VALUE_TENSOR, .as.tensor = x};
    CHECK_SCOPE_ERROR(call_op(op, &argument, 1), SHOAL_ERR_UNSUPPORTED,
                      "test.opaque: an input requires a gradient, but test.opaque has no gradient function");
    CHECK_OK(shoal_scope_set_grad(false));
    CHECK(call_op(op, &argument, 1));
}

/* In place, saving what it overwrites and its result: a copy of the one, the storage of the other. */
static shoal_status run_square_in_place(shoal_op_call_context *call, const shoal_value *arguments,
                                        shoal_tensor *const *outputs, size_t n_outputs)
{
    double *data = shoal_mutable_data(arguments[0].as.tensor);
    for (int64_t i = 0; data && i < shoal_tensor_count(outputs[0]); i++) {
        data[i] *= data[i];
    }
    return SHOAL_OK;
}

static shoal_status flow_square_in_place(shoal_op_call_context *call, const shoal_value *arguments,
                                         shoal_tensor *const *outputs, shoal_tensor *const *output_gradients,
                                         shoal_tensor **input_gradients)
{
    CHECK_DOUBLE(value_at(arguments[0].as.tensor, 0), 3);
    CHECK_DOUBLE(value_at(outputs[0], 0), 9);
    input_gradients[0] = shoal_mul_scalar(shoal_mul(output_gradients[0], arguments[0].as.tensor), 2);
    return SHOAL_OK;
}

SCOPED_TEST(an_in_place_op_sees_what_it_overwrote)
{
    const shoal_op *op = register_op(&(shoal_op_definition){.struct_size = sizeof(shoal_op_definition),
                                                            .name = "test.square_",
                                                            .signature = "tensor self -> tensor",
                                                            .flags = SHOAL_OP_IN_PLACE,
                                                            .kernel = run_square_in_place,
                                                            .gradient = flow_square_in_place,
                                                            .saves = "self result",
                                                            .doc = "A test."});
    shoal_tensor *x = make_leaf(2, 3, 1);
    shoal_tensor *y = shoal_add_scalar(x, 0);
    CHECK(call_op(op, &(shoal_value){.kind = SHOAL_VALUE_TENSOR, .as.tensor = y}, 1) == y);
    CHECK_OK(shoal_backward(sum_all(y), NULL));
    CHECK_DOUBLE(grad_at(x, 1), 8);
}
