/* SPDX-License-Identifier: MIT */
/* Gradients of ops that take or give lists: splitting, joining, and one op over many tensors. */
#include "autograd/gradients.h"
#include "base/try.h"
#include "shoal/ops.h"

/* Splitting -------------------------------------------------------------------------------------------- */

/* Pieces of which only some have a gradient. */
static shoal_tensor *join_with_zeros(shoal_tensor *const *outputs, shoal_tensor *const *gradients,
                                     size_t n_pieces, const shoal_tensor *self, int64_t dim)
{
    shoal_tensor *total = NULL;
    int64_t start = 0;
    for (size_t i = 0; i < n_pieces; i++) {
        int64_t length = outputs[i]->layout.shape[dim];
        if (gradients[i] && !total) {
            total = gradients_zeros(self, gradients[i]);
        }
        if (gradients[i]) {
            (void)shoal_copy_(shoal_narrow(total, dim, start, length), gradients[i]);
        }
        start += length;
    }
    return total;
}

/* For every way of splitting: the sizes are those of the pieces. */
static shoal_tensor *join_pieces(shoal_tensor *const *outputs, shoal_tensor *const *gradients,
                                 size_t n_pieces, const shoal_tensor *self, int64_t dim)
{
    for (size_t i = 0; i < n_pieces; i++) {
        if (!gradients[i]) {
            return join_with_zeros(outputs, gradients, n_pieces, self, dim);
        }
    }
    return shoal_cat(gradients, n_pieces, dim);
}

GRADIENT(split)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    int dim;
    TRY(layout_normalise_dim("dim", arguments[2].as.integer, self->layout.n_dims, &dim));
    input_gradients[0] = join_pieces(outputs, output_gradients, call->n_outputs, self, dim);
    return SHOAL_OK;
}

/* Size or sizes, the dimension is argument 2. */
GRADIENT(split_with_sizes)
{
    return gradient_split(call, arguments, outputs, output_gradients, input_gradients);
}

/* Joining ---------------------------------------------------------------------------------------------- */

GRADIENT(cat)
{
    shoal_tensor *gradient = output_gradients[0];
    int dim;
    TRY(layout_normalise_dim("dim", arguments[1].as.integer, gradient->layout.n_dims, &dim));
    int64_t start = 0;
    for (size_t i = 0; i < arguments[0].count; i++) {
        int64_t length = arguments[0].as.tensors[i]->layout.shape[dim];
        if (shoal_op_needs_gradient(call, i)) {
            input_gradients[i] = shoal_narrow(gradient, dim, start, length);
        }
        start += length;
    }
    return SHOAL_OK;
}

GRADIENT(stack)
{
    for (size_t i = 0; i < arguments[0].count; i++) {
        if (shoal_op_needs_gradient(call, i)) {
            input_gradients[i] = shoal_select(output_gradients[0], arguments[1].as.integer, (int64_t)i);
        }
    }
    return SHOAL_OK;
}

GRADIENT(getitem)
{
    int64_t index = arguments[1].as.integer;
    input_gradients[index < 0 ? index + (int64_t)arguments[0].count : index] = output_gradients[0];
    return SHOAL_OK;
}

/* A tensor's columns of the packed rows hold its rows of the dimension that was cut in order, then padding. */
GRADIENT(chunk_cat)
{
    int64_t n_chunks = arguments[1].as.integer;
    int64_t start = 0;
    int dim;
    TRY(layout_normalise_dim("dim", arguments[3].as.integer, arguments[0].as.tensors[0]->layout.n_dims,
                             &dim));
    for (size_t i = 0; i < arguments[0].count; i++) {
        const shoal_tensor *tensor = arguments[0].as.tensors[i];
        struct layout padded = tensor->layout;
        int64_t n_rows = padded.shape[dim];
        int64_t chunk_elems = n_rows / n_chunks + (n_rows % n_chunks != 0);
        padded.shape[dim] = n_chunks * chunk_elems;
        for (int k = dim + 1; k < padded.n_dims; k++) {
            chunk_elems *= padded.shape[k];
        }
        if (shoal_op_needs_gradient(call, i)) {
            shoal_tensor *columns = shoal_narrow(output_gradients[0], dim + 1, start, chunk_elems);
            shoal_tensor *rows = shoal_reshape(columns, padded.shape, padded.n_dims);
            input_gradients[i] = shoal_to_dtype(shoal_narrow(rows, dim, 0, n_rows), tensor->dtype);
        }
        start += chunk_elems;
    }
    return SHOAL_OK;
}

/* One op over many tensors ----------------------------------------------------------------------------- */

GRADIENT(foreach_copy_)
{
    size_t n_tensors = arguments[0].count;
    for (size_t i = 0; i < n_tensors; i++) {
        const shoal_tensor *source = arguments[1].as.tensors[i];
        if (output_gradients[i] && shoal_op_needs_gradient(call, n_tensors + i)) {
            input_gradients[n_tensors + i] =
                shoal_to_dtype(gradients_sum_to(output_gradients[i], source), source->dtype);
        }
    }
    return SHOAL_OK;
}

GRADIENT(foreach_div)
{
    double divisor = gradients_scalar(&arguments[1]);
    for (size_t i = 0; i < arguments[0].count; i++) {
        if (output_gradients[i] && shoal_op_needs_gradient(call, i)) {
            input_gradients[i] = shoal_div_scalar(output_gradients[i], divisor);
        }
    }
    return SHOAL_OK;
}

GRADIENT(foreach_add_)
{
    size_t n_tensors = arguments[0].count;
    for (size_t i = 0; i < n_tensors; i++) {
        if (output_gradients[i] && shoal_op_needs_gradient(call, i)) {
            input_gradients[i] = output_gradients[i];
        }
        if (output_gradients[i] && shoal_op_needs_gradient(call, n_tensors + i)) {
            input_gradients[n_tensors + i] =
                gradients_sum_to(output_gradients[i], arguments[1].as.tensors[i]);
        }
    }
    return SHOAL_OK;
}
