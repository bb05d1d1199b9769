/* SPDX-License-Identifier: MIT */
/* From tensors and boxed values to what kernels take. */
#include "op/operand.h"

#include <string.h>

#include "base/error.h"
#include "base/try.h"
#include "op/dispatch.h"
#include "tensor/memory.h"

shoal_status op_operand(const shoal_tensor *tensor, struct kernel_operand *operand_out)
{
    TRY(tensor_address(tensor, &operand_out->data));
    operand_out->strides = tensor->layout.strides;
    return SHOAL_OK;
}

shoal_status op_operand_over(const shoal_tensor *tensor, int n_dims, const int64_t *shape, int64_t *strides,
                             struct kernel_operand *operand_out)
{
    const struct layout *layout = &tensor->layout;
    if (layout_is_same_shape(layout->n_dims, layout->shape, n_dims, shape)) {
        return op_operand(tensor, operand_out);
    }
    layout_broadcast_strides(layout->n_dims, layout->shape, layout->strides, n_dims, shape, strides);
    TRY(tensor_address(tensor, &operand_out->data));
    operand_out->strides = strides;
    return SHOAL_OK;
}

shoal_status op_declare_like(shoal_op_call_context *call, const shoal_tensor *like, shoal_dtype dtype)
{
    return shoal_op_output(call, like->layout.shape, like->layout.n_dims, dtype);
}

struct kernel_scalar op_scalar(const shoal_value *value)
{
    bool is_integer = value->kind == SHOAL_VALUE_INT;
    return (struct kernel_scalar){.is_integer = is_integer,
                                  .integer = is_integer ? value->as.integer : 0,
                                  .real = is_integer ? 0.0 : value->as.real};
}

shoal_status op_copy_into(shoal_tensor *dst, shoal_tensor *src)
{
    struct kernel_operand to;
    struct kernel_operand from;
    int64_t strides[SHOAL_MAX_DIMS];
    if (tensor_is_same_view(dst, src)) {
        return SHOAL_OK;
    }
    TRY(op_operand(dst, &to));
    TRY(op_operand_over(src, dst->layout.n_dims, dst->layout.shape, strides, &from));
    op_kernels(dst)->copy_nd(dst->dtype, to, src->dtype, from, dst->layout.n_dims, dst->layout.shape);
    return SHOAL_OK;
}

size_t op_contiguous_bytes(const shoal_tensor *tensor)
{
    return tensor->is_contiguous ? 0 : op_round_workspace(tensor_bytes(tensor));
}

shoal_status op_contiguous(shoal_op_call_context *call, const shoal_tensor *tensor, struct address *data_out)
{
    struct kernel_operand from;
    int64_t strides[SHOAL_MAX_DIMS];
    if (tensor->is_contiguous) {
        return tensor_address(tensor, data_out);
    }
    TRY(op_operand(tensor, &from));
    struct address copy;
    TRY(op_device_scratch(call, (shoal_device)tensor->device, tensor_bytes(tensor), &copy));
    const struct layout *layout = &tensor->layout;
    layout_fill_strides(layout->n_dims, layout->shape, strides);
    op_kernels(tensor)->copy_nd(tensor->dtype, (struct kernel_operand){.data = copy, .strides = strides},
                                tensor->dtype, from, layout->n_dims, layout->shape);
    *data_out = copy;
    return SHOAL_OK;
}

shoal_status op_check_device(shoal_device device)
{
    return device_is_host(device) ? SHOAL_OK : device_row(device)->failure();
}

/* From a tensor to elements one after the other, or back. */
static shoal_status copy_flat(const shoal_tensor *tensor, struct address flat, bool is_back)
{
    struct kernel_operand strided;
    int64_t strides[SHOAL_MAX_DIMS];
    const struct layout *layout = &tensor->layout;
    TRY(op_operand(tensor, &strided));
    layout_fill_strides(layout->n_dims, layout->shape, strides);
    const struct kernel_operand dense = {.data = flat, .strides = strides};
    op_kernels(tensor)->copy_nd(tensor->dtype, is_back ? strided : dense, tensor->dtype,
                                is_back ? dense : strided, layout->n_dims, layout->shape);
    return SHOAL_OK;
}

shoal_status op_flat_open(const shoal_tensor *tensor, struct op_flat *flat_out)
{
    *flat_out = (struct op_flat){.data = ADDRESS_NONE};
    if (tensor->is_contiguous) {
        return tensor_address(tensor, &flat_out->data);
    }
    TRY(memory_create((shoal_device)tensor->device, tensor_bytes(tensor), &flat_out->copy));
    flat_out->data = flat_out->copy->base;
    shoal_status status = copy_flat(tensor, flat_out->data, /*is_back=*/false);
    if (status != SHOAL_OK) {
        op_flat_close(flat_out);
    }
    return status;
}

shoal_status op_flat_store(const shoal_tensor *tensor, const struct op_flat *flat)
{
    return flat->copy ? copy_flat(tensor, flat->data, /*is_back=*/true) : SHOAL_OK;
}

void op_flat_close(struct op_flat *flat)
{
    memory_unref(flat->copy);
    flat->copy = NULL;
}

shoal_status op_separate(shoal_tensor *source, const shoal_tensor *target, shoal_tensor **safe_out,
                         shoal_tensor **copy_out)
{
    shoal_tensor *copy;
    *safe_out = source;
    *copy_out = NULL;
    if (!tensor_may_overlap(source, target) || tensor_is_same_view(source, target)) {
        return SHOAL_OK;
    }
    TRY(tensor_create_empty(source->storage->device, source->dtype, source->layout.n_dims,
                            source->layout.shape, &copy));
    shoal_status status = op_copy_into(copy, source);
    if (status != SHOAL_OK) {
        shoal_tensor_unref(copy);
        return status;
    }
    *safe_out = copy;
    *copy_out = copy;
    return SHOAL_OK;
}

shoal_status op_check_writable(const char *argument, const shoal_tensor *target)
{
    const struct layout *layout = &target->layout;
    if (!layout_may_self_overlap(layout->n_dims, layout->shape, layout->strides)) {
        return SHOAL_OK;
    }
    char shape[LAYOUT_TEXT_BYTES];
    char strides[LAYOUT_TEXT_BYTES];
    return error_set(SHOAL_ERR_INVALID,
                     "%s: elements of shape %s with strides %s share memory; write to a clone", argument,
                     layout_format(shape, layout->n_dims, layout->shape),
                     layout_format(strides, layout->n_dims, layout->strides));
}

shoal_status op_check_in_place(const shoal_tensor *self, const shoal_tensor *source)
{
    int n_dims;
    int64_t shape[SHOAL_MAX_DIMS];
    const struct layout *to = &self->layout;
    const struct layout *from = &source->layout;
    TRY(op_check_writable("self", self));
    if (layout_is_same_shape(to->n_dims, to->shape, from->n_dims, from->shape)) {
        return SHOAL_OK;
    }
    TRY(layout_broadcast(to->n_dims, to->shape, from->n_dims, from->shape, &n_dims, shape));
    if (!layout_is_same_shape(n_dims, shape, to->n_dims, to->shape)) {
        char to_text[LAYOUT_TEXT_BYTES];
        char from_text[LAYOUT_TEXT_BYTES];
        return error_set(SHOAL_ERR_INVALID, "self: shape %s cannot hold %s broadcast with it",
                         layout_format(to_text, to->n_dims, to->shape),
                         layout_format(from_text, from->n_dims, from->shape));
    }
    return SHOAL_OK;
}

shoal_status op_copy_overlapping(shoal_tensor *self, shoal_tensor *source)
{
    shoal_tensor *safe;
    shoal_tensor *copy;
    TRY(op_separate(source, self, &safe, &copy));
    shoal_status status = op_copy_into(self, safe);
    shoal_tensor_unref(copy);
    return status;
}
