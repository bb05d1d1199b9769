/* SPDX-License-Identifier: MIT */
/* Rows that make and copy tensors: empty zeros full clone contiguous to_dtype copy_. */
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
    void *address;
    TRY(tensor_address(outputs[0], &address));
    memset(address, 0, tensor_bytes(outputs[0]));
    return SHOAL_OK;
}

shoal_status run_full(shoal_op_call_context *call, const shoal_value *arguments, shoal_tensor *const *outputs,
                      size_t n_outputs)
{
    struct kernel_operand to;
    TRY(op_operand(outputs[0], &to));
    kernel_fill_nd(outputs[0]->dtype, to, outputs[0]->layout.n_dims, outputs[0]->layout.shape,
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
