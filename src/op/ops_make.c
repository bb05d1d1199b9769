/* SPDX-License-Identifier: MIT */
/* Rows that make and copy tensors: empty zeros full clone contiguous to_dtype copy_ as_strided_scatter. */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "base/try.h"
#include "op/operand.h"
#include "op/rows.h"
#include "device/device.h"

static shoal_status declare_new(shoal_op_call_context *call, const shoal_value *shape, shoal_dtype dtype,
                                const char *device)
{
    shoal_device named;
    TRY(device_find(device, &named));
    call->device = call->mode == OP_INFERS ? call->device : named;
    if (shape->count > SHOAL_MAX_DIMS) {
        return error_set(SHOAL_ERR_INVALID, "shape: %td dimensions are not within 0..%d",
                         (ptrdiff_t)shape->count, SHOAL_MAX_DIMS);
    }
    return shoal_op_output(call, shape->as.integers, (int)shape->count, dtype);
}

shoal_status meta_empty(shoal_op_call_context *call, const shoal_value *arguments)
{
    return declare_new(call, &arguments[0], arguments[1].as.dtype, arguments[2].as.string);
}

shoal_status meta_full(shoal_op_call_context *call, const shoal_value *arguments)
{
    return declare_new(call, &arguments[0], arguments[2].as.dtype, arguments[3].as.string);
}

shoal_status run_empty(shoal_op_call_context *call, const shoal_value *arguments,
                       shoal_tensor *const *outputs, size_t n_outputs)
{
    return SHOAL_OK;
}

shoal_status run_zeros(shoal_op_call_context *call, const shoal_value *arguments,
                       shoal_tensor *const *outputs, size_t n_outputs)
{
    struct kernel_move zeros = {.count = (size_t)outputs[0]->count, .dst_dtype = outputs[0]->dtype};
    TRY(tensor_address(outputs[0], &zeros.dst));
    op_kernels(outputs[0])->move(&zeros, 1);
    return SHOAL_OK;
}

shoal_status run_full(shoal_op_call_context *call, const shoal_value *arguments, shoal_tensor *const *outputs,
                      size_t n_outputs)
{
    struct kernel_operand to;
    TRY(op_operand(outputs[0], &to));
    op_kernels(outputs[0])
        ->fill_nd(outputs[0]->dtype, to, outputs[0]->layout.n_dims, outputs[0]->layout.shape,
                  op_scalar(&arguments[1]));
    return SHOAL_OK;
}

shoal_status meta_clone(shoal_op_call_context *call, const shoal_value *arguments)
{
    return op_declare_like(call, arguments[0].as.tensor, arguments[0].as.tensor->dtype);
}

shoal_status meta_contiguous(shoal_op_call_context *call, const shoal_value *arguments)
{
    shoal_tensor *self = arguments[0].as.tensor;
    return self->is_contiguous ? shoal_op_output_alias(call, self) : op_declare_like(call, self, self->dtype);
}

shoal_status meta_to_dtype(shoal_op_call_context *call, const shoal_value *arguments)
{
    shoal_tensor *self = arguments[0].as.tensor;
    shoal_dtype dtype = arguments[1].as.dtype;
    return self->dtype == dtype ? shoal_op_output_alias(call, self) : op_declare_like(call, self, dtype);
}

shoal_status run_copy(shoal_op_call_context *call, const shoal_value *arguments, shoal_tensor *const *outputs,
                      size_t n_outputs)
{
    return op_copy_into(outputs[0], arguments[0].as.tensor);
}

shoal_status meta_copy_(shoal_op_call_context *call, const shoal_value *arguments)
{
    TRY(op_check_in_place(arguments[0].as.tensor, arguments[1].as.tensor));
    return shoal_op_output_alias(call, arguments[0].as.tensor);
}

shoal_status run_copy_(shoal_op_call_context *call, const shoal_value *arguments,
                       shoal_tensor *const *outputs, size_t n_outputs)
{
    return op_copy_overlapping(arguments[0].as.tensor, arguments[1].as.tensor);
}

/* as_strided_scatter ------------------------------------------------------------------------------------- */

/* The layout of the view that arguments 2 to 4 describe in a contiguous copy of self. Checks that it lies inside, and
   that no two of its elements share memory. */
static shoal_status find_part(const shoal_value *arguments, struct layout *part_out)
{
    const shoal_value *shape = &arguments[2];
    const shoal_value *strides = &arguments[3];
    const shoal_tensor *self = arguments[0].as.tensor;
    int64_t count;
    int64_t first;
    int64_t end;
    struct layout part = {.n_dims = (int)shape->count, .offset = arguments[4].as.integer};
    if (shape->count > SHOAL_MAX_DIMS || strides->count != shape->count) {
        return error_set(SHOAL_ERR_INVALID,
                         "strides: %zu strides for %zu dimensions, of which there may be %d", strides->count,
                         shape->count, SHOAL_MAX_DIMS);
    }
    TRY(layout_count(part.n_dims, shape->as.integers, &count));
    for (int i = 0; i < part.n_dims; i++) {
        part.shape[i] = shape->as.integers[i];
        part.strides[i] = strides->as.integers[i];
    }
    TRY(layout_extent(part.n_dims, part.shape, part.strides, part.offset, &first, &end));
    if (count > 0 && (first < 0 || end > self->count)) {
        return error_set(SHOAL_ERR_INVALID,
                         "the view with offset %" PRId64 " has elements %" PRId64 "..%" PRId64
                         ", but self has %" PRId64,
                         part.offset, first, end - 1, self->count);
    }
    if (layout_may_self_overlap(part.n_dims, part.shape, part.strides)) {
        char text[LAYOUT_TEXT_BYTES];
        return error_set(SHOAL_ERR_INVALID, "strides: elements of the view share memory with strides %s",
                         layout_format(text, part.n_dims, part.strides));
    }
    *part_out = part;
    return SHOAL_OK;
}

shoal_status meta_as_strided_scatter(shoal_op_call_context *call, const shoal_value *arguments)
{
    struct layout part;
    const shoal_tensor *self = arguments[0].as.tensor;
    const shoal_tensor *source = arguments[1].as.tensor;
    TRY(find_part(arguments, &part));
    if (source->dtype != self->dtype ||
        !layout_is_same_shape(part.n_dims, part.shape, source->layout.n_dims, source->layout.shape)) {
        char text[TENSOR_TEXT_BYTES];
        char shape[LAYOUT_TEXT_BYTES];
        return error_set(SHOAL_ERR_INVALID, "source: %s, but the view is %s %s", tensor_format(text, source),
                         dtype_rows[self->dtype].name, layout_format(shape, part.n_dims, part.shape));
    }
    return op_declare_like(call, self, self->dtype);
}

shoal_status run_as_strided_scatter(shoal_op_call_context *call, const shoal_value *arguments,
                                    shoal_tensor *const *outputs, size_t n_outputs)
{
    struct layout part;
    struct kernel_operand to;
    struct kernel_operand from;
    shoal_dtype dtype = outputs[0]->dtype;
    TRY(op_copy_into(outputs[0], arguments[0].as.tensor));
    TRY(find_part(arguments, &part));
    if (arguments[1].as.tensor->count == 0) {
        return SHOAL_OK;
    }
    TRY(op_operand(outputs[0], &to));
    TRY(op_operand(arguments[1].as.tensor, &from));
    to.data = address_add(to.data, part.offset * (int64_t)dtype_bytes(dtype));
    to.strides = part.strides;
    op_kernels(outputs[0])->copy_nd(dtype, to, dtype, from, part.n_dims, part.shape);
    return SHOAL_OK;
}
