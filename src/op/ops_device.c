/* SPDX-License-Identifier: MIT */
/* Between devices: the row to_device, shoal_read and shoal_write. */
#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/options.h"
#include "base/try.h"
#include "device/ending.h"
#include "device/stream.h"
#include "op/operand.h"
#include "op/rows.h"
#include "shoal/tensor.h"
#include "tensor/handle.h"

/* For calls that belong to no group. */
#define NO_TIMEOUT 0.0

shoal_status op_read_bytes(shoal_device device, void *target, struct address source, size_t bytes,
                           double timeout_s)
{
    double seconds = timeout_s > 0.0 ? timeout_s : option_seconds(OPTION_TIMEOUT);
    const struct wait_options options = {
        .deadline_ns = clock_deadline_after(seconds), .may_spin = true, .what = "a copy from a device"};
    shoal_status status = stream_read(device, target, source, bytes, &options);
    return status == SHOAL_ERR_TIMEOUT ? error_prefix(status, "device %s", device_name(device)) : status;
}

/* Elements one after the other, in memory of the tensor's device, to host memory. */
static shoal_status read_elements(const shoal_tensor *tensor, struct address elements, void *buffer,
                                  double timeout_s)
{
    shoal_status status =
        op_read_bytes((shoal_device)tensor->device, buffer, elements, tensor_bytes(tensor), timeout_s);
    ending_poll();
    return status;
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
        return read_elements(self, source, address_pointer(target), NO_TIMEOUT);
    }
    if (device_is_host(from)) {
        return stream_write(to, target, address_pointer(source), tensor_bytes(self));
    }
    void *between = shoal_op_workspace(call, tensor_bytes(self));
    if (!between) {
        return SHOAL_ERR_NO_MEMORY;
    }
    TRY(read_elements(self, source, between, NO_TIMEOUT));
    return stream_write(to, target, between, tensor_bytes(self));
}

/* shoal_read ------------------------------------------------------------------------------------------- */

/* Between a strided tensor of the host and a buffer. */
static shoal_status copy_here(const shoal_tensor *tensor, void *buffer, bool is_write)
{
    struct kernel_operand strided;
    int64_t strides[SHOAL_MAX_DIMS];
    const struct layout *layout = &tensor->layout;
    TRY(op_operand(tensor, &strided));
    layout_fill_strides(layout->n_dims, layout->shape, strides);
    const struct kernel_operand dense = {.data = address_of(buffer), .strides = strides};
    kernel_of(SHOAL_CPU)->copy_nd(tensor->dtype, is_write ? strided : dense, tensor->dtype,
                                  is_write ? dense : strided, layout->n_dims, layout->shape);
    return SHOAL_OK;
}

static bool is_strided_here(const shoal_tensor *tensor)
{
    return !tensor->is_contiguous && device_is_host((shoal_device)tensor->device);
}

static shoal_status check_buffer(const shoal_tensor *tensor, size_t bytes)
{
    if (handle_is_dead(tensor)) {
        return handle_fail(tensor);
    }
    if (bytes != tensor_bytes(tensor)) {
        char text[TENSOR_TEXT_BYTES];
        return error_set(SHOAL_ERR_INVALID, "the tensor %s has %zu bytes, the buffer %zu",
                         tensor_format(text, tensor), tensor_bytes(tensor), bytes);
    }
    return SHOAL_OK;
}

static shoal_status read_tensor(const shoal_tensor *tensor, void *buffer, size_t bytes, double timeout_s)
{
    struct address base;
    struct op_flat flat;
    TRY(check_buffer(tensor, bytes));
    TRY(tensor_wait_readable(tensor));
    TRY(tensor_address(tensor, &base));
    if (bytes == 0) {
        return SHOAL_OK;
    }
    if (is_strided_here(tensor)) {
        return copy_here(tensor, buffer, /*is_write=*/false);
    }
    TRY(op_flat_open(tensor, &flat));
    shoal_status status = read_elements(tensor, flat.data, buffer, timeout_s);
    op_flat_close(&flat);
    return status;
}

shoal_status op_read_tensor(const shoal_tensor *tensor, void *buffer, size_t bytes, double timeout_s)
{
    shoal_status status = read_tensor(tensor, buffer, bytes, timeout_s);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "read");
}

shoal_status shoal_read(const shoal_tensor *tensor, void *buffer, size_t bytes)
{
    error_clear();
    if (!tensor || (!buffer && bytes > 0)) {
        return error_set(SHOAL_ERR_INVALID, "read: %s is NULL", tensor ? "buffer" : "tensor");
    }
    return op_read_tensor(tensor, buffer, bytes, NO_TIMEOUT);
}

/* shoal_write ------------------------------------------------------------------------------------------ */

/* To a strided tensor of another device: by way of memory there. */
static shoal_status write_strided(const shoal_tensor *tensor, const void *buffer)
{
    struct op_flat flat = {.data = ADDRESS_NONE};
    shoal_device device = (shoal_device)tensor->device;
    TRY(memory_create(device, tensor_bytes(tensor), &flat.copy));
    flat.data = flat.copy->base;
    shoal_status status = stream_write(device, flat.data, buffer, tensor_bytes(tensor));
    status = status == SHOAL_OK ? op_flat_store(tensor, &flat) : status;
    op_flat_close(&flat);
    return status;
}

static shoal_status write_elements(const shoal_tensor *tensor, const void *buffer)
{
    struct address address;
    TRY(tensor_address(tensor, &address));
    if (tensor->count == 0) {
        return SHOAL_OK;
    }
    if (is_strided_here(tensor)) {
        return copy_here(tensor, (void *)(uintptr_t)buffer, /*is_write=*/true);
    }
    return tensor->is_contiguous
               ? stream_write((shoal_device)tensor->device, address, buffer, tensor_bytes(tensor))
               : write_strided(tensor, buffer);
}

static shoal_status write_tensor(const shoal_tensor *tensor, const void *buffer, size_t bytes)
{
    TRY(check_buffer(tensor, bytes));
    TRY(op_check_writable("tensor", tensor));
    TRY(tensor_wait_writable(tensor, /*overwrites=*/true));
    shoal_status status = write_elements(tensor, buffer);
    status = status == SHOAL_OK ? op_check_device((shoal_device)tensor->device) : status;
    storage_bump_version(tensor->storage); /* after a failure too: part of the data may have changed */
    TRY(status);
    tensor_forget_fences(tensor);
    return SHOAL_OK;
}

shoal_status shoal_write(shoal_tensor *tensor, const void *buffer, size_t bytes)
{
    error_clear();
    if (!tensor || (!buffer && bytes > 0)) {
        return error_set(SHOAL_ERR_INVALID, "write: %s is NULL", tensor ? "buffer" : "tensor");
    }
    shoal_status status = write_tensor(tensor, buffer, bytes);
    return status == SHOAL_OK ? SHOAL_OK : error_prefix(status, "write");
}
