/* SPDX-License-Identifier: MIT */
/* What gradient functions share. */
#include "autograd/gradients.h"

#include "shoal/ops.h"
#include "device/device.h"

shoal_tensor *gradients_sum_to(shoal_tensor *gradient, const shoal_tensor *like)
{
    int64_t dims[SHOAL_MAX_DIMS];
    int n_dims = 0;
    if (!gradient) {
        return NULL;
    }
    int n_missing = gradient->layout.n_dims - like->layout.n_dims;
    for (int i = 0; i < gradient->layout.n_dims; i++) {
        bool is_stretched =
            i >= n_missing && like->layout.shape[i - n_missing] == 1 && gradient->layout.shape[i] != 1;
        if (i < n_missing || is_stretched) {
            dims[n_dims++] = i;
        }
    }
    if (n_dims == 0) {
        return gradient;
    }
    return shoal_reshape(shoal_sum(gradient, dims, n_dims, /*keeps_dims=*/false), like->layout.shape,
                         like->layout.n_dims);
}

shoal_tensor *gradients_zeros(const shoal_tensor *like, shoal_tensor *gradient)
{
    shoal_value result;
    const shoal_value arguments[] = {
        {.kind = SHOAL_VALUE_INTS, .count = (size_t)like->layout.n_dims, .as.integers = like->layout.shape},
        {.kind = SHOAL_VALUE_DTYPE, .as.dtype = like->dtype},
        {.kind = SHOAL_VALUE_STRING, .as.string = device_name(gradient->storage->device)},
    };
    size_t n_arguments = sizeof(arguments) / sizeof(arguments[0]);
    return shoal_op_call(op_get(OP_zeros), arguments, n_arguments, &result) == SHOAL_OK ? result.as.tensor
                                                                                        : NULL;
}

double gradients_scalar(const shoal_value *value)
{
    return value->kind == SHOAL_VALUE_INT ? (double)value->as.integer : value->as.real;
}
