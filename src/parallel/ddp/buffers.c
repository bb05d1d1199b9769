/* SPDX-License-Identifier: MIT */
#include "parallel/ddp/buffers.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "base/try.h"
#include "comm/call/collectives.h"
#include "comm/lane/handles.h"
#include "op/operand.h"
#include "parallel/ddp/order.h"
#include "parallel/ddp/purpose.h"
#include "device/device.h"
#include "device/stream.h"
#include "tensor/storage.h"
#include "tensor/tensor.h"

/* A walk over the buffers, which counts their bytes, reads them, or writes them. */
struct bundle {
    char *data; /* the values of all buffers, one after the other; NULL if the walk only counts bytes */
    size_t bytes;
    bool is_written;
    double timeout_s; /* how long the host waits for a device */
};

/* Writes the values of a tensor that is contiguous. */
static shoal_status write_values(const shoal_tensor *tensor, const char *part)
{
    struct address data;
    TRY(tensor_address(tensor, &data));
    return stream_write(tensor->storage->device, data, part, tensor_bytes(tensor));
}

/* By way of a contiguous tensor, and the op that copies tensors. */
static shoal_status copy_strided(shoal_tensor *buffer, char *part, bool is_written, double timeout_s)
{
    shoal_tensor *copy;
    TRY(tensor_create_empty(buffer->storage->device, buffer->dtype, buffer->layout.n_dims,
                            buffer->layout.shape, &copy));
    shoal_status status = is_written ? write_values(copy, part) : op_copy_into(copy, buffer);
    if (status == SHOAL_OK) {
        status = is_written ? op_copy_into(buffer, copy)
                            : op_read_tensor(copy, part, tensor_bytes(copy), timeout_s);
    }
    shoal_tensor_unref(copy);
    return status;
}

static bool has_values(const shoal_tensor *buffer, const char *part)
{
    void *data;
    return device_is_host(buffer->storage->device) && tensor_host_address(buffer, &data) == SHOAL_OK &&
           memcmp(data, part, tensor_bytes(buffer)) == 0;
}

/* What the host can see not to change is not written, and keeps its version. */
static shoal_status write_buffer(shoal_tensor *buffer, char *part)
{
    if (!buffer->is_contiguous) {
        TRY(copy_strided(buffer, part, true, 0.0));
    } else if (has_values(buffer, part)) {
        return SHOAL_OK;
    } else {
        TRY(write_values(buffer, part));
    }
    storage_bump_version(buffer->storage);
    return SHOAL_OK;
}

static shoal_status read_buffer(shoal_tensor *buffer, char *part, double timeout_s)
{
    return buffer->is_contiguous ? op_read_tensor(buffer, part, tensor_bytes(buffer), timeout_s)
                                 : copy_strided(buffer, part, false, timeout_s);
}

static shoal_status visit(void *context, const shoal_module_entry *entry, shoal_walk_next *next)
{
    struct bundle *bundle = context;
    shoal_tensor *buffer = entry->tensor;
    size_t bytes = tensor_bytes(buffer);
    char *part = bundle->data + bundle->bytes;
    (void)next;
    if (!device_has_data(buffer->storage->device)) {
        return error_set(SHOAL_ERR_UNSUPPORTED, "buffer %s is on device %s, which has no data", entry->path,
                         device_name(buffer->storage->device));
    }
    bundle->bytes += bytes;
    if (bytes == 0 || !bundle->data) {
        return SHOAL_OK;
    }
    TRY(bundle->is_written ? tensor_wait_writable(buffer, /*overwrites=*/false)
                           : tensor_wait_readable(buffer));
    return bundle->is_written ? write_buffer(buffer, part) : read_buffer(buffer, part, bundle->timeout_s);
}

/* All ranks read their buffers, because a buffer that cannot be read could not be written either. */
static shoal_status pack(struct ddp *ddp, struct bundle *bundle)
{
    TRY(shoal_module_walk(ddp->module, SHOAL_WALK_BUFFERS, visit, bundle));
    if (bundle->bytes > ddp->buffers.scratch_bytes) {
        mem_free(ddp->buffers.scratch);
        ddp->buffers.scratch_bytes = 0;
        ddp->buffers.scratch = mem_alloc(bundle->bytes);
        if (!ddp->buffers.scratch) {
            return SHOAL_ERR_NO_MEMORY;
        }
        ddp->buffers.scratch_bytes = bundle->bytes;
    }
    size_t bytes = bundle->bytes;
    *bundle = (struct bundle){.data = ddp->buffers.scratch, .timeout_s = shoal_group_timeout(ddp->group)};
    return bytes > 0 ? shoal_module_walk(ddp->module, SHOAL_WALK_BUFFERS, visit, bundle) : SHOAL_OK;
}

/* Aborts the lane, because the other ranks would wait for this one. */
static shoal_status give_up(struct ddp *ddp, shoal_status status)
{
    char text[ERROR_TEXT_BYTES];
    char reason[64];
    (void)snprintf(text, sizeof text, "%s", shoal_error_text());
    (void)snprintf(reason, sizeof reason, "aborted by rank %d: its buffers cannot be sent",
                   shoal_world_rank(shoal_group_world(ddp->group)));
    ddp_order_poison(ddp->order.shared, ddp->order.generation, SHOAL_ERR_CANCELLED, reason);
    group_poison(ddp->buffers.lane, SHOAL_ERR_CANCELLED, reason);
    return error_set(status, "ddp: %s", text);
}

shoal_status ddp_send_buffers(struct ddp *ddp)
{
    struct bundle bundle = {.bytes = 0};
    shoal_status status = pack(ddp, &bundle);
    if (status != SHOAL_OK) {
        return give_up(ddp, status);
    }
    if (bundle.bytes == 0) {
        return SHOAL_OK;
    }
    struct purpose purpose = ddp_purpose(ddp, PURPOSE_DDP_BUFFERS);
    struct collective call = {
        .kind = COLLECTIVE_BROADCAST,
        .dtype = SHOAL_U8,
        .single = {.send = ddp->buffers.scratch, .recv = ddp->buffers.scratch, .count = bundle.bytes},
        .purpose = &purpose};
    TRY(ddp_compare(ddp, &purpose));
    TRY(collectives_run(ddp->buffers.lane, &call));
    if (shoal_group_rank(ddp->buffers.lane) == 0) {
        return SHOAL_OK;
    }
    bundle = (struct bundle){.data = ddp->buffers.scratch, .is_written = true};
    return shoal_module_walk(ddp->module, SHOAL_WALK_BUFFERS, visit, &bundle);
}
