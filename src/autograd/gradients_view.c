/* SPDX-License-Identifier: MIT */
/*
 * Gradients of views. Elements that are not in the view get zeros; elements that are in it several times get the sum. A
 * gradient may itself be a view of the incoming one: nobody may write to a gradient during the backward pass (hooks are
 * checked), and a leaf copies what it keeps if the memory is shared.
 */
#include "autograd/gradients.h"
#include "base/error.h"
#include "base/try.h"
#include "shoal/ops.h"

GRADIENT(reshape)
{
    const struct layout *layout = &arguments[0].as.tensor->layout;
    input_gradients[0] = shoal_reshape(output_gradients[0], layout->shape, layout->n_dims);
    return SHOAL_OK;
}

GRADIENT(expand)
{
    input_gradients[0] = gradients_sum_to(output_gradients[0], arguments[0].as.tensor);
    return SHOAL_OK;
}

GRADIENT(permute)
{
    int64_t inverse[SHOAL_MAX_DIMS] = {0};
    int n_dims = (int)arguments[1].count;
    for (int i = 0; i < n_dims; i++) {
        int64_t dim = arguments[1].as.integers[i];
        inverse[dim < 0 ? dim + n_dims : dim] = i;
    }
    input_gradients[0] = shoal_permute(output_gradients[0], inverse, n_dims);
    return SHOAL_OK;
}

GRADIENT(transpose)
{
    input_gradients[0] =
        shoal_transpose(output_gradients[0], arguments[1].as.integer, arguments[2].as.integer);
    return SHOAL_OK;
}

/* Parts ------------------------------------------------------------------------------------------------ */

GRADIENT(narrow)
{
    shoal_tensor *zeros = gradients_zeros(arguments[0].as.tensor, output_gradients[0]);
    (void)shoal_copy_(
        shoal_narrow(zeros, arguments[1].as.integer, arguments[2].as.integer, arguments[3].as.integer),
        output_gradients[0]);
    input_gradients[0] = zeros;
    return SHOAL_OK;
}

GRADIENT(slice)
{
    shoal_tensor *zeros = gradients_zeros(arguments[0].as.tensor, output_gradients[0]);
    (void)shoal_copy_(shoal_slice(zeros, arguments[1].as.integer, arguments[2].as.integer,
                                  arguments[3].as.integer, arguments[4].as.integer),
                      output_gradients[0]);
    input_gradients[0] = zeros;
    return SHOAL_OK;
}

GRADIENT(select)
{
    shoal_tensor *zeros = gradients_zeros(arguments[0].as.tensor, output_gradients[0]);
    (void)shoal_copy_(shoal_select(zeros, arguments[1].as.integer, arguments[2].as.integer),
                      output_gradients[0]);
    input_gradients[0] = zeros;
    return SHOAL_OK;
}

/* Strided views ---------------------------------------------------------------------------------------- */

/* The dimension to split: the smallest one with more than one index. */
static int choose_dim(const struct layout *layout)
{
    int chosen = 0;
    for (int i = 1; i < layout->n_dims; i++) {
        bool is_better = layout->shape[i] < layout->shape[chosen] || layout->shape[chosen] == 1;
        chosen = layout->shape[i] > 1 && is_better ? i : chosen;
    }
    return chosen;
}

/*
 * Adds the gradient to the elements of `total` that are in the layout. An in-place addition needs every element only
 * once, so a layout that may contain one twice is split; each part has one dimension fewer.
 */
static void add_strided(shoal_tensor *total, shoal_tensor *gradient, const struct layout *layout)
{
    if (!layout_may_self_overlap(layout->n_dims, layout->shape, layout->strides)) {
        (void)shoal_add_(
            shoal_as_strided(total, layout->shape, layout->strides, layout->n_dims, layout->offset),
            gradient);
        return;
    }
    int dim = choose_dim(layout);
    struct layout rest = *layout;
    layout_remove_dim(&rest, dim);
    if (layout->strides[dim] == 0) {
        add_strided(total, shoal_sum(gradient, (int64_t[]){dim}, 1, /*keeps_dims=*/false), &rest);
        return;
    }
    for (int64_t i = 0; i < layout->shape[dim] && shoal_scope_error() == SHOAL_OK; i++) {
        rest.offset = layout->offset + i * layout->strides[dim];
        add_strided(total, shoal_select(gradient, dim, i), &rest);
    }
}

GRADIENT(as_strided)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    struct layout layout = outputs[0]->layout;
    int64_t first;
    int64_t end;
    if (!self->is_contiguous) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "the gradient is supported for contiguous tensors only");
    }
    /* The offset counts from the start of the storage; self may begin later. */
    layout.offset -= self->layout.offset;
    TRY(layout_extent(layout.n_dims, layout.shape, layout.strides, layout.offset, &first, &end));
    if (first != end && (first < 0 || end > self->count)) {
        char shape[LAYOUT_TEXT_BYTES];
        return error_set(
            SHOAL_ERR_UNSUPPORTED,
            "the view reaches elements %lld..%lld of a tensor of shape %s: what lies outside has "
            "no gradient",
            (long long)first, (long long)end - 1,
            layout_format(shape, self->layout.n_dims, self->layout.shape));
    }
    shoal_tensor *total = gradients_zeros(self, output_gradients[0]);
    if (total && first != end) {
        add_strided(total, output_gradients[0], &layout);
    }
    input_gradients[0] = total;
    return SHOAL_OK;
}
