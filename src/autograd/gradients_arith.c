/* SPDX-License-Identifier: MIT */
/* Gradient functions of copies, arithmetic and reductions. Views and lists have files of their own. */
#include "autograd/gradients.h"

#include "base/error.h"
#include "shoal/ops.h"
#include "tensor/dtype.h"

GRADIENT(none)
{
    return error_set(SHOAL_ERR_INTERNAL, "this op has no gradient function");
}

/* One to one ------------------------------------------------------------------------------------------- */

GRADIENT(same)
{
    input_gradients[0] = output_gradients[0];
    return SHOAL_OK;
}

GRADIENT(to_dtype)
{
    input_gradients[0] = shoal_to_dtype(output_gradients[0], arguments[0].as.tensor->dtype);
    return SHOAL_OK;
}

GRADIENT(to_device)
{
    input_gradients[0] = shoal_to_device(output_gradients[0], arguments[0].as.tensor->storage->stands_for);
    return SHOAL_OK;
}

/* The old values of self are gone, so self gets no gradient. */
GRADIENT(copy_)
{
    const shoal_tensor *source = arguments[1].as.tensor;
    if (shoal_op_needs_gradient(call, 1)) {
        input_gradients[1] = shoal_to_dtype(gradients_sum_to(output_gradients[0], source), source->dtype);
    }
    return SHOAL_OK;
}

GRADIENT(neg)
{
    input_gradients[0] = shoal_neg(output_gradients[0]);
    return SHOAL_OK;
}

GRADIENT(mul_scalar)
{
    input_gradients[0] = shoal_mul_scalar(output_gradients[0], gradients_scalar(&arguments[1]));
    return SHOAL_OK;
}

GRADIENT(div_scalar)
{
    input_gradients[0] = shoal_div_scalar(output_gradients[0], gradients_scalar(&arguments[1]));
    return SHOAL_OK;
}

/* Two tensors ------------------------------------------------------------------------------------------ */

GRADIENT(add)
{
    for (size_t i = 0; i < 2; i++) {
        if (shoal_op_needs_gradient(call, i)) {
            input_gradients[i] = gradients_sum_to(output_gradients[0], arguments[i].as.tensor);
        }
    }
    return SHOAL_OK;
}

GRADIENT(sub)
{
    if (shoal_op_needs_gradient(call, 0)) {
        input_gradients[0] = gradients_sum_to(output_gradients[0], arguments[0].as.tensor);
    }
    if (shoal_op_needs_gradient(call, 1)) {
        input_gradients[1] = shoal_neg(gradients_sum_to(output_gradients[0], arguments[1].as.tensor));
    }
    return SHOAL_OK;
}

GRADIENT(mul)
{
    for (size_t i = 0; i < 2; i++) {
        if (shoal_op_needs_gradient(call, i)) {
            shoal_tensor *product = shoal_mul(output_gradients[0], arguments[1 - i].as.tensor);
            input_gradients[i] = gradients_sum_to(product, arguments[i].as.tensor);
        }
    }
    return SHOAL_OK;
}

/* d(a / b) = da / b - (a / b) / b db */
GRADIENT(div)
{
    shoal_tensor *a = arguments[0].as.tensor;
    shoal_tensor *b = arguments[1].as.tensor;
    shoal_tensor *scaled = shoal_div(output_gradients[0], b);
    if (shoal_op_needs_gradient(call, 0)) {
        input_gradients[0] = gradients_sum_to(scaled, a);
    }
    if (shoal_op_needs_gradient(call, 1)) {
        input_gradients[1] = gradients_sum_to(shoal_neg(shoal_mul(scaled, shoal_div(a, b))), b);
    }
    return SHOAL_OK;
}

/* In place, self has the shape of the result, so its gradient needs no sum. */
GRADIENT(add_)
{
    return gradient_add(call, arguments, outputs, output_gradients, input_gradients);
}

GRADIENT(sub_)
{
    return gradient_sub(call, arguments, outputs, output_gradients, input_gradients);
}

/* The saved self is a copy from before the change. */
GRADIENT(mul_)
{
    return gradient_mul(call, arguments, outputs, output_gradients, input_gradients);
}

/* As for div; a / b is the result. */
GRADIENT(div_)
{
    shoal_tensor *b = arguments[1].as.tensor;
    shoal_tensor *scaled = shoal_div(output_gradients[0], b);
    if (shoal_op_needs_gradient(call, 0)) {
        input_gradients[0] = scaled;
    }
    if (shoal_op_needs_gradient(call, 1)) {
        input_gradients[1] = gradients_sum_to(shoal_neg(shoal_mul(scaled, outputs[0])), b);
    }
    return SHOAL_OK;
}

/* Reductions ------------------------------------------------------------------------------------------- */

/* The gradient of a sum, broadcast to all its terms. */
static shoal_tensor *spread(shoal_tensor *gradient, const shoal_tensor *self, const shoal_value *dims)
{
    int64_t shape[SHOAL_MAX_DIMS];
    int n_dims = self->layout.n_dims;
    for (int i = 0; i < n_dims; i++) {
        shape[i] = dims->count == 0 ? 1 : self->layout.shape[i];
    }
    for (size_t i = 0; i < dims->count; i++) {
        int64_t dim = dims->as.integers[i];
        shape[dim < 0 ? dim + n_dims : dim] = 1;
    }
    return shoal_expand(shoal_reshape(gradient, shape, n_dims), self->layout.shape, n_dims);
}

GRADIENT(sum)
{
    input_gradients[0] = spread(output_gradients[0], arguments[0].as.tensor, &arguments[1]);
    return SHOAL_OK;
}

GRADIENT(mean)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    shoal_tensor *gradient = output_gradients[0];
    /* A mean of no terms has no elements that need a gradient. */
    int64_t n_terms = self->count > 0 ? self->count / gradient->count : 1;
    /* In the accumulation type, because the number of terms may be too large for f16 and bf16. */
    gradient = shoal_to_dtype(gradient, dtype_rows[self->dtype].accumulation);
    gradient = shoal_to_dtype(shoal_div_scalar(gradient, (double)n_terms), self->dtype);
    input_gradients[0] = spread(gradient, self, &arguments[1]);
    return SHOAL_OK;
}
