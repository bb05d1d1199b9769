/* SPDX-License-Identifier: MIT */
/* Between devices: the row to_device, and shoal_read. */
#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/options.h"
#include "base/try.h"
#include "device/stream.h"
#include "op/operand.h"
#include "op/rows.h"
#include "shoal/tensor.h"
#include "tensor/handle.h"

static struct wait_options wait_for_copy(void)
{
    return (struct wait_options){.deadline_ns = clock_deadline_after(option_seconds(OPTION_TIMEOUT)),
                                 .may_spin = true,
                                 .what = "a copy from a device"};
}

/* Elements one after the other, in memory of the tensor's device, to host memory. */
static shoal_status read_elements(const shoal_tensor *tensor, struct address elements, void *buffer)
{
    const struct wait_options options = wait_for_copy();
    return stream_read((shoal_device)tensor->device, buffer, elements, tensor_bytes(tensor), &options);
}

/* to_device -------------------------------------------------------------------------------------------- */

shoal_status meta_to_device(shoal_op_call_context *call, const shoal_value *arguments)
{
    shoal_tensor *self = arguments[0].as.tensor;
    shoal_device device;
    TRY(device_find(arguments[1].as.string, &device));
    /* Graphs have no devices: what is compiled is on the CPU. */
    bool is_there =
        call->mode == OP_INFERS ? (int)device < DEVICE_COUNT : (shoal_device)self->device == device;
    if (is_there) {
        return shoal_op_output_alias(call, self);
    }
    if (call->mode == OP_INFERS) {
        return op_declare_like(call, self, self->dtype);
    }
    if (!device_has_data((shoal_device)self->device)) {
        return error_set(SHOAL_ERR_INVALID, "self: it is on device %s, where there is no data to copy",
                         device_name((shoal_device)self->device));
    }
    call->device = device;
    return op_declare_like(call, self, self->dtype);
}

shoal_status run_to_device(shoal_op_call_context *call, const shoal_value *arguments,
                           shoal_tensor *const *outputs, size_t n_outputs)
{
    const shoal_tensor *self = arguments[0].as.tensor;
    shoal_device from = (shoal_device)self->device;
    shoal_device to = (shoal_device)outputs[0]->device;
    struct address source;
    struct address target;
    TRY(op_contiguous(call, self, &source));
    TRY(tensor_address(outputs[0], &target));
    if (device_is_host(to)) {
        return read_elements(self, source, address_pointer(target));
    }
    if (device_is_host(from)) {
        return stream_write(to, target, address_pointer(source), tensor_bytes(self));
    }
    void *between = shoal_op_workspace(call, tensor_bytes(self));
    if (!between) {
        return SHOAL_ERR_NO_MEMORY;
    }
    TRY(read_elements(self, source, between));
    return stream_write(to, target, between, tensor_bytes(self));
}

/* shoal_read ------------------------------------------------------------------------------------------- */

/* A strided tensor is copied to memory of its device first. */
static shoal_status read_strided(const shoal_tensor *tensor, void *buffer)
{
    struct kernel_operand from;
    struct kernel_operand to;
    int64_t strides[SHOAL_MAX_DIMS];
    const struct layout *layout = &tensor->layout;
    shoal_device device = (shoal_device)tensor->device;
    TRY(op_operand(tensor, &from));
    layout_fill_strides(layout->n_dims, layout->shape, strides);
    to.strides = strides;
    if (device_is_host(device)) {
        to.data = address_of(buffer);
        kernel_of(device)->copy_nd(tensor->dtype, to, tensor->dtype, from, layout->n_dims, layout->shape);
        return SHOAL_OK;
    }
    struct memory *memory = NULL;
    TRY(memory_create(device, tensor_bytes(tensor), &memory));
    to.data = memory->base;
    kernel_of(device)->copy_nd(tensor->dtype, to, tensor->dtype, from, layout->n_dims, layout->shape);
    shoal_status status = read_elements(tensor, memory->base, buffer);
    memory_unref(memory);
    return status;
}

static shoal_status read_tensor(const shoal_tensor *tensor, void *buffer, size_t bytes)
{
    struct address address;
    if (handle_is_dead(tensor)) {
        return handle_fail(tensor);
    }
    if (bytes != tensor_bytes(tensor)) {
        char text[TENSOR_TEXT_BYTES];
        return error_set(SHOAL_ERR_INVALID, "the tensor %s has %zu bytes, the buffer %zu",
                         tensor_format(text, tensor), tensor_bytes(tensor), bytes);
    }
    TRY(tensor_wait_readable(tensor));
    TRY(tensor_address(tensor, &address));
    if (bytes == 0) {
        return SHOAL_OK;
    }
    return tensor->is_contiguous ? read_elements(tensor, address, buffer) : read_strided(tensor, buffer);
}

shoal_status shoal_read(const shoal_tensor *tensor, void *buffer, size_t bytes)
{
    error_clear();
    if (!tensor || (!buffer && bytes > 0)) {
        return error_set(SHOAL_ERR_INVALID, "read: %s is NULL", tensor ? "buffer" : "tensor");
    }
    shoal_status status = read_tensor(tensor, buffer, bytes);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "read");
}
