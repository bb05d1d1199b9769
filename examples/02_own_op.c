/* SPDX-License-Identifier: MIT */
/* An operation of one's own, with its gradient: tanh for f64, checked against finite differences. */
#include <math.h>
#include <stdio.h>

#include "shoal/shoal.h"

/* Shapes only: one output like the input. */
static shoal_status tanh_meta(shoal_op_call_context *call, const shoal_value *arguments)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    if (shoal_tensor_dtype(self) != SHOAL_F64) {
        return shoal_fail(SHOAL_ERR_UNSUPPORTED, "self: %s is not f64",
                          shoal_dtype_name(shoal_tensor_dtype(self)));
    }
    return shoal_op_output(call, shoal_tensor_shape(self), shoal_tensor_n_dims(self), SHOAL_F64);
}

/* Inputs may be views with any strides; outputs are contiguous. */
static shoal_status tanh_kernel(shoal_op_call_context *call, const shoal_value *arguments,
                                shoal_tensor *const *outputs, size_t n_outputs)
{
    (void)call;
    (void)n_outputs;
    const double *from = shoal_data(shoal_contiguous(arguments[0].as.tensor));
    double *to = shoal_mutable_data(outputs[0]);
    if (!from || !to) {
        return SHOAL_ERR_STATE;
    }
    for (int64_t i = 0; i < shoal_tensor_count(outputs[0]); i++) {
        to[i] = tanh(from[i]);
    }
    return SHOAL_OK;
}

/* d tanh = 1 - tanh^2, written with operations. It reads the result, so `saves` says "result". */
static shoal_status tanh_gradient(shoal_op_call_context *call, const shoal_value *arguments,
                                  shoal_tensor *const *outputs, shoal_tensor *const *output_gradients,
                                  shoal_tensor **input_gradients)
{
    (void)call;
    (void)arguments;
    shoal_tensor *squared = shoal_mul(outputs[0], outputs[0]);
    input_gradients[0] = shoal_mul(output_gradients[0], shoal_add_scalar(shoal_neg(squared), 1));
    return SHOAL_OK;
}

static const shoal_op *tanh_op;

static shoal_tensor *apply_tanh(shoal_tensor *x)
{
    const shoal_value argument = {.kind = SHOAL_VALUE_TENSOR, .count = 1, .as = {.tensor = x}};
    shoal_value result;
    return shoal_op_call(tanh_op, &argument, 1, &result) == SHOAL_OK ? result.as.tensor : NULL;
}

static shoal_status show(void)
{
    double values[] = {-1.0, 0.0, 0.5};
    const int64_t shape[] = {3};
    shoal_tensor *x = shoal_from_memory(values, shape, 1, SHOAL_F64, NULL, NULL, NULL);
    shoal_status status = shoal_set_requires_grad(x, true);
    if (status != SHOAL_OK) {
        return status;
    }
    shoal_tensor *y = apply_tanh(x);
    status = shoal_backward(shoal_sum(y, NULL, 0, false), NULL);
    if (status != SHOAL_OK) {
        return status;
    }
    const double *result = shoal_data(y);
    const double *gradient = shoal_data(shoal_grad(x));
    for (int i = 0; i < 3; i++) {
        double difference = (tanh(values[i] + 1e-6) - tanh(values[i] - 1e-6)) / 2e-6;
        printf("tanh(%4.1f) = %7.4f  gradient %.6f  by differences %.6f\n", values[i], result[i], gradient[i],
               difference);
    }
    return SHOAL_OK;
}

int main(void)
{
    const shoal_op_definition definition = {
        .struct_size = sizeof(definition),
        .name = "example.tanh",
        .signature = "tensor self -> tensor",
        .meta = tanh_meta,
        .kernel = tanh_kernel,
        .gradient = tanh_gradient,
        .saves = "result",
        .doc = "Hyperbolic tangent.",
    };
    shoal_status status = shoal_op_register(&definition, &tanh_op);
    if (status == SHOAL_OK) {
        status = shoal_scope_begin();
    }
    if (status == SHOAL_OK) {
        status = show();
        shoal_status end = shoal_scope_end();
        status = end != SHOAL_OK ? end : status;
    }
    if (status != SHOAL_OK) {
        (void)fprintf(stderr, "%s: %s\n", shoal_status_name(status), shoal_error_text());
        return 1;
    }
    return 0;
}
